"""Chapter spread: how far fresh runs of one chapter lie apart, and what that does to a comparison.

Holds the spread between runs beside the half-width of the runs' own intervals, and plays the gate
on records: three runs as the base, another as the current one, in every choice or in 2000 of them.
A slowdown of 10 % is planted by multiplying one quantity, not by slowing anything. The choices
share a few runs, so their rates have no interval.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import combinations, permutations
from math import isfinite, log
from statistics import fmean, median, stdev
from typing import Any

from prefill_decode.change import Quantity, judge_change
from prefill_decode.paired.rates import dependent_rate
from prefill_decode.paired.sessions import KeptRun
from prefill_decode.results import STEP_PREFIXES

BASE_RUNS = 3
MOST_CHOICES = 2000
PLANTED = 0.10


def chapter_spread(runs: Sequence[KeptRun], tolerance: float, seed: int) -> dict[str, Any] | None:
    """The chapter's part of a study; None below two runs. ValueError for runs of two claims."""
    if len(runs) < 2:
        return None
    names = comparable(runs)
    found = {
        "claim": runs[0].claim,
        "runs": len(runs),
        "spread": {name: _spread([run.quantities[name] for run in runs]) for name in names},
        "covers_another_run": _covering(runs, names),
        "rates": {},
    }
    choices = _choices(len(runs), seed)
    if choices and names:
        found["rates"] = _rates(runs, names, choices, tolerance)
    return found


def comparable(runs: Sequence[KeptRun]) -> list[str]:
    """Quantities that every run holds, positive and with an interval."""
    claims = sorted({run.claim for run in runs})
    if len(claims) > 1:
        raise ValueError(f"runs of one chapter are compared; got {', '.join(claims)}")
    return [
        name
        for name in runs[0].quantities
        if all(_has_interval(run.quantities.get(name)) for run in runs)
    ]


def _has_interval(quantity: Quantity | None) -> bool:
    return quantity is not None and quantity.measured.low > 0 and isfinite(quantity.measured.high)


def _spread(quantities: Sequence[Quantity]) -> dict[str, float]:
    """In logs, so nearly in shares: between the runs' medians, and what a run says of itself."""
    measured = [quantity.measured for quantity in quantities]
    return {
        "between_runs": stdev(log(interval.median) for interval in measured),
        "half_width": median(log(interval.high / interval.low) / 2 for interval in measured),
    }


def _covering(runs: Sequence[KeptRun], names: Sequence[str]) -> float | None:
    """How often one run's interval covers another run's median, over all ordered pairs."""
    covers = [
        one.quantities[name].measured.low
        <= other.quantities[name].measured.median
        <= one.quantities[name].measured.high
        for one, other in permutations(runs, 2)
        for name in names
    ]
    return fmean(covers) if covers else None


def _choices(num_runs: int, seed: int) -> list[tuple[int, tuple[int, ...]]]:
    """(current run, base runs), all or `MOST_CHOICES` drawn without replacement."""
    found = [
        (current, base)
        for current in range(num_runs)
        for base in combinations([i for i in range(num_runs) if i != current], BASE_RUNS)
    ]
    dice = random.Random(f"{seed}, choices")
    return dice.sample(found, MOST_CHOICES) if len(found) > MOST_CHOICES else found


def _rates(
    runs: Sequence[KeptRun],
    names: Sequence[str],
    choices: Sequence[tuple[int, tuple[int, ...]]],
    tolerance: float,
) -> dict[str, Any]:
    """False alarms: of any quantity. Caught: the one quantity that was made worse, in turn."""

    single_steps = sum(name.startswith(STEP_PREFIXES) for name in names)
    family = {True: single_steps, False: len(names) - single_steps}  # as the gate judges them

    def slower(name: str, current: Quantity, base: Sequence[int]) -> bool:
        before = [runs[i].quantities[name].measured for i in base]
        judged = family[name.startswith(STEP_PREFIXES)]
        now, unit = [current.measured], current.unit
        change = judge_change(before, now, current.better, tolerance, judged, unit)
        return change.answer == "regression"

    alarms = caught = 0
    for number, (current, base) in enumerate(choices):
        alarms += any(slower(name, runs[current].quantities[name], base) for name in names)
        name = names[number % len(names)]
        caught += slower(name, made_worse(runs[current].quantities[name], PLANTED), base)
    return {
        "equal records": asdict(dependent_rate(alarms, len(choices))),
        "planted 10% records": asdict(dependent_rate(caught, len(choices))),
    }


def made_worse(quantity: Quantity, share: float) -> Quantity:
    """The same quantity, worse by this share: multiplied or divided, as its direction has it."""
    factor = 1 + share if quantity.better == "lower" else 1 / (1 + share)
    measured = quantity.measured
    return replace(
        quantity,
        measured=replace(
            measured,
            median=measured.median * factor,
            low=measured.low * factor,
            high=measured.high * factor,
        ),
    )
