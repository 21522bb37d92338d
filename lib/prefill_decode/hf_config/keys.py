"""Keys: what a config.json says under each of the names that a key has had, and what was read."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefill_decode.model_spec import MOST_LAYERS, check_count

# One key under the names it has had.
NAMES = {
    "hidden_size": ("hidden_size", "n_embd", "n_embed"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer"),
    "num_attention_heads": ("num_attention_heads", "n_head"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "experts_per_token"),
    "norm_epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "dtype": ("dtype", "torch_dtype"),
    "activation": ("hidden_act", "hidden_activation", "activation_function", "activation"),
}
# Keys that change the counts, with the values that leave them as they are. A family that counts
# one reads it; for the others it must have such a value.
HARMLESS: dict[str, tuple[Any, ...]] = {
    "add_cross_attention": (None, False),
    "alibi": (None, False),
    "attention_bias": (None, False),
    "bias": (None, False),
    "do_layer_norm_before": (None, True),
    "enable_bias": (None, False),
    "is_encoder_decoder": (None, False),
    "kv_lora_rank": (None,),
    "layer_norm_elementwise_affine": (None, True),
    "layer_types": (None, []),
    "mlp_bias": (None, False),
    "n_routed_experts": (None, 0),
    "n_shared_experts": (None, 0),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "pruned_heads": (None, {}),
    "q_lora_rank": (None,),
    "qk_layernorm": (None, False),
    "qkv_bias": (None, False),
    "quantization_config": (None,),
    "sliding_window": (None,),
    "use_bias": (None, False),
    "use_qk_norm": (None, False),
    "use_sliding_window": (None, False),
    "word_embed_proj_dim": (None,),
}


@dataclass
class Keys:
    """A config and which of its keys have been read. Absent and null mean the same."""

    config: Mapping[str, Any]
    name: str
    read: set[str] = field(default_factory=set)

    def get(self, key: str, default: Any = None) -> Any:
        """The value under any of the key's names; ValueError if two of them disagree."""
        names = NAMES.get(key, (key,))
        self.read.update(names)
        given = {name: self.config[name] for name in names if self.config.get(name) is not None}
        values = list(given.values())
        if any(value != values[0] for value in values[1:]):
            raise ValueError(
                f"{self.name}: {' and '.join(given)} mean the same; got {given!s:.120}"
            )
        return values[0] if values else default

    def count(self, key: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self.get(key, default)
        if value is None:
            said = " or ".join(repr(name) for name in NAMES.get(key, (key,)))
            raise ValueError(f"{self.name}: config.json lacks {said}, which the counts need")
        return check_count(value, key, self.name)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.name}: {key} must be true or false; got {value!r:.60}")
        return value

    def positive(self, key: str, default: float) -> float:
        value = self.get(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value <= sys.float_info.max:  # JSON's whole numbers have no end
            raise ValueError(f"{self.name}: {key} must be a positive number; got {value!r:.60}")
        return float(value)

    def indices(self, key: str) -> list[int]:
        """A list of layer numbers, none if there is none."""
        value = self.get(key, [])
        if not isinstance(value, list) or not all(type(i) is int and i >= 0 for i in value):
            raise ValueError(f"{self.name}: {key} must be a list of layers; got {value!r:.60}")
        return value

    @property
    def num_layers(self) -> int:
        count = self.count("num_hidden_layers")
        if count > MOST_LAYERS:
            raise ValueError(
                f"{self.name}: num_hidden_layers must be at most {MOST_LAYERS}; got {count}"
            )
        return count

    def window(self, default: int | None) -> int | None:
        """Tokens of the sliding window. Here null says "none", and absence "the default"."""
        self.read.add("sliding_window")
        value = self.config.get("sliding_window", default)
        if value is None:
            return None
        return check_count(value, "sliding_window (null for none)", self.name)

    def refuse_unread(self) -> None:
        for key, harmless in HARMLESS.items():
            if key not in self.read and self.config.get(key) not in harmless:
                raise ValueError(
                    f"{self.name}: {key} is not counted for model_type "
                    f"{self.config.get('model_type')}; got {self.config[key]!r:.60}"
                )
