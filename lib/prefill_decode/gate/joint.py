"""Joint: all steps of a chapter as one quantity, which sees a change that they share.

A chapter's steps are judged among so many that each must change a lot before it is believed. What
slows the whole engine shows in their mean, which is judged among few. It is as if of one more run's
noise, which all steps share, so that it sees smaller changes than a step does, but no small ones.

Counts:  the mean of the steps' log shares of what the roofline allows ("reached, STEP"), turned so
         that more is better, over the steps that base and current have in common.
Ignores: steps that reached 0 in some run, which have no log: they are judged alone. That errors
         partly cancel in a mean: its interval is as wide as the steps' median one, to be cautious.
"""

from collections.abc import Sequence
from math import exp, isfinite, log, nan
from statistics import fmean, median

from prefill_decode.change import Quantity, log_half_width
from prefill_decode.results import Run
from prefill_decode.statistics import Interval

REACHED = "reached, "


def steps_in_common(before: Run, now: Run) -> list[str]:
    """The names of the steps that can be held together: in the same unit and direction."""
    return [
        name
        for name, held in now.quantities.items()
        if name.startswith(REACHED) and _same_form(held, before.quantities.get(name))
    ]


def together(runs: Sequence[Run], steps: Sequence[str]) -> list[Interval]:
    """All these steps as one interval for each run that holds them; more is better."""
    holding = [run for run in runs if steps and all(name in run.quantities for name in steps)]
    return [_together([run.quantities[name] for name in steps]) for run in holding]


def without_zeros(steps: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The steps that reached something in every run that holds them."""
    return [
        name
        for name in steps
        if all(run.quantities[name].measured.median > 0 for run in runs if name in run.quantities)
    ]


def _same_form(held: Quantity, earlier: Quantity | None) -> bool:
    return earlier is not None and (held.unit, held.better) == (earlier.unit, earlier.better)


def _together(held: Sequence[Quantity]) -> Interval:
    middle = fmean(_gain(each) for each in held)
    known = [each.measured for each in held if isfinite(each.measured.low + each.measured.high)]
    coverage = min(each.measured.coverage for each in held)
    if not known:
        return Interval(exp(middle), nan, nan, len(held), coverage)
    half = median(log_half_width(each) for each in known)
    return Interval(exp(middle), exp(middle - half), exp(middle + half), len(held), coverage)


def _gain(held: Quantity) -> float:
    sign = 1 if held.better == "higher" else -1
    return sign * log(held.measured.median)
