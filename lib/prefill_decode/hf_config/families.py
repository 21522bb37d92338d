"""Families: a parsed config -> ModelSpec, by its model_type."""

from collections.abc import Callable, Mapping
from typing import Any

from prefill_decode.hf_config import gated, mixtures, ungated
from prefill_decode.hf_config.keys import Keys
from prefill_decode.model_spec import ModelSpec

QUANTIZED = {"mxfp4": "mxfp4", "fp8": "fp8"}  # quant_method: dtype
TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral"}  # where text_config leaves it out


FAMILIES: dict[str, Callable[[Keys], ModelSpec]] = {
    "llama": gated.llama,
    "mistral": gated.mistral,
    "mixtral": mixtures.mixtral,
    "qwen2": gated.qwen2,
    "qwen2_moe": mixtures.qwen2_moe,
    "qwen3": gated.qwen3,
    "qwen3_moe": mixtures.qwen3_moe,
    "gemma": gated.gemma,
    "gemma2": gated.gemma2,
    "gemma3": gated.gemma3,
    "gemma3_text": gated.gemma3,
    "phi3": gated.phi3,
    "gpt_oss": mixtures.gpt_oss,
    "deepseek_v2": mixtures.deepseek,
    "deepseek_v3": mixtures.deepseek,
    "olmo2": gated.olmo2,
    "granite": gated.granite,
    "cohere": gated.cohere,
    "cohere2": gated.cohere2,
    "starcoder2": ungated.starcoder2,
    "gpt2": ungated.gpt2,
    "gptj": ungated.gptj,
    "gpt_neox": ungated.gpt_neox,
    "falcon": ungated.falcon,
    "opt": ungated.opt,
    "bloom": ungated.bloom,
}


def from_config(config: Any, name: str, dtype: str | None = None) -> ModelSpec:
    """ModelSpec of a config.json, already parsed, in `dtype` or else in the config's own.

    ValueError names what is missing, wrong or not counted."""
    keys = Keys(decoder_part(config, name), name)
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


def decoder_part(config: Any, name: str) -> Mapping[str, Any]:
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
