"""Rates: how often comparisons raise an alarm, from the raw pairs of a study. Pure, by seed.

An alarm on equal codes is false; one on codes of which one was slowed on purpose is right. Fresh
comparisons are the sessions themselves, one each. Resampled ones draw a session, and from it blocks
of consecutive pairs with replacement; on equal codes the sides are swapped at random. They carry
the session's own luck and the draw's, so that they err more often than fresh ones would.
Confirmed alarms stood again in other sessions with twice the budget, as `compare_code` asks.

Counts:  fresh comparisons as independent tries, with the exact interval of their chance. Resampled
         ones share their sessions and have no interval: a binomial one would be too narrow, and
         drawing the sessions anew, hundreds of times, would take ten minutes.
Ignores: that fresh comparisons lend one another the sessions that confirm; other machines and
         other days, which move a rate further than its interval says.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from prefill_decode.paired.pairs import Kind, Pair, judge_kind
from prefill_decode.statistics import share_interval

RESAMPLES = 400
BLOCK_PAIRS = 5  # consecutive pairs that are drawn together, because neighbours are alike
SESSIONS_FOR_5 = 4  # a slowdown of 5 % needs a budget of 160 s
CONFIRMING_SESSIONS = 2

Pairs = Sequence[Pair]


@dataclass(frozen=True)
class Rate:
    """`count` of `of` comparisons, and the exact interval of their chance; None where they are not
    independent."""

    count: int
    of: int
    share: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Trial:
    """A sort of comparison: what was planted, how it is judged, how many sessions it takes."""

    name: str
    planted: float
    tolerance: float
    sessions: int


TRIALS = (
    Trial("equal", 0.0, 0.10, 1),
    Trial("planted 10%", 0.10, 0.10, 1),
    Trial("equal, judged at 5%", 0.0, 0.05, SESSIONS_FOR_5),
    Trial("planted 5%", 0.05, 0.05, SESSIONS_FOR_5),
)


def rate(count: int, of: int) -> Rate:
    """Of independent comparisons: a share with its exact interval. ValueError unless
    0 <= count <= of and of >= 1."""
    if of < 1:
        raise ValueError(f"a rate counts some of at least one comparison; got {count} of {of}")
    found = share_interval(count, of)
    return Rate(count, of, found.share, found.low, found.high)


def dependent_rate(count: int, of: int) -> Rate:
    """Of comparisons that share what they compare: `rate` without its interval."""
    return replace(rate(count, of), low=None, high=None)


def all_rates(
    sessions: Sequence[Pairs], steps: Sequence[str], seed: int, resamples: int = RESAMPLES
) -> dict[str, dict[str, Any]]:
    """Every rate that so many sessions permit, by name.

    A comparison alarms when any step is said to be slower; the rates that name a step count that
    step alone, as a slowdown of one step must be caught in that step. Where no comparison can be
    made, the name is missing."""
    found: dict[str, Rate] = {}
    for trial in TRIALS:
        fresh = [_alarms(*both, trial, steps) for both in _fresh(sessions, trial)]
        dice = random.Random(f"{seed}, {trial.name}")
        drawn = [
            _alarms(*_resampled(sessions, trial, dice), trial, steps)
            for _ in range(resamples if len(sessions) >= trial.sessions else 0)
        ]
        found |= _rates_of(f"{trial.name}, fresh", fresh, steps, rate)
        found |= _rates_of(f"{trial.name}, resampled", drawn, steps, dependent_rate)
    return {name: asdict(value) for name, value in found.items()}


@dataclass(frozen=True)
class _Alarms:
    first: frozenset[str]  # steps said to be slower
    confirmed: frozenset[str] | None  # of those, in the second measuring; None without one


def _rates_of(
    name: str, found: Sequence[_Alarms], steps: Sequence[str], made: Callable[[int, int], Rate]
) -> dict[str, Rate]:
    """Of any step under `name`, of each under `name, STEP`; confirmed ones beside them."""
    first = [alarms.first for alarms in found]
    confirmed = [alarms.confirmed for alarms in found if alarms.confirmed is not None]
    rates = {}
    for end, slower in (("", first), (", confirmed", confirmed)):
        if slower:
            rates[name + end] = made(sum(map(bool, slower)), len(slower))
            for step in steps:
                count = sum(step in alarms for alarms in slower)
                rates[f"{name}, {step}{end}"] = made(count, len(slower))
    return rates


def _alarms(first: Pairs, second: Pairs | None, trial: Trial, steps: Sequence[str]) -> _Alarms:
    suspected = frozenset(step for step in steps if _slower(first, step, trial))
    if second is None:
        return _Alarms(suspected, None)
    return _Alarms(suspected, frozenset(step for step in suspected if _slower(second, step, trial)))


def _slower(pairs: Pairs, step: str, trial: Trial) -> bool:
    return judge_kind(pairs, Kind(step, trial.planted), trial.tolerance).answer == "regression"


def _fresh(sessions: Sequence[Pairs], trial: Trial) -> Iterator[tuple[Pairs, Pairs | None]]:
    """Comparisons that share no session, each with others after it that can confirm it."""
    count = len(sessions) // trial.sessions
    groups = [
        _pooled(sessions[trial.sessions * i : trial.sessions * (i + 1)]) for i in range(count)
    ]
    for i, group in enumerate(groups):
        others = [groups[(i + j) % count] for j in range(1, CONFIRMING_SESSIONS + 1)]
        yield group, _pooled(others) if count > CONFIRMING_SESSIONS else None


def _resampled(
    sessions: Sequence[Pairs], trial: Trial, dice: random.Random
) -> tuple[Pairs, Pairs | None]:
    """Pairs for a first and, where sessions suffice, a second measuring in other sessions."""
    needed = trial.sessions * (1 + CONFIRMING_SESSIONS)
    can_confirm = len(sessions) >= needed
    chosen = dice.sample(sessions, needed if can_confirm else trial.sessions)
    drawn = [_drawn(session, trial, dice) for session in chosen]
    if trial.planted == 0 and dice.random() < 0.5:
        drawn = [_swapped(pairs) for pairs in drawn]
    first, rest = drawn[: trial.sessions], drawn[trial.sessions :]
    return _pooled(first), _pooled(rest) if can_confirm else None


def _drawn(session: Pairs, trial: Trial, dice: random.Random) -> list[Pair]:
    """As many pairs of each step as the session has, drawn in blocks with replacement."""
    found = []
    for step in dict.fromkeys(pair.kind.step for pair in session):
        mine = [p for p in session if p.kind == Kind(step, trial.planted)]
        found += blocks_of(mine, dice)
    return found


def blocks_of(pairs: Pairs, dice: random.Random) -> list[Pair]:
    """As many pairs, in runs of `BLOCK_PAIRS` consecutive ones that begin anywhere."""
    size = min(BLOCK_PAIRS, len(pairs))
    starts = [dice.randrange(len(pairs) - size + 1) for _ in range(ceil(len(pairs) / size))]
    return [pair for start in starts for pair in pairs[start : start + size]][: len(pairs)]


def _swapped(pairs: Pairs) -> list[Pair]:
    return [replace(p, base_s=p.current_s, current_s=p.base_s) for p in pairs]


def _pooled(groups: Sequence[Pairs]) -> list[Pair]:
    return [pair for group in groups for pair in group]
