"""hf_config: a Hugging Face config.json -> ModelSpec, family by family.

Reads:   the decoder of the model types in FAMILIES; of a config with a text_config, that decoder
         alone. Null means "not given". What a config leaves out takes the family's default where
         that is a fact of the family (tied or not, biases, head size, windows); a size that is
         left out is an error, and so is a key that would change the counts and is not read.
Refuses: every other architecture, by name. A guess would be wrong silently.
Source:  the configuration and model code of Hugging Face transformers 5, with which the tests
         compare every family; `moe_layer_freq` as in DeepSeek's published modelling code.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from math import nan
from pathlib import Path
from typing import Any

from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.model_spec import (
    LARGEST_COUNT,
    MOST_LAYERS,
    Experts,
    LatentAttention,
    ModelSpec,
    RopeScaling,
    Vectors,
    check_count,
)

LARGEST_FILE_BYTES = 10_000_000
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
QUANTIZED = {"mxfp4": "mxfp4", "fp8": "fp8"}  # quant_method: dtype
TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral"}  # where text_config leaves it out
FULL, SLIDING = "full_attention", "sliding_attention"


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


def from_config(config: Any, name: str, dtype: str | None = None) -> ModelSpec:
    """ModelSpec of a config.json, already parsed, in `dtype` or else in the config's own.

    ValueError names what is missing, wrong or not counted."""
    keys = Keys(_decoder_part(config, name), name)
    model_type = keys.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(
            f"{name}: model_type must be one of {', '.join(FAMILIES)}; got {model_type!r:.60}. "
            "Other architectures are counted differently, so they are refused and not guessed"
        )
    own_dtype = _dtype(keys) if dtype is None else dtype
    keys.read.add("quantization_config")
    model = FAMILIES[model_type](keys)
    keys.refuse_unread()
    return model.with_dtype(own_dtype)


def read(path: Path | str, dtype: str | None = None) -> ModelSpec:
    """ModelSpec of a config.json, or of the folder that holds one; named after the folder."""
    config, name = read_config(path)
    return from_config(config, name, dtype)


def read_config(path: Path | str) -> tuple[Mapping[str, Any], str]:
    """The object in a config.json, or in that of a folder, and the model's name."""
    path = Path(path)
    try:
        path = path / "config.json" if path.is_dir() else path
        name = path.resolve().parent.name if path.name == "config.json" else path.stem
        config = _parsed(path)
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: a model needs a readable config.json; {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: a config.json holds one object; got a {type(config).__name__}")
    return config, name or "model"


def _parsed(path: Path) -> Any:
    if path.exists() and not path.is_file():
        raise ValueError("it is no regular file")
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise ValueError(f"it has at most {LARGEST_FILE_BYTES} bytes; got {path.stat().st_size}")
    return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys differ; of two values for one key either might be meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"a key is given once; got {twice!r:.60} twice")
    return found


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


def find(word: str, dtype: str | None = None) -> ModelSpec:
    """A shipped model by its name, or the one in a config.json or in the folder that holds it."""
    if word in names():
        model = get(word)
        return model if dtype is None else model.with_dtype(dtype)
    try:
        path = Path(word)
        is_path = path.exists() or path.suffix == ".json" or path.name != word
    except (OSError, ValueError) as error:
        raise ValueError(f"{word!r:.60} is no path to a config.json; {error}") from error
    if is_path:
        return read(path, dtype)
    hint = did_you_mean(word, names())
    raise ValueError(
        f"a model is a path to a config.json or one of {', '.join(names())}; got {word!r:.60}{hint}"
    )


def most_positions(path: Path) -> int | None:
    """The longest sequence of a config.json, or of that in a folder, as its author has set it;
    None where there is no such file, or no limit in it. How rotary positions are stretched adds
    nothing: newer configs give the length that is reached so."""
    if not (path.is_file() or (path / "config.json").is_file()):
        return None
    config, name = read_config(path)
    keys = Keys(_decoder_part(config, name), name)
    if keys.get("max_position_embeddings") is None:
        return None
    return keys.count("max_position_embeddings")


