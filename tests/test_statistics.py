"""Intervals against scipy, handed cases and simulation."""

import random
from math import isnan

import numpy
import pytest
from scipy import stats

from prefill_decode.statistics import (
    LEAST_SAMPLES,
    median_interval,
    ratio_interval,
    relative_spread,
)


def test_eight_samples_need_the_whole_range_for_95_percent():
    """The figures of case H11: x(2)..x(7) would cover only 93 %."""
    samples = [7.78, 9.1, 12.4, 20.3, 26.2, 31.0, 35.5, 39.7]
    interval = median_interval(samples)
    assert (interval.low, interval.high) == (7.78, 39.7)
    assert interval.coverage == pytest.approx(0.9921875)
    assert interval.median == pytest.approx(23.25)
    assert interval.n == 8


@pytest.mark.parametrize("n", [6, 9, 15, 40, 101])
@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.99])
def test_the_interval_is_the_narrowest_symmetric_one_by_scipys_binomial(n, coverage):
    interval = median_interval(range(1, n + 1), coverage)
    if isnan(interval.low):
        assert 1 - 2 * stats.binom.cdf(0, n, 0.5) < coverage
        return
    depth = int(interval.low)
    assert interval.high == n + 1 - depth
    assert interval.coverage == pytest.approx(1 - 2 * stats.binom.cdf(depth - 1, n, 0.5))
    assert interval.coverage >= coverage
    assert depth >= n // 2 or 1 - 2 * stats.binom.cdf(depth, n, 0.5) < coverage


@pytest.mark.parametrize("n", [6, 10, 25])
def test_the_interval_covers_a_skewed_median_as_often_as_it_says(n):
    draws = numpy.random.default_rng(7).lognormal(size=(4000, n))
    hits = [i.low <= 1.0 <= i.high for i in map(median_interval, draws.tolist())]
    stated = median_interval(draws[0].tolist()).coverage
    assert numpy.mean(hits) == pytest.approx(stated, abs=4 * (stated * (1 - stated) / 4000) ** 0.5)


def test_too_few_samples_have_a_median_but_no_interval():
    for n in range(1, LEAST_SAMPLES):
        interval = median_interval([1.0] * n)
        assert interval.median == 1.0
        assert isnan(interval.low)
        assert isnan(interval.high)
    assert not isnan(median_interval([1.0] * LEAST_SAMPLES).low)


def test_what_has_no_median_is_refused():
    with pytest.raises(ValueError, match="at least one sample"):
        median_interval([])
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite numbers"):
            median_interval([1.0, wrong, 2.0])
    for coverage in (0, 1, 95, -1):
        with pytest.raises(ValueError, match="probability"):
            median_interval([1.0], coverage)
    with pytest.raises(ValueError, match="other than 0"):
        ratio_interval([1.0], [0.0])


def test_ratios_inside_rounds_cancel_a_drift_that_both_sides_share():
    drift = [random.Random(3).uniform(1, 5) for _ in range(20)]
    ratio = ratio_interval([3 * d for d in drift], drift)
    assert ratio.low == pytest.approx(3)
    assert ratio.high == pytest.approx(3)


def test_ratios_need_both_sides_of_every_round():
    with pytest.raises(ValueError, match="got 2 and 1"):
        ratio_interval([1.0, 2.0], [1.0])


def test_spread_is_the_interquartile_range_over_the_median():
    samples = [1.0, 2.0, 3.0, 4.0, 10.0]
    assert relative_spread(samples) == pytest.approx(stats.iqr(samples) / 3.0)
    assert isnan(relative_spread([1.0]))
