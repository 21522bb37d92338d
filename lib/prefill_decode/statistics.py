"""Statistics: what a handful of noisy times can honestly say.

Times on a shared machine are skewed, drift together and have outliers, so everything here is a
median with a distribution-free interval: the k-th smallest and k-th largest of n samples enclose
the population median with a probability that depends on n and k alone. Comparisons are made
inside each round of interleaved measurements and the interval is taken over rounds, so that a
drifting clock cancels. Laws of two terms are fitted inside a round, too.

A percentile says how many samples it needs and is withheld below that: the 99th of 8 is only
their maximum. A share of counted things has an exact interval.

Counts:  samples as independent. Slow drift makes the intervals of times too narrow, not those of
         ratios taken inside rounds; tests show both.
Source:  David and Nagaraja, "Order Statistics" (2003), section 7.1; Clopper and Pearson,
         Biometrika 26 (1934).
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, comb, exp, inf, isfinite, lgamma, log, log1p, nan
from statistics import mean, median, quantiles, stdev
from typing import Any

from prefill_decode.units import format_significant

COVERAGE = 0.95
LEAST_SAMPLES = 6  # below, not even (smallest, largest) covers the median 95 % of the time
LARGE_SPREAD = 0.10
SMALLEST_DETERMINANT = 1e-9  # of a fit's two terms, 0 when they are proportional, at most 1
ROUNDING = 1e-12  # what sums of a few thousand floats lose
SMALLEST_TERM = 1e-17  # of a sum that it no longer changes
MOST_EXACT = 100  # tries: beyond, powers may underflow and binomial coefficients outgrow a float

PERCENTILES = (0.5, 0.9, 0.95, 0.99)
POSITION_DECIMALS = 9  # of a place between two samples; the rest is rounding of (n - 1) p
BISECTIONS = 100  # of the interval from 0 to 1: to the last bit of a float


@dataclass(frozen=True)
class Interval:
    """A median and the interval that covers it; low and high are NaN when n is too small."""

    median: float
    low: float
    high: float
    n: int
    coverage: float = nan

    @property
    def relative_width(self) -> float:
        return (self.high - self.low) / self.median


@dataclass(frozen=True)
class Percentile:
    """The p-quantile of n samples and the interval that covers it, NaN where there is none.

    `value` is NaN when it is withheld, and infinite when it falls among samples that are.
    """

    p: float  # 0.99 for the 99th percentile
    value: float
    low: float
    high: float
    n: int
    least_n: int
    coverage: float = nan

    @property
    def enough(self) -> bool:
        """Whether so many samples bound the quantile; a median is shown even without a bound."""
        return self.n >= self.least_n

    @property
    def name(self) -> str:
        return f"p{100 * self.p:g}"

    def text(self, shown: Callable[[float], str] = format_significant) -> str:
        """'p50: 23.2 [7.78, 39.7], n = 8'; `shown` writes a number with its unit."""
        if self.value == inf:
            return f"{self.name}: infinite, n = {self.n}"
        if not isfinite(self.value):
            return f"{self.name}: too few samples ({self.n} of {self.least_n})"
        if not isfinite(self.low):
            return f"{self.name}: {shown(self.value)}, n = {self.n}, too few for an interval"
        high = "infinite" if self.high == inf else shown(self.high)
        return f"{self.name}: {shown(self.value)} [{shown(self.low)}, {high}], n = {self.n}"

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON: null for what is withheld, infinite or unknown, and a word for which."""
        return {
            "p": self.p,
            "value": _finite_or_none(self.value),
            "low": _finite_or_none(self.low),
            "high": _finite_or_none(self.high),
            "coverage": _finite_or_none(self.coverage),
            "n": self.n,
            "least_n": self.least_n,
            "too_few": not self.enough,
            "infinite": self.value == inf,
        }


