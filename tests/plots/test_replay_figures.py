"""Figure and tables of replays say what was measured beside what every story says of it."""

import re

from prefill_decode.fleet_claims.foreseeing import JUDGED, LOADS
from prefill_decode.plots import plan_table, replays_table, waits_of_requests
from tests.replays_by_hand import PLAN, ROUNDS, found_by_hand


def rows_of(text):
    lines = [line for line in str(text).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_plan_says_what_every_story_expects_and_which_figures_are_judged():
    rows = rows_of(plan_table(PLAN))
    assert len(rows) == 2 * len(LOADS)
    judged = [row[0] for row in rows if row[-1] == "yes"]
    assert judged == [f"{load}: {figure}" for load, figure in JUDGED]
    for row, (load, figure) in zip([row for row in rows if row[-1] == "yes"], JUDGED, strict=True):
        assert float(row[7]) == float(f"{PLAN.over_simulated(load, figure):.3g}")
    assert "6 requests in a replay. Step times are of 6 rounds" in str(plan_table(PLAN))
    assert "errs by 2.0%" in str(plan_table(PLAN))


def test_the_table_of_replays_shows_twice_the_simulated():
    rows = rows_of(replays_table(found_by_hand(2.0)))
    assert len(rows) == 2 * len(LOADS) + 2
    for row in rows:
        assert row[3] == "2.00 [2.00, 2.00]"
        assert row[-1] == str(ROUNDS - 1)


def test_the_figure_s_title_is_how_far_each_story_misses():
    found = found_by_hand(2.0)
    figure = waits_of_requests(found)
    assert "Simulated waits miss by 50%" in figure.alt
    misses = sorted(abs(w.own_steps_s / w.measured_s - 1) for w in found.waits())
    middle = (misses[len(misses) // 2 - 1] + misses[len(misses) // 2]) / 2
    assert f"own steps by {middle:.0%}" in figure.alt
    for name in LOADS:
        assert re.search(rf"{name}, \d+ requests: measured \S+ m?s, simulated", figure.alt)
    assert 'aria-label="Simulated waits miss' in figure.svg
