"""The certifier against counts made by hand, published figures and engines that could exist."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_decode import cli, hf_config
from prefill_decode.certify import (
    Certificate,
    Setting,
    certify_tokens_per_s,
    certify_tpot,
    certify_ttft,
    parse_duration,
    report,
)
from prefill_decode.hardware import accelerator, accelerators
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from tests.conftest import ROOT

LLAMA_8B = hf_config.get("llama-3.1-8b")
H100, A100 = accelerator("H100 SXM"), accelerator("A100 SXM 80GB")
# By hand from the published shapes: layers x (Q, O, K, V, then gate, up, down), output matrix.
LLAMA_8B_LAYERS = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
LLAMA_8B_READ = 2 * (LLAMA_8B_LAYERS + 128256 * 4096)  # bytes: 15.01 GB
LLAMA_8B_KV = 2 * 32 * 8 * 128 * 2  # bytes a token
KNOWN = [row for row in accelerators() if row.peak_bf16_flops_per_s is not None]


def llama_2_7b():
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    }
    return hf_config.from_config(config, "llama-2-7b")


@pytest.mark.parametrize(
    ("tpot_s", "verdict"), [(4.19e-3, "forbidden"), (3.19e-3, "forbidden"), (4.6e-3, "permitted")]
)
@pytest.mark.parametrize("context_tokens", [0, 512])
def test_two_published_predictions_for_llama_8b_on_h100_are_forbidden(
    tpot_s, verdict, context_tokens
):
    """4.19 and 3.19 ms leave out a matrix; aiconfigurator's speed of light is 4.56 ms."""
    found = certify_tpot(LLAMA_8B, H100, tpot_s, context_tokens=context_tokens)
    assert found.verdict == verdict
    by_hand_s = (LLAMA_8B_READ + LLAMA_8B_KV * (context_tokens + 1)) / 3.35e12
    assert found.floor_s == pytest.approx(by_hand_s, rel=1e-9)
    assert found.ratio == pytest.approx(tpot_s / by_hand_s)


def test_llama_2_7b_on_a100_reads_13_gigabytes_a_token():
    read = 2 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096)
    assert read == pytest.approx(13.2e9, rel=0.01)
    found = certify_tpot(llama_2_7b(), A100, 6.6e-3)
    assert found.floor_s == pytest.approx((read + 2 * 32 * 4096 * 2) / 2.039e12)
    assert found.permitted
    assert not certify_tpot(llama_2_7b(), A100, 6.0e-3).permitted
    assert certify_tpot(llama_2_7b(), A100, 6.0e-3, devices=2).permitted


def test_a_prompt_of_8192_tokens_takes_an_h100_133_ms():
    pairs = 8192 * 8193 // 2  # causal
    flops = 2 * LLAMA_8B_LAYERS * 8192 + 4 * 32 * 32 * 128 * pairs + 2 * 128256 * 4096
    found = certify_ttft(LLAMA_8B, H100, 0.15, prompt_tokens=8192)
    assert found.work.flops == flops
    assert found.floor_s == found.compute_s == pytest.approx(flops / 989e12)
    assert found.floor_s == pytest.approx(0.133, abs=0.001)
    assert found.permitted
    assert not certify_ttft(LLAMA_8B, H100, 0.12, prompt_tokens=8192).permitted
    half = certify_ttft(LLAMA_8B, H100, 0.12, prompt_tokens=4096, cached_tokens=4096)
    assert half.permitted
    assert not certify_ttft(LLAMA_8B, H100, 0.15, prompt_tokens=8192, batch=2).permitted


def test_a_large_batch_is_held_back_by_arithmetic():
    flops = 512 * (LLAMA_8B_READ + 4 * 32 * 32 * 128 * 1)  # 2 FLOP a weight, 2 bytes a weight
    found = certify_tpot(LLAMA_8B, H100, 7e-3, batch=512)
    assert found.floor_s == pytest.approx(flops / 989e12)
    assert found.floor_s > found.memory_s
    assert found.verdict == "forbidden"  # reading alone would take 4.5 ms
    assert certify_tpot(LLAMA_8B, H100, 7.8e-3, batch=512).permitted