@dataclass(frozen=True)
class Share:
    """`count` of `of` things, and the interval of the chance behind it; NaN when `of` is 0."""

    count: int
    of: int
    low: float
    high: float
    coverage: float

    @property
    def share(self) -> float:
        return self.count / self.of if self.of else nan

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON: null for what is unknown."""
        return {
            "count": self.count,
            "of": self.of,
            "share": _finite_or_none(self.share),
            "low": _finite_or_none(self.low),
            "high": _finite_or_none(self.high),
            "coverage": self.coverage,
        }


def median_interval(samples: Sequence[float], coverage: float = COVERAGE) -> Interval:
    """The median of `samples` and the narrowest symmetric order-statistic interval of at least
    `coverage`.

    The true coverage is kept in the result. Raises ValueError for no samples.
    """
    if len(samples) == 0:
        raise ValueError("a median needs at least one sample; got none")
    if not all(isfinite(sample) for sample in samples):
        raise ValueError(f"samples must be finite numbers; got {list(samples)[:10]}")
    _check_coverage(coverage)
    ordered = sorted(samples)
    n = len(ordered)
    depth = _interval_depth(n, coverage)
    if depth == 0:
        return Interval(median(ordered), nan, nan, n)
    return Interval(
        median(ordered), ordered[depth - 1], ordered[n - depth], n, _interval_coverage(n, depth)
    )


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> Interval:
    """Median of the round-by-round ratios, with its interval. Both must hold one value a round."""
    if len(numerators) != len(denominators):
        raise ValueError(
            f"ratios are taken round by round, so both sides need as many samples; got "
            f"{len(numerators)} and {len(denominators)}"
        )
    if not all(denominators):
        raise ValueError("a ratio needs denominators other than 0; got one that is 0")
    return median_interval([a / b for a, b in zip(numerators, denominators, strict=True)])


def relative_spread(samples: Sequence[float]) -> float:
    """Interquartile range over the median; NaN below two samples."""
    if len(samples) < 2:
        return nan
    lower, middle, upper = quantiles(samples, n=4, method="inclusive")
    return (upper - lower) / middle


def standard_deviation(samples: Sequence[float]) -> float:
    """Of the population, from its samples (divided by n - 1); NaN below two."""
    return float(stdev(samples)) if len(samples) >= 2 else nan


def least_samples_for(p: float, confidence: float = COVERAGE) -> int:
    """How many samples it takes until their largest lies above the p-quantile with `confidence`.

    n with p^n <= 1 - confidence: 29 for p90, 299 for p99. Below the median the smallest sample
    must lie below the quantile, so p10 takes as many as p90.
    """
    _check_p(p)
    _check_coverage(confidence)
    return max(1, ceil(log1p(-confidence) / log(max(p, 1 - p)) - ROUNDING))


def percentile(samples: Sequence[float], p: float, coverage: float = COVERAGE) -> Percentile:
    """The p-quantile of `samples`, withheld unless there are `least_samples_for(p, coverage)`.

    Linear interpolation between order statistics, at (n - 1) p counted from the smallest as 0:
    definition 7 of Hyndman and Fan (1996), numpy's default. A median is never withheld. Each end
    of the interval may miss with half of 1 - coverage; where even the largest or the smallest
    sample misses more often than that, the other end gets what is left. A sample may be +inf, for
    what never came. ValueError for NaN and -inf; no samples are too few.
    """
    ordered = sorted(map(float, samples))
    if not all(sample > -inf for sample in ordered):
        raise ValueError(f"samples must be numbers or +inf; got {list(samples)[:10]}")
    return ordered_percentile(ordered, p, coverage)


def ordered_percentile(
    ordered: Sequence[float], p: float, coverage: float = COVERAGE
) -> Percentile:
    """`percentile` of samples in rising order, which need not be a list: few of them are read."""
    n, least_n = len(ordered), least_samples_for(p, coverage)
    withheld = n == 0 or (n < least_n and p != 0.5)
    value = nan if withheld else _interpolated(ordered, p)
    low, high, covered = _quantile_interval(ordered, p, coverage)
    return Percentile(p, value, low, high, n, least_n, covered)


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """n, mean, std, min, max and percentiles of finite samples, ready for strict JSON."""
    if not all(isfinite(sample) for sample in samples):
        raise ValueError(f"samples must be finite numbers; got {list(samples)[:10]}")
    shown = [percentile(samples, p) for p in PERCENTILES]
    return {
        "n": len(samples),
        "mean": float(mean(samples)) if len(samples) else None,
        "std": _finite_or_none(standard_deviation(samples)),
        "min": float(min(samples)) if len(samples) else None,
        "max": float(max(samples)) if len(samples) else None,
        "percentiles": {found.name: found.as_dict() for found in shown},
    }


def share_interval(count: int, of: int, coverage: float = COVERAGE) -> Share:
    """`count` of `of` independent tries and the exact interval of their chance.

    Clopper and Pearson: the chances under which so few, or so many, are not rarer than half of
    1 - coverage. Never covers less often than it says, mostly more often. NaN ends for no tries.
    """
    if not 0 <= count <= of:
        raise ValueError(f"a share counts between none and all of its tries; got {count} of {of}")
    _check_coverage(coverage)
    if of == 0:
        return Share(count, of, nan, nan, coverage)
    miss = (1 - coverage) / 2
    low, high = 1 - _highest_chance(of - count, of, miss), _highest_chance(count, of, miss)
    return Share(count, of, low, high, coverage)


def fit_two_terms(
    first: Sequence[float], second: Sequence[float], measured: Sequence[float]
) -> tuple[float, float]:
    """(a, b) of the law a * first + b * second that lies nearest to `measured`.

    Least squares of the relative errors, so that a short time counts as much as a long one: with
    first = 1 a line, with first = n and second = n^2 a parabola through the origin. ValueError
    unless the measured values are positive and the terms can be told apart.
    """
    if not (len(first) == len(second) == len(measured) >= 2):
        raise ValueError(
            f"a fit of two terms needs both terms at two or more measured points; got "
            f"{len(first)}, {len(second)} and {len(measured)}"
        )
    if not all(value > 0 for value in measured):
        raise ValueError(f"relative errors need positive values; got {list(measured)[:10]}")
    u = [term / value for term, value in zip(first, measured, strict=True)]
    v = [term / value for term, value in zip(second, measured, strict=True)]
    uu, uv, vv = _dot(u, u), _dot(u, v), _dot(v, v)
    determinant = uu * vv - uv**2
    if not determinant > SMALLEST_DETERMINANT * uu * vv:
        raise ValueError(
            f"the two terms rise in proportion, so that their parts cannot be told apart; got "
            f"{list(first)[:10]} and {list(second)[:10]}: measure at points that lie further apart"
        )
    return (vv * sum(u) - uv * sum(v)) / determinant, (uu * sum(v) - uv * sum(u)) / determinant


def fit_rounds(
    first: Sequence[float], second: Sequence[float], measured: Sequence[Sequence[float]]
) -> list[tuple[float, float]]:
    """The law of two terms in every round: `measured[point][round]`, a list for each point."""
    return [fit_two_terms(first, second, values) for values in zip(*measured, strict=True)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))


def _check_coverage(coverage: float) -> None:
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is a probability between 0 and 1; got {coverage}")


def _check_p(p: float) -> None:
    if not 0 < p < 1:
        raise ValueError(f"a percentile's p lies between 0 and 1, 0.99 for the 99th; got {p}")


def _finite_or_none(value: float) -> float | None:
    return float(value) if isfinite(value) else None


def _interpolated(ordered: Sequence[float], p: float) -> float:
    """The sample at (n - 1) p; an infinite neighbour counts only with a weight above 0."""
    position = round((len(ordered) - 1) * p, POSITION_DECIMALS)
    below = int(position)
    weight = position - below
    if weight == 0 or ordered[below] == ordered[below + 1]:
        return ordered[below]
    return ordered[below] + weight * (ordered[below + 1] - ordered[below])


def _quantile_interval(
    ordered: Sequence[float], p: float, coverage: float
) -> tuple[float, float, float]:
    """(low, high, coverage) of the p-quantile; all NaN where all samples cannot enclose it."""
    n, miss = len(ordered), 1 - coverage
    all_above, all_below = (1 - p) ** n, p**n
    if all_above + all_below > miss * (1 + ROUNDING):
        return nan, nan, nan
    miss_above = min(max(miss / 2, all_below), miss - all_above)
    low = _depth(n, p, miss - miss_above)
    high = _depth(n, 1 - p, miss_above)
    covered = 1 - _at_most(low - 1, n, p) - _at_most(high - 1, n, 1 - p)
    return ordered[low - 1], ordered[n - high], covered


def _highest_chance(count: int, of: int, miss: float) -> float:
    """The chance under which `count` or fewer of `of` have a probability of `miss`; 1 for all."""
    low, high = count / of, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _at_most(count, of, middle) > miss else (low, middle)
    return high


def _interval_coverage(n: int, depth: int) -> float:
    """P(the median lies between the depth-th smallest and depth-th largest of n samples)."""
    return 1 - 2 * _at_most(depth - 1, n, 0.5)


def _interval_depth(n: int, coverage: float) -> int:
    """The largest depth whose interval still has the coverage; 0 if none has."""
    return _depth(n, 0.5, (1 - coverage) / 2)


def _depth(n: int, p: float, miss: float) -> int:
    """The largest rank whose sample lies above the p-quantile with a probability of at most
    `miss`; 0 if none does.

    The sample of rank k lies above when fewer than k of the n lie below: a binomial count.
    """
    return bisect_right(range(n), miss * (1 + ROUNDING), key=lambda k: _at_most(k, n, p))


def _at_most(k: int, n: int, p: float) -> float:
    """P(a binomial count of n tries with chance p is k or less).

    Summed from its largest term down, hence from the side of the mean that k lies on.
    """
    if k < 0 or k >= n:
        return float(k >= n)
    if k > n * p:
        return 1 - _at_most(n - k - 1, n, 1 - p)
    total, term = 0.0, _chance(k, n, p)
    for i in range(k, -1, -1):
        total += term
        if term <= total * SMALLEST_TERM:
            break
        term *= i * (1 - p) / ((n - i + 1) * p)
    return total


def _chance(k: int, n: int, p: float) -> float:
    """P(a binomial count of n tries with chance 0 < p < 1 is k)."""
    if n <= MOST_EXACT:
        return float(comb(n, k)) * p**k * (1 - p) ** (n - k)
    ways = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
    return exp(ways + k * log(p) + (n - k) * log1p(-p))
