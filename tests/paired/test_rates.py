"""Rates of alarms on synthetic pairs whose noise is known, beside an independent simulation."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from prefill_decode.paired.pairs import Kind, Pair
from prefill_decode.paired.rates import (
    BLOCK_PAIRS,
    RESAMPLES,
    all_rates,
    blocks_of,
    dependent_rate,
    rate,
)

STEPS = {"decode x1": 40, "prefill 64": 24}  # pairs of a session
SORTS = (0.0, 0.10, 0.05)
PAIR_SPREAD, SESSION_SPREAD = 0.04, 0.015


def sessions_of(count, seed, planted=True, pair_spread=PAIR_SPREAD, session_spread=SESSION_SPREAD):
    """Sessions whose log ratios are normal around the session's own luck and what was planted."""
    dice = np.random.default_rng(seed)

    def pairs_of(step, n, share):
        middle = dice.normal(np.log1p(share if planted else 0.0), session_spread)
        logs = dice.normal(middle, pair_spread, n)
        return [Pair(Kind(step, share), 0.01, float(0.01 * np.exp(x)), False) for x in logs]

    return [
        [p for share in SORTS for step, n in STEPS.items() for p in pairs_of(step, n, share)]
        for _ in range(count)
    ]


def simulated_alarms(n_pairs, share, tolerance, pooled, repetitions=4000):
    """The chance that one step alarms, from the rule as it is written down and scipy's binomial."""
    dice = np.random.default_rng(99)
    luck = dice.normal(np.log1p(share), SESSION_SPREAD, (repetitions, pooled, 1))
    logs = luck + dice.normal(0, PAIR_SPREAD, (repetitions, pooled, n_pairs))
    logs = np.sort(logs.reshape(repetitions, -1), axis=1)
    depth = int(stats.binom.ppf(0.005, n_pairs * pooled, 0.5))
    return np.mean((logs[:, depth - 1] > 0) & (np.median(logs, axis=1) >= np.log1p(tolerance) / 2))


@pytest.mark.parametrize(
    ("count", "of"), [(0, 16), (1, 16), (16, 16), (7, 400), (399, 400), (0, 1)]
)
def test_a_rates_interval_is_that_of_clopper_and_pearson(count, of):
    found = rate(count, of)
    expected = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
    assert found.share == count / of
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("made", [rate, dependent_rate])
@pytest.mark.parametrize(("count", "of"), [(0, 0), (3, 2), (-1, 4)])
def test_a_rate_counts_some_of_at_least_one(made, count, of):
    with pytest.raises(ValueError, match="count"):
        made(count, of)


def test_only_comparisons_that_share_nothing_have_an_interval(rates):
    for name, found in rates.items():
        ends = (found["low"], found["high"])
        assert (ends == (None, None)) == ("resampled" in name)
        assert found["share"] == found["count"] / found["of"]
    assert vars(dependent_rate(1, 4)) == {**vars(rate(1, 4)), "low": None, "high": None}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("name", "share", "tolerance", "pooled"),
    [("equal", 0.0, 0.10, 1), ("planted 10%", 0.10, 0.10, 1), ("planted 5%", 0.05, 0.05, 4)],
)
def test_fresh_rates_agree_with_an_independent_simulation(step, name, share, tolerance, pooled):
    found = all_rates(sessions_of(240, 1), list(STEPS), 0, 0)[f"{name}, fresh, {step}"]
    expected = simulated_alarms(STEPS[step], share, tolerance, pooled)
    assert found["of"] == 240 // pooled
    assert stats.binomtest(found["count"], found["of"], expected).pvalue > 0.001


@pytest.fixture(scope="module")
def rates():
    return all_rates(sessions_of(16, 2), list(STEPS), 0)


def test_equal_codes_seldom_alarm_and_slowed_ones_mostly(rates):
    assert rates["equal, fresh"]["share"] <= 1 / 16
    assert rates["equal, resampled"]["share"] <= 0.05
    assert rates["planted 10%, fresh"]["share"] >= 15 / 16
    assert rates["planted 10%, resampled"]["share"] >= 0.95
    assert rates["planted 5%, fresh"]["share"] >= 3 / 4
    assert rates["planted 5%, resampled"]["share"] >= 0.8