def _decoder_part(config: Any, name: str) -> Mapping[str, Any]:
    """The config of the text decoder, which a multimodal config holds in text_config."""
    if not isinstance(config, Mapping):
        raise ValueError(f"{name}: a config is an object; got a {type(config).__name__}")
    inner = config.get("text_config")
    if inner is None:
        return config
    if not isinstance(inner, Mapping):
        raise ValueError(f"{name}: text_config is an object; got a {type(inner).__name__}")
    given = {key: value for key, value in inner.items() if value is not None}
    shared = ("dtype", "torch_dtype", "tie_word_embeddings", "quantization_config")
    outer = {key: config[key] for key in shared if config.get(key) is not None}
    if "dtype" in given or "torch_dtype" in given:
        outer = {key: value for key, value in outer.items() if "dtype" not in key}
    model_type = config.get("model_type")
    fallback = TEXT_TYPES.get(model_type) if isinstance(model_type, str) else None
    return {**inner, "model_type": fallback, **outer, **given}


def _dtype(keys: Keys) -> str:
    quantization = keys.get("quantization_config")
    if quantization is None:
        return str(keys.get("dtype", "bfloat16"))
    method = quantization.get("quant_method") if isinstance(quantization, Mapping) else None
    if not isinstance(method, str) or method not in QUANTIZED:
        raise ValueError(
            f"{keys.name}: quantization_config is not counted unless its quant_method is "
            f"{' or '.join(QUANTIZED)}; got {method!r:.60}. Name a dtype to price instead"
        )
    return QUANTIZED[method]


def _decoder(keys: Keys, *, tied: bool = False, **differences: Any) -> ModelSpec:
    """What all families share, with a family's `differences` on top."""
    hidden_size = keys.count("hidden_size")
    num_heads = keys.count("num_attention_heads")
    common = {
        "name": keys.name,
        "num_layers": keys.num_layers,
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "vocab_size": keys.count("vocab_size"),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied),
        "rope_theta": _rope(keys).positive("rope_theta", 10_000.0),
        "norm_epsilon": keys.positive("norm_epsilon", 1e-6),
        "positions": _positions(keys),
    }
    if "intermediate_size" not in differences:
        common["intermediate_size"] = keys.count("intermediate_size")
    if "num_kv_heads" not in differences:
        common["num_kv_heads"] = keys.count("num_key_value_heads", num_heads)
    if "head_dim" not in differences:
        common["head_dim"] = keys.count("head_dim", _even_share(hidden_size, num_heads))
    return ModelSpec(**{**common, **differences})


def _rope(keys: Keys) -> Keys:
    """Where the rotary settings lie: at the top, or since transformers 5 in rope_parameters."""
    inside = keys.get("rope_parameters")
    if isinstance(inside, Mapping) and "rope_theta" in inside:
        return Keys(inside, keys.name)
    return keys


