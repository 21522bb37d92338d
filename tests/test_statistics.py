"""Intervals, percentiles and shares against scipy, handed cases and simulation.

A simulated count of hits is held against the binomial distribution that the stated coverage gives
it: a right interval fails such a check once in a million draws, and the seeds are fixed.
"""

import json
import random
from math import inf, isfinite, isnan, nan

import numpy
import pytest
from scipy import stats

from prefill_decode.statistics import (
    LEAST_SAMPLES,
    PERCENTILES,
    Interval,
    _at_most,
    fit_rounds,
    fit_two_terms,
    least_samples_for,
    median_interval,
    percentile,
    ratio_interval,
    relative_spread,
    share_interval,
    standard_deviation,
    summary,
)
from prefill_decode.units import format_seconds

EIGHT = [7.78, 9.1, 12.4, 20.3, 26.2, 31.0, 35.5, 39.7]  # case H11
ONCE_IN_A_MILLION = 1e-6


def covers_as_stated(hits, draws, stated):
    low, high = stats.binom.interval(1 - ONCE_IN_A_MILLION, draws, stated)
    return low <= hits <= high


def covers_too_seldom(hits, draws, stated):
    return stats.binom.cdf(hits, draws, stated) < ONCE_IN_A_MILLION


def hits(intervals, truth):
    return sum(found.low <= truth <= found.high for found in intervals)


def drifting(dice, draws, n, carried=0.9, noise=0.05):
    """exp of an AR(1) process, stationary, its median 1: [draws, n] speeds of a drifting clock."""
    logs = numpy.empty((draws, n))
    logs[:, 0] = dice.normal(size=draws) * noise / (1 - carried**2) ** 0.5
    for i in range(1, n):
        logs[:, i] = carried * logs[:, i - 1] + noise * dice.normal(size=draws)
    return numpy.exp(logs)


# Noise by name: how to draw it and its median.
NOISE = {
    "normal": (lambda dice, size: dice.normal(size=size), 0.0),
    "lognormal": (lambda dice, size: dice.lognormal(size=size), 1.0),
    "exponential": (lambda dice, size: dice.exponential(size=size), numpy.log(2)),
    "heavy-tailed": (lambda dice, size: dice.pareto(1.5, size=size) + 1, 2 ** (1 / 1.5)),
}


def test_eight_samples_need_the_whole_range_for_95_percent():
    """The figures of case H11: x(2)..x(7) would cover only 93 %."""
    interval = median_interval(EIGHT)
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


@pytest.mark.parametrize("n", [6, 10, 20, 50])
@pytest.mark.parametrize("noise", NOISE)
def test_the_interval_covers_the_median_as_often_as_it_says_whatever_the_noise(n, noise):
    draw, truth = NOISE[noise]
    draws = draw(numpy.random.default_rng(7), (4000, n)).tolist()
    stated = median_interval(draws[0]).coverage
    assert stated >= 0.95
    assert covers_as_stated(hits(map(median_interval, draws), truth), 4000, stated)


@pytest.mark.parametrize("n", [6, 10, 20, 50])
def test_the_interval_covers_the_median_of_rounded_times_more_often_than_it_says(n):
    draws = numpy.floor(4 * numpy.random.default_rng(8).exponential(size=(4000, n))).tolist()
    stated = median_interval(draws[0]).coverage
    found = hits(map(median_interval, draws), numpy.floor(4 * numpy.log(2)))
    assert found / 4000 > stated
    assert not covers_as_stated(found, 4000, stated)


@pytest.mark.parametrize("n", [6, 10, 20, 50])
def test_the_interval_of_correlated_pairs_covers_their_ratio_as_often_as_it_says(n):
    dice = numpy.random.default_rng(9)
    shared = dice.lognormal(sigma=0.5, size=(4000, n))
    above = 1.3 * shared * dice.lognormal(sigma=0.05, size=(4000, n))
    below = shared * dice.lognormal(sigma=0.1, size=(4000, n))
    found = [ratio_interval(a, b) for a, b in zip(above.tolist(), below.tolist(), strict=True)]
    assert covers_as_stated(hits(found, 1.3), 4000, found[0].coverage)


