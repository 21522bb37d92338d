from dataclasses import replace
from math import inf

import pytest

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware, accelerator
from prefill_decode.roofline import telling_prompt_lengths
from prefill_decode.transfer_cost import (
    Handover,
    LinkLaw,
    crossing,
    fit_law,
    fit_laws,
    least_handover,
    modelled,
    moved_bytes,
    ready_share,
    telling_prompt,
)
from prefill_decode.units import GIGABIT

# A prompt read in 2 s leaves 80 bytes in 4 layers: 40 bytes/s break even.
HANDOVER = Handover(prefill_s=2.0, moved_bytes=80, num_layers=4)


def test_the_last_block_moves_as_a_whole(tiny_model):
    a_token = 2 * 2 * 8 * 8 * 2  # keys and values, 2 heads of 8 values of 8 bytes, 2 layers
    assert moved_bytes(tiny_model, 1) == a_token == 512
    assert moved_bytes(tiny_model, 33, block_tokens=32) == 64 * a_token
    assert moved_bytes(tiny_model, 64, block_tokens=32) == 64 * a_token
    with pytest.raises(ValueError, match="at least one token"):
        moved_bytes(tiny_model, 0)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "bytes_per_token"),
    [
        (32, 32, 524_288),  # Llama-2-7B
        (32, 8, 131_072),  # Llama-3-8B
        (80, 8, 327_680),  # Llama-3-70B
        (126, 8, 516_096),  # Llama-3.1-405B
        (28, 4, 57_344),  # Qwen2.5-7B
        (36, 8, 147_456),  # Qwen3-8B
        (48, 4, 98_304),  # Qwen3-30B-A3B
    ],
)
def test_a_token_moves_the_published_bytes(tiny_model, layers, kv_heads, bytes_per_token):
    shape = {"num_layers": layers, "num_heads": 32, "num_kv_heads": kv_heads, "head_dim": 128}
    model = replace(tiny_model, dtype="bfloat16", **shape)
    assert moved_bytes(model, 1) == bytes_per_token
    assert moved_bytes(model, 1000, block_tokens=16) == 1008 * bytes_per_token


def test_latent_attention_moves_the_latents_alone():
    assert moved_bytes(hf_config.get("deepseek-v3"), 1) == 70_272


def test_a_transfer_after_the_prefill_adds_all_of_itself():
    assert HANDOVER.transfer_s(40) == 2.0
    assert HANDOVER.serial_s(40) == 4.0
    assert HANDOVER.serial_s(10) == 10.0


def test_layer_by_layer_a_fast_link_waits_for_the_last_layer():
    assert HANDOVER.layered_s(160) == pytest.approx(2.0 + 80 / (4 * 160))
    assert HANDOVER.exposed_s(160) == pytest.approx(0.125)


def test_layer_by_layer_a_slow_link_starts_after_the_first_layer():
    assert HANDOVER.layered_s(10) == pytest.approx(2.0 / 4 + 80 / 10)
    assert HANDOVER.exposed_s(10) == pytest.approx(6.5)


def test_at_the_break_even_link_all_but_one_layer_is_hidden():
    speed = HANDOVER.break_even_bytes_per_s
    assert speed == 40
    assert HANDOVER.transfer_s(speed) == HANDOVER.prefill_s
    assert HANDOVER.exposed_s(speed) == pytest.approx(HANDOVER.prefill_s / 4)


@pytest.mark.parametrize("ready_share", [1.0, 0.2])
@pytest.mark.parametrize("speed", [3.0, 20.0, 39.0, 41.0, 80.0, 1000.0])
def test_layers_that_leave_one_by_one_are_a_pipeline_of_two_stages(speed, ready_share):
    """An oracle by simulation: a layer is sent when it is ready and the link is free."""
    handover = replace(HANDOVER, ready_share=ready_share)
    layers, free_s = handover.num_layers, 0.0
    for layer in range(layers):
        ready_s = handover.prefill_s * (layer + ready_share) / layers
        free_s = max(free_s, ready_s) + handover.moved_bytes / layers / speed
    assert handover.layered_s(speed) == pytest.approx(max(free_s, handover.prefill_s))


def test_a_cache_that_is_there_before_the_first_token_is_not_waited_for():
    assert replace(HANDOVER, ready_share=0.1).exposed_s(1e9) == 0


def test_keys_and_values_are_there_after_the_first_products_of_a_layer(tiny_model):
    """Of 24 x 64 weights in Q, K and V, 32 x 24 in the output and 3 x 24 x 40 in the MLP."""
    first, rest = 24 * 64, 32 * 24 + 3 * 24 * 40
    attention = 4 * 32 * 1  # one token that sees itself
    expected = (2 * first + attention) / (2 * (first + rest) + attention)
    assert ready_share(tiny_model, 1) == pytest.approx(expected)
    assert ready_share(tiny_model, 10_000) > 0.9  # attention is most of a long prompt


def test_a_least_handover_is_the_roofline_s_prefill_and_the_model_s_bytes():
    hardware = Hardware("any", "bfloat16", 1e15, 3e12, "made up")
    handover = least_handover(hf_config.get("llama-3.1-8b"), hardware, 4096, block_tokens=32)
    assert handover.moved_bytes == 4096 * 131_072
    assert handover.num_layers == 32
    # 2 FLOP for each of 6.98e9 weights of the layers, and half a square of attention
    products = 4096 * 2 * (8_030_261_248 - 2 * 128_256 * 4096 - 65 * 4096)
    attention = 4 * 32 * 32 * 128 * 4096 * 4097 / 2
    output = 2 * 128_256 * 4096
    assert handover.prefill_s == pytest.approx((products + attention + output) / 1e15)


