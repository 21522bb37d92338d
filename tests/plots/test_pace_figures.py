"""Tables and figure of a pair's loads say what was measured beside what was simulated."""

from prefill_decode.fleet_claims.pace import LEANING, LOADS, PAIR, TOGETHER, WHOLE
from prefill_decode.plots import loads_together, pace_plan_table, pace_table
from tests.paces_by_hand import PLAN, found_by_hand


def rows_of(text):
    lines = [line for line in str(text).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_plan_says_what_each_load_is_and_how_a_fleet_would_be_split_for_it():
    rows = {row[0]: row for row in rows_of(pace_plan_table(PLAN))}
    assert list(rows) == list(LOADS)
    for load in LEANING:
        prompt, answer = PLAN.lengths[load]
        assert rows[load][1] == f"{prompt}, {answer}"
        prefill, decode = PLAN.laws[load].best(8)
        assert rows[load][3] == f"{prefill} : {decode}"
    assert rows[TOGETHER][1:4] == ["—"] * 3
    assert "8 requests of each load" in str(pace_plan_table(PLAN))


def test_the_table_shows_a_pair_that_takes_twice_the_simulated_for_both_loads():
    rows = {row[0]: row for row in rows_of(pace_table(found_by_hand(both=2.0)))}
    assert len(rows) == 6
    assert rows[f"{PAIR}: {TOGETHER}"][3] == "2.00 [2.00, 2.00]"
    assert rows[f"{WHOLE}: {TOGETHER}"][3] == "1.00 [1.00, 1.00]"
    for load in LEANING:
        assert float(rows[f"{PAIR}: {load}"][5]) == float(f"{PLAN.idle(load):.3g}")
        assert rows[f"{WHOLE}: {load}"][4:] == ["—", "—"]
    assert f"simulated {PLAN.extra(PAIR):.3g}" in str(pace_table(found_by_hand()))


def test_the_figure_s_title_is_how_much_longer_both_take_than_one():
    figure = loads_together(found_by_hand(both=2.0))
    one_s = sum(PLAN.simulated_s[PAIR, load] for load in LEANING) / 2
    pair = 2 * PLAN.simulated_s[PAIR, TOGETHER] / one_s
    assert f"Both loads: {pair:.2g} × the time of one for the pair" in figure.alt
    assert figure.alt.count("measured") == 6
    assert 'aria-label="Both loads' in figure.svg