def rope_scaling(keys: Keys) -> RopeScaling | None:
    """How rotary positions are stretched. ValueError names a way that the engine lacks."""
    given = keys.get("rope_parameters") or keys.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{keys.name}: rope_scaling must be an object; got {given!r:.60}")
    inside = Keys(given, keys.name)
    kind = inside.get("rope_type", inside.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", inside.positive("factor", nan))
    if kind != "llama3":
        raise ValueError(
            f"{keys.name}: rope_scaling must be default, linear or llama3 for the engine to run "
            f"stored weights; got {kind!r:.60}"
        )
    return RopeScaling(
        "llama3",
        inside.positive("factor", nan),
        inside.positive("low_freq_factor", nan),
        inside.positive("high_freq_factor", nan),
        inside.count("original_max_position_embeddings"),
    )


def _positions(keys: Keys) -> str:
    factors = [keys.get("partial_rotary_factor"), keys.get("rotary_pct")]
    inside = keys.get("rope_parameters")
    if isinstance(inside, Mapping):
        factors.append(inside.get("partial_rotary_factor"))
    whole = all(factor is None or factor == 1 for factor in factors)
    return "rotary" if whole else "partly rotary"


def _even_share(hidden_size: int, num_heads: int) -> int | None:
    """The head size that follows from the hidden size; None when it does not divide."""
    return hidden_size // num_heads if hidden_size % num_heads == 0 else None


def _head_dim(keys: Keys) -> int:
    """For families whose heads always share the hidden size."""
    hidden_size, num_heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    if hidden_size % num_heads:
        raise ValueError(
            f"{keys.name}: heads share hidden_size evenly; got {hidden_size} for {num_heads} heads"
        )
    return hidden_size // num_heads


def _kv_heads(keys: Keys) -> int:
    """For families whose own default is a number and not the number of query heads: null means
    as many, but absence is an error."""
    if not any(name in keys.config for name in NAMES["num_key_value_heads"]):
        return keys.count("num_key_value_heads")
    return keys.count("num_key_value_heads", keys.count("num_attention_heads"))


def _activation(keys: Keys) -> str:
    """Words for an activation that is not SwiGLU's."""
    activation = keys.get("activation", "silu")
    return "" if activation in ("silu", "swish") else f"activation {activation!r:.60}"


# Windows.


def _same_window(keys: Keys, default: int | None = None) -> tuple[int | None, ...] | None:
    """One window in every layer, or none."""
    window = keys.window(default)
    types = _layer_types(keys, [FULL if window is None else SLIDING] * keys.num_layers)
    if len(set(types)) > 1 or (types[0] == SLIDING) != (window is not None):
        raise ValueError(
            f"{keys.name}: layer_types is not counted where every layer has the same window; "
            f"got {sorted(set(types))} and sliding_window {window}"
        )
    return None if window is None else (window,) * keys.num_layers


def _every_nth_full(keys: Keys, pattern: int, default: int) -> tuple[int | None, ...]:
    """Windows in all layers but each `pattern`th, unless layer_types says otherwise."""
    layers = range(1, keys.num_layers + 1)
    types = _layer_types(keys, [SLIDING if n % pattern else FULL for n in layers])
    return _windows_of(keys, types, keys.window(default))


def _late_windows(keys: Keys) -> tuple[int | None, ...] | None:
    """Qwen2's and Qwen3's: from layer max_window_layers on, and only if switched on."""
    late = keys.get("max_window_layers", 28)
    if type(late) is not int or late < 0:
        raise ValueError(f"{keys.name}: max_window_layers must be a whole number; got {late!r:.60}")
    if not keys.flag("use_sliding_window", False):
        keys.read.add("sliding_window")
        _windows_of(keys, _layer_types(keys, [FULL] * keys.num_layers), None)
        return None
    window, layers = keys.window(4096), range(keys.num_layers)
    default = [SLIDING if window is not None and i >= late else FULL for i in layers]
    return _windows_of(keys, _layer_types(keys, default), window)


def _layer_types(keys: Keys, default: list[str]) -> list[str]:
    types = keys.get("layer_types") or default
    if not isinstance(types, list) or any(kind not in (FULL, SLIDING) for kind in types):
        raise ValueError(
            f"{keys.name}: layer_types must be a list of {FULL} and {SLIDING}; got {types!r:.90}"
        )
    if len(types) != keys.num_layers:
        raise ValueError(
            f"{keys.name}: layer_types has one entry a layer; got {len(types)} for "
            f"{keys.num_layers} layers"
        )
    return types


def _windows_of(keys: Keys, types: list[str], window: int | None) -> tuple[int | None, ...]:
    if window is None and SLIDING in types:
        raise ValueError(
            f"{keys.name}: layers with {SLIDING} need sliding_window, which is null or switched off"
        )
    return tuple(window if kind == SLIDING else None for kind in types)


# Families.


def _llama(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(attention_out_bias=bias, mlp_bias=keys.flag("mlp_bias", False))
    given = {"qkv_bias": bias, "vectors": vectors, "beyond_llama": _activation(keys)}
    return _decoder(keys, **{**given, **differences})


def _granite(keys: Keys) -> ModelSpec:
    return _llama(keys, beyond_llama="multipliers of embeddings, attention, residuals and logits")


def _mistral(keys: Keys) -> ModelSpec:
    windows = _same_window(keys, default=4096)
    words = _activation(keys)
    return _decoder(keys, num_kv_heads=_kv_heads(keys), windows=windows, beyond_llama=words)


def _phi3(keys: Keys) -> ModelSpec:
    return _decoder(keys, windows=_same_window(keys), beyond_llama=_activation(keys))


def _qwen2(keys: Keys) -> ModelSpec:
    keys.get("attention_bias")  # it has biases on Q, K and V whatever this says
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        qkv_bias=True,
        windows=_late_windows(keys),
        beyond_llama=_activation(keys),
    )


def _qwen3(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        head_dim=keys.count("head_dim", 128),
        qkv_bias=bias,
        qk_norm=True,
        vectors=Vectors(attention_out_bias=bias),
        windows=_late_windows(keys),
        beyond_llama=_activation(keys),
    )


def _mixtral(keys: Keys) -> ModelSpec:
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        experts=Experts(
            keys.count("num_experts"),
            keys.count("experts_per_token"),
            keys.count("intermediate_size"),
        ),
        windows=_same_window(keys),
    )