def test_a_drift_narrows_the_intervals_of_times_but_not_those_of_ratios_within_rounds():
    """Why rounds are interleaved: what drifts slowly is not independent, what is left in ratios
    is.
    """
    dice = numpy.random.default_rng(10)
    clock = drifting(dice, 4000, 20)
    above = (3 * clock * dice.lognormal(sigma=0.02, size=(4000, 20))).tolist()
    below = (clock * dice.lognormal(sigma=0.02, size=(4000, 20))).tolist()
    times = [median_interval(samples) for samples in below]
    ratios = [ratio_interval(a, b) for a, b in zip(above, below, strict=True)]
    assert covers_too_seldom(hits(times, 1.0), 4000, times[0].coverage)
    assert hits(times, 1.0) / 4000 < 0.7
    assert covers_as_stated(hits(ratios, 3.0), 4000, ratios[0].coverage)


def test_an_interval_that_covers_exactly_as_often_as_asked_is_taken():
    """Of three samples all lie on one side of the median once in four, so the rest is 75 %."""
    interval, found = median_interval([1, 2, 3], 0.75), percentile([1, 2, 3], 0.5, 0.75)
    assert (interval.low, interval.high, interval.coverage) == (1, 3, 0.75)
    assert (found.low, found.high, found.coverage) == (1, 3, 0.75)


def test_a_width_is_relative_to_the_median():
    assert Interval(4, 3, 5, 9).relative_width == 0.5


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
        ratio_interval([1.0, 1.0], [2.0, 0.0])


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
    assert relative_spread([1.0, 3.0]) == pytest.approx(0.5)  # from 1.5 to 2.5
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
    with pytest.raises(ValueError, match="told apart"):
        fit_two_terms([0, 0], [1, 2], [1, 1])
    with pytest.raises(ValueError, match="shorter"):
        fit_rounds([1, 1], [10, 30], [[7, 14], [11]])


def test_the_median_of_fitted_laws_covers_the_law_as_often_as_it_says():
    """Times of 5 + 0.2 x with 3 % noise at three points, fitted inside each of ten rounds."""
    dice, at = numpy.random.default_rng(11), [10.0, 30.0, 90.0]
    noise = dice.lognormal(sigma=0.03, size=(2000, 3, 10))
    measured = (5 + 0.2 * numpy.array(at))[:, None] * noise
    laws = [fit_rounds([1, 1, 1], at, points) for points in measured.tolist()]
    for term, truth in [(0, 5.0), (1, 0.2)]:
        found = [median_interval([law[term] for law in rounds]) for rounds in laws]
        assert covers_as_stated(hits(found, truth), 2000, found[0].coverage)


def test_a_drift_between_rounds_narrows_fitted_terms_but_not_their_ratio():
    dice, at = numpy.random.default_rng(12), [10.0, 30.0, 90.0]
    clock = drifting(dice, 2000, 10)[:, None, :]
    noise = dice.lognormal(sigma=0.01, size=(2000, 3, 10))
    measured = (5 + 0.2 * numpy.array(at))[:, None] * clock * noise
    laws = [fit_rounds([1, 1, 1], at, points) for points in measured.tolist()]
    slopes = [median_interval([slope for _, slope in rounds]) for rounds in laws]
    ratios = [median_interval([slope / start for start, slope in rounds]) for rounds in laws]
    assert covers_too_seldom(hits(slopes, 0.2), 2000, slopes[0].coverage)
    assert covers_as_stated(hits(ratios, 0.2 / 5), 2000, ratios[0].coverage)


