"""Gated: the families of dense decoders whose MLPs have a gate, as Llama's have."""

from typing import Any

from prefill_decode.hf_config.decoder import activation, decoder, head_dim, kv_heads
from prefill_decode.hf_config.keys import Keys
from prefill_decode.hf_config.windows import every_nth_full, late_windows, same_window
from prefill_decode.model_spec import ModelSpec, Vectors


def llama(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(attention_out_bias=bias, mlp_bias=keys.flag("mlp_bias", False))
    given = {"qkv_bias": bias, "vectors": vectors, "beyond_llama": activation(keys)}
    return decoder(keys, **{**given, **differences})


def granite(keys: Keys) -> ModelSpec:
    return llama(keys, beyond_llama="multipliers of embeddings, attention, residuals and logits")


def mistral(keys: Keys) -> ModelSpec:
    windows = same_window(keys, default=4096)
    words = activation(keys)
    return decoder(keys, num_kv_heads=kv_heads(keys), windows=windows, beyond_llama=words)


def phi3(keys: Keys) -> ModelSpec:
    return decoder(keys, windows=same_window(keys), beyond_llama=activation(keys))


def qwen2(keys: Keys) -> ModelSpec:
    keys.get("attention_bias")  # it has biases on Q, K and V whatever this says
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
        qkv_bias=True,
        windows=late_windows(keys),
        beyond_llama=activation(keys),
    )


def qwen3(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
        head_dim=keys.count("head_dim", 128),
        qkv_bias=bias,
        qk_norm=True,
        vectors=Vectors(attention_out_bias=bias),
        windows=late_windows(keys),
        beyond_llama=activation(keys),
    )


def gemma(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(
        norms_per_layer=differences.pop("norms_per_layer", 2), attention_out_bias=bias
    )
    return decoder(
        keys,
        tied=True,
        num_kv_heads=kv_heads(keys),
        head_dim=keys.count("head_dim", 256),
        qkv_bias=bias,
        vectors=vectors,
        beyond_llama="GELU, scaled embeddings, gains counted from one",
        **differences,
    )


def gemma2(keys: Keys) -> ModelSpec:
    return gemma(keys, norms_per_layer=4, windows=every_nth_full(keys, 2, 4096))


def gemma3(keys: Keys) -> ModelSpec:
    if keys.flag("use_bidirectional_attention", False):
        raise ValueError(f"{keys.name}: use_bidirectional_attention makes it no decoder; got true")
    windows = every_nth_full(keys, keys.count("sliding_window_pattern", 6), 4096)
    return gemma(keys, norms_per_layer=4, qk_norm=True, windows=windows)


def olmo2(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    vectors = Vectors(attention_out_bias=bias, separate_head_norms=True)
    words = "norms after each part"
    return decoder(keys, qkv_bias=bias, qk_norm=True, vectors=vectors, beyond_llama=words)


def cohere(keys: Keys, **differences: Any) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    return decoder(
        keys,
        tied=True,
        rms_norm=False,
        qkv_bias=bias,
        qk_norm=keys.flag("use_qk_norm", False),
        vectors=Vectors(norms_per_layer=1, attention_out_bias=bias, separate_head_norms=True),
        beyond_llama="attention and MLP side by side",
        **differences,
    )


def cohere2(keys: Keys) -> ModelSpec:
    pattern = keys.count("sliding_window_pattern", 4)
    windows = every_nth_full(keys, pattern, 4096)
    return cohere(keys, head_dim=head_dim(keys), windows=windows)
