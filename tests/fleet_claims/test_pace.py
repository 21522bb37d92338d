"""What a pair of workers takes, counted by hand where every step takes 10 ms; and verdicts on runs
that went as simulated, or as the rivals say."""

from dataclasses import replace

import pytest

from prefill_decode.claim import Claim, Prediction
from prefill_decode.fleet_claims.pace import (
    LEANING,
    LEAST,
    LOADS,
    ONE_AT_A_TIME,
    PAIR,
    PHASES,
    REQUESTS,
    TOGETHER,
    TOKENS,
    WAYS,
    WHOLE,
    Plan,
    computing,
    extra,
    extra_of,
    idle,
    idle_share,
    over_whole,
    timed,
)
from prefill_decode.fleet_claims.pools import OUTPUT_HEAVY, PROMPT_HEAVY
from prefill_decode.roofline import step_work
from prefill_decode.simulator import Prices
from prefill_decode.step import Chunk
from tests.paces_by_hand import PLAN, ROUNDS, SLOW, found_by_hand
from tests.replays_by_hand import HERE, STEP_S

EVEN = Plan(HERE, output_heavy=(8, 24))  # all steps are alike
CONTROLS = [*PLAN.on_one_worker, Prediction(TOKENS, 1.0, 0.5)]


def steps(time_s):
    return round(time_s / STEP_S, 6)


def busy_steps(load):
    return [steps(EVEN.busy_s[phase, load]) for phase in PHASES]


def outcome(found):
    return Claim("any", PLAN.predictions, CONTROLS).judge(found.figures()).outcome


def test_every_prompt_fills_a_step_and_its_one_later_token_takes_another_beside_the_next():
    assert steps(EVEN.simulated_s[PAIR, PROMPT_HEAVY]) == REQUESTS + 1
    assert busy_steps(PROMPT_HEAVY) == [REQUESTS, REQUESTS]
    assert EVEN.idle(PROMPT_HEAVY) == pytest.approx(1 - 8 / 9)


def test_short_prompts_share_a_step_and_their_answers_share_all_others():
    for way in WAYS:
        assert steps(EVEN.simulated_s[way, OUTPUT_HEAVY]) == 24
    assert busy_steps(OUTPUT_HEAVY) == [1, 23]
    assert EVEN.idle(OUTPUT_HEAVY) == pytest.approx(0.5)


def test_both_loads_fit_side_by_side_on_the_pair():
    """One step for all short prompts, then eight for the long ones; 23 steps of decodes begin
    after the first, and hold the other load's tokens as they come."""
    assert steps(EVEN.simulated_s[PAIR, TOGETHER]) == 24
    assert busy_steps(TOGETHER) == [9, 23]
    assert EVEN.extra(PAIR) == pytest.approx(24 / ((24 + 9) / 2) - 1)


def test_two_whole_workers_take_more_than_half_of_what_one_takes_as_each_reads_all_weights():
    assert 0.5 < PLAN.two_whole_s / PLAN.simulated_s[WHOLE, TOGETHER] < 1.0


def test_an_extra_is_none_where_the_second_load_is_free_and_one_where_it_costs_in_full():
    assert extra_of(3.0, 3.0, 3.0) == 0.0
    assert extra_of(2.0, 4.0, 6.0) == 1.0
    assert extra_of(2.0, 2.0, 2.5) == 0.25


def test_the_idle_share_is_of_the_time_of_both_workers():
    assert idle_share(2.0, 2.0, 2.0) == 0.0
    assert idle_share(2.0, 2.0, 0.0) == ONE_AT_A_TIME == 0.5
    assert idle_share(4.0, 1.0, 2.0) == 1 - 3 / 8


def test_the_law_of_a_load_fills_the_steps_of_its_prompts():
    """Eight prompts of eight tokens share a step of 64 rows."""
    pool = PLAN._pool("prefill")
    full_s = Prices(pool.model, SLOW, pool.calibration).step_s_by_roofline([Chunk(8)] * REQUESTS)
    assert PLAN.law(8, 24).prefill_per_s == pytest.approx(REQUESTS / full_s)


def test_what_cannot_be_told_from_none_is_expected_to_be_small(monkeypatch):
    monkeypatch.setattr(Plan, "extra", lambda plan, way: 0.001)
    assert PLAN.on_one_worker[0].rival == LEAST
    monkeypatch.setattr(Plan, "idle", lambda plan, load: 0.001)
    assert PLAN.predictions[-1].expected == LEAST


