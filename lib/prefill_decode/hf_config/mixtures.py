"""Mixtures: the families with mixtures of experts."""

from typing import Any

from prefill_decode.hf_config.decoder import decoder, kv_heads
from prefill_decode.hf_config.keys import Keys
from prefill_decode.hf_config.windows import (
    FULL,
    SLIDING,
    every_nth_full,
    layer_types,
    same_window,
    windows_of,
)
from prefill_decode.model_spec import (
    LARGEST_COUNT,
    Experts,
    LatentAttention,
    ModelSpec,
    Vectors,
)


def mixtral(keys: Keys) -> ModelSpec:
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
        experts=Experts(
            keys.count("num_experts"),
            keys.count("experts_per_token"),
            keys.count("intermediate_size"),
        ),
        windows=same_window(keys),
    )


def qwen2_moe(keys: Keys) -> ModelSpec:
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
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
        intermediate_size=_dense_size(keys, experts),
        qkv_bias=keys.flag("qkv_bias", True),
        experts=experts,
        windows=windows_of(keys, layer_types(keys, types), window) if window else None,
    )


def qwen3_moe(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", False)
    window = keys.window(4096) if keys.flag("use_sliding_window", False) else None
    keys.read.add("sliding_window")
    experts = _qwen_experts(keys)
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
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


def deepseek(keys: Keys) -> ModelSpec:
    latent = LatentAttention(
        query_rank=keys.get("q_lora_rank"),
        kv_rank=keys.count("kv_lora_rank"),
        nope_head_dim=keys.count("qk_nope_head_dim"),
        rope_head_dim=keys.count("qk_rope_head_dim"),
        value_head_dim=keys.count("v_head_dim"),
    )
    experts = _deepseek_experts(keys)
    return decoder(
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


def gpt_oss(keys: Keys) -> ModelSpec:
    bias = keys.flag("attention_bias", True)
    return decoder(
        keys,
        num_kv_heads=kv_heads(keys),
        head_dim=keys.count("head_dim", 64),
        qkv_bias=bias,
        vectors=Vectors(attention_out_bias=bias, attention_sinks=True),
        experts=Experts(
            keys.count("num_experts"),
            keys.count("experts_per_token"),
            keys.count("intermediate_size"),
            biases=True,
        ),
        windows=every_nth_full(keys, 2, 128),
    )
