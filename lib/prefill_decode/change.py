"""Change: whether a quantity got worse, got better or stayed, between two states of the code.

A change is a ratio, current / base, with an interval, judged on a log scale in the direction that
is worse for this quantity. Three ways lead to the interval. `judge_change` takes medians of whole
runs that were made at different hours: it counts the spread between runs, which on a shared machine
is far wider than a run's own interval, and so finds only large changes: a screen.
`judge_simulated` knows no spread, since a simulation has none from run to run. `judge_pairs`
takes times that were measured in turns, pair by pair, so that the machine's drift cancels: it
finds small ones.

Whoever judges many quantities says how many: an interval then misses so rarely that one false alarm
among all of them is as rare as it would be for one.

Ignores: that quantities of one run move together, which makes this too cautious. What looks worse
is measured again before it is believed.

Source: the spread is estimated as by a scaled inverse chi-squared prior (Gelman et al., "Bayesian
Data Analysis", 3rd edition, section 2.6); intervals of pairs are those of `statistics`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, isnan, log, nan, sqrt
from statistics import NormalDist, fmean, median
from typing import Literal, get_args

from prefill_decode.statistics import Interval, median_interval
from prefill_decode.units import format_significant

Better = Literal["higher", "lower"]
Answer = Literal["ok", "regression", "improvement", "inconclusive", "not comparable"]

RATIO_UNIT = "1"
TOLERANCE = 0.10
CHANGE_COVERAGE = 0.99
# Standard deviation of log medians of fresh runs, as a shared machine of two cores shows it: the
# page on how far to trust these numbers measures it. Times drift with the clock and the neighbours,
# which ratios inside a round do not.
BETWEEN_RUNS = 0.10
BETWEEN_RUNS_OF_TIMES = 0.20
PRIOR_RUNS = 4  # how many runs that expectation counts for, beside the runs' own spread
SUSPICIOUS_FOLD = 2.0
HALF_WIDTH_SIGMAS = 1.96  # half of a 95 % interval, in standard deviations
LARGEST_LOG = 700.0  # exp() of more overflows


@dataclass(frozen=True)
class Quantity:
    """A measured interval with its unit and the direction in which it gets better.

    ValueError for a direction that is unknown: a rise would be praised or blamed by chance.
    """

    measured: Interval
    unit: str  # "1" for ratios and shares, else an SI unit such as "s"
    better: Better

    def __post_init__(self) -> None:
        check_better(self.better)
        if not isinstance(self.unit, str) or not self.unit:
            raise ValueError(
                f"a quantity has a unit, '1' for ratios and shares; got {self.unit!r}: name it"
            )

    @property
    def travels(self) -> bool:
        """Whether it can be compared between machines of a kind; else only on the same one."""
        return self.unit == RATIO_UNIT


@dataclass(frozen=True)
class Change:
    """What became of a quantity, and the ratio current / base with its interval."""

    answer: Answer
    reason: str
    ratio: float  # NaN when there is none
    low: float  # interval of the ratio; NaN when there is none
    high: float
    suspicious: bool = False  # an improvement beyond 2-fold: has the work been done?


def judge_change(
    base: Sequence[Interval],
    current: Sequence[Interval],
    better: Better,
    tolerance: float = TOLERANCE,
    judged: int = 1,
    unit: str = RATIO_UNIT,
) -> Change:
    """The change between runs made at different hours, one interval for each run.

    Means of log medians are compared; the interval is theirs at 99 % under the estimated spread
    between runs, for all of the `judged` quantities together (Bonferroni). Where that spread is in
    truth as expected, it covers the true ratio 98 % of the time with three base runs. A unit other
    than 1 says that these are no ratios, and spread more. Where a median is 0 there is no ratio: a
    change counts when the runs of both sides do not overlap. ValueError for no runs and for medians
    that are negative or not finite.
    """
    check_better(better)
    _check_tolerance(tolerance)
    before, after = _medians(base, "base"), _medians(current, "current")
    if 0 in (*before, *after):
        return _judge_zeros(before, after, better)
    logs_before, logs_after = [log(m) for m in before], [log(m) for m in after]
    expected = BETWEEN_RUNS if unit == RATIO_UNIT else BETWEEN_RUNS_OF_TIMES
    between = _spread_between_runs([logs_before, logs_after], expected)
    spread = max(between, _spread_within_runs([*base, *current]))
    error = spread * sqrt(1 / len(before) + 1 / len(after))
    coverage = _coverage_of_each(judged)
    half_width = NormalDist().inv_cdf((1 + coverage) / 2) * error
    middle = fmean(logs_after) - fmean(logs_before)
    ratio = _ratio(middle, middle - half_width, middle + half_width, len(after), coverage)
    return _change(ratio, better, tolerance)


def judge_pairs(
    base: Sequence[float],
    current: Sequence[float],
    better: Better,
    tolerance: float = TOLERANCE,
    coverage: float = CHANGE_COVERAGE,
) -> Change:
    """The change between values measured in turns, one pair a turn.

    The median of the pairs' log ratios with its distribution-free interval; below 8 pairs there is
    none at 99 %. ValueError unless both sides hold as many positive values.
    """
    check_better(better)
    _check_tolerance(tolerance)
    if len(base) != len(current) or not base:
        raise ValueError(
            f"pairs need as many values on both sides, at least one; got {len(base)} and "
            f"{len(current)}"
        )
    if not all(0 < value < inf for value in (*base, *current)):
        raise ValueError("ratios need positive finite values on both sides; got one that is not")
    logs = [log(after) - log(before) for before, after in zip(base, current, strict=True)]
    found = median_interval(logs, coverage)
    ratio = _ratio(found.median, found.low, found.high, found.n, found.coverage)
    return _change(ratio, better, tolerance)


def judge_simulated(
    base: float, current: float, better: Better, tolerance: float = TOLERANCE
) -> Change:
    """The change of a figure that was simulated in both: no machine's noise is in it, so that the
    ratio is its own interval. ValueError for what is negative or not finite."""
    check_better(better)
    _check_tolerance(tolerance)
    before, after = _known([base], "base"), _known([current], "current")
    if 0 in (*before, *after):
        return _judge_zeros(before, after, better)
    ratio = current / base
    return _change(Interval(ratio, ratio, ratio, 1, 1.0), better, tolerance)


def decide(ratio: Interval, better: Better, tolerance: float) -> tuple[Answer, str]:
    """What the interval of a ratio, current / base, says, and why.

    Seen on a log scale on which more is worse: a regression lies wholly above 0 with its estimate
    at half the tolerance or more, an improvement is its mirror, and all is well where a worsening
    by the tolerance is excluded. Anything else is inconclusive.
    """
    check_better(better)
    _check_tolerance(tolerance)
    if isnan(ratio.low) or isnan(ratio.high):
        return "inconclusive", f"{ratio.n} are too few for an interval"
    if not 0 < ratio.low <= ratio.median <= ratio.high < inf:
        raise ValueError(
            "a ratio and its interval are positive and in order; got "
            f"{ratio.low}, {ratio.median}, {ratio.high}"
        )
    low, middle, high = _worse_logs(ratio, better)
    limit = log(1 + tolerance)
    if low > 0 and middle >= limit / 2:
        return "regression", f"worse by a factor of {_fold(middle)}, of at least {_fold(low)}"
    if high < 0 and middle <= -limit / 2:
        return "improvement", f"better by a factor of {_fold(-middle)}, of at least {_fold(-high)}"
    if high < limit:
        return "ok", f"a worsening of {100 * tolerance:.3g}% is excluded"
    return "inconclusive", f"a worsening of {100 * tolerance:.3g}% is neither shown nor excluded"


def check_better(better: object) -> None:
    """ValueError unless `better` is a direction."""
    if better not in get_args(Better):
        raise ValueError(
            f"direction unknown: a quantity gets better 'higher' or 'lower'; got {better!r}: "
            "say which where it is recorded"
        )


def log_half_width(run: Interval) -> float:
    """Half of an interval's width on a log scale."""
    if run.low > 0:
        return log(run.high / run.low) / 2
    return log(run.high / run.median)  # an interval that reaches 0: its upper half


