"""The roofline against hand counts and published figures, in both regimes."""

from dataclasses import replace

import pytest

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware, accelerator, accelerators
from prefill_decode.model_spec import Experts, ModelSpec
from prefill_decode.roofline import (
    Operation,
    StepWork,
    Work,
    in_series,
    step_operations,
    step_work,
    telling_prompt_lengths,
    turning_tokens,
)
from prefill_decode.step import Chunk
from tests.test_transformers_oracle import TINY_MODELS

HARDWARE = Hardware("made up", "bfloat16", 100.0, 10.0, "made up")  # ridge 10


def by_name(name: str) -> Hardware:
    return accelerator(name).at("bfloat16")


def test_a_tiny_step_is_counted_product_by_product(tiny_model):
    """Two sequences: 3 new tokens on 2 cached ones, and 1 on 4, float64."""
    chunks = [Chunk(3, 2), Chunk(1, 4)]
    flops = 0
    for new, cached in [(3, 2), (1, 4)]:
        for _ in range(2):  # layers; [in, out] of every matrix, one multiply and one add each
            for rows, columns in [
                (24, 32),
                (24, 16),
                (24, 16),
                (32, 24),
                (24, 40),
                (24, 40),
                (40, 24),
            ]:
                flops += 2 * new * rows * columns
            for i in range(new):
                flops += 2 * 4 * 8 * (cached + i + 1) * 2  # scores and values, 4 heads of 8
        flops += 2 * 24 * 61  # the last row's logits
    weights = 2 * (24 * 32 + 2 * 24 * 16 + 32 * 24 + 3 * 24 * 40) + 24 * 61
    cache = 2 * 2 * 16 * (5 + 5)  # K and V, layers, width, tokens read or written
    work = step_work(tiny_model, chunks)
    assert work.total.flops == flops
    assert work.total.bytes == 8 * (weights + cache)


def test_prefill_and_decode_lie_on_opposite_sides_of_the_ridge():
    model = hf_config.get("llama-3.1-8b")
    h100 = by_name("H100 SXM")
    assert step_work(model, [Chunk(2048)]).total.limited_by(h100) == "compute"
    assert step_work(model, [Chunk(1, 2048)]).total.limited_by(h100) == "bandwidth"


def test_decode_of_llama_8b_on_h100_has_its_published_floor():
    """4.56 ms at batch 1: the speed-of-light mode of aiconfigurator gives the same."""
    model = hf_config.get("llama-3.1-8b")
    floor_s = step_work(model, [Chunk(1, 1024)]).least_time_s(by_name("H100 SXM"))
    assert floor_s == pytest.approx(4.56e-3, rel=0.01)


def test_batching_shares_the_weights_but_not_the_kv_cache(tiny_model):
    one = step_work(tiny_model, [Chunk(1, 10)])
    many = step_work(tiny_model, [Chunk(1, 10)] * 8)
    assert many.weights.bytes == one.weights.bytes
    assert many.attention.bytes == 8 * one.attention.bytes
    assert many.total.flops == 8 * one.total.flops


def test_splitting_a_prompt_changes_the_bytes_but_not_the_arithmetic(tiny_model):
    whole = step_work(tiny_model, [Chunk(12)]).total
    first = step_work(tiny_model, [Chunk(8, samples_token=False)]).total
    second = step_work(tiny_model, [Chunk(4, 8)]).total
    assert first.flops + second.flops == whole.flops
    assert first.bytes + second.bytes > whole.bytes


def test_an_unsampled_chunk_skips_the_output_matrix(tiny_model):
    sampled = step_work(tiny_model, [Chunk(4)]).weights
    silent = step_work(tiny_model, [Chunk(4, samples_token=False)]).weights
    assert sampled.flops - silent.flops == 2 * tiny_model.lm_head_params
    assert sampled.bytes - silent.bytes == 8 * tiny_model.lm_head_params


