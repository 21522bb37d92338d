"""Counts by hand on tiny models, against the engine's own tensors, and what a spec refuses."""

from dataclasses import replace

import pytest

from prefill_decode import hf_config
from prefill_decode.engine.weights import random_weights
from prefill_decode.hf_config import from_config
from prefill_decode.model_spec import (
    Experts,
    LatentAttention,
    ModelSpec,
    Vectors,
    figures,
    figures_text,
)
from tests.test_hf_config import LLAMA
from tests.test_transformers_oracle import TINY_MODELS


def test_a_tiny_llama_is_counted_by_hand():
    model = from_config(LLAMA, "tiny")
    attention = 8 * 8 * 4  # Q, K, V, O: 4 heads of 2, as many KV heads
    mlp = 3 * 8 * 12
    assert model.head_dim == 2
    assert model.block_params == 2 * (attention + mlp)
    assert model.layer_params == attention + mlp
    assert model.matmul_params == model.block_params + 80
    assert model.total_params == model.block_params + 2 * 80 + 5 * 8
    assert model.active_params == model.total_params
    assert model.weight_bytes == 2 * model.total_params
    assert model.weight_bytes_read == 2 * model.matmul_params
    assert model.kv_bytes_per_token == 2 * 2 * 8 * 2  # K and V, 2 layers, width 8, bfloat16
    assert model.linear_flops_per_token == 2 * model.matmul_params


def test_a_tiny_mixture_is_counted_by_hand(tiny_model):
    """Layer 0 dense, layer 1 with 5 experts of width 7, 2 a token, and one shared of width 6."""
    experts = Experts(5, 2, 7, shared_intermediate_size=6, shared_gate=True, dense_layers=(0,))
    model = replace(tiny_model, experts=experts)
    attention = 24 * (32 + 2 * 16) + 32 * 24
    beside = 3 * 24 * 6 + 24 * 5 + 24  # shared expert, router, gate
    dense = 3 * 24 * 40
    assert model.block_params == 2 * attention + dense + 2 * (3 * 24 * 7) + beside
    stored = 2 * attention + dense + 5 * (3 * 24 * 7) + beside + 2 * 24 * 61 + 5 * 24
    assert model.total_params == stored
    assert model.active_params == stored - 3 * (3 * 24 * 7)
    assert model.weight_bytes == 8 * stored
    assert model.weight_bytes_read == 8 * (model.block_params + 24 * 61)


def test_a_tiny_latent_attention_is_counted_by_hand(tiny_model):
    latent = LatentAttention(
        query_rank=9, kv_rank=6, nope_head_dim=5, rope_head_dim=3, value_head_dim=4
    )
    model = replace(tiny_model, num_kv_heads=4, latent=latent)
    queries = 24 * 9 + 9 * 4 * 8
    latents = 24 * (6 + 3) + 6 * 4 * (5 + 4)
    assert model.qkv_params == queries + latents
    assert model.attention_out_params == 4 * 4 * 24
    assert model.kv_bytes(10) == 10 * 2 * 9 * 8
    assert model.kv_bytes_kept_by_engine(10) == 10 * 2 * 4 * (8 + 4) * 8
    assert model.attn_flops_per_token(10) == 2 * 2 * 4 * 10 * (8 + 4)  # layers, FLOP, heads, keys
    norms = 2 * (2 * 24 + 9 + 6) + 24
    assert model.total_params == model.block_params + 2 * 24 * 61 + norms


def test_windows_are_counted_layer_by_layer(tiny_model):
    model = replace(tiny_model, windows=(3, None))
    token_bytes = 2 * 16 * 8  # K and V, one layer
    for context, seen in [(1, 2), (3, 6), (4, 7), (100, 103)]:
        assert model.kv_bytes(context) == seen * token_bytes
        assert model.attn_flops_per_token(context) == 4 * 4 * 8 * seen
    assert model.kv_bytes_per_token == 2 * token_bytes
    assert model.kv_bytes_kept_by_engine(100) == 200 * token_bytes


