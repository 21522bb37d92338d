import re
from dataclasses import replace

import pytest

from prefill_decode import plots
from prefill_decode.hardware import Hardware
from prefill_decode.request import Request, RequestRecord
from prefill_decode.stall_cost import APART, CHUNKED, ONE_PIECE, WAYS, Burst, Foreseen, Latency
from prefill_decode.statistics import median_interval

BURST = Burst(prompt_tokens=400, chunk_tokens=100, streams=4)
FORESEEN = Foreseen(
    BURST,
    {
        ONE_PIECE: Latency(0.01, 0.25, 0.20, 0.01),
        CHUNKED: Latency(0.01, 0.09, 0.25, 0.01),
        APART: Latency(0.02, 0.02, 0.45, 0.04),
    },
)
SHARE = Hardware("half", "float32", 50e9, 8e9, "made up")
GAPS = {way: f"{way}: gap" for way in WAYS}
WAITS = {way: f"{way}: wait" for way in WAYS}
POWERS = {10.0**power for power in range(-4, 4)}
MEASURED_S = {ONE_PIECE: (0.3, 0.22), CHUNKED: (0.1, 0.3), APART: (0.03, 0.55)}


@pytest.fixture
def times(timings):
    raw_s = {GAPS[way]: (gap,) * 10 for way, (gap, _) in MEASURED_S.items()}
    raw_s |= {WAITS[way]: (wait,) * 10 for way, (_, wait) in MEASURED_S.items()}
    return replace(timings, raw_s=raw_s)


def timeline(worst_s: float, ttft_s: float) -> list[RequestRecord]:
    """A pause before the prompt comes at 2.0, and one while it is answered."""
    times_s = (0.1, 1.9, 1.95, 2.0, 2.0 + worst_s, 2.01 + worst_s)
    stream = RequestRecord(Request("stream", 0.0, 4, 6), times_s, (1,) * 6)
    prompt = RequestRecord(Request("prompt", 2.0, 400, 2), (2.0 + ttft_s, 4.0), (1, 1))
    return [stream, stream, prompt]


def test_three_panels_say_the_longest_gap_and_the_wait_of_each_way():
    figure = plots.gaps_of_ways(
        {ONE_PIECE: timeline(0.25, 0.2), CHUNKED: timeline(0.06, 0.3), APART: timeline(0.02, 0.5)}
    )
    assert "one piece: 250 ms, chunked: 60.0 ms, apart: 20.0 ms" in figure.alt
    assert "first token, one piece: 200 ms, chunked: 300 ms, apart: 500 ms" in figure.alt
    assert "apart: at worst 20.0 ms; the prompt waits 500 ms" in figure.svg
    assert "Apart, the longest gap is 20.0 ms, not 250 ms" in figure.svg


def test_gaps_over_many_decades_still_have_numbers_beside_them():
    """Tokens that come in one message lie microseconds apart."""
    times_s = (0.1, 0.1 + 1e-6, 1.9, 2.2, 2.3)
    stream = RequestRecord(Request("stream", 0.0, 4, 5), times_s, (1,) * 5)
    prompt = RequestRecord(Request("prompt", 2.0, 400, 2), (2.4, 2.5), (1, 1))
    svg = plots.gaps_of_ways({way: [stream, prompt] for way in WAYS}).svg
    axis = [part for part in re.findall(r">([\d.]+)</text>", svg) if float(part) in POWERS]
    assert len(set(axis)) >= 2


def test_the_plane_says_what_workers_of_their_own_cost_and_buy(times):
    figure = plots.gap_against_wait(times, GAPS, WAITS, FORESEEN)
    assert "Apart: gap / 10, TTFT × 2.5" in figure.alt
    assert "apart: 30.0 ms at a TTFT of 550 ms" in figure.alt
    assert "<svg" in figure.svg


def test_a_machine_that_is_not_here_stands_below_with_the_name_it_is_given():
    text = plots.foreseen_table(
        FORESEEN, SHARE, {"two machines, not measured": Latency(0.01, 0.01, 0.2, 0.02)}
    ).markdown
    assert "| apart | 20.0 ms | 20.0 ms | 40.0 ms | 450 ms |" in text
    assert "| two machines, not measured | 10.0 ms | 10.0 ms | 20.0 ms | 200 ms |" in text
    assert "share of this machine: 50.0 GFLOP/s and 8.00 GB/s" in text
    assert "two machines" not in plots.foreseen_table(FORESEEN, SHARE).markdown


def test_least_and_measured_stand_side_by_side(times):
    text = plots.ways_table(times, (GAPS, GAPS, GAPS, GAPS, WAITS), FORESEEN).markdown
    row = next(line for line in text.splitlines() if line.startswith("| apart"))
    assert "| 20.0 ms | 30.0 [30.0, 30.0] ms | 40.0 ms | 30.0 [30.0, 30.0] ms |" in row
    assert row.endswith("| 450 ms | 550 [550, 550] ms |")


def test_goodput_is_foreseen_and_then_found():
    text = plots.goodput_table(FORESEEN).markdown
    assert "| readers: TTFT 900 ms, no gap over 60.0 ms | 0.20 | 0.20 | 1.0 |" in text
    assert "| askers: TTFT 300 ms, no gap over 500 ms | 1.0 | 1.0 | 0.80 |" in text
    half = median_interval([0.5] * 10)
    found = {name: dict.fromkeys(WAYS, half) for name in ("readers", "askers")}
    text = plots.goodput_table(FORESEEN, found).markdown
    assert "| 1.0; 0.50 [0.50, 0.50] |" in text