def test_the_bound_is_the_slower_of_arithmetic_and_memory():
    assert Work(1000, 50).least_time_s(HARDWARE) == 10
    assert Work(100, 50).least_time_s(HARDWARE) == 5
    assert Work(1000, 50).limited_by(HARDWARE) == "compute"
    assert Work(100, 50).limited_by(HARDWARE) == "bandwidth"
    assert Work(500, 50).intensity_flops_per_byte == HARDWARE.ridge_flops_per_byte == 10
    assert Work(500, 50).limited_by(HARDWARE) == "bandwidth"  # both take as long


def test_a_step_waits_for_each_part_in_turn(tiny_model):
    """A large batch: the weights' part computes, the cache's part reads; none hides another."""
    work = step_work(tiny_model, [Chunk(1, 100)] * 100)
    assert work.weights.limited_by(HARDWARE) == "compute"
    assert work.attention.limited_by(HARDWARE) == "bandwidth"
    both_s = work.weights.flops / 100.0 + work.attention.bytes / 10.0
    assert work.least_time_s(HARDWARE) == pytest.approx(both_s)
    assert work.least_time_s(HARDWARE) > work.total.least_time_s(HARDWARE)


def test_prompts_that_tell_lie_on_both_sides_of_the_turning_point():
    laptop = Hardware("laptop", "float32", 150e9, 30e9, "made up")  # ridge 5
    model = hf_config.get("laptop-254m").with_dtype("float32")
    assert turning_tokens(model, laptop) == 10
    assert telling_prompt_lengths(model, laptop) == [1, 4, 16, 64, 512]
    assert all(isinstance(length, int) for length in telling_prompt_lengths(model, laptop))
    large = hf_config.get("llama-3.1-8b")
    for row in accelerators():
        if row.peak_bf16_flops_per_s is None:
            continue
        hardware = row.at("bfloat16")
        lengths = telling_prompt_lengths(large, hardware)
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == 8 * lengths[-2]
        short, long = (step_work(large, [Chunk(n)]) for n in lengths[-2:])
        assert short.weights.limited_by(hardware) == "compute"
        ratio = long.least_time_s(hardware) / short.least_time_s(hardware)
        assert 7 < ratio < 20, hardware.name  # attention grows faster than the prompt
        assert step_work(large, [Chunk(1)]).total.limited_by(hardware) == "bandwidth"


@pytest.mark.parametrize(("ridge", "short"), [(1, 64), (8, 64), (9, 128), (64, 512), (65, 1024)])
def test_a_prompt_tells_from_the_first_power_of_two_that_is_four_times_past_the_turn(ridge, short):
    """And has 64 tokens or more. A weight of four bytes turns at twice the ridge."""
    laptop = Hardware("laptop", "float32", ridge * 30e9, 30e9, "made up")
    model = hf_config.get("laptop-254m").with_dtype("float32")
    assert telling_prompt_lengths(model, laptop)[3:] == [short, 8 * short]


def test_an_empty_step_is_refused(tiny_model):
    with pytest.raises(ValueError, match="at least one chunk"):
        step_work(tiny_model, [])


# Operations: what a step is made of.

LLAMA_2_13B = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
}
CHUNKS = [
    [Chunk(1, 7)],
    [Chunk(1, 0)],
    [Chunk(9)],
    [Chunk(3, 2, samples_token=False), Chunk(1, 40), Chunk(6, 4)],
]


def by_operation(model, chunks, count_activations=False):
    return {one.name: one for one in step_operations(model, chunks, count_activations)}