def _change(ratio: Interval, better: Better, tolerance: float) -> Change:
    answer, reason = decide(ratio, better, tolerance)
    suspicious = answer == "improvement" and abs(log(ratio.median)) > log(SUSPICIOUS_FOLD)
    if suspicious:
        reason += f"; more than {SUSPICIOUS_FOLD:g}-fold: has the work been done?"
    return Change(answer, reason, ratio.median, ratio.low, ratio.high, suspicious)


def _judge_zeros(base: Sequence[float], current: Sequence[float], better: Better) -> Change:
    """The absolute rule: without a ratio, only runs that do not overlap have changed."""
    rose, fell = max(base) < min(current), max(current) < min(base)
    if not any((*base, *current)):
        return Change("ok", "0 in every run", nan, nan, nan)
    if not rose and not fell:
        return Change("inconclusive", "0 in some runs, not in others", nan, nan, nan)
    way = "rose from 0" if rose and not any(base) else "rose" if rose else "fell"
    reason = f"{way}; no ratio to 0, so that any change counts"
    if rose == (better == "lower"):
        return Change("regression", reason, nan, nan, nan)
    return Change("improvement", f"{reason}: has the work been done?", nan, nan, nan, True)


def _coverage_of_each(judged: int) -> float:
    """What each of so many intervals must cover for all of them together to do so at 99 %."""
    if judged < 1:
        raise ValueError(f"at least one quantity is judged; got {judged}")
    return 1 - (1 - CHANGE_COVERAGE) / judged