def test_quantized_weights_leave_embeddings_norms_and_the_cache_alone(tiny_model):
    plain = replace(tiny_model, dtype="bfloat16")
    rest = plain.total_params - plain.block_params
    for dtype, bytes_each in [("int8", 1), ("fp8", 1), ("int4", 0.5)]:
        model = plain.with_dtype(dtype)
        assert model.weight_bytes == plain.block_params * bytes_each + 2 * rest
        assert model.weight_bytes_read == (
            plain.block_params * bytes_each + 2 * plain.lm_head_params
        )
        assert model.kv_bytes_per_token == plain.kv_bytes_per_token


def test_mxfp4_packs_32_values_into_17_bytes_for_experts_alone(tiny_model):
    plain = replace(tiny_model, dtype="bfloat16", experts=Experts(4, 1, 32))
    routed = 2 * 4 * 3 * 24 * 32
    packed = plain.with_dtype("mxfp4")
    assert plain.weight_bytes - packed.weight_bytes == routed * 2 - routed // 32 * 17
    with pytest.raises(ValueError, match="mxfp4 stores routed experts"):
        tiny_model.with_dtype("mxfp4")


def test_a_step_of_more_tokens_wakes_more_experts_but_never_all_for_certain():
    experts = Experts(8, 2, 7)
    assert experts.expected_distinct(0) == 0
    assert experts.expected_distinct(1) == pytest.approx(2)
    # Two tokens draw 2 of 8 each: the second finds each of its two new with probability 6/8.
    assert experts.expected_distinct(2) == pytest.approx(2 + 2 * 6 / 8)
    assert experts.expected_distinct(10**6) == pytest.approx(8)
    assert Experts(4, 4, 7).expected_distinct(1) == 4


# The engine.

RUN_BY_THE_ENGINE = ("llama", "mistral", "qwen2", "qwen3, head_dim by default", "phi3")


def tensors_of_the_engine(model: ModelSpec) -> int:
    weights = random_weights(model, "cpu", seed=0)
    tensors = [weights.embedding, weights.positions, weights.final_norm, weights.lm_head.weight]
    for layer in weights.layers:
        tensors += [layer.attention_norm, layer.mlp_norm, *(layer.head_norms or ())]
        for linear in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
            tensors += [linear.weight, linear.bias]
    distinct = {tensor.data_ptr(): tensor.numel() for tensor in tensors if tensor is not None}
    return sum(distinct.values())


@pytest.mark.parametrize(("tied", "bias", "norm"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 0, 1)])
def test_the_count_equals_the_tensors_that_the_engine_makes(tiny_model, tied, bias, norm):
    model = ModelSpec(
        **{
            **tiny_model.__dict__,
            "tied_embeddings": bool(tied),
            "qkv_bias": bool(bias),
            "qk_norm": bool(norm),
        }
    )
    assert tensors_of_the_engine(model) == model.total_params


@pytest.mark.parametrize("name", RUN_BY_THE_ENGINE)
def test_the_engine_makes_the_parameters_of_every_family_it_runs(name):
    model = from_config(TINY_MODELS[name], name).with_dtype("float64")
    assert model.engine_runs
    assert tensors_of_the_engine(model) == model.total_params


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("mixtral", "mixtures of experts"),
        ("deepseek_v3", "latent attention"),
        ("gpt2", "MLPs without a gate, LayerNorm"),
        ("falcon one after the other", "ALiBi positions"),
        ("gpt_neox", "partly rotary positions"),
        ("gpt_oss", "attention sinks"),
        ("llama biased", "biases but on Q, K and V"),
        ("gemma", "scaled embeddings"),
        ("gemma2", "4 norms a layer"),
        ("olmo2", "a norm for each head"),
        ("granite", "multipliers"),
        ("cohere", "attention and MLP side by side"),
    ],
)
def test_what_the_engine_cannot_run_it_refuses_with_the_reason(name, lacks):
    model = from_config(TINY_MODELS[name], name).with_dtype("float64")
    assert lacks in model.engine_lacks
    with pytest.raises(ValueError, match=f"it lacks .*{lacks}"):
        random_weights(model, "cpu", seed=0)


