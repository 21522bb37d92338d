"""Pairs: two codes take turns at a step, and what their times say. No processes here.

A pair is one step's time on both sides, a moment apart, in random order; every answer rests on the
ratio inside pairs, so a machine that drifts touches both alike. A turn goes to the kind of pair
that has had the least time so far: each gets an equal share of the budget, and a short step many
pairs. Pairs in which other processes took the cores are kept, marked, and left out.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from prefill_decode.change import Answer, Change, judge_pairs

Side = Literal["base", "current"]
SIDES: tuple[Side, Side] = ("base", "current")
Ask = Callable[[str, float], float]  # (step, planted share): the time of one run, in seconds
Watch = Callable[[], Callable[[], bool]]  # starts a watch; later: did others take the cores?
LEAST_PAIRS = 8  # fewer have no interval at 99 %: run, budget or not


@dataclass(frozen=True)
class Kind:
    """What a pair holds: a step, and the share by which the current side is slowed on purpose."""

    step: str
    planted: float = 0.0


@dataclass(frozen=True)
class Pair:
    kind: Kind
    base_s: float
    current_s: float
    disturbed: bool  # other processes took the cores


def take_turns(
    sides: Mapping[Side, Ask],
    kinds: Sequence[Kind],
    budget_s: float,
    seed: str,
    *,
    watch: Watch,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Pair]:
    """Pairs of every kind for `budget_s` all together, at least `LEAST_PAIRS` of each."""
    order = random.Random(seed)
    pairs: list[Pair] = []
    spent_s = dict.fromkeys(kinds, 0.0)
    started_s = clock()
    while kind := next_kind(pairs, spent_s, clock() - started_s < budget_s, order):
        before_s = clock()
        others_took_cores = watch()
        times = {
            side: sides[side](kind.step, kind.planted if side == "current" else 0.0)
            for side in order.sample(SIDES, 2)
        }
        pairs.append(Pair(kind, times["base"], times["current"], others_took_cores()))
        spent_s[kind] += clock() - before_s
    return pairs


def next_kind(
    pairs: Sequence[Pair], spent_s: Mapping[Kind, float], in_time: bool, order: random.Random
) -> Kind | None:
    """The kind that has had the least time; past the budget, of those that lack pairs."""
    held = [pair.kind for pair in pairs] if not in_time else []
    waiting = [k for k in spent_s if in_time or held.count(k) < LEAST_PAIRS]
    least_s = min((spent_s[kind] for kind in waiting), default=0.0)
    return order.choice([k for k in waiting if spent_s[k] == least_s]) if waiting else None


def that_count(pairs: Sequence[Pair]) -> list[Pair]:
    """The quiet pairs of one kind; all of them when too few were quiet."""
    quiet = [pair for pair in pairs if not pair.disturbed]
    return quiet if len(quiet) >= LEAST_PAIRS else list(pairs)


def judge_kind(pairs: Sequence[Pair], kind: Kind, tolerance: float) -> Change:
    """Whether the current side is slower, from the pairs of one kind among these."""
    chosen = that_count([pair for pair in pairs if pair.kind == kind])
    return judge_pairs(
        [pair.base_s for pair in chosen],
        [pair.current_s for pair in chosen],
        "lower",
        tolerance,
    )


def confirm(first: Change, second: Change | None) -> tuple[Answer, str]:
    """The answer after a suspicion was measured again: a regression must stand there, too."""
    if second is None:
        return first.answer, first.reason
    stands = "it stands" if second.answer == "regression" else "it does not stand"
    return second.answer, f"{first.reason}; measured again, {stands}: {second.reason}"
