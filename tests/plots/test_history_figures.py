"""Run after run: where a point lies, what is marked, and what is said when little is known."""

import re
from itertools import pairwise
from math import nan
from xml.etree import ElementTree

import pytest

from prefill_decode.change import Quantity
from prefill_decode.plots import history_figures
from prefill_decode.plots.history_figures import (
    BOTTOM,
    TOP,
    Axis,
    baseline_of,
    history_figure,
    history_finding,
)
from prefill_decode.statistics import Interval
from tests.results_by_hand import BATCH, TIME, make_run, ratio


def series(*medians, width=0.1, **more):
    return [
        make_run(
            date=f"2026-{1 + i // 28:02d}-{1 + i % 28:02d}T00:00:00Z",
            run_id=f"{i:016x}",
            **{BATCH: ratio(value, value * (1 - width), value * (1 + width))} | more,
        )
        for i, value in enumerate(medians)
    ]


def part(figure, name):
    root = ElementTree.fromstring(figure.svg)
    return next((each for each in root.iter() if each.get("class") == name), None)


def heights(figure):
    return [float(y) for y in re.findall(r"M[\d.]+ ([\d.]+)h0", part(figure, "dots").get("d"))]


def test_higher_values_lie_higher_and_all_lie_in_the_plot():
    y = heights(history_figure(series(1.0, 2.0, 1.5), BATCH))
    assert y[1] < y[2] < y[0]
    assert all(TOP <= each <= BOTTOM for each in y)


def test_runs_stand_in_the_order_of_their_dates():
    runs = series(1.0, 2.0, 3.0)
    assert history_figure(runs[::-1], BATCH) == history_figure(runs, BATCH)


def test_the_finding_compares_with_the_baseline_or_else_with_earlier_runs():
    runs = series(1.0, 1.0, 1.2)
    assert history_finding(runs, BATCH) == (
        f"{BATCH}: now 1.20 [1.08, 1.32], 20% above the median of 2 earlier runs"
    )
    assert history_finding(runs, BATCH, series(1.5)).endswith("20% below the baseline")
    assert history_finding(series(1.0, 1.001), BATCH).endswith("level with the run before")
    assert history_finding(series(1.0), BATCH).endswith("1.00 [0.900, 1.10] in one run")


def test_the_alternative_text_states_finding_range_verdicts_and_baseline():
    runs = [*series(1.0, 3.0), make_run(date="2026-01-09T00:00:00Z", outcome="refuted")]
    alt = history_figure(runs, BATCH, series(2.0)).alt
    assert alt.startswith(f"{BATCH}: now 1.50 [1.25, 1.75], 25% below the baseline. ")
    assert "3 runs from 2026-01-01 to 2026-01-09, with medians from 1.00 to 3.00" in alt
    assert "2 supported, 1 refuted" in alt
    assert alt.endswith("The baseline is 2.00 [1.80, 2.20].")


def test_the_baseline_spans_the_pinned_runs():
    found = baseline_of(series(1.0, 2.0, 4.0), BATCH)
    assert (found.median, found.low, found.high) == pytest.approx((2.0, 0.9, 4.4))
    assert baseline_of([], BATCH) is None
    assert baseline_of(series(1.0), "another") is None


def test_a_band_has_the_height_of_the_baseline():
    figure = history_figure(series(1.0, 2.0), BATCH, series(1.5))
    band = part(figure, "band")
    top, tall = float(band.get("y")), float(band.get("height"))
    (low, high), y = sorted(heights(figure)), 1.5
    per_unit = high - low  # pixels from 1.0 to 2.0
    assert tall == pytest.approx(2 * 0.15 * per_unit, abs=0.3)
    assert top == pytest.approx(low + (2.0 - y * 1.1) * per_unit, abs=0.3)
    assert part(history_figure(series(1.0, 2.0), BATCH), "band") is None


def test_intervals_without_ends_leave_points_and_a_baseline_without_ends_a_line():
    bare = {BATCH: ratio(1.0, nan, nan)}
    runs = [make_run(date=f"2026-01-0{i}T00:00:00Z", **bare) for i in (1, 2)]
    figure = history_figure(runs, BATCH, [make_run(**bare)])
    assert "nan" not in figure.svg
    assert part(figure, "bars").get("d") == ""
    assert part(figure, "band") is None
    assert part(figure, "baseline") is not None
    assert "1.00 [too few]" in figure.alt


def test_every_verdict_has_its_mark():
    runs = series(1, 1, 1, 1)
    outcomes = ("supported", "refuted", "inconclusive", "void")
    runs = [make_run(date=r.date, outcome=o) for r, o in zip(runs, outcomes, strict=True)]
    marks = part(history_figure(runs, BATCH), "marks")
    assert marks.text == "✓✗?∅"
    assert len(marks.get("x").split()) == 4


def test_crowded_marks_leave_ticks_out_but_no_failure():
    runs = series(*[1.0] * 60)
    runs[30] = make_run(date=runs[30].date, outcome="refuted")
    marks = part(history_figure(runs, BATCH), "marks")
    assert marks.text.count("✗") == 1
    places = [float(x) for x in marks.get("x").split()]
    assert len(places) == len(marks.text) < 60
    assert min(b - a for a, b in pairwise(places)) >= 10.9


