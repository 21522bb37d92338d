"""Arrivals have the rate and the spread that was asked for, and every die its own seed."""

from itertools import pairwise
from math import inf, nan
from statistics import fmean, stdev

import pytest

from prefill_decode.workload import (
    SERVICES,
    Conversations,
    constant_arrivals,
    fixed_lengths,
    gamma_arrivals,
    make_requests,
    percentile_lengths,
    poisson_arrivals,
    uniform_lengths,
)

N = 20_000


def gaps(arrivals_s):
    return [later - earlier for earlier, later in pairwise([0.0, *arrivals_s])]


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential():
    found = gaps(poisson_arrivals(4.0, N, seed=1))
    assert fmean(found) == pytest.approx(0.25, rel=0.03)
    assert stdev(found) == pytest.approx(0.25, rel=0.03)
    assert min(found) >= 0
    assert sum(gap > 0.25 for gap in found) / N == pytest.approx(0.368, abs=0.01)  # 1 / e


@pytest.mark.parametrize("cv", [0.1, 0.5, 1.0, 3.0])
def test_gamma_gaps_have_the_mean_and_the_coefficient_of_variation_asked_for(cv):
    found = gaps(gamma_arrivals(4.0, N, cv, seed=1))
    assert fmean(found) == pytest.approx(0.25, rel=0.03 * max(1, cv))
    assert stdev(found) / fmean(found) == pytest.approx(cv, rel=0.06)


def test_constant_arrivals_are_evenly_spaced_from_the_start():
    assert constant_arrivals(4.0, 3) == [0.0, 0.25, 0.5]


def test_a_seed_gives_the_same_workload_again_and_another_seed_another():
    for draw in (
        lambda seed: poisson_arrivals(2.0, 9, seed),
        lambda seed: gamma_arrivals(2.0, 9, 3.0, seed),
        lambda seed: uniform_lengths(1, 10**6, 9, seed, "prompt"),
    ):
        assert draw(7) == draw(7) != draw(8)
        assert draw(7)[:5] == draw(7)[:5]


def test_the_dice_of_prompts_and_outputs_are_independent_though_the_seed_is_one():
    prompts = uniform_lengths(1, 1000, N, 3, "prompt lengths")
    outputs = uniform_lengths(1, 1000, N, 3, "output lengths")
    p, o = fmean(prompts), fmean(outputs)
    covariance = fmean((a - p) * (b - o) for a, b in zip(prompts, outputs, strict=True))
    assert abs(covariance / (stdev(prompts) * stdev(outputs))) < 0.03


def test_more_requests_change_none_of_those_before():
    assert poisson_arrivals(2.0, 9, 1)[:4] == poisson_arrivals(2.0, 4, 1)
    assert uniform_lengths(1, 99, 9, 1, "x")[:4] == uniform_lengths(1, 99, 4, 1, "x")


def test_uniform_lengths_reach_both_ends():
    assert set(uniform_lengths(3, 5, 200, 0, "x")) == {3, 4, 5}
    assert fixed_lengths(7, 3) == [7, 7, 7]


def test_requests_are_arrivals_times_lengths():
    found = make_requests([0.0, 0.5], [3, 4], [5, 6])
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found] == [
        (0.0, 3, 5),
        (0.5, 4, 6),
    ]
    assert len({request.request_id for request in found}) == 2
    with pytest.raises(ValueError, match="an arrival, a prompt and an output"):
        make_requests([0.0], [3, 4], [5, 6])


@pytest.mark.parametrize("rate", [0.0, -1.0, nan, inf])
def test_a_rate_that_is_none_is_refused(rate):
    for refusing in (
        lambda: constant_arrivals(rate, 1),
        lambda: poisson_arrivals(rate, 1, 0),
        lambda: gamma_arrivals(rate, 1, 1.0, 0),
    ):
        with pytest.raises(ValueError, match="positive rate"):
            refusing()


def test_other_impossible_workloads_are_refused():
    with pytest.raises(ValueError, match="at least one request"):
        poisson_arrivals(1.0, 0, 0)
    for cv in (0.0, -1.0, nan):
        with pytest.raises(ValueError, match="coefficient of variation"):
            gamma_arrivals(1.0, 1, cv, 0)
    for least, most in [(0, 5), (6, 5), (1, 2**40)]:
        with pytest.raises(ValueError, match="lengths lie between"):
            uniform_lengths(least, most, 1, 0, "prompts")


@pytest.mark.parametrize("service", SERVICES)
def test_lengths_of_a_service_have_its_percentiles(service):
    published = SERVICES[service]
    for percentiles in (published.prompt_tokens, published.output_tokens):
        found = sorted(percentile_lengths(percentiles, N, 1, "lengths"))
        assert found[0] >= percentiles[0]
        assert found[-1] <= percentiles[1]
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            below = sum(tokens <= percentiles[share] for tokens in found) / N
            strictly_below = sum(tokens < percentiles[share] for tokens in found) / N
            assert strictly_below - 0.02 <= share <= below + 0.02


def test_percentiles_that_do_not_rise_or_do_not_end_are_refused():
    for wrong in ({0: 1}, {0: 5, 1: 3}, {0: 0, 1: 3}, {0.1: 1, 1: 3}, {0: 1, 0.9: 3}):
        with pytest.raises(ValueError, match="rise from share 0"):
            percentile_lengths(wrong, 1, 0, "x")


def test_conversations_ask_with_all_that_was_said_before():
    people = Conversations(50, 2.0, turns=3, system_prompts=2)
    found = people.requests(1)
    assert found == people.requests(1) != people.requests(2)
    assert [r.arrival_s for r in found] == sorted(r.arrival_s for r in found)
    assert {request.pieces[0] for request in found} == {(-1, 512), (-2, 512)}
    by_turn = {int(request.request_id): request for request in found}
    for turn, request in by_turn.items():
        assert sum(tokens for _, tokens in request.pieces) == request.prompt_tokens
        if turn % 3:
            before = by_turn[turn - 1]
            said = (*before.pieces, (before.answer, before.output_tokens))
            assert request.pieces[:-1] == said
            assert request.arrival_s > before.arrival_s
