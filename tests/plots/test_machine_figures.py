"""Machines side by side: the order, the finding, and what overlaps what."""

import re
from math import inf, nan
from xml.etree import ElementTree

import pytest

from prefill_decode.plots import machine_figures
from prefill_decode.plots.machine_figures import in_order, machines_figure, stands_apart
from prefill_decode.statistics import Interval
from tests.results_by_hand import BATCH, SHARE, make_run, ratio


def words(figure) -> str:
    return " ".join(ElementTree.fromstring(figure.svg).itertext())


def test_this_machine_comes_first_and_the_others_by_title():
    runs = [make_run(slug, title) for slug, title in (("c-3", "C"), ("a-1", "A"), ("b-2", "B"))]
    assert [run.machine["title"] for run in in_order(runs, "b-2")] == ["B", "A", "C"]
    assert [run.machine["title"] for run in in_order(runs, "elsewhere")] == ["A", "B", "C"]


def test_a_machine_is_shown_by_its_newest_run():
    old = make_run(date="2026-01-01T00:00:00Z", run_id="1" * 16)
    new = make_run(date="2026-02-01T00:00:00Z", run_id="2" * 16)
    assert [run.run_id for run in in_order([new, old], "here-6a09")] == ["2" * 16]


def test_the_figure_states_who_supports_it_and_every_number():
    here = make_run(**{SHARE: ratio(0.81, 0.69, 0.88, "higher")})
    there = make_run("there-2a0e", "There", outcome="refuted", **{BATCH: ratio(6.0, 5.5, 6.5)})
    figure = machines_figure([there, here], "here-6a09")
    assert figure.alt.startswith("Supported on 1 of 2 machines. ")
    for told in (
        "this machine: Here, 1.50 [1.25, 1.75] where the claim expects 1.0 and its rival 8.0",
        "There, 6.00 [5.50, 6.50]",
        f"{SHARE}: this machine: Here, 0.810 [0.690, 0.880]",
    ):
        assert told in figure.alt
    assert figure.alt.index("this machine: Here") < figure.alt.index("There")
    for label in ("Supported on 1 of 2 machines", BATCH, SHARE, "claim", "rival", "There"):
        assert label in words(figure)


def test_both_machines_and_the_only_one_are_told_in_words():
    here, there = make_run(), make_run("there-2a0e", "There")
    assert "Supported on both machines" in words(machines_figure([here, there], "here-6a09"))
    alone = machines_figure([make_run(outcome="void")], "here-6a09")
    assert alone.alt.startswith("Void on the one machine that measured it")


@pytest.mark.parametrize("title", ["A | B", "<script>alert(1)</script>", "100 $ & $", "x" * 200])
def test_any_title_is_drawn_as_text(title):
    figure = machines_figure([make_run(title=title)], "elsewhere")
    shown = title if len(title) < 50 else "x" * 45 + "…"
    assert shown in words(figure)
    assert "<script" not in figure.svg


@pytest.mark.parametrize(
    "measured", [ratio(1.5, nan, nan), ratio(0.0, 0.0, 1.0), ratio(0.0, nan, nan)]
)
def test_missing_ends_and_a_median_of_zero_still_make_a_figure(measured):
    figure = machines_figure([make_run(**{BATCH: measured})], "here-6a09")
    assert "nan" not in figure.svg


def test_machines_of_one_title_are_told_apart():
    runs = [make_run("twin-1111", "Twin"), make_run("twin-2222", "Twin")]
    assert "this machine: Twin (1111), 1.50" in machines_figure(runs, "twin-1111").alt
    assert "; Twin (2222), 1.50" in machines_figure(runs, "twin-1111").alt


def test_many_machines_leave_the_longest_unmeasured_out_but_never_this_one():
    runs = [make_run(f"m-{i:04d}", f"M{i}", f"2026-01-{i:02d}T00:00:00Z") for i in range(1, 30)]
    shown = machine_figures.shown_of(runs, "m-0001")
    titles = {run.machine["title"] for run in shown}
    assert len(titles) == machine_figures.MOST_MACHINES
    assert "M1" in titles
    assert "M29" in titles
    assert "M2" not in titles
    assert len(machines_figure(runs, "m-0001").svg) < 60_000


def test_a_prediction_at_another_size_has_a_panel_of_its_own():
    here = make_run()
    there = make_run("there-2a0e", "There", **{SHARE: ratio(0.5, 0.4, 0.6)})
    del there.quantities[BATCH], there.expected[BATCH]
    panels = machine_figures.panels_of([here, there])
    assert {name: len(runs) for name, runs in panels.items()} == {BATCH: 1, SHARE: 1}


def test_a_figure_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a run that made a prediction; got 0"):
        machines_figure([], "here")


def interval(low, high):
    return Interval((low + high) / 2, low, high, 10, 0.95)


def test_an_interval_stands_apart_when_it_overlaps_none():
    near, far = interval(3, 4), interval(8, 9)
    assert stands_apart(interval(1, 2), [far, near]) is near
    assert stands_apart(interval(10, 12), [far, near]) is far
    assert stands_apart(interval(1, 3), [far, near]) is None  # they touch
    assert stands_apart(interval(5, 6), [near, interval(1, 20)]) is None


def test_without_ends_nothing_stands_apart():
    assert stands_apart(interval(1, 2), []) is None
    assert stands_apart(Interval(1, nan, nan, 3), [interval(3, 4)]) is None
    assert stands_apart(interval(1, 2), [Interval(9, nan, nan, 3)]) is None
    assert stands_apart(interval(1, 2), [Interval(9, 8, inf, 3)]) is None


def test_ids_of_two_figures_on_a_page_do_not_collide():
    first = machines_figure([make_run()], "here-6a09").svg
    second = machines_figure([make_run(title="Other")], "here-6a09").svg
    ids = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]