def test_there_are_hundreds_of_resampled_comparisons_and_a_fresh_one_for_each_session(rates):
    assert rates["equal, fresh"]["of"] == rates["planted 10%, fresh"]["of"] == 16
    assert rates["planted 5%, fresh"]["of"] == 4
    assert rates["equal, resampled"]["of"] == rates["planted 5%, resampled"]["of"] == RESAMPLES
    assert RESAMPLES >= 200


def test_confirming_removes_alarms_and_adds_none(rates):
    for name in ("equal", "planted 10%", "planted 5%"):
        for how in ("fresh", "resampled"):
            once, twice = rates[f"{name}, {how}"], rates.get(f"{name}, {how}, confirmed", None)
            if twice is not None:
                assert twice["of"] == once["of"]
                assert twice["count"] <= once["count"]
    assert "planted 5%, resampled, confirmed" in rates


def test_a_slowdown_of_one_step_is_counted_in_that_step_and_must_stand_there():
    faster = [
        [
            replace(p, current_s=p.current_s / 1.1) if p.kind == Kind("decode x1", 0.10) else p
            for p in session
        ]
        for session in sessions_of(16, 9)
    ]
    rates = all_rates(faster, list(STEPS), 0, 0)
    for end in ("", ", confirmed"):
        whole = rates[f"planted 10%, fresh{end}"]
        slow, equal = (rates[f"planted 10%, fresh, {step}{end}"] for step in reversed(STEPS))
        assert slow["of"] == equal["of"] == whole["of"] == 16
        assert slow["share"] >= 14 / 16
        assert equal["share"] <= 1 / 16
        assert slow["count"] <= whole["count"] <= slow["count"] + equal["count"]


def test_equal_code_is_judged_at_five_percent_as_well(rates):
    once, five = rates["equal, judged at 5%, fresh"], rates["planted 5%, fresh"]
    assert once["of"] == five["of"] == 4
    assert once["count"] < five["count"]


def test_an_alarm_that_no_other_session_shares_does_not_stand():
    sessions = sessions_of(6, 3)
    slow = [replace(p, current_s=p.current_s * 1.3) for p in sessions[0]]
    rates = all_rates([slow, *sessions[1:]], list(STEPS), 0, 0)
    assert rates["equal, fresh"]["count"] == 1
    assert rates["equal, fresh, confirmed"]["count"] == 0


def test_nothing_planted_is_not_caught():
    rates = all_rates(sessions_of(16, 4, planted=False), list(STEPS), 0, 100)
    assert rates["planted 10%, resampled"]["share"] <= 0.10
    assert rates["planted 10%, fresh"]["count"] <= 1


def test_swapped_sides_would_catch_nothing():
    swapped = [
        [replace(p, base_s=p.current_s, current_s=p.base_s) for p in session]
        for session in sessions_of(16, 5)
    ]
    rates = all_rates(swapped, list(STEPS), 0, 50)
    assert rates["planted 10%, fresh"]["count"] == 0
    assert rates["planted 10%, resampled"]["count"] == 0


def test_equal_codes_are_swapped_at_random_so_that_one_sides_luck_counts_both_ways():
    lucky = [
        [replace(p, current_s=p.current_s * 0.7) for p in session] for session in sessions_of(6, 6)
    ]
    rates = all_rates(lucky, list(STEPS), 0, 200)
    assert rates["equal, fresh"]["count"] == 0
    assert 0.35 < rates["equal, resampled"]["share"] < 0.65


def test_the_same_seed_gives_the_same_rates_and_another_one_others():
    sessions = sessions_of(6, 7, pair_spread=0.2)
    found = [all_rates(sessions, list(STEPS), seed, 60) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_few_sessions_leave_out_what_they_cannot_tell():
    rates = all_rates(sessions_of(2, 8), list(STEPS), 0, 20)
    assert "equal, fresh" in rates
    assert "equal, fresh, confirmed" not in rates
    assert "planted 5%, fresh" not in rates
    assert "planted 5%, resampled" not in rates


def test_blocks_are_runs_of_consecutive_pairs_as_many_as_there_were():
    pairs = [Pair(Kind("a"), float(i + 1), 1.0, False) for i in range(23)]
    drawn = blocks_of(pairs, random.Random(0))
    assert len(drawn) == 23
    for start in range(0, 20, BLOCK_PAIRS):
        block = [p.base_s for p in drawn[start : start + BLOCK_PAIRS]]
        assert block == [block[0] + i for i in range(BLOCK_PAIRS)]
    assert len({p.base_s for p in drawn}) < 23  # with replacement
    assert len(blocks_of(pairs[:3], random.Random(0))) == 3
