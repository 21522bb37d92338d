"""Decoder: what the configs of all families share, and what several families do alike."""

from collections.abc import Mapping
from math import nan
from typing import Any

from prefill_decode.hf_config.keys import NAMES, Keys
from prefill_decode.model_spec import ModelSpec, RopeScaling


def decoder(keys: Keys, *, tied: bool = False, **differences: Any) -> ModelSpec:
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


def head_dim(keys: Keys) -> int:
    """For families whose heads always share the hidden size."""
    hidden_size, num_heads = keys.count("hidden_size"), keys.count("num_attention_heads")
    if hidden_size % num_heads:
        raise ValueError(
            f"{keys.name}: heads share hidden_size evenly; got {hidden_size} for {num_heads} heads"
        )
    return hidden_size // num_heads


def kv_heads(keys: Keys) -> int:
    """For families whose own default is a number and not the number of query heads: null means
    as many, but absence is an error."""
    if not any(name in keys.config for name in NAMES["num_key_value_heads"]):
        return keys.count("num_key_value_heads")
    return keys.count("num_key_value_heads", keys.count("num_attention_heads"))


def activation(keys: Keys) -> str:
    """Words for an activation that is not SwiGLU's."""
    activation = keys.get("activation", "silu")
    return "" if activation in ("silu", "swish") else f"activation {activation!r:.60}"
