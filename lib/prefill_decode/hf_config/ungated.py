"""Ungated: the families of dense decoders whose MLPs have no gate, GPT-2 and what came after it."""

from typing import Any

from prefill_decode.hf_config.decoder import decoder, head_dim, kv_heads
from prefill_decode.hf_config.keys import Keys
from prefill_decode.hf_config.windows import same_window
from prefill_decode.model_spec import ModelSpec, Vectors


def _like_gpt2(keys: Keys, vectors: Vectors, **differences: Any) -> ModelSpec:
    """LayerNorm with biases, an MLP without a gate, all heads with keys of their own."""
    given = {
        "num_kv_heads": keys.count("num_attention_heads"),
        "head_dim": head_dim(keys),
        "gated_mlp": False,
        "rms_norm": False,
    }
    return decoder(keys, vectors=vectors, **{**given, **differences})


def gpt2(keys: Keys) -> ModelSpec:
    vectors = Vectors(
        norm_biases=True,
        attention_out_bias=True,
        mlp_bias=True,
        position_rows=keys.count("max_position_embeddings"),
    )
    return _like_gpt2(
        keys,
        vectors,
        tied=True,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        qkv_bias=True,
        positions="learned",
    )


def gptj(keys: Keys) -> ModelSpec:
    vectors = Vectors(norms_per_layer=1, norm_biases=True, mlp_bias=True, lm_head_bias=True)
    if keys.flag("tie_word_embeddings", False):
        raise ValueError(f"{keys.name}: tie_word_embeddings is not counted for gptj; got true")
    return _like_gpt2(
        keys,
        vectors,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        positions="partly rotary",
    )


def gpt_neox(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", True)
    vectors = Vectors(norm_biases=True, attention_out_bias=bias, mlp_bias=True)
    return _like_gpt2(keys, vectors, qkv_bias=bias, positions="partly rotary")


def bloom(keys: Keys) -> ModelSpec:
    vectors = Vectors(norm_biases=True, attention_out_bias=True, mlp_bias=True, embedding_norm=True)
    size = 4 * keys.count("hidden_size")
    return _like_gpt2(
        keys, vectors, tied=True, intermediate_size=size, qkv_bias=True, positions="ALiBi"
    )


def opt(keys: Keys) -> ModelSpec:
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
    return _like_gpt2(keys, vectors, tied=True, qkv_bias=bias, positions="learned")


def falcon(keys: Keys) -> ModelSpec:
    """Falcon-7B has one KV head (multi_query), Falcon-40B groups (new_decoder_architecture)."""
    new = keys.flag("new_decoder_architecture", False)
    one = keys.flag("multi_query", True) and not new
    beside = keys.flag("parallel_attn", True)
    num_heads = keys.count("num_attention_heads")
    norms = keys.count("num_ln_in_parallel_attn", 2 if new else 1) if beside else 2
    bias = keys.flag("bias", False)
    given_kv_heads = keys.count("num_key_value_heads", num_heads)
    return _like_gpt2(
        keys,
        Vectors(norm_biases=True, norms_per_layer=norms, attention_out_bias=bias, mlp_bias=bias),
        tied=True,
        intermediate_size=keys.count("intermediate_size", 4 * keys.count("hidden_size")),
        num_kv_heads=1 if one else given_kv_heads if new else num_heads,
        qkv_bias=bias,
        positions="ALiBi" if keys.flag("alibi", False) else "rotary",
    )


def starcoder2(keys: Keys) -> ModelSpec:
    bias = keys.flag("use_bias", True)
    return decoder(
        keys,
        tied=True,
        num_kv_heads=kv_heads(keys),
        qkv_bias=bias,
        gated_mlp=False,
        rms_norm=False,
        vectors=Vectors(norm_biases=True, attention_out_bias=bias, mlp_bias=bias),
        windows=same_window(keys),
    )