def test_the_telling_prompt_is_compute_bound_unless_that_takes_long(tiny_model):
    fast = Hardware("any", "float64", 1e11, 1e9, "made up")
    slow = replace(fast, peak_flops_per_s=1e5, bandwidth_bytes_per_s=1e3)
    assert telling_prompt(tiny_model, fast) == telling_prompt_lengths(tiny_model, fast)[-2] == 2048
    assert telling_prompt(tiny_model, slow) == 16


def test_models_on_accelerators_break_even_in_proportion_to_their_kv_heads():
    found = modelled(1024)
    every_head, quarter = (found[name, "H100 SXM"] for name in ("llama-2-7b", "llama-3.1-8b"))
    assert every_head.moved_bytes == 4 * quarter.moved_bytes
    assert every_head.break_even_bytes_per_s / quarter.break_even_bytes_per_s == pytest.approx(
        4 * quarter.prefill_s / every_head.prefill_s
    )


def test_the_link_that_an_h100_needs_for_an_8b_model_is_tens_of_gigabits():
    """8 billion parameters at 989 TFLOP/s: 66 ms for 4096 tokens, whose cache is 537 MB."""
    h100 = accelerator("h100-sxm").at("bfloat16")
    handover = least_handover(hf_config.get("llama-3.1-8b"), h100, 4096)
    assert handover.prefill_s == pytest.approx(0.063, rel=0.05)
    assert handover.break_even_bytes_per_s / GIGABIT == pytest.approx(68, rel=0.05)


def test_a_law_is_found_again_from_its_own_times():
    sizes = [8, 2**20, 2**22, 2**24]
    law = LinkLaw(2e-5, 1 / 3e9, 1 / 3e9)
    found = fit_law(sizes, [law.time_s(size) for size in sizes])
    assert found.start_s == pytest.approx(2e-5)
    assert found.per_byte_s == pytest.approx(1 / 3e9)
    assert found.near_bytes == inf


def test_what_does_not_fit_in_the_cache_has_a_rate_of_its_own():
    sizes = [8, 2**20, 2**24, 2**26, 2**27]
    law = LinkLaw(1e-5, 1 / 16e9, 1 / 8e9, near_bytes=2**24)
    found = fit_law(sizes, [law.time_s(size) for size in sizes], near_bytes=2**24)
    assert found.per_byte_s == pytest.approx(1 / 16e9)
    assert found.far_per_byte_s == pytest.approx(1 / 8e9)
    assert found.time_s(2**27) == pytest.approx(1e-5 + 2**27 / 8e9)


def test_no_law_takes_less_than_no_time():
    falling = fit_law([8, 2**20], [2.0, 1.0])
    assert falling.per_byte_s == 0
    assert 1.0 < falling.start_s < 2.0
    late = fit_law([1e6, 2e6, 3e6], [1.0, 2.5, 4.0])  # a line that starts below zero
    assert late.start_s == 0
    assert 1e-6 < late.per_byte_s < 1.4e-6
    jump = fit_law([8, 16, 1e6], [1.0, 1.1, 0.5], near_bytes=16)
    assert jump.far_per_byte_s == 0


def test_every_round_has_a_law_and_intervals_are_taken_over_rounds():
    sizes = [8, 10**6]
    times_s = [[1e-5] * 6, [1e-5 + 10**6 / rate for rate in (1e9, 2e9, 2e9, 2e9, 2e9, 4e9)]]
    fit = fit_laws(sizes, times_s)
    assert fit.bytes_per_s.median == pytest.approx(2e9, rel=0.01)
    assert fit.bytes_per_s.low == pytest.approx(1e9, rel=0.01)
    assert fit.bytes_per_s.high == pytest.approx(4e9, rel=0.03)
    assert fit.far_bytes_per_s == fit.bytes_per_s
    assert fit.start_s.n == 6
    assert fit.middle.time_s(10**6) == pytest.approx(1e-5 + 10**6 / 2e9, rel=0.01)


def test_a_law_s_miss_counts_upwards_and_downwards_alike():
    laws = fit_laws([8, 10**6], [[1e-5] * 6, [1e-3] * 6])
    foreseen_s = laws.laws[0].time_s(5 * 10**5)
    assert laws.misses(5 * 10**5, [foreseen_s] * 6).median == pytest.approx(1)
    assert laws.misses(5 * 10**5, [2 * foreseen_s] * 6).median == pytest.approx(2)
    assert laws.misses(5 * 10**5, [foreseen_s / 2] * 6).median == pytest.approx(2)


def test_a_crossing_is_read_off_a_log_log_line():
    speeds = [1e6, 4e6, 16e6]
    assert crossing(speeds, [80e6 / s for s in speeds], 10.0) == pytest.approx(8e6)
    assert crossing(speeds, [80e6 / s for s in speeds], 100.0) == pytest.approx(8e5)
    nearly_flat = [1.0, 1.0 - 1e-9, 1.0 - 2e-9]
    assert crossing(speeds, nearly_flat, 2.0) == pytest.approx(1e3)
    assert crossing(speeds, nearly_flat, 0.5) == pytest.approx(16e9)
    assert crossing(speeds, [3.0, 1.0, 9.0], 8.0) == 16e6  # a disturbance: the nearest
    with pytest.raises(ValueError, match="two points"):
        crossing([1.0], [1.0], 1.0)
