"""ModelSpec: a model's shape, and the counts that follow from it.

Read from a Hugging Face config.json. The counts say how many parameters are stored, how many take
part in a matrix product for each token, and how many bytes of keys and values each token leaves
in the cache.

Counts:  dense Llama-like decoders: grouped-query attention, SwiGLU, RMSNorm, tied or untied output
         matrix, biases on Q, K and V (Qwen2), norms on Q and K heads (Qwen3).
Refuses: every other architecture, by name. A guess would be wrong silently.
Source:  the model code in Hugging Face transformers; the tests compare with published totals.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from math import inf
from pathlib import Path
from typing import Any

from prefill_decode.did_you_mean import did_you_mean

BYTES_PER_VALUE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
LARGEST_COUNT = 2**40
SIZES = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
)
# Keys that change the counts, with the values that leave them as they are; others are refused.
HARMLESS = {
    "attention_bias": (None, False),
    "mlp_bias": (None, False),
    "quantization_config": (None,),
    "hidden_act": (None, "silu"),
    "num_experts": (None, 0),
    "num_local_experts": (None, 0),
    "partial_rotary_factor": (None, 1, 1.0),
    "tie_word_embeddings": (None, False, True),
}
# model_type: (biases on Q, K and V; norms on the heads of Q and K)
ARCHITECTURES = {
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
}


@dataclass(frozen=True)
class ModelSpec:
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    dtype: str = "bfloat16"  # of the weights and of the KV cache

    def __post_init__(self) -> None:
        for field in SIZES:
            _check_count(getattr(self, field), field, self.name)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: query heads share KV heads evenly, so num_heads must be a "
                f"multiple of "
                f"num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"{self.name}: rotary embedding turns pairs, so head_dim must be even; "
                f"got {self.head_dim}"
            )
        if self.dtype not in BYTES_PER_VALUE:
            raise ValueError(
                f"{self.name}: dtype must be one of {', '.join(BYTES_PER_VALUE)}; got "
                f"{self.dtype!r}"
            )

    def with_dtype(self, dtype: str) -> "ModelSpec":
        return replace(self, dtype=dtype)

    @property
    def bytes_per_weight(self) -> int:
        return BYTES_PER_VALUE[self.dtype]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys of one token in one layer; the values are as wide."""
        return self.num_kv_heads * self.head_dim

    @property
    def layer_params(self) -> int:
        """Weights of one layer that take part in matrix products."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def block_params(self) -> int:
        return self.num_layers * self.layer_params

    @property
    def lm_head_params(self) -> int:
        """The output matrix: multiplied once for each sampled token, tied or not."""
        return self.vocab_size * self.hidden_size

    @property
    def matmul_params(self) -> int:
        """Weights that take part in a matrix product for one token whose logits are wanted."""
        return self.block_params + self.lm_head_params

    @property
    def total_params(self) -> int:
        """Every stored parameter once: matrices, embedding, norms, biases."""
        norms = (2 * self.num_layers + 1) * self.hidden_size
        head_norms = self.num_layers * 2 * self.head_dim * self.qk_norm
        biases = self.num_layers * (self.query_size + 2 * self.kv_size) * self.qkv_bias
        embeddings = self.lm_head_params * (1 if self.tied_embeddings else 2)
        return self.block_params + embeddings + norms + head_norms + biases

    @property
    def weight_bytes(self) -> int:
        return self.total_params * self.bytes_per_weight

    @property
    def weight_bytes_read(self) -> int:
        """Bytes of weights that one step reads; the input embedding gives only single rows."""
        return self.matmul_params * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * self.num_layers * self.kv_size * self.bytes_per_weight

    @property
    def linear_flops_per_token(self) -> int:
        return 2 * self.matmul_params


def from_config(config: Mapping[str, Any], name: str) -> ModelSpec:
    """ModelSpec of a Hugging Face config.json, already parsed. ValueError names what is wrong."""
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}: a config is an object; got a {type(config).__name__}")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ValueError(
            f"{name}: model_type must be one of {', '.join(ARCHITECTURES)}; got {model_type!r}. "
            "Other architectures are counted differently, so they are refused and not guessed"
        )
    for key, harmless in HARMLESS.items():
        ignored = key == "attention_bias" and model_type == "qwen2"  # it has its own
        if config.get(key) not in harmless and not ignored:
            raise ValueError(f"{name}: {key} is not counted yet; got {config[key]!r}")
    if _window_in_use(config):
        raise ValueError(
            f"{name}: sliding-window attention is not counted yet; got sliding_window="
            f"{config.get('sliding_window')}"
        )
    qkv_bias, qk_norm = ARCHITECTURES[model_type]
    num_heads = _count(config, "num_attention_heads", name)
    hidden_size = _count(config, "hidden_size", name)
    return ModelSpec(
        name=name,
        num_layers=_count(config, "num_hidden_layers", name),
        hidden_size=hidden_size,
        intermediate_size=_count(config, "intermediate_size", name),
        num_heads=num_heads,
        num_kv_heads=_count(config, "num_key_value_heads", name, num_heads),
        head_dim=_count(config, "head_dim", name, _even_share(hidden_size, num_heads)),
        vocab_size=_count(config, "vocab_size", name),
        tied_embeddings=bool(_or_default(config, "tie_word_embeddings", False)),
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        rope_theta=_positive(config, "rope_theta", name, 10_000.0),
        norm_epsilon=_positive(config, "rms_norm_eps", name, 1e-6),
        dtype=str(_or_default(config, "dtype", _or_default(config, "torch_dtype", "bfloat16"))),
    )


def read(path: Path) -> ModelSpec:
    """ModelSpec of a config.json file, named after its folder. ValueError if unusable."""
    path = Path(path)
    name = path.parent.name if path.name == "config.json" else path.stem
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: a model needs a readable config.json; {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a config.json holds one object; got a {type(config).__name__}")
    return from_config(config, name)


def names() -> list[str]:
    """Models whose configs ship with the library, smallest first."""
    return [model.name for model in shipped()]


def shipped() -> list[ModelSpec]:
    folder = files("prefill_decode") / "models"
    paths = [Path(str(item)) for item in folder.iterdir() if item.name.endswith(".json")]
    return sorted((read(path) for path in paths), key=lambda model: model.total_params)


def get(name: str) -> ModelSpec:
    """A shipped model by its name. ValueError names the nearest one."""
    found = {model.name: model for model in shipped()}
    if not isinstance(name, str) or name not in found:
        hint = did_you_mean(name, found)
        raise ValueError(f"model must be one of {', '.join(found)}; got {name!r}{hint}")
    return found[name]


def _even_share(hidden_size: int, num_heads: int) -> int | None:
    """The head size that follows from the hidden size; None when it does not divide."""
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _count(config: Mapping[str, Any], key: str, name: str, default: int | None = None) -> int:
    """A positive whole number; `default` stands in for absent and null where there is one."""
    value = _or_default(config, key, default)
    if value is None:
        raise ValueError(f"{name}: config.json lacks {key!r}, which the counts need")
    return _check_count(value, key, name)


def _check_count(value: Any, key: str, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < LARGEST_COUNT:
        raise ValueError(f"{name}: {key} must be a positive whole number; got {value!r}")
    return value


def _positive(config: Mapping[str, Any], key: str, name: str, default: float) -> float:
    value = _or_default(config, key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < inf:
        raise ValueError(f"{name}: {key} must be a positive number; got {value!r}")
    return float(value)


def _or_default(config: Mapping[str, Any], key: str, default: Any) -> Any:
    """Absent and null mean the same in published configs."""
    value = config.get(key)
    return default if value is None else value


def _window_in_use(config: Mapping[str, Any]) -> bool:
    if "sliding_attention" in (config.get("layer_types") or ()):
        return True
    if config.get("model_type") in ("qwen2", "qwen3"):
        return bool(config.get("use_sliding_window")) and config.get("sliding_window") is not None
    return config.get("sliding_window") is not None
