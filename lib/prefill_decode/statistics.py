"""Statistics: what a handful of noisy times can honestly say.

Times on a shared machine are skewed, drift together and have outliers, so everything here is a
median with a distribution-free interval: the k-th smallest and k-th largest of n samples enclose
the population median with a probability that depends on n and k alone. Comparisons are made
inside each round of interleaved measurements and the interval is taken over rounds, so that a
drifting clock cancels.

Source: David and Nagaraja, "Order Statistics" (2003), section 7.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, isfinite, nan
from statistics import median, quantiles

COVERAGE = 0.95
LEAST_SAMPLES = 6  # below, not even (smallest, largest) covers the median 95 % of the time
LARGE_SPREAD = 0.10


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


def _interval_coverage(n: int, depth: int) -> float:
    """P(the median lies between the depth-th smallest and depth-th largest of n samples)."""
    outside: float = 2 * sum(comb(n, i) for i in range(depth)) / 2**n
    return 1 - outside


def _interval_depth(n: int, coverage: float) -> int:
    """The largest depth whose interval still has the coverage; 0 if none has."""
    depth = 0
    while depth < n // 2 and _interval_coverage(n, depth + 1) >= coverage:
        depth += 1
    return depth
