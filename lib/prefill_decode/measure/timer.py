"""Timer: run steps in turn, in random order, until the medians are known well enough.

One round runs every step once, in a fresh random order; comparisons are made inside rounds, so a
clock or a neighbour that changes speed touches both sides alike. A round in which other processes
took the cores is marked and left out. Nothing is thrown away: raw times, warm-ups and marked
rounds are all kept.

Timed:   from the call until the device is idle.
Ignores: garbage collection, switched off while rounds run; other users of a GPU, whom the system
         does not show. Stopping when intervals are narrow favours lucky runs, so the timer looks
         only after `LOOKS` rounds and asks for more coverage than it states; a test measures what
         is left of the effect.
"""

import gc
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prefill_decode.measure.machine import Machine
from prefill_decode.other_load import OtherLoad
from prefill_decode.statistics import (
    LARGE_SPREAD,
    LEAST_SAMPLES,
    Interval,
    median_interval,
    ratio_interval,
    relative_spread,
)

LEAST_ROUNDS = LEAST_SAMPLES
MOST_TRIES = 2 * LEAST_ROUNDS  # rounds to run, budget or not, for the least of quiet ones
LOOKS = (10, 20, 40, 80, 160, 320)  # quiet rounds after which it may stop early
LOOKING_COVERAGE = 0.99
NARROW = 0.05  # width of an interval over its median
MOST_NAMED = 4  # steps in one sentence
SHORT_WARMUP_S = 0.2  # a step shorter than this is warmed up twice more

Step = Callable[[], object]


@dataclass(frozen=True)
class Kernel:
    """Something to run that sets a ceiling, and how many FLOP it computes or bytes it reads."""

    name: str
    amount: float
    run: Step


@dataclass(frozen=True)
class Timings:
    """Raw times, [step][round], and what happened while they were taken."""

    raw_s: Mapping[str, tuple[float, ...]]
    warmup_s: Mapping[str, tuple[float, ...]]
    disturbed: tuple[bool, ...]  # a round: other processes took the cores
    stopped_because: Literal["narrow", "budget"]
    duration_s: float

    @property
    def num_rounds(self) -> int:
        return len(self.disturbed)

    @property
    def trusts_all_rounds(self) -> bool:
        """True when so few rounds were quiet that the disturbed ones must count too."""
        return self.num_rounds - sum(self.disturbed) < LEAST_ROUNDS

    def times_s(self, step: str) -> list[float]:
        """The times that count, in round order."""
        if step not in self.raw_s:
            raise ValueError(f"timed steps are {', '.join(self.raw_s)}; got {step!r}")
        if self.trusts_all_rounds:
            return list(self.raw_s[step])
        return [t for t, bad in zip(self.raw_s[step], self.disturbed, strict=True) if not bad]

    def with_noted(self, noted_s: Mapping[str, Sequence[float]]) -> "Timings":
        """Also what steps noted of themselves, a time for each of their runs: the last ones are
        those of the rounds, what came before was warm-up."""
        for name, values in noted_s.items():
            if len(values) < self.num_rounds or name in self.raw_s:
                raise ValueError(
                    f"a noted time needs a name of its own and a value for each of "
                    f"{self.num_rounds} rounds; got {name!r} with {len(values)}"
                )
        warm_ups = {n: tuple(v[: len(v) - self.num_rounds]) for n, v in noted_s.items()}
        rounds = {n: tuple(v[len(v) - self.num_rounds :]) for n, v in noted_s.items()}
        return replace(self, raw_s={**self.raw_s, **rounds}, warmup_s={**self.warmup_s, **warm_ups})

    def time_s(self, step: str) -> Interval:
        return median_interval(self.times_s(step))

    def ratio(self, step: str, over: str) -> Interval:
        """How many times as long `step` takes as `over`, round by round."""
        return ratio_interval(self.times_s(step), self.times_s(over))

    def share(self, amount: float, step: str, of: Kernel) -> Interval:
        """Which share of a ceiling's rate `step` reaches, doing `amount`, round by round.

        `amount` is in the kernel's unit: FLOP for the matrix rate, bytes for the bandwidth.
        """
        times = zip(self.times_s(step), self.times_s(of.name), strict=True)
        return median_interval([(amount / t) / (of.amount / k) for t, k in times])

    def is_unstable(self, step: str) -> bool:
        return relative_spread(self.times_s(step)) > LARGE_SPREAD

    @property
    def advice(self) -> list[str]:
        """What a reader should know before trusting these times; empty when all is well."""
        found = []
        if any(self.disturbed):
            consequence = (
                "too few were quiet, so all count; close other programs and run again"
                if self.trusts_all_rounds
                else "they are left out"
            )
            found.append(
                f"other processes took the cores in {sum(self.disturbed)} of {self.num_rounds} "
                f"rounds: "
                f"{consequence}"
            )
        unstable = [step for step in self.raw_s if self.is_unstable(step)]
        if unstable:
            found.append(
                f"times spread over {LARGE_SPREAD:.0%} in {_listed(unstable)}: ratios inside "
                f"a round "
                "still hold, absolute times less so"
            )
        return found


