"""Loads bunch as they say, come at the rate asked for, and are told in figures known by hand."""

from dataclasses import replace

import pytest

from prefill_decode.fleet_claims.loads import Load, busiest, figures_of, rate_that_keeps_busy
from prefill_decode.request import Request
from prefill_decode.simulator import Fleet, Pool, simulate
from tests.replays_by_hand import FREE, HERE, answered

LOAD = Load("some", (5, 9), (2, 4), cv=3.0)
ENGINE = Fleet((Pool("here", HERE.model, FREE, 256, calibration=HERE.calibration),))


def test_lengths_and_bunching_are_the_same_at_any_rate():
    slow, fast = LOAD.requests(20, 1.0, 7), LOAD.requests(20, 10.0, 7)
    for one, other in zip(slow, fast, strict=True):
        assert other.arrival_s == pytest.approx(one.arrival_s / 10)
        assert replace(one, arrival_s=0.0) == replace(other, arrival_s=0.0)
        assert 5 <= one.prompt_tokens <= 9
        assert 2 <= one.output_tokens <= 4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_last_request_comes_when_the_rate_says(seed):
    assert LOAD.requests(12, 3.0, seed)[-1].arrival_s == pytest.approx(4.0)


def test_a_rate_keeps_the_engine_as_busy_as_asked():
    rate = rate_that_keeps_busy(ENGINE, lambda each: LOAD.requests(200, each, 0), 0.5)
    outcome = simulate(ENGINE, LOAD.requests(200, rate, 0))
    assert busiest(outcome) == pytest.approx(0.5, abs=0.01)
    slower = simulate(ENGINE, LOAD.requests(200, rate / 2, 0))
    assert busiest(slower) < 0.4


@pytest.mark.parametrize("busy", [0.0, 1.0, 1.5, -1.0, float("nan")])
def test_no_rate_keeps_an_engine_busy_all_of_the_time_or_never(busy):
    with pytest.raises(ValueError, match="between 0 and 1"):
        rate_that_keeps_busy(ENGINE, lambda each: LOAD.requests(20, each, 0), busy)


def test_figures_are_those_of_times_by_hand():
    records = [
        answered(Request("a", 1.0, 5, 3), 2.0, 3.0, 4.0),
        answered(Request("b", 2.0, 5, 3), 5.0, 5.5, 6.0),
        answered(Request("c", 2.0, 5, 1), 4.0),
    ]
    found = figures_of(records)
    assert found["mean TTFT"] == pytest.approx(2.0)
    assert found["P95 TTFT"] == pytest.approx(2.9)
    assert found["mean TPOT"] == pytest.approx(0.75)
    assert found["P95 TPOT"] == pytest.approx(0.975)


def test_without_a_second_token_there_is_no_time_per_token():
    with pytest.raises(ValueError, match="two tokens or more"):
        figures_of([answered(Request("c", 2.0, 5, 1), 4.0)])
