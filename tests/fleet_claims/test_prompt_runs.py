"""Runs of prompts, against arrivals drawn by hand."""

import random
from math import exp

import pytest

from prefill_decode.fleet_claims.prompt_runs import (
    arrivals_at_most,
    longer_runs,
    mean_wait_s,
    median_longest,
)


def run_by_hand(dice: random.Random, per_service: float, in_turn: int) -> int:
    """Prompts in a row, in services of length 1, from one that finds its worker idle."""
    end_s, prompts, next_s = 1.0, 1, 0.0
    while True:
        next_s += sum(dice.expovariate(per_service) for _ in range(in_turn))
        if next_s > end_s:
            return prompts
        prompts += 1
        end_s += 1.0


@pytest.mark.parametrize(("per_service", "in_turn"), [(0.5, 1), (1.4, 4), (3.0, 4)])
def test_runs_are_as_long_as_runs_that_are_drawn(per_service, in_turn):
    dice = random.Random(3)
    runs = [run_by_hand(dice, per_service, in_turn) for _ in range(20000)]
    for prompts, share in enumerate(longer_runs(per_service, in_turn)[:5]):
        drawn = sum(run > prompts for run in runs) / len(runs)
        assert share == pytest.approx(drawn, abs=0.012), prompts


def test_the_runs_of_one_worker_are_borels():
    shares = longer_runs(0.4, 1)
    assert shares[0] == 1
    assert shares[1] == pytest.approx(1 - exp(-0.4))
    assert shares[1] - shares[2] == pytest.approx(0.4 * exp(-0.8))  # runs of two


def test_the_longest_of_many_runs_has_the_median_of_its_chance():
    shares = [1.0, 0.5, 0.25, 0.0]
    assert median_longest(shares, runs=1.0) == 1  # exp(-0.5) is above one half
    assert median_longest(shares, runs=2.0) == 2
    assert median_longest(shares, runs=100.0) == 3


def test_few_arrivals_are_poissons():
    assert arrivals_at_most(2.0, 0) == pytest.approx(exp(-2))
    assert arrivals_at_most(2.0, 2) == pytest.approx(5 * exp(-2))


def test_the_wait_of_one_worker_is_that_of_m_d_1_and_no_line_is_steady_at_full_load():
    assert mean_wait_s(2.0, 0.5, 1) == pytest.approx(1.0)
    assert mean_wait_s(2.0, 0.5, 4) == pytest.approx(0.25)
    with pytest.raises(ValueError, match="busy below 1"):
        mean_wait_s(2.0, 1.0, 1)