def _listed(steps: Sequence[str]) -> str:
    """Names in a sentence: all of a few, else the first ones and how many more."""
    if len(steps) <= MOST_NAMED:
        return ", ".join(steps)
    return f"{', '.join(steps[:MOST_NAMED])} and {len(steps) - MOST_NAMED} more"


def interleave(
    steps: Mapping[str, Step],
    machine: Machine,
    budget_s: float,
    seed: int = 0,
    own_s: Callable[[], float] | None = None,
) -> Timings:
    """Time `steps` in rounds until each one's share of a round is known or `budget_s` has passed.

    At least `LEAST_ROUNDS` quiet rounds run even when they outlast the budget, because with fewer
    there is no interval; after `MOST_TRIES` rounds it gives up on quiet. `own_s` gives the
    processor time of what is timed, where other processes do its work.
    """
    if not steps:
        raise ValueError("there is nothing to time: steps is empty")
    if not budget_s > 0:
        raise ValueError(f"budget_s must be a positive number of seconds; got {budget_s}")
    started_s = time.perf_counter()
    order = random.Random(seed)
    synchronize = synchronizer(machine.device)
    threads = machine.threads if machine.device == "cpu" else 1  # a GPU needs one to launch
    warmup_s = {name: _warm_up(step, synchronize) for name, step in steps.items()}
    raw_s: dict[str, list[float]] = {name: [] for name in steps}
    disturbed: list[bool] = []

    def done() -> Timings | None:
        timings = Timings(
            raw_s={name: tuple(times) for name, times in raw_s.items()},
            warmup_s=warmup_s,
            disturbed=tuple(disturbed),
            stopped_because="narrow",
            duration_s=time.perf_counter() - started_s,
        )
        quiet = len(disturbed) - sum(disturbed)
        if len(disturbed) < LEAST_ROUNDS or (quiet < LEAST_ROUNDS and len(disturbed) < MOST_TRIES):
            return None
        if quiet in LOOKS and not disturbed[-1] and _all_narrow(timings):
            return timings
        round_s = timings.duration_s / (len(disturbed) + 1)
        if timings.duration_s + round_s > budget_s:
            return replace(timings, stopped_because="budget")
        return None

    collecting = gc.isenabled()
    gc.disable()
    try:
        while (timings := done()) is None:
            load = OtherLoad(own_s)
            for name in order.sample(list(steps), len(steps)):
                raw_s[name].append(_time_once(steps[name], synchronize))
            disturbed.append(load.took_more_than(machine.cores - threads))
    finally:
        if collecting:
            gc.enable()
    return timings


def synchronizer(device: str) -> Callable[[], None]:
    """A call that returns when the device has finished all it was given."""
    if device == "cpu":
        return lambda: None
    import torch

    return {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}[device]


def _time_once(step: Step, synchronize: Callable[[], None]) -> float:
    synchronize()
    started_s = time.perf_counter()
    step()
    synchronize()
    return time.perf_counter() - started_s


def _warm_up(step: Step, synchronize: Callable[[], None]) -> tuple[float, ...]:
    times = [_time_once(step, synchronize)]
    if times[0] < SHORT_WARMUP_S:
        times += [_time_once(step, synchronize) for _ in range(2)]
    return tuple(times)


def _all_narrow(timings: Timings) -> bool:
    """Judged on each step's share of its round, because ratios and ceilings rest on that."""
    times = [timings.times_s(step) for step in timings.raw_s]
    alone = len(times) == 1  # nothing to compare with: its own time counts
    totals = [1.0 if alone else sum(in_round) for in_round in zip(*times, strict=True)]
    shares = [[t / total for t, total in zip(step, totals, strict=True)] for step in times]
    widths = [median_interval(share, LOOKING_COVERAGE).relative_width for share in shares]
    return all(width <= NARROW for width in widths)
