"""Crossover figures: the finding is the one that the numbers hold."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from prefill_decode import plots
from prefill_decode.crossover_map import plan_sweeps
from prefill_decode.hardware import Hardware
from prefill_decode.hf_config import get


def words(figure) -> str:
    return " ".join(ElementTree.fromstring(figure.svg).itertext())


@pytest.fixture
def sweeps():
    ceilings = [
        Hardware("test", "float32", 250e9, 25e9, "made up"),
        Hardware("test", "float64", 200e9, 25e9, "made up"),
    ]
    return plan_sweeps(get("laptop-254m"), [32, 512, 2048], 100e6, ceilings)


def test_the_map_states_its_extremes_and_both_errors(sweeps):
    measured = {sweep.name: [2.0 * (i + 1)] * 10 for i, sweep in enumerate(sweeps)}
    figure = plots.crossover_map(sweeps, measured)
    assert figure.alt.startswith("From 2.0 to 16 sequences on one device")
    assert "best single constant is 9.0" in figure.alt
    assert f"{sweeps[3].name}: predicted" in figure.alt
    for label in ("float32", "float64", "as the ceilings predict", "best single constant: 9.0"):
        assert label in words(figure)


def test_a_measurement_on_the_diagonal_has_no_error(sweeps):
    figure = plots.crossover_map(sweeps, {s.name: [s.predicted] * 10 for s in sweeps})
    assert figure.alt.endswith("prediction 0.00.")


def test_the_table_of_sweeps_says_what_is_shared_and_what_is_not(sweeps):
    markdown = plots.sweeps_table(sweeps).markdown
    assert len(markdown.splitlines()) == 2 + 8
    assert "| narrow MLP, 2048 tokens, float32 | 4 | 122 MB | 67.1 MB | 1, 6, 12 |" in markdown


def test_the_table_of_times_shows_prediction_measurement_and_shares(sweeps, timings, ceilings):
    raw_s = {s.steps[b]: (t,) * 10 for s in sweeps for b, t in s.least_s.items()}
    times = replace(timings, raw_s=timings.raw_s | raw_s)
    by_dtype = {"float32": ceilings, "float64": ceilings}
    markdown = plots.sweeps_times_table(sweeps, times, by_dtype).markdown
    first = markdown.splitlines()[2]
    predicted = f"{sweeps[0].predicted:.1f}"
    assert f"| {predicted} | {predicted} [{predicted}, {predicted}] |" in first
    assert "10 rounds in 1 s" in markdown