@pytest.mark.parametrize(
    ("p", "least"), [(0.5, 5), (0.9, 29), (0.95, 59), (0.99, 299), (0.999, 2995)]
)
def test_a_percentile_says_how_many_samples_it_needs(p, least):
    """The table of case H11: the smallest n with p^n <= 0.05."""
    assert least_samples_for(p) == least
    assert least_samples_for(round(1 - p, 3)) == least
    assert percentile([1.0] * least, p).enough
    assert not percentile([1.0] * (least - 1), p).enough


def test_a_percentile_is_shown_from_as_many_samples_as_it_needs():
    """Of 1 to 29 the place of p90 is 25.2 after the first."""
    assert percentile(range(1, 30), 0.9).value == pytest.approx(26.2)
    assert isnan(percentile(range(1, 29), 0.9).value)


def test_a_chance_that_is_met_exactly_needs_no_further_sample():
    assert least_samples_for(0.5, confidence=0.75) == 2
    assert least_samples_for(0.9, confidence=0.1) == 1
    assert least_samples_for(0.9, confidence=0.19) == 2


def test_the_99th_percentile_of_eight_samples_is_withheld_and_says_why():
    """Case H11: neither the maximum nor NaN is shown."""
    for p, name, least in [(0.95, "p95", 59), (0.99, "p99", 299)]:
        found = percentile(EIGHT, p)
        assert isnan(found.value)
        assert found.text() == f"{name}: too few samples (8 of {least})"
        on_disk = json.loads(json.dumps(found.as_dict(), allow_nan=False))
        assert (on_disk["value"], on_disk["low"], on_disk["high"]) == (None, None, None)
        assert (on_disk["too_few"], on_disk["n"], on_disk["least_n"]) == (True, 8, least)


def test_the_median_of_eight_samples_is_that_of_case_h11():
    found = percentile(EIGHT, 0.5)
    assert found.value == pytest.approx(23.25, abs=1e-9)
    assert (found.low, found.high) == (7.78, 39.7)
    assert found.coverage == pytest.approx(0.9921875)
    assert found.text(format_seconds) == "p50: 23.2 s [7.78 s, 39.7 s], n = 8"
    assert found.as_dict() == {
        "p": 0.5,
        "value": pytest.approx(23.25),
        "low": 7.78,
        "high": 39.7,
        "coverage": pytest.approx(0.9921875),
        "n": 8,
        "least_n": 5,
        "too_few": False,
        "infinite": False,
    }


def test_a_median_is_shown_from_one_sample_on_but_its_interval_is_not():
    for n in range(1, LEAST_SAMPLES):
        found = percentile([1.234] * n, 0.5)
        assert found.value == 1.234
        assert isnan(found.low)
        assert found.enough == (n == 5)  # a bound, not yet an interval
        assert found.text() == f"p50: 1.23, n = {n}, too few for an interval"
    assert percentile([], 0.5).text() == "p50: too few samples (0 of 5)"


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.63, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("n", [300, 301, 350, 1000])
def test_a_percentile_is_numpys_and_lies_in_its_interval(p, n):
    samples = numpy.random.default_rng(n).lognormal(size=n)
    found = percentile(samples, p)
    assert found.value == pytest.approx(numpy.percentile(samples, 100 * p))
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("n", [*range(1, 40), 101, 2500])
def test_the_interval_of_the_50th_percentile_is_that_of_the_median(n):
    samples = range(1, n + 1)
    found, same = percentile(samples, 0.5), median_interval(samples)
    assert (found.value, found.low, found.high) == pytest.approx(
        (same.median, same.low, same.high), nan_ok=True
    )
    assert found.coverage == pytest.approx(same.coverage, nan_ok=True)


