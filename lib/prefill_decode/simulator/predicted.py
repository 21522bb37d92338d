"""Predicted: one workload simulated under every fit of its calibrations, as intervals.

A calibration's fits are what its measurement leaves open. The same requests run through the same
fleet under each of them, the n-th fit of every pool together, and a figure's interval reaches from
the smallest to the largest that came out, or between two quantiles of many.

Counts:  how well the step times are known, and how they change from one time to another.
Ignores: what differs between two runs on the real engine beside the step times; whether the form
         of the calibration is right where no step of it was measured. Near saturation small errors
         of a step grow without bound, and a prediction says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan

import numpy as np

from prefill_decode.request import Request
from prefill_decode.simulator.fleet import Fleet
from prefill_decode.simulator.outcome import Outcome
from prefill_decode.simulator.simulate import Progress, simulate

MOST_FITS = 16
BUSY = 0.85  # of the time: small errors grow sixfold and more
GROWING, GROWING_BUSY = 3.0, 0.6
COVERAGE = 0.95
LEAST_FITS = 2

Figures = Callable[[Outcome], Mapping[str, float]]


@dataclass(frozen=True)
class Predicted:
    """A figure by the calibration itself, and the interval of its fits; NaN without fits."""

    value: float
    low: float = nan
    high: float = nan

    def covers(self, measured: float) -> bool:
        return self.low <= measured <= self.high


def under_fits(fleet: Fleet, most_fits: int = MOST_FITS) -> list[Fleet]:
    """The fleet under each fit of its pools' calibrations; none where none has fits. A pool without
    fits stays as it is, and one with fewer than another uses them again."""
    count = min(most_fits, max((len(p.calibration.fits) for p in fleet.pools), default=0))
    return [
        replace(
            fleet,
            pools=tuple(
                replace(pool, calibration=pool.calibration.fits[n % len(pool.calibration.fits)])
                if pool.calibration.fits
                else pool
                for pool in fleet.pools
            ),
        )
        for n in range(count)
    ]


def simulate_fits(
    fleet: Fleet,
    requests: Sequence[Request],
    figures: Figures,
    most_fits: int = MOST_FITS,
    progress: Progress | None = None,
) -> list[dict[str, float]]:
    """The figures of each such fleet's outcome. `progress` is called with the number of requests
    simulated so far."""
    found = []
    for number, one in enumerate(under_fits(fleet, most_fits), 1):
        found.append(dict(figures(simulate(one, requests))))
        if progress is not None:
            progress(number * len(requests))
    return found


def intervals(
    central: Mapping[str, float], around: Sequence[Mapping[str, float]]
) -> dict[str, Predicted]:
    """Each figure with its interval, which holds the central one."""
    if len(around) < LEAST_FITS:
        return {name: Predicted(value) for name, value in central.items()}
    found = {}
    for name, value in central.items():
        samples = np.array([each[name] for each in around])
        known = samples[~np.isnan(samples)]
        if isnan(value) or not len(known):
            found[name] = Predicted(value)
            continue
        low, high = np.quantile(known, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
        found[name] = Predicted(value, min(value, float(low)), max(value, float(high)))
    return found


def near_saturation(outcome: Outcome) -> str | None:
    """Why this fleet is close to what it can serve, in words; None where it is not.

    Its busiest instance works almost all the time that requests arrive; or who comes late waits far
    longer than who comes first, though much of the time is busy."""
    arrivals = np.array([request.arrival_s for request in outcome.requests])
    busiest = max(outcome.uses, key=lambda use: use.busy_share)
    if busiest.busy_share > BUSY:
        return f"{busiest.pool} is busy {busiest.busy_share:.0%} of the time"
    waits_s = (outcome.first_s - arrivals)[np.argsort(arrivals, kind="stable")]
    waits_s = waits_s[~np.isnan(waits_s)]
    third = len(waits_s) // 3
    if third >= 5 and busiest.busy_share > GROWING_BUSY:
        first, last = float(np.median(waits_s[:third])), float(np.median(waits_s[-third:]))
        if last > GROWING * first:
            return f"the median TTFT grows from {first:.3g} s to {last:.3g} s while requests arrive"
    return None
