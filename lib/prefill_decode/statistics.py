"""Statistics: what a handful of noisy times can honestly say.

Times on a shared machine are skewed, drift together and have outliers, so everything here is a
median with a distribution-free interval: the k-th smallest and k-th largest of n samples enclose
the population median with a probability that depends on n and k alone. Comparisons are made
inside each round of interleaved measurements and the interval is taken over rounds, so that a
drifting clock cancels. Laws of two terms are fitted inside a round, too.

Source: David and Nagaraja, "Order Statistics" (2003), section 7.1.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp, isfinite, lgamma, log, log1p, nan
from statistics import median, quantiles

COVERAGE = 0.95
LEAST_SAMPLES = 6  # below, not even (smallest, largest) covers the median 95 % of the time
LARGE_SPREAD = 0.10
SMALLEST_DETERMINANT = 1e-9  # of a fit's two terms, 0 when they are proportional, at most 1
ROUNDING = 1e-12  # what sums of a few thousand floats lose
SMALLEST_TERM = 1e-17  # of a sum that it no longer changes
MOST_EXACT = 100  # tries: beyond, powers may underflow and binomial coefficients outgrow a float


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


def median_interval(samples: Sequence[float], coverage: float = COVERAGE) -> Interval:
    """The median of `samples` and the narrowest symmetric order-statistic interval of at least
    `coverage`.

    The true coverage is kept in the result. Raises ValueError for no samples.
    """
    if len(samples) == 0:
        raise ValueError("a median needs at least one sample; got none")
    if not all(isfinite(sample) for sample in samples):
        raise ValueError(f"samples must be finite numbers; got {list(samples)[:10]}")
    if not 0 < coverage < 1:
        raise ValueError(f"coverage is a probability between 0 and 1; got {coverage}")
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