def test_dates_are_thinned_and_a_day_is_named_once():
    dates = part(history_figure(series(*[1.0] * 60), BATCH), "dates")
    words = [each.text for each in dates]
    assert words[0] == "2026-01-01"
    assert words[-1] == "2026-03-04"
    assert 2 < len(words) < 6
    one_day = [make_run(date=f"2026-01-01T0{i}:00:00Z") for i in range(5)]
    assert len(list(part(history_figure(one_day, BATCH), "dates"))) == 1


def test_a_hundred_runs_are_capped_to_the_last_ones_in_a_small_picture():
    figure = history_figure(series(*range(1, 101)), BATCH)
    assert len(heights(figure)) == 60
    assert "with medians from 41.0 to 100;" in figure.alt
    assert len(figure.svg) < 3500
    assert len(heights(history_figure(series(*range(1, 101)), BATCH, most=8))) == 8


def test_a_changed_setting_is_drawn_between_its_runs():
    a, b, c = series(1.0, 1.0, 1.0)
    c = make_run(date=c.date, setting={"x": 2})
    lines = part(history_figure([a, b, c], BATCH), "setting").get("d")
    x = float(re.fullmatch(r"M([\d.]+) \d+V\d+", lines)[1])
    dots = part(history_figure([a, b, c], BATCH), "dots").get("d")
    places = [float(found) for found in re.findall(r"M([\d.]+) ", dots)]
    assert places[1] < x < places[2]
    assert part(history_figure([a, b], BATCH), "setting") is None


def test_times_are_shown_in_their_unit():
    times = {TIME: Quantity(Interval(0.04, 0.03, 0.05, 9), "s", "lower")}
    runs = series(1.0, 1.0, **times)
    assert history_finding(runs, TIME).startswith(f"{TIME}: now 40.0 [30.0, 50.0] ms, level")
    assert "ms" in "".join(part(history_figure(runs, TIME), "scale").itertext())


def timed(*hosts):
    """Runs one after another, each 10 ms slower than the one before."""
    times = [
        {TIME: Quantity(Interval(0.01 * i, 0.009 * i, 0.011 * i, 9), "s", "lower")}
        for i in range(1, len(hosts) + 1)
    ]
    return [
        make_run(date=f"2026-01-{i:02d}T00:00:00Z", run_id=f"{i:016x}", host=host, **time)
        for i, (host, time) in enumerate(zip(hosts, times, strict=True), 1)
    ]


def test_times_of_other_hosts_are_neither_joined_nor_compared_and_their_number_is_said():
    runs = timed("a" * 16, "b" * 16, "a" * 16, "b" * 16, "b" * 16)
    figure = history_figure(runs, TIME)
    assert len(heights(figure)) == 3
    assert "now 50.0 [45.0, 55.0] ms, 67% above the median of 2 earlier runs" in figure.alt
    assert "; 2 runs on other hosts left out. 3 runs from 2026-01-02" in figure.alt
    assert len(heights(history_figure(runs, BATCH))) == 5  # a ratio travels
    assert "left out" not in history_figure(runs, BATCH).alt


def test_a_baseline_of_times_is_that_of_the_same_host():
    runs = timed("a" * 16, "b" * 16, "b" * 16)
    elsewhere = history_figure(runs, TIME, runs[:1])
    assert part(elsewhere, "band") is None
    assert "50% above the run before; 1 run on other hosts left out" in elsewhere.alt
    assert "200% above the baseline" not in elsewhere.alt
    here = history_figure(runs, TIME, runs[:2])
    assert "50% above the baseline" in here.alt
    assert "The baseline is 20.0" in here.alt
    assert part(history_figure(runs, BATCH, runs[:1]), "band") is not None


def test_an_unknown_host_is_no_other_runs_host():
    runs = timed(None, None)
    assert history_finding(runs, TIME).endswith(
        "20.0 [18.0, 22.0] ms in one run; 1 run on other hosts left out"
    )
    with pytest.raises(ValueError, match="2 runs or more; got 1"):
        history_figure(runs, TIME)


def test_one_run_makes_no_figure():
    with pytest.raises(ValueError, match="2 runs or more; got 1"):
        history_figure(series(1.0), BATCH)
    with pytest.raises(ValueError, match="got 0 of 'another'"):
        history_figure(series(1.0, 2.0), "another")


@pytest.mark.parametrize("values", [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0), (1e-12, 1e-12), (1, 1e6)])
def test_flat_zero_and_wild_histories_are_drawn_inside_the_plot(values):
    figure = history_figure(series(*values), BATCH)
    assert all(TOP <= y <= BOTTOM for y in heights(figure))
    assert 1 <= len(list(part(figure, "scale"))) <= 5


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0, 7), (1, 1000), (0.02, 0.5), (3, 3.001)])
def test_ticks_are_few_and_inside(low, high):
    ticks = Axis(low, high).ticks()
    assert 1 <= len(ticks) <= 6
    assert all(low * (1 - 1e-9) <= tick <= high * (1 + 1e-9) for tick in ticks)


def test_a_wide_axis_is_logarithmic():
    places = [Axis(1, 100).place(value) for value in (1, 10, 100)]
    assert places[0] - places[1] == pytest.approx(places[1] - places[2])
    assert places[0] == BOTTOM
    assert history_figures.LINEAR_UP_TO < 100