@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9, 0.95, 0.99, 0.999])
@pytest.mark.parametrize("n", [6, 29, 59, 80, 299, 300, 500, 3000])
@pytest.mark.parametrize("coverage", [0.8, 0.95, 0.99])
def test_the_interval_of_a_percentile_has_scipys_coverage_and_no_end_to_spare(p, n, coverage):
    found = percentile(range(1, n + 1), p, coverage)
    below = stats.binom(n, p)  # how many samples lie below the quantile
    if isnan(found.low):
        assert below.cdf(0) + below.sf(n - 1) > 1 - coverage
        return
    low, high = int(found.low), int(found.high)
    assert found.coverage == pytest.approx(below.cdf(high - 1) - below.cdf(low - 1))
    assert found.coverage >= coverage
    missed_below, missed_above = below.cdf(low), below.sf(high - 2)  # one rank further in
    half = (1 - coverage) / 2
    left_below, left_above = 1 - coverage - below.sf(n - 1), 1 - coverage - below.cdf(0)
    assert missed_below > min(half, left_below)
    assert missed_above > min(half, left_above)


@pytest.mark.parametrize(("p", "n"), [(0.5, 20), (0.9, 29), (0.9, 100), (0.95, 59), (0.99, 299)])
@pytest.mark.parametrize("noise", ["lognormal", "heavy-tailed"])
def test_the_interval_of_a_percentile_covers_it_as_often_as_it_says(p, n, noise):
    truth = {"lognormal": stats.lognorm(1), "heavy-tailed": stats.pareto(1.5)}[noise].ppf(p)
    draws = NOISE[noise][0](numpy.random.default_rng(13), (2000, n)).tolist()
    found = [percentile(samples, p) for samples in draws]
    assert covers_as_stated(hits(found, truth), 2000, found[0].coverage)


def test_the_interval_of_a_percentile_of_rounded_times_covers_it_at_least_as_often():
    draws = numpy.floor(4 * numpy.random.default_rng(14).exponential(size=(2000, 100))).tolist()
    found = [percentile(samples, 0.9) for samples in draws]
    assert hits(found, numpy.floor(4 * numpy.log(10))) / 2000 > found[0].coverage


def test_what_never_came_is_later_than_every_percentile_that_came():
    samples = [*range(1, 91), *[inf] * 10]
    assert percentile(samples, 0.5).value == pytest.approx(50.5)
    late = percentile(samples, 0.95)
    assert late.value == inf
    assert late.text() == "p95: infinite, n = 100"
    assert (late.as_dict()["value"], late.as_dict()["infinite"]) == (None, True)
    assert late.as_dict()["too_few"] is False
    at_the_edge = percentile(samples, 0.9)  # between the last that came and the first that did not
    assert at_the_edge.value == inf
    near = percentile(samples, 0.88)
    assert (isfinite(near.value), near.high) == (True, inf)
    assert near.text().endswith("infinite], n = 100")
    assert near.as_dict()["high"] is None
    json.dumps([late.as_dict(), near.as_dict()], allow_nan=False)


def test_a_place_on_a_sample_takes_nothing_from_its_infinite_neighbour():
    """(n - 1) p is 55 exactly, which floats miss: 100 * 0.55 is 55.00000000000001."""
    samples = [*range(56), *[inf] * 45]
    assert 100 * 0.55 > 55
    assert percentile(samples, 0.55).value == 55


@pytest.mark.parametrize("p", [0, 1, 50, 99, -0.5, nan])
def test_a_percentile_outside_of_0_to_1_is_refused(p):
    for refusing in (lambda: percentile([1.0], p), lambda: least_samples_for(p)):
        with pytest.raises(ValueError, match=r"0\.99 for the 99th"):
            refusing()


def test_samples_and_coverages_that_mean_nothing_are_refused():
    for wrong in (nan, -inf):
        with pytest.raises(ValueError, match=r"numbers or \+inf"):
            percentile([1.0, wrong, 2.0], 0.5)
    for wrong in (nan, inf, -inf):
        with pytest.raises(ValueError, match="finite numbers"):
            summary([1.0, wrong])
    for refusing in (
        lambda: percentile([1.0], 0.5, coverage=95),
        lambda: least_samples_for(0.5, confidence=1),
        lambda: share_interval(1, 2, coverage=0),
    ):
        with pytest.raises(ValueError, match="probability"):
            refusing()


