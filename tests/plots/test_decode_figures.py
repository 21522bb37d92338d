"""Figures of decode: they say what was measured beside what is possible."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from prefill_decode import plots
from prefill_decode.crossover import crossover_sequences
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds, format_significant

SLOW, FAST = {4: "slow 4", 16: "slow 16"}, {4: "fast 4", 16: "fast 16"}
BATCHES = {n: f"decode x{n}" for n in (1, 8, 32, 64)}


@pytest.fixture
def times(timings):
    medians_s = {"slow 4": 0.04, "slow 16": 0.16, "fast 4": 0.01, "fast 16": 0.02}
    medians_s |= {"decode x1": 0.01, "decode x8": 0.012, "decode x32": 0.03, "decode x64": 0.06}
    spread = {name: tuple(t * (1 + i / 100) for i in range(10)) for name, t in medians_s.items()}
    return replace(timings, raw_s={**timings.raw_s, **spread})


@pytest.fixture
def works(tiny_model):
    works = {name: step_work(tiny_model, [Chunk(n)]) for n, name in SLOW.items()}
    works |= {name: step_work(tiny_model, [Chunk(1, n)]) for n, name in FAST.items()}
    works |= {name: step_work(tiny_model, [Chunk(1, 3)] * n) for n, name in BATCHES.items()}
    return works


@pytest.fixture(params=["next token", "generated", "throughput"])
def figure(request, times, works, ceilings):
    if request.param == "throughput":
        return plots.throughput_against_sequences(times, BATCHES, works, ceilings)
    draw = {
        "next token": plots.next_token_against_context,
        "generated": plots.generated_against_scored,
    }[request.param]
    return draw(times, SLOW, FAST, works, ceilings)


def test_a_figure_is_svg_in_the_pages_ink_with_its_finding_as_a_name(figure):
    element = ElementTree.fromstring(figure.svg)
    assert element.attrib["aria-label"] == figure.alt
    assert "currentColor" in figure.svg
    assert "#012345" not in figure.svg
    words = " ".join(ElementTree.fromstring(figure.svg).itertext())
    assert figure.alt.split(".")[0].split(" of ")[0] in words  # the title is drawn
    assert re.findall(r'\bid="([^"]+)"', figure.svg)


def test_the_ratio_in_the_title_is_the_measured_one(times, works, ceilings):
    figure = plots.next_token_against_context(times, SLOW, FAST, works, ceilings)
    assert figure.alt.startswith("At 16 tokens, recomputing takes 8.00 times as long")
    figure = plots.generated_against_scored(times, SLOW, FAST, works, ceilings)
    assert figure.alt.startswith("16 tokens: one by one takes 8.00 times as long")


def test_both_ways_are_spoken_with_the_least_time_of_the_last(times, works, ceilings):
    alt = plots.next_token_against_context(times, SLOW, FAST, works, ceilings).alt
    assert "without the cache: 4: 41.8 ms, 16: 167 ms" in alt
    assert "from the cache: 4: 10.5 ms, 16: 20.9 ms" in alt
    least_s = works["slow 16"].least_time_s(ceilings.during(times))
    assert f"at least {format_seconds(least_s)}" in alt


def test_throughput_is_sequences_over_time_and_the_crossover_that_of_least_times(
    times, works, ceilings
):
    alt = plots.throughput_against_sequences(times, BATCHES, works, ceilings).alt
    assert alt.startswith("64 sequences: 10.7 times the tokens per second of 1")
    assert "1: 95.7 tokens/s" in alt
    hardware = ceilings.during(times)
    least_s = {n: works[name].least_time_s(hardware) for n, name in BATCHES.items()}
    predicted = format_significant(crossover_sequences(least_s), 2)
    assert f"predicted crossover is {predicted} sequences" in alt


def test_the_capacity_table_says_that_it_predicts(tiny_model, machine, ceilings):
    shown = plots.capacity_table(tiny_model, machine, ceilings.hardware, [16, 1000]).markdown
    assert "sequences that fit, predicted" in shown
    token_bytes = 2 * 2 * 2 * 8 * 8
    fit = int((16e9 - tiny_model.weight_bytes) // (1000 * token_bytes))
    assert f"| 1000 | {fit} |" in shown
