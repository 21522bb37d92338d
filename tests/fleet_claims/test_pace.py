"""What a pair of workers takes, counted by hand where every step takes 10 ms; and verdicts on runs
that went as simulated, or as the rival says."""

from dataclasses import replace

import pytest

from prefill_decode.claim import Claim, Prediction
from prefill_decode.fleet_claims.pace import (
    LEANING,
    LEAST_EXTRA,
    LOADS,
    PAIR,
    REQUESTS,
    TOGETHER,
    TOKENS,
    WAYS,
    WHOLE,
    Busy,
    Plan,
    extra,
    extra_of,
    idler,
    timed,
)
from prefill_decode.fleet_claims.pools import OUTPUT_HEAVY, PROMPT_HEAVY
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from tests.paces_by_hand import PLAN, ROUNDS, SLOW, found_by_hand
from tests.replays_by_hand import HERE, STEP_S

EVEN = Plan(HERE, output_heavy=(8, 24))  # all steps are alike
CONTROLS = [PLAN.on_one_worker, PLAN.both_busy, Prediction(TOKENS, 1.0, 0.5)]


def steps(time_s):
    return round(time_s / STEP_S, 6)


def test_every_prompt_fills_a_step_and_its_one_later_token_takes_another_beside_the_next():
    assert steps(EVEN.simulated_s[PAIR, PROMPT_HEAVY]) == REQUESTS + 1
    busy = EVEN.busy[PROMPT_HEAVY]
    assert (steps(busy.prefill_s), steps(busy.decode_s)) == (REQUESTS, REQUESTS)


def test_short_prompts_share_a_step_and_their_answers_share_all_others():
    for way in WAYS:
        assert steps(EVEN.simulated_s[way, OUTPUT_HEAVY]) == 24
    busy = EVEN.busy[OUTPUT_HEAVY]
    assert (steps(busy.prefill_s), steps(busy.decode_s)) == (1, 23)


def test_both_loads_fit_side_by_side_on_the_pair():
    """One step for all short prompts, then eight for the long ones; 23 steps of decodes begin
    after the first, and hold the other load's tokens as they come."""
    assert steps(EVEN.simulated_s[PAIR, TOGETHER]) == 24
    assert EVEN.extra(PAIR) == pytest.approx(24 / ((24 + 9) / 2) - 1)


def test_an_extra_is_none_where_the_second_load_is_free_and_one_where_it_costs_in_full():
    assert extra_of(3.0, 3.0, 3.0) == 0.0
    assert extra_of(2.0, 4.0, 6.0) == 1.0
    assert extra_of(2.0, 2.0, 2.5) == 0.25


def test_an_extra_that_cannot_be_told_from_none_is_expected_to_be_small(monkeypatch):
    monkeypatch.setattr(Plan, "extra", lambda plan, way: 0.001)
    assert PLAN.on_one_worker.rival == LEAST_EXTRA


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


def test_the_idler_is_the_worker_of_the_other_phase():
    busy = Busy(prefill_s=2.0, decode_s=0.5)
    assert busy.idler(PROMPT_HEAVY) == busy.idler(TOGETHER) == 0.25
    assert busy.idler(OUTPUT_HEAVY) == 4.0


def test_what_is_expected_is_what_is_simulated_and_the_controls_tell_it_from_idle_time_anywhere():
    by_name = {each.name: each for each in (*PLAN.predictions, *CONTROLS)}
    assert len(by_name) == 5
    on_one = by_name[extra(WHOLE)]
    assert (on_one.expected, on_one.rival) == (PLAN.extra(WHOLE), PLAN.extra(PAIR))
    for load in LEANING:
        assert by_name[idler(load)].expected == PLAN.busy[load].idler(load)
        assert by_name[idler(load)].rival == 1.0
    leaving_idle = max(PLAN.busy[load].idler(load) for load in LEANING)
    assert by_name[idler(TOGETHER)].rival == leaving_idle


def test_extras_are_taken_round_by_round():
    found = found_by_hand(both=2.0)
    own_s, other_s, both_s = (PLAN.simulated_s[PAIR, load] for load in LOADS)
    interval = found.extra(PAIR)
    assert interval.median == pytest.approx(4 * both_s / (own_s + other_s) - 1)
    assert interval.n == ROUNDS
    assert found.over_simulated(PAIR, TOGETHER).median == pytest.approx(2.0)
    assert found.over_simulated(WHOLE, TOGETHER).median == pytest.approx(1.0)
    assert found.idler(TOGETHER).median == pytest.approx(PLAN.busy[TOGETHER].idler(TOGETHER))


def test_runs_as_simulated_support():
    judged = Claim("any", PLAN.predictions, CONTROLS).judge(found_by_hand().figures())
    assert judged.outcome == "supported"


def test_a_worker_that_does_both_and_has_time_to_give_away_is_a_broken_ruler():
    found = found_by_hand()
    raw_s = dict(found.times.raw_s)
    raw_s[timed(WHOLE, TOGETHER)] = raw_s[timed(WHOLE, PROMPT_HEAVY)]
    free = replace(found, times=replace(found.times, raw_s=raw_s))
    assert Claim("any", PLAN.predictions, CONTROLS).judge(free.figures()).outcome == "void"


def test_workers_that_are_as_busy_as_each_other_refute():
    found = found_by_hand()
    alike = {load: [Busy(1.0, 1.0)] * ROUNDS for load in LOADS}
    judged = Claim("any", PLAN.predictions, CONTROLS).judge(replace(found, busy=alike).figures())
    assert judged.outcome == "refuted"