def test_the_deviation_of_one_sample_does_not_exist():
    """Case H11: neither 0 nor infinity."""
    assert isnan(standard_deviation([]))
    assert isnan(standard_deviation([1.234]))
    assert standard_deviation(EIGHT) == pytest.approx(numpy.std(EIGHT, ddof=1))
    assert standard_deviation([3.0, 3.0]) == 0


def test_a_summary_is_strict_json_with_null_for_what_is_unknown():
    single = json.loads(json.dumps(summary([1.234]), allow_nan=False))
    assert single["std"] is None
    assert single["percentiles"]["p50"]["value"] == 1.234
    assert single["percentiles"]["p99"]["value"] is None
    assert single["percentiles"]["p99"]["too_few"] is True
    none = json.loads(json.dumps(summary([]), allow_nan=False))
    assert none["n"] == 0
    assert {none[name] for name in ("mean", "std", "min", "max")} == {None}


def test_a_summary_holds_what_numpy_finds():
    samples = numpy.random.default_rng(15).exponential(size=300)
    found = summary(samples)
    assert (found["n"], found["min"], found["max"]) == (300, samples.min(), samples.max())
    assert found["mean"] == pytest.approx(samples.mean())
    assert found["std"] == pytest.approx(samples.std(ddof=1))
    assert list(found["percentiles"]) == ["p50", "p90", "p95", "p99"]
    values = [p["value"] for p in found["percentiles"].values()]
    assert values == pytest.approx(numpy.percentile(samples, [100 * p for p in PERCENTILES]))


@pytest.mark.parametrize("of", [1, 2, 8, 200, 5000])
@pytest.mark.parametrize("coverage", [0.9, 0.95, 0.99])
def test_the_interval_of_a_share_is_scipys_exact_one(of, coverage):
    for count in {0, 1, of // 3, of // 2, of - 1, of}:
        found = share_interval(count, of, coverage)
        expected = stats.binomtest(count, of).proportion_ci(coverage, method="exact")
        assert (found.low, found.high) == pytest.approx(expected, rel=1e-7, abs=1e-12)
        assert found.share == pytest.approx(count / of)


@pytest.mark.parametrize("of", [1, 5, 20, 60])
def test_the_interval_of_a_share_covers_every_chance_at_least_as_often_as_it_says(of):
    """Exactly: the outcomes whose interval holds the chance, each with its probability."""
    chances, outcomes = numpy.linspace(0.005, 0.995, 199)[:, None], numpy.arange(of + 1)
    found = [share_interval(count, of) for count in outcomes.tolist()]
    low, high = numpy.array([[s.low, s.high] for s in found]).T
    covered = stats.binom.pmf(outcomes, of, chances) * ((low <= chances) & (chances <= high))
    assert covered.sum(axis=1).min() >= 0.95


def test_a_share_of_nothing_is_unknown_and_more_than_all_is_refused():
    assert share_interval(0, 0).as_dict() == {
        "count": 0,
        "of": 0,
        "share": None,
        "low": None,
        "high": None,
        "coverage": 0.95,
    }
    for count, of in [(3, 2), (-1, 2), (0, -1)]:
        with pytest.raises(ValueError, match=f"got {count} of {of}"):
            share_interval(count, of)


@pytest.mark.parametrize("n", [1, 2, 7, 60])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.93])
def test_the_chance_of_a_count_and_less_is_scipys_on_either_side_of_the_mean(n, p):
    for k in range(-1, n + 1):
        assert _at_most(k, n, p) == pytest.approx(stats.binom.cdf(k, n, p), rel=1e-9, abs=1e-15)