def test_64_sequences_of_1024_tokens_reach_9082_tokens_a_second():
    step_s = (LLAMA_8B_READ + 64 * 1025 * LLAMA_8B_KV) / 3.35e12
    assert 64 / step_s == pytest.approx(9082, abs=1)
    slow = certify_tokens_per_s(LLAMA_8B, H100, 9000, batch=64, context_tokens=1024)
    fast = certify_tokens_per_s(LLAMA_8B, H100, 9500, batch=64, context_tokens=1024)
    assert slow.floor_s == fast.floor_s == pytest.approx(step_s)
    assert (slow.verdict, fast.verdict) == ("permitted", "forbidden")
    assert fast.ratio == pytest.approx(9082 / 9500, rel=1e-3)


def test_a_rate_without_a_batch_is_judged_at_the_smallest_that_reaches_it():
    found = certify_tokens_per_s(LLAMA_8B, H100, 9500, context_tokens=1024)
    assert found.permitted
    setting = found.setting
    rates = [batch / setting.work(batch).bytes * 3.35e12 for batch in range(1, found.batch + 1)]
    assert [rate >= 9500 for rate in rates] == [False] * (found.batch - 1) + [True]


def test_a_rate_that_no_floor_reaches_is_still_permitted_within_the_margin():
    most = certify_tokens_per_s(LLAMA_8B, H100, 9500, batch=519, context_tokens=1024)
    rate = 519 / (0.99 * most.floor_s)
    found = certify_tokens_per_s(LLAMA_8B, H100, rate, context_tokens=1024)
    assert found.permitted
    assert found.ratio < 1


def test_a_rate_beyond_every_batch_that_fits_is_forbidden():
    found = certify_tokens_per_s(LLAMA_8B, H100, 24_000, context_tokens=1024)
    left = 80 * 2**30 - LLAMA_8B.weight_bytes
    assert found.batch == left // (1025 * LLAMA_8B_KV) == 519
    assert not found.permitted
    assert found.fits
    roomy = replace(H100, capacity_bytes=None)
    unlimited = certify_tokens_per_s(LLAMA_8B, roomy, 24_000, context_tokens=1024)
    assert unlimited.permitted
    assert unlimited.fits is None
    assert "capacity unknown" in report(unlimited)
    assert not certify_tokens_per_s(LLAMA_8B, roomy, 1e6, context_tokens=1024).permitted


def test_a_model_that_does_not_fit_is_a_finding_of_its_own():
    wide = replace(LLAMA_8B, num_layers=400)  # 90 billion weights
    found = certify_tpot(wide, H100, 1.0)
    assert found.permitted
    assert found.fits is False
    assert found.finding
    assert "does not fit" in report(found)
    spread = certify_tpot(wide, H100, 1.0, devices=4)
    assert spread.fits
    assert not spread.finding
    assert certify_tpot(LLAMA_8B, H100, 1.0, batch=600, context_tokens=1024).fits is False


def test_a_rate_of_a_model_that_does_not_fit_is_judged_by_its_floor_alone():
    wide = replace(LLAMA_8B, num_layers=400)
    found = certify_tokens_per_s(wide, H100, 100.0)
    assert found.permitted
    assert found.fits is False
    assert found.finding


def test_a_printed_gigabyte_may_be_a_gibibyte_before_a_model_is_said_not_to_fit():
    row = replace(H100, capacity_bytes=80 * 10**9, capacity_printed="80 GB")
    assert Setting(LLAMA_8B, row, Chunk(1)).room_bytes == pytest.approx(80 * 2**30)
    assert Setting(LLAMA_8B, H100, Chunk(1)).room_bytes == 80 * 2**30


def test_the_work_of_a_batch_is_that_of_its_sequences_one_by_one(tiny_model):
    tiny_model = tiny_model.with_dtype("bfloat16")
    for chunk in [Chunk(1), Chunk(1, 9), Chunk(7), Chunk(5, 3)]:
        for batch in [1, 2, 5]:
            listed = step_work(tiny_model, [chunk] * batch).total
            assert Setting(tiny_model, H100, chunk).work(batch) == listed


