"""Intervals against scipy, handed cases and simulation."""

import random
from math import isnan

import numpy
import pytest
from scipy import stats

from prefill_decode.statistics import (
    LEAST_SAMPLES,
    fit_rounds,
    fit_two_terms,
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


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 15, 40, 100, 101, 20_000])
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


def test_a_law_of_two_terms_is_found_again_exactly():
    line = fit_two_terms([1, 1], [10, 30], [7, 11])  # 5 + 0.2 x
    assert line == pytest.approx((5, 0.2))
    parabola = fit_two_terms([1, 2, 4], [1, 4, 16], [3.5, 8, 20])  # 3 n + n^2 / 2
    assert parabola == pytest.approx((3, 0.5))


def test_a_noisy_fit_is_numpys_of_the_relative_errors():
    lengths = numpy.array([256.0, 1024.0, 4096.0, 8192.0])
    measured = numpy.array([0.9, 1.2, 0.95, 1.1]) * (3 * lengths + 0.01 * lengths**2)
    terms = numpy.stack([lengths, lengths**2], axis=1) / measured[:, None]
    expected, *_ = numpy.linalg.lstsq(terms, numpy.ones(4), rcond=None)
    assert fit_two_terms(lengths, lengths**2, measured) == pytest.approx(tuple(expected))


def test_every_round_has_a_fit_of_its_own():
    at_ten, at_thirty = [7, 14, 20], [11, 22, 40]  # 5 + 0.2 x, twice that, 10 + x
    fits = fit_rounds([1, 1], [10, 30], [at_ten, at_thirty])
    assert fits == [pytest.approx(law) for law in [(5, 0.2), (10, 0.4), (10, 1)]]


def test_a_fit_that_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match="got 1, 1 and 1"):
        fit_two_terms([1], [2], [3])
    with pytest.raises(ValueError, match="got 2, 2 and 3"):
        fit_two_terms([1, 1], [2, 3], [3, 4, 5])
    with pytest.raises(ValueError, match="positive"):
        fit_two_terms([1, 1], [2, 3], [3, 0])
    with pytest.raises(ValueError, match="told apart"):
        fit_two_terms([1, 2, 3], [2, 4, 6], [1, 2, 4])