@pytest.mark.parametrize("name", TINY_MODELS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_step_is_the_sum_of_its_operations(name, chunks):
    model = hf_config.from_config(TINY_MODELS[name], name)
    operations = step_operations(model, chunks)
    work = step_work(model, chunks)
    assert len({one.name for one in operations}) == len(operations)
    assert work.total.flops == pytest.approx(sum(one.flops for one in operations))
    assert work.total.bytes == pytest.approx(
        sum(one.weight_bytes + one.kv_read_bytes + one.kv_written_bytes for one in operations)
    )
    assert work.attention == by_operation(model, chunks)["attention"].work
    assert not any(one.activation_bytes for one in operations)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_the_products_of_one_token_are_its_matmul_parameters(name):
    """In every family: the FLOPs of the spec's own count, and the bytes of one token's experts."""
    model = hf_config.from_config(TINY_MODELS[name], name)
    work = step_work(model, [Chunk(1, 7)])
    assert work.weights.flops == pytest.approx(model.linear_flops_per_token)
    assert work.weights.bytes == pytest.approx(model.weight_bytes_read)


@pytest.mark.parametrize("name", [name for name in TINY_MODELS if "deepseek" not in name])
def test_a_decode_step_attends_and_moves_what_the_spec_counts_for_its_context(name):
    model = hf_config.from_config(TINY_MODELS[name], name)
    for context in (1, 4, 5, 6, 50):  # windows are 5
        work = step_work(model, [Chunk(1, context - 1)])
        assert work.attention.flops == model.attn_flops_per_token(context)
        assert work.attention.bytes == model.kv_bytes(context)


def test_windows_limit_pairs_and_cache_layer_by_layer(tiny_model):
    """Against a mask drawn out: layer 0 sees 4 tokens, layer 1 all."""
    model = replace(tiny_model, windows=(4, None))
    for new, cached in [(1, 0), (1, 3), (1, 4), (1, 9), (3, 2), (6, 0), (6, 9), (2, 2)]:
        pairs = reads = writes = 0
        for window in (4, 10**6):
            seen = {
                (i, j) for i in range(cached, cached + new) for j in range(i + 1) if j > i - window
            }
            pairs += len(seen)
            reads += len({j for _, j in seen if j < cached})
            end = cached + new  # a later token sees the last window - 1, and the last one written
            writes += sum(j >= end - window for j in range(cached, end))
        attention = by_operation(model, [Chunk(new, cached)])["attention"]
        assert attention.flops == 4 * 4 * 8 * pairs
        assert attention.kv_read_bytes == 2 * 16 * 8 * reads
        assert attention.kv_written_bytes == 2 * 16 * 8 * writes


def test_splitting_a_prompt_over_windows_changes_no_arithmetic(tiny_model):
    model = replace(tiny_model, windows=(5, None))
    whole = step_work(model, [Chunk(12)]).total
    first = step_work(model, [Chunk(8, samples_token=False)]).total
    second = step_work(model, [Chunk(4, 8)]).total
    assert first.flops + second.flops == whole.flops


def test_experts_cost_the_flops_of_those_used_and_the_bytes_of_those_awake(tiny_model):
    model = replace(tiny_model, experts=Experts(8, 2, 7, shared_intermediate_size=6))
    one, many = (by_operation(model, [Chunk(1, 4)] * batch) for batch in (1, 16))
    expert, layers = 24 * 7, 2
    assert one["experts' down projection"].flops == 2 * layers * 2 * expert
    assert many["experts' down projection"].flops == 16 * one["experts' down projection"].flops
    assert one["experts' down projection"].weight_bytes == pytest.approx(8 * layers * 2 * expert)
    awake = 8 * (1 - 0.75**16)
    assert many["experts' gate and up projections"].weight_bytes == pytest.approx(
        8 * layers * awake * 2 * expert
    )
    assert many["router"].weight_bytes == 8 * layers * 8 * 24
    assert one["shared experts' gate and up projections"].flops == 2 * layers * 2 * 24 * 6
    assert "gate and up projections" not in one  # no layer has an ordinary MLP


def test_mixtral_in_a_batch_reads_nearly_all_its_experts_for_a_quarter_of_the_arithmetic():
    """From the hand-worked table: 2, 5.47 and 7.92 of 8 experts at batch 1, 4 and 16."""
    model = hf_config.get("mixtral-8x7b")
    expert_bytes = 32 * 3 * 4096 * 14336 * 2
    alone_bytes = 25_497_174_016  # bytes of one token's weights, as many as its FLOP
    for batch, awake in [(1, 2.0), (4, 5.46875), (16, 7.919819)]:
        weights = step_work(model, [Chunk(1, 0)] * batch).weights
        assert weights.flops == batch * 25_497_174_016
        expected = alone_bytes + (awake - 2) * expert_bytes
        assert weights.bytes == pytest.approx(expected, rel=1e-6)


def test_latent_attention_decodes_over_latents_and_prefills_over_keys_and_values():
    model = hf_config.get("deepseek-v3")
    decode = by_operation(model, [Chunk(1, 4095)])["attention"]
    assert decode.flops == 61 * 128 * 2 * (576 + 512) * 4096  # absorbed
    assert decode.kv_read_bytes == 61 * 576 * 2 * 4095
    assert decode.kv_written_bytes == 61 * 576 * 2
    prefill = by_operation(model, [Chunk(4096)])["attention"]
    assert prefill.flops == 61 * 128 * 2 * (192 + 128) * 4096 * 4097 // 2
    assert prefill.kv_read_bytes == 0
    late = by_operation(model, [Chunk(2048, 2048)])["attention"]
    expanding = 61 * 2048 * 2 * 512 * 128 * 256  # keys and values of the cache made again
    pairs = 2048 * 2048 + 2048 * 2049 // 2
    assert late.flops == 61 * 128 * 2 * (192 + 128) * pairs + expanding


def test_an_ungated_mlp_has_one_matrix_up():
    model = hf_config.from_config(TINY_MODELS["gpt2"], "gpt2")
    operations = by_operation(model, [Chunk(2)])
    assert operations["up projection"].flops == 2 * 3 * 2 * 24 * 96
    assert operations["down projection"].flops == operations["up projection"].flops


def test_quantized_weights_are_read_in_their_own_size():
    model = hf_config.get("llama-3.1-8b")
    int8 = step_work(model.with_dtype("int8"), [Chunk(1, 100)])
    bf16 = step_work(model, [Chunk(1, 100)])
    assert bf16.weights.bytes - int8.weights.bytes == model.block_params
    assert int8.attention == bf16.attention
    gpt_oss = hf_config.get("gpt-oss-20b")
    packed = by_operation(gpt_oss.with_dtype("mxfp4"), [Chunk(1)])
    plain = by_operation(gpt_oss, [Chunk(1)])
    for name, one in packed.items():
        share = 17 / 64 if name.startswith("experts'") else 1
        assert one.weight_bytes == pytest.approx(share * plain[name].weight_bytes)


# Published worked figures.


def test_llama_2_13b_on_eight_tpu_v5e_has_its_published_decode_times():
    """Austin et al., chapter "Inference": 8192 tokens of context, bfloat16, a v5e 4x2 slice at
    8.2e11 B/s a chip: 6.7 GB of cache a sequence, 26 GB of weights, their sum over the bandwidth.
    The chapter reads all 13e9 parameters; the embedding that is not read is 1.3% of them."""
    model = hf_config.from_config(LLAMA_2_13B, "llama-2-13b")
    assert model.kv_bytes(8192) == 6_710_886_400
    slice_of_8 = Hardware("TPU v5e x8", "bfloat16", 8 * 1.97e14, 8 * 8.2e11, "the same chapter")
    for batch, time_ms in [(1, 4.98), (8, 12.13), (16, 20.30), (32, 36.65)]:
        work = step_work(model, [Chunk(1, 8191)] * batch)
        assert work.total.limited_by(slice_of_8) == "bandwidth"
        assert work.total.least_time_s(slice_of_8) == pytest.approx(time_ms * 1e-3, rel=0.015)


def test_llama_2_7b_on_an_a6000_has_the_published_rows_of_its_operations():
    """Yuan et al., "LLM Inference Unveiled" (2024), table 1 (LLM-Viewer): one layer, 2048 tokens,
    float16. Its q, k, v and o projections are equal squares; ours names o alone. Attention there
    stores its scores and charges masked pairs, so only the arithmetic of a decode is compared."""
    model, a6000 = hf_config.get("llama-2-7b"), Hardware("A6000", "float16", 155e12, 768e9, "ibid.")
    prefill = by_operation(model, [Chunk(2048)], count_activations=True)
    decode = by_operation(model, [Chunk(1, 2047)], count_activations=True)
    for operations, name, flops, num_bytes, intensity, limit in [
        (prefill, "output projection", 69e9, 67e6, 1024, "compute"),
        (prefill, "down projection", 185e9, 152e6, 1215, "compute"),
        (decode, "output projection", 34e6, 34e6, 1, "bandwidth"),
        (decode, "down projection", 90e6, 90e6, 1, "bandwidth"),
        (decode, "attention", 2 * 17e6, 2 * 17e6, 0.99, "bandwidth"),
    ]:
        work = operations[name].work
        assert work.flops / 32 == pytest.approx(flops, rel=0.02), name
        assert work.bytes / 32 == pytest.approx(num_bytes, rel=0.02), name
        assert work.intensity_flops_per_byte == pytest.approx(intensity, rel=0.015), name
        assert work.limited_by(a6000) == limit
    assert all(one.work.limited_by(a6000) == "bandwidth" for one in decode.values())


def test_activations_are_inputs_and_outputs_once(tiny_model):
    operations = by_operation(tiny_model, [Chunk(3)], count_activations=True)
    rows_bytes, layers = 3 * 8, 2
    assert operations["qkv projection"].activation_bytes == layers * rows_bytes * (24 + 32 + 2 * 16)
    assert operations["attention"].activation_bytes == layers * rows_bytes * (32 + 32)
    output_values, gate_and_up_values, down_values = 32 + 24, 24 + 2 * 40, 40 + 24
    assert operations["output projection"].activation_bytes == layers * rows_bytes * output_values
    assert operations["gate and up projections"].activation_bytes == (
        layers * rows_bytes * gate_and_up_values
    )
    assert operations["down projection"].activation_bytes == layers * rows_bytes * down_values
    assert operations["lm_head"].activation_bytes == 8 * (24 + 61)
    silent = by_operation(tiny_model, [Chunk(3)])
    for name, one in operations.items():
        assert one.work.bytes - silent[name].work.bytes == one.activation_bytes > 0


def test_activations_of_latents_and_of_a_router_are_inputs_and_outputs_once():
    model = hf_config.get("deepseek-v3")
    operations = by_operation(model, [Chunk(3)], count_activations=True)
    qkv_values = 7168 + 128 * 192 + 576  # hidden values in; queries and the latent out
    assert operations["qkv projection"].activation_bytes == 61 * 3 * qkv_values * 2
    assert operations["router"].activation_bytes == 58 * 3 * (7168 + 256) * 2


def test_where_every_layer_has_an_ordinary_mlp_nothing_is_routed(tiny_model):
    dense = replace(tiny_model, experts=Experts(8, 2, 7, dense_layers=(0, 1)))
    assert by_operation(dense, [Chunk(3)]).keys() == by_operation(tiny_model, [Chunk(3)]).keys()


def test_an_operation_moves_no_more_than_it_is_told():
    assert Operation("made up", flops=7).work == Work(7, 0)


def test_an_empty_step_has_no_operations(tiny_model):
    with pytest.raises(ValueError, match="at least one chunk"):
        step_operations(tiny_model, [])


# Steps in series.


def test_steps_in_series_read_and_compute_what_each_does() -> None:
    steps = [StepWork(Work(1, 10), Work(100, 1000)), StepWork(Work(2, 20), Work(200, 2000))]
    assert in_series(steps) == StepWork(Work(3, 30), Work(300, 3000))


def test_the_least_time_of_a_series_is_the_sum_where_one_bound_rules(tiny_model: ModelSpec) -> None:
    hardware = Hardware("test", "float64", 1e12, 1e6, "made up")
    steps = [step_work(tiny_model, [Chunk(1, n)]) for n in range(5)]
    total_s = sum(step.least_time_s(hardware) for step in steps)
    assert in_series(steps).least_time_s(hardware) == pytest.approx(total_s)


def test_the_least_time_of_a_series_stays_a_floor_where_bounds_differ(
    tiny_model: ModelSpec,
) -> None:
    hardware = Hardware("test", "float64", 1e9, 1e9, "made up")
    steps = [step_work(tiny_model, [Chunk(n)]) for n in (1, 500)]
    assert {step.weights.limited_by(hardware) for step in steps} == {"compute", "bandwidth"}
    total_s = sum(step.least_time_s(hardware) for step in steps)
    assert in_series(steps).least_time_s(hardware) < total_s


def test_a_series_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no work to add up"):
        in_series([])
