"""Change: whether a quantity got worse, got better or stayed, and how sure that is.

Two ways to compare: medians of runs made at different hours (`judge_change`), whose spread from
run to run is far wider than each run's own interval says, and times taken in turns, pair by pair
(`judge_pairs`), in which a drifting machine touches both sides alike. One rule decides both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, log, nan, sqrt
from statistics import NormalDist, fmean, median
from typing import Literal

from prefill_decode.statistics import Interval, median_interval

Better = Literal["higher", "lower"]
Answer = Literal["ok", "regression", "improvement", "inconclusive", "not comparable"]

BETWEEN_RUNS = 0.10  # spread of the log medians of fresh runs on a shared machine
PRIOR_RUNS = 4  # how many runs that assumption weighs
CHANGE_COVERAGE = 0.99
SUSPICIOUS_RATIO = 2.0


@dataclass(frozen=True)
class Quantity:
    measured: Interval
    unit: str  # "1" for ratios and shares, else an SI unit such as "s"
    better: Better

    @property
    def travels(self) -> bool:
        """Whether it may be compared between machines of a kind; else only on the same one."""
        return self.unit == "1"


@dataclass(frozen=True)
class Change:
    answer: Answer
    reason: str
    ratio: float  # current / base; NaN when there is none
    low: float  # interval of that ratio; NaN when there is none
    high: float
    suspicious: bool = False  # an improvement beyond 2-fold: has the work been done?


def judge_change(
    base: Sequence[Interval],
    current: Sequence[Interval],
    better: Better,
    tolerance: float = 0.10,
) -> Change:
    """Current runs against base runs, by the medians of each."""
    if not base or not current:
        raise ValueError("a change needs runs on both sides; got none on one of them")
    if any(interval.median <= 0 for interval in (*base, *current)):
        return _at_zero(base, current, better)
    before = [log(interval.median) for interval in base]
    after = [log(interval.median) for interval in current]
    own = median(map(_own_spread, (*base, *current)))
    squares = sum((value - fmean(before)) ** 2 for value in before)
    pooled = (PRIOR_RUNS * BETWEEN_RUNS**2 + squares) / (PRIOR_RUNS + len(before) - 1)
    error = max(sqrt(pooled), own) * sqrt(1 / len(before) + 1 / len(after))
    reach = NormalDist().inv_cdf((1 + CHANGE_COVERAGE) / 2) * error
    middle = fmean(after) - fmean(before)
    ratio = Interval(
        exp(middle), exp(middle - reach), exp(middle + reach), len(after), CHANGE_COVERAGE
    )
    return _change(ratio, better, tolerance)


def judge_pairs(
    base: Sequence[float],
    current: Sequence[float],
    better: Better,
    tolerance: float = 0.10,
    coverage: float = 0.99,
) -> Change:
    """Times taken in turns, the i-th of one side beside the i-th of the other."""
    if len(base) != len(current) or not base:
        raise ValueError(
            f"pairs have two sides, one value each; got {len(base)} and {len(current)}"
        )
    if not all(value > 0 and isfinite(value) for value in (*base, *current)):
        raise ValueError("times in pairs are positive and finite")
    logs = [log(after / before) for before, after in zip(base, current, strict=True)]
    found = median_interval(logs, coverage)
    ratio = Interval(exp(found.median), exp(found.low), exp(found.high), found.n, found.coverage)
    return _change(ratio, better, tolerance)


def decide(ratio: Interval, better: Better, tolerance: float) -> tuple[Answer, str]:
    """The answer to a ratio current / base with its interval, and why."""
    if not (isfinite(ratio.low) and isfinite(ratio.high)):
        return "inconclusive", f"too few values for an interval ({ratio.n})"
    sign = 1 if better == "lower" else -1
    low, high = sorted((sign * log(ratio.low), sign * log(ratio.high)))
    middle, delta = sign * log(ratio.median), log(1 + tolerance)
    if low > 0 and middle >= delta / 2:
        return "regression", f"worse by {exp(middle) - 1:.1%}, and the interval excludes no change"
    if high < 0 and middle <= -delta / 2:
        return "improvement", f"better by {exp(-middle) - 1:.1%}"
    if high < delta:
        return "ok", f"a regression of {tolerance:.0%} is excluded"
    return "inconclusive", f"the interval holds both no change and {tolerance:.0%} worse"


def _change(ratio: Interval, better: Better, tolerance: float) -> Change:
    answer, reason = decide(ratio, better, tolerance)
    fold = max(ratio.median, 1 / ratio.median)
    suspicious = answer == "improvement" and fold > SUSPICIOUS_RATIO
    return Change(answer, reason, ratio.median, ratio.low, ratio.high, suspicious)


def _own_spread(interval: Interval) -> float:
    if not (interval.low > 0 and isfinite(interval.high)):
        return 0.0
    return log(interval.high / interval.low) / 2 / 1.96


def _at_zero(base: Sequence[Interval], current: Sequence[Interval], better: Better) -> Change:
    before, after = (median(i.median for i in side) for side in (base, current))
    if before == after:
        return Change("ok", "both are 0", nan, nan, nan)
    worse = (after > before) == (better == "lower")
    ratio = after / before if before else inf
    answer: Answer = "regression" if worse else "improvement"
    return Change(answer, f"{before} became {after}", ratio if isfinite(ratio) else nan, nan, nan)