def test_answers_are_sought_with_which_both_loads_take_as_long():
    prompt_s, output_s = (PLAN.simulated_s[PAIR, load] for load in LEANING)
    prompt, answer = PLAN.lengths[OUTPUT_HEAVY]
    assert prompt == PLAN.short_prompt
    for tokens in (answer - 1, answer + 1):
        near = replace(PLAN, output_heavy=(prompt, tokens)).simulated_s[PAIR, OUTPUT_HEAVY]
        assert abs(output_s - prompt_s) <= abs(near - prompt_s)
    assert output_s == pytest.approx(prompt_s, rel=0.05)


def test_loads_are_asked_all_at_once_and_both_are_both():
    together = PLAN.requests(TOGETHER)
    assert together == [*PLAN.requests(OUTPUT_HEAVY), *PLAN.requests(PROMPT_HEAVY)]
    assert {request.arrival_s for request in together} == {0.0}
    assert len({request.request_id for request in together}) == 2 * REQUESTS
    for load in LEANING:
        lengths = {(each.prompt_tokens, each.output_tokens) for each in PLAN.requests(load)}
        assert lengths == {PLAN.lengths[load]}


def test_what_a_whole_worker_computes_at_least_is_less_than_what_it_is_simulated_to_take():
    for load in LOADS:
        floor_s = step_work(HERE.model, PLAN.chunks(load)).total.least_time_s(SLOW)
        assert 0 < floor_s < PLAN.simulated_s[WHOLE, load]
    assert PLAN.chunks(PROMPT_HEAVY) == [Chunk(64), Chunk(1, 64)] * REQUESTS


def test_what_is_expected_is_what_is_simulated_and_rivals_are_the_other_stories():
    by_name = {each.name: each for each in (*PLAN.predictions, *CONTROLS)}
    assert len(by_name) == 7
    both = by_name[idle(TOGETHER)]
    assert (both.expected, both.rival) == (PLAN.idle(TOGETHER), 0.5)
    one = by_name[extra(WHOLE)]
    assert (one.expected, one.rival) == (PLAN.extra(WHOLE), PLAN.extra(PAIR))
    for load in LEANING:
        leaning, alone = by_name[idle(load)], by_name[over_whole(load)]
        assert (leaning.expected, leaning.rival) == (PLAN.idle(load), both.expected)
        assert alone.rival == 2 * alone.expected
        assert alone.expected == pytest.approx(
            PLAN.simulated_s[PAIR, load] / PLAN.simulated_s[WHOLE, load]
        )
    assert all(each.contrast >= 2 for each in by_name.values())


def test_figures_are_taken_round_by_round():
    found = found_by_hand(both=2.0)
    own_s, other_s, both_s = (PLAN.simulated_s[PAIR, load] for load in LOADS)
    assert found.extra(PAIR).median == pytest.approx(4 * both_s / (own_s + other_s) - 1)
    assert found.extra(PAIR).n == ROUNDS
    computing_s = sum(PLAN.busy_s[phase, TOGETHER] for phase in PHASES)
    assert found.idle(TOGETHER).median == pytest.approx(1 - computing_s / (4 * both_s))
    assert found.over_simulated(PAIR, TOGETHER).median == pytest.approx(2.0)
    assert found.over_simulated(WHOLE, TOGETHER).median == pytest.approx(1.0)


def test_runs_as_simulated_support():
    assert outcome(found_by_hand()) == "supported"


def test_workers_of_which_one_computes_at_a_time_refute():
    both_s = sum(PLAN.busy_s[phase, TOGETHER] for phase in PHASES)
    found = found_by_hand(both=both_s / PLAN.simulated_s[PAIR, TOGETHER])
    assert found.idle(TOGETHER).median == pytest.approx(0.5)
    assert outcome(found) == "refuted"


def test_workers_that_share_the_work_of_any_load_refute():
    found = found_by_hand()
    shared_s = {
        computing(phase, load): found.times.raw_s[timed(PAIR, load)]
        for phase in PHASES
        for load in LEANING
    }
    times = replace(found.times, raw_s={**found.times.raw_s, **shared_s})
    assert outcome(replace(found, times=times)) == "refuted"


@pytest.mark.parametrize("load", ["prompt_heavy", "output_heavy"])
def test_a_pair_that_idles_because_it_is_slow_is_a_broken_ruler(load):
    assert outcome(found_by_hand(**{load: 3.0})) == "void"


def test_a_worker_that_does_both_and_has_time_to_give_away_is_a_broken_ruler():
    found = found_by_hand()
    raw_s = dict(found.times.raw_s)
    raw_s[timed(WHOLE, TOGETHER)] = raw_s[timed(WHOLE, PROMPT_HEAVY)]
    assert outcome(replace(found, times=replace(found.times, raw_s=raw_s))) == "void"


def test_one_round_of_three_with_other_tokens_is_no_agreement():
    found = replace(found_by_hand(), alike=[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    assert outcome(found) == "void"