def _qwen2_moe(keys: Keys) -> ModelSpec:
    layers = range(1, keys.num_layers + 1)
    window = keys.window(4096) if keys.flag("use_sliding_window", False) else None
    early = keys.count("max_window_layers", 28)
    types = [SLIDING if window and n % 2 and n <= early else FULL for n in layers]
    keys.read.add("sliding_window")
    experts = _qwen_experts(
        keys,
        shared_intermediate_size=keys.count("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        intermediate_size=_dense_size(keys, experts),
        qkv_bias=keys.flag("qkv_bias", True),
        experts=experts,
        windows=_windows_of(keys, _layer_types(keys, types), window) if window else None,
    )


def _qwen3_moe(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    window = keys.window(4096) if keys.flag("use_sliding_window", False) else None
    keys.read.add("sliding_window")
    experts = _qwen_experts(keys)
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        intermediate_size=_dense_size(keys, experts),
        qkv_bias=bias,
        qk_norm=True,
        vectors=Vectors(attention_out_bias=bias),
        experts=experts,
        windows=(window,) * keys.num_layers if window else None,
    )


def _qwen_experts(keys: Keys, **shared: Any) -> Experts:
    """Experts in each decoder_sparse_step-th layer but those of mlp_only_layers."""
    step, only = keys.count("decoder_sparse_step", 1), keys.indices("mlp_only_layers")
    dense = [i for i in range(keys.num_layers) if i in only or (i + 1) % step]
    return Experts(
        keys.count("num_experts"),
        keys.count("experts_per_token"),
        keys.count("moe_intermediate_size"),
        dense_layers=tuple(dense),
        **shared,
    )


def _dense_size(keys: Keys, experts: Experts) -> int:
    """Width of the ordinary MLPs; with none of them, the width that will not be used."""
    return keys.count(
        "intermediate_size", None if experts.dense_layers else experts.intermediate_size
    )


def _deepseek(keys: Keys) -> ModelSpec:
    latent = LatentAttention(
        query_rank=keys.get("q_lora_rank"),
        kv_rank=keys.count("kv_lora_rank"),
        nope_head_dim=keys.count("qk_nope_head_dim"),
        rope_head_dim=keys.count("qk_rope_head_dim"),
        value_head_dim=keys.count("v_head_dim"),
    )
    experts = _deepseek_experts(keys)
    return _decoder(
        keys,
        num_kv_heads=keys.count("num_attention_heads"),
        head_dim=latent.query_head_dim,
        intermediate_size=_dense_size(keys, experts),
        latent=latent,
        experts=experts,
    )


def _deepseek_experts(keys: Keys) -> Experts:
    first = keys.get("first_k_dense_replace")
    if type(first) is not int or first < 0:
        raise ValueError(
            f"{keys.name}: first_k_dense_replace must say how many layers come first without "
            f"experts; got {first!r:.60}"
        )
    every = keys.count("moe_layer_freq", 1)
    size, shared = keys.count("moe_intermediate_size"), keys.get("n_shared_experts", 0)
    if type(shared) is not int or not 0 <= shared < LARGEST_COUNT:
        raise ValueError(f"{keys.name}: n_shared_experts must be a count; got {shared!r:.60}")
    return Experts(
        keys.count("num_experts"),
        keys.count("experts_per_token"),
        size,
        shared_intermediate_size=shared * size,
        dense_layers=tuple(i for i in range(keys.num_layers) if i < first or i % every),
    )


def _gpt_oss(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", True)
    return _decoder(
        keys,
        num_kv_heads=_kv_heads(keys),
        head_dim=keys.count("head_dim", 64),
        qkv_bias=bias,
        vectors=Vectors(attention_out_bias=bias, attention_sinks=True),
        experts=Experts(
            keys.count("num_experts"),
            keys.count("experts_per_token"),
            keys.count("intermediate_size"),
            biases=True,
        ),
        windows=_every_nth_full(keys, 2, 128),
    )


def _gemma(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(
        norms_per_layer=differences.pop("norms_per_layer", 2), attention_out_bias=bias
    )
    return _decoder(
        keys,
        tied=True,
        num_kv_heads=_kv_heads(keys),
        head_dim=keys.count("head_dim", 256),
        qkv_bias=bias,
        vectors=vectors,
        beyond_llama="GELU, scaled embeddings, gains counted from one",
        **differences,
    )


def _gemma2(keys: Keys) -> ModelSpec:
    return _gemma(keys, norms_per_layer=4, windows=_every_nth_full(keys, 2, 4096))


def _gemma3(keys: Keys) -> ModelSpec:
    if keys.flag("use_bidirectional_attention", False):
        raise ValueError(f"{keys.name}: use_bidirectional_attention makes it no decoder; got true")
    windows = _every_nth_full(keys, keys.count("sliding_window_pattern", 6), 4096)
    return _gemma(keys, norms_per_layer=4, qk_norm=True, windows=windows)


def _olmo2(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(attention_out_bias=bias, separate_head_norms=True)
    words = "norms after each part"
    return _decoder(keys, qkv_bias=bias, qk_norm=True, vectors=vectors, beyond_llama=words)


def _cohere(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    return _decoder(
        keys,
        tied=True,
        rms_norm=False,
        qkv_bias=bias,
        qk_norm=keys.flag("use_qk_norm", False),
        vectors=Vectors(norms_per_layer=1, attention_out_bias=bias, separate_head_norms=True),
        beyond_llama="attention and MLP side by side",
        **differences,
    )


def _cohere2(keys: Keys) -> ModelSpec:
    pattern = keys.count("sliding_window_pattern", 4)
    windows = _every_nth_full(keys, pattern, 4096)
    return _cohere(keys, head_dim=_head_dim(keys), windows=windows)


def _starcoder2(keys: Keys) -> ModelSpec:
    bias = keys.flag("use_bias", True)
    return _decoder(
        keys,
        tied=True,
        num_kv_heads=_kv_heads(keys),
        qkv_bias=bias,
        gated_mlp=False,
        rms_norm=False,
        vectors=Vectors(norm_biases=True, attention_out_bias=bias, mlp_bias=bias),
        windows=_same_window(keys),
    )


def _ungated(keys: Keys, vectors: Vectors, **differences: Any) -> ModelSpec:
    """GPT-2 and its kin: LayerNorm with biases, an MLP without a gate, all heads with own keys."""
    given = {
        "num_kv_heads": keys.count("num_attention_heads"),
        "head_dim": _head_dim(keys),
        "gated_mlp": False,
        "rms_norm": False,
    }
    return _decoder(keys, vectors=vectors, **{**given, **differences})


def _gpt2(keys: Keys) -> ModelSpec:
    vectors = Vectors(
        norm_biases=True,
        attention_out_bias=True,
        mlp_bias=True,
        position_rows=keys.count("max_position_embeddings"),
    )
    return _ungated(
        keys,
        vectors,
        tied=True,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        qkv_bias=True,
        positions="learned",
    )


def _gptj(keys: Keys) -> ModelSpec:
    vectors = Vectors(norms_per_layer=1, norm_biases=True, mlp_bias=True, lm_head_bias=True)
    if keys.flag("tie_word_embeddings", False):
        raise ValueError(f"{keys.name}: tie_word_embeddings is not counted for gptj; got true")
    return _ungated(
        keys,
        vectors,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        positions="partly rotary",
    )


def _gpt_neox(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", True)
    vectors = Vectors(norm_biases=True, attention_out_bias=bias, mlp_bias=True)
    return _ungated(keys, vectors, qkv_bias=bias, positions="partly rotary")


def _bloom(keys: Keys) -> ModelSpec:
    vectors = Vectors(norm_biases=True, attention_out_bias=True, mlp_bias=True, embedding_norm=True)
    size = 4 * keys.count("hidden_size")
    return _ungated(
        keys, vectors, tied=True, intermediate_size=size, qkv_bias=True, positions="ALiBi"
    )


def _opt(keys: Keys) -> ModelSpec:
    hidden_size = keys.count("hidden_size")
    if keys.count("word_embed_proj_dim", hidden_size) != hidden_size:
        raise ValueError(
            f"{keys.name}: word_embed_proj_dim is not counted unless it equals hidden_size "
            f"{hidden_size}; got {keys.get('word_embed_proj_dim')}"
        )
    bias = keys.flag("enable_bias", True)
    vectors = Vectors(
        norm_biases=True,
        attention_out_bias=bias,
        mlp_bias=bias,
        position_rows=keys.count("max_position_embeddings") + 2,  # two rows are never used
    )
    return _ungated(keys, vectors, tied=True, qkv_bias=bias, positions="learned")


def _falcon(keys: Keys) -> ModelSpec:
    """Falcon-7B has one KV head (multi_query), Falcon-40B groups (new_decoder_architecture)."""
    new = keys.flag("new_decoder_architecture", False)
    one = keys.flag("multi_query", True) and not new
    beside = keys.flag("parallel_attn", True)
    num_heads = keys.count("num_attention_heads")
    norms = keys.count("num_ln_in_parallel_attn", 2 if new else 1) if beside else 2
    bias = keys.flag("bias", False)
    given_kv_heads = keys.count("num_key_value_heads", num_heads)
    return _ungated(
        keys,
        Vectors(norm_biases=True, norms_per_layer=norms, attention_out_bias=bias, mlp_bias=bias),
        tied=True,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        num_kv_heads=1 if one else given_kv_heads if new else num_heads,
        qkv_bias=bias,
        positions="ALiBi" if keys.flag("alibi", False) else "rotary",
    )


FAMILIES: dict[str, Callable[[Keys], ModelSpec]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "olmo2": _olmo2,
    "granite": _granite,
    "cohere": _cohere,
    "cohere2": _cohere2,
    "starcoder2": _starcoder2,
    "gpt2": _gpt2,
    "gptj": _gptj,
    "gpt_neox": _gpt_neox,
    "falcon": _falcon,
    "opt": _opt,
    "bloom": _bloom,
}