@settings(max_examples=200)
@given(
    st.sampled_from(KNOWN),
    st.sampled_from(hf_config.shipped()),
    st.integers(1, 600),
    st.integers(0, 9000),
    st.integers(1, 16),
    st.floats(0.99, 100),
)
def test_no_claim_from_one_percent_below_the_floor_is_ever_forbidden(
    row, model, batch, context_tokens, devices, factor
):
    """One percent: what the rounding of a data sheet alone may hide."""
    model = model.with_dtype("bfloat16")
    given_shape = {"batch": batch, "context_tokens": context_tokens, "devices": devices}
    floor_s = certify_tpot(model, row, 1.0, **given_shape).floor_s
    assert certify_tpot(model, row, factor * floor_s, **given_shape).permitted
    rate = batch / (factor * floor_s)
    assert certify_tokens_per_s(model, row, rate, **given_shape).permitted
    given_shape["batch"] = None
    sought = certify_tokens_per_s(model, row, rate, **given_shape)
    assert sought.permitted or batch > (sought.setting.largest_batch or batch)


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gpt-oss-20b", "deepseek-v3"])
def test_a_mixtures_floor_may_have_one_tokens_experts_and_names_what_an_even_choice_reads(name):
    """The calculator's floor and the book's prediction count the even choice, sequence by
    sequence; a verdict does not, because all tokens may choose alike."""
    model = hf_config.get(name).with_dtype("bfloat16")
    hardware = Setting(model, H100, Chunk(1)).hardware
    for batch, tokens in [(1, 1), (16, 1), (512, 1), (1, 300), (3, 40)]:
        listed = step_work(model, [Chunk(tokens, 100)] * batch).total
        found = Certificate(Setting(model, H100, Chunk(tokens, 100)), "ttft_s", batch, 1.0)
        assert found.evenly_routed_floor_s == pytest.approx(listed.least_time_s(hardware))
        assert (found.evenly_routed_floor_s > found.floor_s) == (batch * tokens > 1)
    between_s = (certify_tpot(model, H100, 1.0, batch=16).floor_s * 1.01, 1e3)
    remarks = [
        "only where its tokens share more experts"
        in report(certify_tpot(model, H100, time_s, batch=16))
        for time_s in between_s
    ]
    assert remarks == [True, False]


def test_a_batch_that_was_sought_says_nothing_of_routing():
    """At the smallest batch that permits the rate experts must be shared, at a larger one not."""
    model = hf_config.get("mixtral-8x7b")
    found = certify_tokens_per_s(model, H100, 1000.0, devices=2, context_tokens=500)
    assert found.permitted
    assert found.claimed_s < found.evenly_routed_floor_s
    assert "share more experts" not in report(found)
    named = certify_tokens_per_s(
        model, H100, 1000.0, devices=2, context_tokens=500, batch=found.batch
    )
    assert "share more experts" in report(named)


def test_a_claim_as_near_the_even_floor_as_rounding_needs_no_remark():
    model = hf_config.get("mixtral-8x7b")
    even_s = certify_tpot(model, H100, 1.0, batch=16, devices=2).evenly_routed_floor_s
    assert not certify_tpot(model, H100, 0.995 * even_s, batch=16, devices=2).needs_shared_experts
    assert certify_tpot(model, H100, 0.7 * even_s, batch=16, devices=2).needs_shared_experts


def test_a_dense_model_is_routed_evenly_whatever_happens():
    found = certify_tpot(LLAMA_8B, H100, 1.0, batch=16, context_tokens=100)
    assert found.evenly_routed_floor_s == found.floor_s
    assert "routed evenly" not in report(found)


