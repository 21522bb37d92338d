from dataclasses import replace

import pytest

from prefill_decode import plots
from prefill_decode.chunking import Price
from prefill_decode.request import Request, RequestRecord


def timeline(worst_s: float) -> list[RequestRecord]:
    times = (0.1, 0.11, 0.12, 0.12 + worst_s, 0.13 + worst_s)
    stream = RequestRecord(Request("stream", 0.0, 4, 5), times, (1,) * 5)
    prompt = RequestRecord(Request("prompt", 0.12, 512, 1), (0.12 + worst_s,), (1,))
    return [stream, stream, prompt]


def test_one_timeline_says_how_long_no_stream_got_a_token():
    figure = plots.gaps_over_time({"whole": timeline(0.25)})
    assert "no stream gets a token for 250 ms" in figure.alt
    assert "2 streams get a token every 10.0 ms" in figure.alt
    assert "a prompt of 512 tokens" in figure.alt
    assert "<svg" in figure.svg


def test_two_timelines_are_stacked_with_the_worst_gap_of_each():
    figure = plots.gaps_over_time({"whole": timeline(0.25), "pieces of 8": timeline(0.02)})
    assert "pieces of 8: at worst 20.0 ms" in figure.svg
    assert "whole: at worst 250 ms" in figure.svg


def test_a_pause_before_the_prompt_came_is_not_laid_at_its_door():
    *streams, prompt = timeline(0.05)
    request = replace(streams[0].request, arrival_s=-1.0)
    times_s = (-0.9, *streams[0].event_times_s[1:])
    late = replace(streams[0], request=request, event_times_s=times_s)
    figure = plots.gaps_over_time({"whole": [late, prompt]})
    assert "no stream gets a token for 50.0 ms" in figure.alt


@pytest.fixture
def sweep(timings):
    gaps = {8: "gap 8", 32: "gap 32", 512: "gap 512"}
    waits = {8: "wait 8", 32: "wait 32", 512: "wait 512"}
    seconds = dict(zip([*gaps.values(), *waits.values()], [2, 5, 40, 90, 45, 40], strict=True))
    raw_s = {name: (value * 1e-3,) * 10 for name, value in seconds.items()}
    prices = {8: Price(1e-3, 0.08), 32: Price(4e-3, 0.04), 512: Price(38e-3, 0.038)}
    return replace(timings, raw_s=raw_s), gaps, waits, prices


def test_the_price_of_chunks_names_the_best_one(sweep):
    figure = plots.price_of_chunks(*sweep)
    assert "Pieces of 32: gap / 8.0, TTFT × 1.1" in figure.alt
    assert "8: 2.00 ms, 32: 5.00 ms, 512: 40.0 ms" in figure.alt


def test_the_table_of_chunks_sets_least_beside_measured_and_both_best_ones(sweep):
    text = plots.chunks_table(*sweep).markdown
    assert "| 32 (best) | 4.00 ms | 5.00 [5.00, 5.00] ms | 40.0 ms |" in text
    assert "has 32 tokens; the roofline names 32" in text


def test_prices_are_told_before_anything_is_measured(sweep):
    text = plots.prices_table(sweep[3], 512).markdown
    assert "| 32 (best) | 16 | 4.00 ms | 40.0 ms |" in text
