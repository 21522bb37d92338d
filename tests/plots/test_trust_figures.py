"""Trust figures: counts beyond the line, and spread beside what a run says of itself."""

from math import log, log1p
from xml.etree import ElementTree

import pytest

from prefill_decode.plots.trust_figures import (
    beyond_the_line,
    planted_share,
    sessions_figure,
    spread_figure,
    spread_finding,
)

SESSIONS = {
    "planted 10%": {"decode": [log(1.09), log(1.11)], "prefill": [log(1.10), log(1.02)]},
    "equal": {"decode": [0.0, 0.01], "prefill": [log(1.06), -0.2]},
    "planted 5%": {"decode": [], "prefill": []},
}
SPREAD = {
    "time, x": {"between_runs": 0.12, "half_width": 0.06},
    "ratio": {"between_runs": 0.05, "half_width": 0.05},
    "share": {"between_runs": 0.10, "half_width": 0.04},
}


def words(figure) -> str:
    return " ".join(ElementTree.fromstring(figure.svg).itertext())


def test_a_session_counts_from_half_the_tolerance():
    assert beyond_the_line(SESSIONS, 0.10) == {"equal": (1, 4), "planted 10%": (3, 4)}
    half = log1p(0.10) / 2
    on_the_line = {"equal": {"x": [half, half - 1e-9]}}
    assert beyond_the_line(on_the_line, 0.10) == {"equal": (1, 2)}


def test_the_figure_of_sessions_states_its_counts_and_its_middles():
    figure = sessions_figure(SESSIONS, 0.10)
    assert "Beyond the line: 1 of 4 equal, 3 of 4 slower" in words(figure)
    assert figure.alt.startswith(
        "Beyond the line at half the tolerance, 4.9% slower: 1 of 4 equal, 3 of 4 10% slower. "
    )
    assert "Middle session, 10% slower: decode 10%, prefill 5.9%." in figure.alt
    for label in ("decode", "prefill", "10% slower", "slower by (%)"):
        assert label in words(figure)


def test_a_planted_slowdown_is_read_off_its_name():
    assert planted_share("planted 10%") == pytest.approx(0.10)
    assert planted_share("planted 2.5%, fresh") == pytest.approx(0.025)
    assert planted_share("equal") == 0


def test_no_sessions_make_no_figure():
    for empty in ({}, {"equal": {}}, {"equal": {"x": []}}):
        with pytest.raises(ValueError, match="needs their medians"):
            sessions_figure(empty, 0.10)


def test_spread_is_told_against_what_an_interval_stands_for():
    # 1.96 standard deviations make a half-width: 3.92, 1.96 and 4.9 times as far; the middle one.
    assert spread_finding(SPREAD) == "Runs lie 3.9 times as far apart as each one says"
    alt = spread_figure(SPREAD).alt
    assert "time, x: 12% between runs, 3.1% as one says" in alt
    assert "ratio: 5.0% between runs, 2.6% as one says" in alt
    for label in ("between runs", "as one run says", "standard deviation (%)", "share"):
        assert label in words(spread_figure(SPREAD))


def test_an_interval_of_no_width_is_not_divided_by():
    flat = {"exact": {"between_runs": 0.0, "half_width": 0.0}}
    assert spread_finding(flat) == "Runs that say nothing of their own spread"
    assert "exact" in words(spread_figure(flat))
    with pytest.raises(ValueError, match="needs a quantity"):
        spread_figure({})