def test_the_engine_runs_no_quantized_weights_and_no_other_activation(tiny_model):
    with pytest.raises(ValueError, match="it lacks int8 weights"):
        random_weights(tiny_model.with_dtype("int8"), "cpu", seed=0)
    relu = from_config({**LLAMA, "hidden_act": "relu"}, "m").with_dtype("float64")
    with pytest.raises(ValueError, match="it lacks activation 'relu'"):
        random_weights(relu, "cpu", seed=0)


# What a spec refuses.


def test_a_spec_made_by_hand_is_checked_as_well(tiny_model):
    for size, value in [("num_layers", 0), ("vocab_size", -1), ("num_kv_heads", 0)]:
        with pytest.raises(ValueError, match=size):
            ModelSpec(**{**tiny_model.__dict__, size: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 10**5}, "num_layers must be at most"),
        ({"positions": "sinusoidal"}, "positions must be one of"),
        ({"windows": (4,)}, "got 1 for 2 layers"),
        ({"windows": (0, None)}, "a sliding window must be a positive"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"num_kv_heads": 3}, "multiple of num_kv_heads"),
    ],
)
def test_an_impossible_spec_is_refused(tiny_model, change, message):
    with pytest.raises(ValueError, match=message):
        replace(tiny_model, **change)


def test_a_head_that_is_not_rotated_may_be_odd(tiny_model):
    assert replace(tiny_model, head_dim=7, positions="learned").head_dim == 7
    with pytest.raises(ValueError, match="head_dim must be even"):
        replace(tiny_model, head_dim=7)


def test_impossible_parts_are_refused():
    with pytest.raises(ValueError, match="more experts than there are"):
        Experts(2, 3, 7)
    with pytest.raises(ValueError, match="num_experts must be a positive"):
        Experts(0, 1, 7)
    with pytest.raises(ValueError, match="kv_rank must be a positive"):
        LatentAttention(None, 0, 1, 1, 1)
    with pytest.raises(ValueError, match="query_rank must be a positive"):
        LatentAttention(-1, 1, 1, 1, 1)


def test_vectors_are_counted_by_hand(tiny_model):
    base = tiny_model.total_params
    for vectors, added in [
        (Vectors(norms_per_layer=4), 2 * 2 * 24),
        (Vectors(norm_biases=True), 5 * 24),
        (Vectors(attention_out_bias=True), 2 * 24),
        (Vectors(mlp_bias=True), 2 * (2 * 40 + 24)),
        (Vectors(attention_sinks=True), 2 * 4),
        (Vectors(embedding_norm=True), 24),
        (Vectors(position_rows=9), 9 * 24),
        (Vectors(lm_head_bias=True), 61),
    ]:
        assert replace(tiny_model, vectors=vectors).total_params == base + added


# Figures.


def test_figures_are_the_counts_by_name():
    model = hf_config.get("phi-3-mini")
    without = figures(model)
    assert "kv_bytes" not in without
    assert without["total_params"] == 3_821_079_552
    found = figures(model, 4096)
    assert found["attn_flops_per_token"] == 4 * 32 * 96 * 2047 * 32
    assert found["kv_bytes"] == 804_913_152
    assert found["kv_bytes_kept_by_engine"] == 4096 * 393_216
    for context in (0, -1, 1.5, True, 2**40):
        with pytest.raises(ValueError, match="context_tokens must be a positive whole number"):
            figures(model, context)


def test_figures_are_shown_exactly_and_rounded():
    lines = figures_text(figures(hf_config.get("llama-3.1-8b"), 4096)).splitlines()
    shown = {line.split()[0]: line.split()[1:] for line in lines}
    assert shown["total_params"] == ["8,030,261,248", "8.03", "G"]
    assert shown["weight_bytes"] == ["16,060,522,496", "16.1", "GB"]
    assert shown["linear_flops_per_token"] == ["15,009,316,864", "15.0", "GFLOP"]
    assert shown["context_tokens"] == ["4,096"]
    assert shown["dtype"] == ["bfloat16"]
    assert len({line.index(line.split()[1]) + len(line.split()[1]) for line in lines}) == 1