def test_an_engine_that_skips_the_last_layer_of_a_prefill_is_not_forbidden(tiny_model):
    """Its last layer computes keys and values at every position, all else at the last one."""
    tokens = 1000
    every = 24 * 32 + 2 * 24 * 16 + 32 * 24 + 3 * 24 * 40
    flops = 2 * tokens * every + 2 * tokens * 2 * 24 * 16  # one layer whole, then K and V
    flops += 2 * (every - 2 * 24 * 16) + 2 * 24 * 61  # the rest, once
    flops += 4 * 4 * 8 * (tokens * (tokens + 1) // 2 + tokens)
    slow = replace(H100, peak_bf16_flops_per_s=1e6)  # arithmetic decides
    found = certify_ttft(tiny_model.with_dtype("bfloat16"), slow, 1.0, prompt_tokens=tokens)
    skipping_s = flops / 1e6
    assert skipping_s < found.floor_s
    assert found.least_s <= skipping_s


def test_weights_that_could_stay_on_the_chip_do_not_forbid():
    small = hf_config.get("smollm2-135m")
    mi300x = accelerator("MI300X")
    found = certify_tpot(small, mi300x, 20e-6)
    assert found.ratio < 0.5
    assert found.permitted  # 269 MB could lie in caches and registers
    assert not certify_tpot(LLAMA_8B, mi300x, 20e-6).permitted


def test_two_devices_halve_the_floor_of_both_kinds():
    for batch in (1, 512):  # bandwidth decides, then arithmetic
        one, two = (
            certify_tpot(LLAMA_8B, H100, 1.0, batch=batch, devices=devices) for devices in (1, 2)
        )
        assert two.floor_s == pytest.approx(one.floor_s / 2)
        assert two.setting.room_bytes == 2 * one.setting.room_bytes


def test_more_devices_never_forbid_what_fewer_permit():
    for tpot_s in [1e-4, 1e-3, 4.4e-3, 1e-2]:
        verdicts = [
            certify_tpot(LLAMA_8B, H100, tpot_s, devices=devices).permitted
            for devices in (1, 2, 4, 8, 64)
        ]
        assert verdicts == sorted(verdicts)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("4.2ms", 4.2e-3), ("0.5s", 0.5), ("300us", 3e-4), ("300µs", 3e-4), ("0.0042", 4.2e-3)],
)
def test_a_duration_is_seconds_or_has_its_unit(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)
    assert parse_duration(f" {text} ") == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "ms", "-1", "0", "nan", "inf", "1e-400", "1e99s", "4.2min", "4,2ms", "four"]
)
def test_a_bad_duration_is_refused_with_the_rule(text):
    with pytest.raises(ValueError, match=r"duration must be a positive number, such as .*4\.2ms"):
        parse_duration(text)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, 2**41, 10**400])
def test_a_bad_count_is_refused(count):
    with pytest.raises(ValueError, match="batch must be a whole number"):
        certify_tpot(LLAMA_8B, H100, 1.0, batch=count)
    with pytest.raises(ValueError, match="devices must be a whole number"):
        certify_tpot(LLAMA_8B, H100, 1.0, devices=count)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e-300, 1e300])
def test_a_bad_rate_is_refused(rate):
    with pytest.raises(ValueError, match="tokens_per_s must be a positive number"):
        certify_tokens_per_s(LLAMA_8B, H100, rate)


def test_a_dtype_whose_peak_is_unknown_cannot_be_judged():
    with pytest.raises(ValueError, match="no source prints a dense peak"):
        certify_tpot(LLAMA_8B, accelerator("RTX PRO 6000 Server"), 1.0)


def commands_with_output():
    """Of the page: each command that is followed by a block of its output."""
    blocks = (ROOT / "book" / "certify.md").read_text(encoding="utf-8").split("```")[1::2]
    for command, output in pairwise(blocks):
        if command.startswith("sh\n") and output.startswith("text\n"):
            yield command.removeprefix("sh\n").strip(), output.removeprefix("text\n")


def test_the_page_shows_what_its_commands_print(capsys):
    shown = list(commands_with_output())
    assert len(shown) >= 2
    for command, output in shown:
        words = command.split()
        assert words[0] == "prefill-decode"
        cli.main(words[1:])
        assert capsys.readouterr().out == output, command


@pytest.mark.parametrize("dtype", ["fp8", "float8"])
def test_a_claim_in_8_bits_is_priced_with_weights_and_cache_in_8_bits(dtype, capsys):
    """70e9 weights and 64 caches of 32768 tokens at 160 KiB each, in single bytes, on 8 H100: by
    hand 69.5 GB and 344 GB over 26.8 TB/s take 15.4 ms."""
    command = ["certify", "--model", "llama-3.1-70b", "--accelerator", "H100 SXM"]
    command += ["--devices", "8", "--batch", "64", "--context", "32768", "--dtype", dtype]
    assert cli.main([*command, "--tpot", "16.5ms"]) == 0
    assert "permitted" in capsys.readouterr().out
    assert cli.main([*command, "--tpot", "14ms"]) == 1
    assert "forbidden" in capsys.readouterr().out
