"""Figures: well-formed inline SVG, with a name, in the page's ink, with ids of their own."""

import re
from xml.etree import ElementTree

import pytest

from prefill_decode import plots
from prefill_decode.hardware import Hardware
from prefill_decode.plots.figures import phases_on_the_roofline
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from prefill_decode.units import format_si, format_significant

HARDWARE = Hardware("Test CPU", "float64", 1e11, 2e10, "made up")
STEPS = {1: "decode x1", 8: "decode x8"}


@pytest.fixture
def works(tiny_model):
    return {
        "decode x1": step_work(tiny_model, [Chunk(1, 16)]),
        "decode x8": step_work(tiny_model, [Chunk(1, 16)] * 8),
    }


@pytest.fixture
def figure(timings, works, ceilings):
    return plots.time_against_sequences(timings, STEPS, works, ceilings)


def test_a_figure_is_one_svg_element_whose_name_states_the_finding(figure):
    element = ElementTree.fromstring(figure.svg)
    assert element.attrib["role"] == "img"
    assert element.attrib["aria-label"] == figure.alt
    assert "8 sequences take 1.19 times as long as 1" in figure.alt


def test_the_ink_is_the_pages_and_no_font_is_named(figure):
    assert "currentColor" in figure.svg
    assert "#012345" not in figure.svg
    assert "DejaVu" not in figure.svg
    assert "width=" not in figure.svg[:200]  # the page decides


def test_two_figures_on_a_page_share_no_id(figure, record):
    other = phases_on_the_roofline(record["points"], HARDWARE)
    ids = [set(re.findall(r'\bid="([^"]+)"', each.svg)) for each in (figure, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for each, own in zip((figure, other), ids, strict=True):
        references = re.findall(r'(?:url\(#|href="#)([^")]+)', each.svg)
        assert set(references) <= own


def test_text_stays_text_so_that_it_can_be_searched_and_scaled(figure):
    words = " ".join(ElementTree.fromstring(figure.svg).itertext())
    assert "sequences in the step" in words
    assert "least time: read everything once" in words


def test_the_same_numbers_draw_the_same_figure(figure, timings, works, ceilings):
    assert plots.time_against_sequences(timings, STEPS, works, ceilings).svg == figure.svg


def test_the_drawn_rates_are_the_recorded_ones(record):
    figure = phases_on_the_roofline(record["points"], HARDWARE)
    first, last = record["points"][0], record["points"][-1]
    ratio = (last["flops"] / last["time_s"]["median"]) / (
        first["flops"] / first["time_s"]["median"]
    )
    assert f"{format_significant(ratio, 2)} times the FLOP/s" in figure.alt
    assert format_si(last["flops"] / last["time_s"]["median"], "FLOP/s") in figure.alt


def test_a_record_without_an_interval_can_be_drawn(record):
    for point in record["points"]:
        point["time_s"] |= {"low": None, "high": None, "coverage": None}
    assert "times the FLOP/s" in phases_on_the_roofline(record["points"], HARDWARE).alt


def test_a_file_of_its_own_brings_ink_for_light_and_dark(figure):
    text = figure.standalone()
    ElementTree.fromstring(text)
    assert "prefers-color-scheme:dark" in text


def test_a_rate_figure_names_the_share_of_the_ceiling_that_is_judged(timings, tiny_model, ceilings):
    works = {name: step_work(tiny_model, [Chunk(n)]) for n, name in STEPS.items()}
    figure = plots.rate_against_tokens(timings, STEPS, works, ceilings)
    share = timings.share(works["decode x8"].total.flops, "decode x8", ceilings.matrix).median
    assert figure.alt.startswith(f"At 8 tokens, {share:.0%} of the matrix ceiling")
    assert "matrix ceiling" in figure.svg
