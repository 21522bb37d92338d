"""The roofline against hand counts and published figures, in both regimes."""

import pytest

from prefill_decode import hf_config
from prefill_decode.hardware import ACCELERATORS, Hardware
from prefill_decode.roofline import Work, step_work, telling_prompt_lengths, turning_tokens
from prefill_decode.step import Chunk

HARDWARE = Hardware("made up", "bfloat16", 100.0, 10.0, "made up")  # ridge 10


def by_name(name: str) -> Hardware:
    return next(hardware for hardware in ACCELERATORS if hardware.name == name)


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
    large = hf_config.get("llama-3.1-8b")
    for hardware in ACCELERATORS:
        lengths = telling_prompt_lengths(large, hardware)
        assert lengths == sorted(set(lengths))
        assert lengths[-1] == 8 * lengths[-2]
        short, long = (step_work(large, [Chunk(n)]) for n in lengths[-2:])
        assert short.weights.limited_by(hardware) == "compute"
        ratio = long.least_time_s(hardware) / short.least_time_s(hardware)
        assert 7 < ratio < 20, hardware.name  # attention grows faster than the prompt
        assert step_work(large, [Chunk(1)]).total.limited_by(hardware) == "bandwidth"


def test_an_empty_step_is_refused(tiny_model):
    with pytest.raises(ValueError, match="at least one chunk"):
        step_work(tiny_model, [])