def _spread_between_runs(sides: Sequence[Sequence[float]], expected: float) -> float:
    """Standard deviation of a run's log median, part expectation, part the runs' own.

    Each side spreads around its own mean, so that one odd run among several current ones widens
    the interval rather than passing for a change.
    """
    squares = sum((value - fmean(side)) ** 2 for side in sides for value in side)
    free = sum(len(side) - 1 for side in sides)
    return sqrt((PRIOR_RUNS * expected**2 + squares) / (PRIOR_RUNS + free))


def _spread_within_runs(runs: Sequence[Interval]) -> float:
    """What the runs' own intervals say, the median one; 0 where no run has an interval."""
    halves = [log_half_width(run) for run in runs if isfinite(run.low) and isfinite(run.high)]
    return median(halves) / HALF_WIDTH_SIGMAS if halves else 0.0


def _worse_logs(ratio: Interval, better: Better) -> tuple[float, float, float]:
    low, middle, high = log(ratio.low), log(ratio.median), log(ratio.high)
    return (low, middle, high) if better == "lower" else (-high, -middle, -low)


def _ratio(middle: float, low: float, high: float, n: int, coverage: float) -> Interval:
    return Interval(_exp(middle), _exp(low), _exp(high), n, coverage)


def _exp(value: float) -> float:
    return value if isnan(value) else exp(max(-LARGEST_LOG, min(value, LARGEST_LOG)))


def _medians(runs: Sequence[Interval], side: str) -> list[float]:
    if not runs:
        raise ValueError(f"a change needs at least one {side} run; got none")
    return _known([run.median for run in runs], side)


def _known(medians: list[float], side: str) -> list[float]:
    if not all(0 <= value < inf for value in medians):
        raise ValueError(f"medians are finite and not negative; the {side} runs have {medians}")
    return medians


def _check_tolerance(tolerance: float) -> None:
    if not 0 < tolerance < inf:
        raise ValueError(f"a tolerance is a positive share such as 0.10; got {tolerance}")


def _fold(log_ratio: float) -> str:
    return format_significant(exp(log_ratio))
