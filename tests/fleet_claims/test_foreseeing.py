"""Stories of requests, counted by hand on a machine where every step takes as long; and what is
found of replays that took twice as long as simulated."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from prefill_decode.fleet_claims.foreseeing import (
    CHECKS,
    JUDGED,
    LOADS,
    LONGER_STEPS,
    ONE_AT_A_TIME,
    Plan,
    at_most,
    figures_by_story,
    idle_s,
    ratio_of,
    records_of,
    requests_for,
)
from prefill_decode.fleet_claims.loads import busiest
from prefill_decode.request import Request
from prefill_decode.serving_metrics import ttft_s
from prefill_decode.simulator import Fleet, Pool, simulate
from tests.replays_by_hand import HERE, PLAN, ROUNDS, STEP_S, answered, found_by_hand

AT_ONCE = [Request("a", 1.0, 100, 3), Request("b", 1.0, 100, 2)]


def steps_until_each_token(story):
    """From when both came, in steps."""
    return [
        [round((each - 1.0) / STEP_S, 6) for each in record.event_times_s]
        for record in records_of(story, HERE, AT_ONCE)
    ]


def test_by_the_simulator_the_second_prompt_waits_for_its_share_of_a_step():
    """A step has 128 rows: 100 of the first and 28 of the second, which needs another one."""
    assert steps_until_each_token("simulated") == [[1, 2, 3], [2, 3]]


def test_by_own_steps_nobody_waits_for_anybody():
    assert steps_until_each_token("own steps") == [[1, 2, 3], [1, 2]]


def test_own_steps_begin_with_the_waking_of_an_engine_that_nobody_else_keeps_awake():
    sleepy = replace(HERE.calibration, idle_s=(0.1,), wake_s=(5.0,))
    here = replace(HERE, calibration=sleepy)
    found = [ttft_s(record) for record in records_of("own steps", here, AT_ONCE)]
    assert found == pytest.approx([5.0 + STEP_S, 5.0 + STEP_S])
    assert ttft_s(records_of("simulated", here, AT_ONCE)[0]) == pytest.approx(5.0 + STEP_S)


def test_the_roofline_alone_takes_no_time_on_a_machine_where_only_the_host_does():
    assert ttft_s(records_of("roofline", HERE, AT_ONCE)[0]) == pytest.approx(0.0, abs=1e-9)


def test_every_replay_of_a_load_has_a_seed_of_its_own_and_is_the_same_when_asked_again():
    for name in LOADS:
        assert PLAN.requests(name, 1) == PLAN.requests(name, 1) != PLAN.requests(name, 2)
        other = Plan(HERE, num_requests=6, seed=1)
        assert other.requests(name, 1) != PLAN.requests(name, 1)


def test_loads_bunch_each_in_their_own_way():
    """As far as two of one spread would: their dice differ."""
    shapes = []
    for name in LOADS:
        requests = Plan(HERE, num_requests=20).requests(name, 1)
        last_s = requests[-1].arrival_s
        shapes.append([request.arrival_s / last_s for request in requests])
    assert all(max(map(abs, np.subtract(a, b))) > 0.1 for a, b in combinations(shapes, 2))


def test_both_sides_of_each_number_are_bounded_alike():
    found = {each.name: each for each in PLAN.predictions}
    for name, rival in PLAN.rivals.items():
        assert found[name].rival == pytest.approx(rival)
        assert found[at_most(name)].rival == pytest.approx(1 / rival)
    assert len(found) == 2 * len(PLAN.rivals)


def test_replays_at_the_planned_rate_keep_half_of_the_time_busy():
    pool = Pool("here", HERE.model, HERE.hardware, 256, calibration=HERE.calibration)
    for name, load in LOADS.items():
        requests = load.requests(300, PLAN.rates_per_s[name], 5)
        assert busiest(simulate(Fleet((pool,)), requests)) == pytest.approx(0.5, abs=0.15)


@pytest.mark.parametrize("wake_s", [0.0, 0.02])
def test_one_at_a_time_own_steps_are_all_there_is(wake_s):
    here = replace(HERE, calibration=replace(HERE.calibration, idle_s=(0.05,), wake_s=(wake_s,)))
    requests = Plan(here, num_requests=6).requests(ONE_AT_A_TIME, 0)
    found = figures_by_story(here, requests)
    assert found["own steps"] == pytest.approx(found["simulated"])
    assert len({request.arrival_s for request in requests}) == len(requests) == 3


def test_to_longer_steps_all_come_at_once_so_that_every_wait_grows_with_the_steps():
    requests = PLAN.requests(LONGER_STEPS, 0)
    assert {request.arrival_s for request in requests} == {0.0}
    slow = replace(HERE, calibration=replace(HERE.calibration, step_s=3 * STEP_S))
    plain, longer = (figures_by_story(each, requests)["simulated"] for each in (HERE, slow))
    assert longer["mean TTFT"] == pytest.approx(3 * plain["mean TTFT"])


def test_rivals_are_the_medians_of_what_both_stories_say():
    load, figure = JUDGED[0]
    ratios = sorted(
        each["own steps"][figure] / each["simulated"][figure] for each in PLAN.foreseen[load]
    )
    assert PLAN.rivals[ratio_of(load, figure)] == pytest.approx((ratios[5] + ratios[6]) / 2)
    assert len(PLAN.rivals) == len(JUDGED)


def test_longer_budgets_replay_more_requests_within_bounds():
    assert [requests_for(budget_s) for budget_s in (1.0, 35.0, 1e6)] == [5, 8, 40]


def test_the_engine_idles_while_nobody_has_come_and_when_all_have_been_answered():
    records = [
        answered(Request("a", 1.0, 5, 2), 2.0, 3.0),
        answered(Request("b", 2.5, 5, 1), 4.0),
        answered(Request("c", 6.0, 5, 1), 6.5),
    ]
    assert idle_s(records) == pytest.approx(1.0 + 2.0)
    assert idle_s(list(reversed(records))) == pytest.approx(3.0)


def test_replays_that_took_twice_as_long_are_found_so():
    found = found_by_hand(2.0)
    figures = found.figures()
    checks = [ratio_of(name, "mean TTFT") for name in CHECKS]
    assert set(figures) == {*(each.name for each in PLAN.predictions), *checks}
    for interval in figures.values():
        assert (interval.median, interval.low, interval.high) == pytest.approx((2.0,) * 3)
        assert interval.n == ROUNDS - 1  # the last was disturbed


def test_measured_over_another_story_is_taken_replay_by_replay():
    found, (load, figure) = found_by_hand(2.0), JUDGED[0]
    ratios = sorted(
        2 * each["simulated"][figure] / each["own steps"][figure]
        for each in (figures_by_story(HERE, PLAN.requests(load, n)) for n in range(ROUNDS - 1))
    )
    over = found.ratio(load, figure, "own steps")
    assert over.median == pytest.approx((ratios[2] + ratios[3]) / 2)
    assert (over.low, over.high) == pytest.approx((ratios[0], ratios[-1]))


def test_requests_of_disturbed_rounds_are_no_points():
    waits = found_by_hand(2.0).waits()
    assert len(waits) == len(LOADS) * PLAN.num_requests * (ROUNDS - 1)
    for wait in waits:
        assert wait.measured_s == pytest.approx(2 * wait.simulated_s)
        assert wait.own_steps_s <= wait.simulated_s + 1e-9
