"""Summary: serving_metrics' figures of a token log, with a line for each request and not for each
token."""

from array import array
from collections.abc import Sequence
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives, Summary
from prefill_decode.simulator.gaps import gaps_of
from prefill_decode.simulator.token_log import Floats, Integers, TokenLog
from prefill_decode.statistics import (
    PERCENTILES,
    Percentile,
    ordered_percentile,
    share_interval,
)

Flags = NDArray[np.bool_]


def summarize_log(
    requests: Sequence[Request],
    log: TokenLog,
    times: tuple[Floats, Floats, Integers],
    failures: dict[int, str],
    duration_s: float,
    objectives: Objectives,
) -> Summary:
    """Every request that did not fail is answered whole. ValueError if no token came."""
    if not duration_s > 0:
        raise ValueError("no request of the simulation got a token: nothing fits the fleet")
    first_s, last_s, _ = times
    arrival_s = np.array([request.arrival_s for request in requests])
    gaps = gaps_of(log)
    answered = ~np.isnan(first_s)
    ttft, e2e, tpot = first_s - arrival_s, last_s - arrival_s, _tpot_s(times)
    good = _are_good(ttft, tpot, gaps.stall_s, objectives)
    failed, total = len(requests) - int(answered.sum()), len(requests)
    return Summary(
        num_requests=total,
        num_failed=failed,
        num_unfinished=failed - len(failures),
        num_without_tpot=int((answered & np.isnan(tpot)).sum()),
        num_gaps_of_failed=0,
        share_failed=share_interval(failed, total),
        share_good=share_interval(int(good.sum()), total),
        goodput_per_s=float(good.sum()) / duration_s,
        objectives=objectives,
        duration_s=duration_s,
        ttft_s=_percentiles(ttft[answered]),
        ttft_with_failures_s=_percentiles(np.where(answered, ttft, inf)),
        tpot_s=_percentiles(tpot[~np.isnan(tpot)]),
        itl_s=_pooled(gaps.values_s, gaps.weights),
        stall_s=_percentiles(gaps.stall_s[~np.isnan(gaps.stall_s)]),
        e2e_s=_percentiles(e2e[answered]),
    )


def good_requests(
    requests: Sequence[Request],
    log: TokenLog,
    times: tuple[Floats, Floats, Integers],
    objectives: Objectives,
) -> Flags:
    """Which requests were answered within every objective; gaps are looked at only if one is for
    them."""
    ttft = times[0] - np.array([request.arrival_s for request in requests])
    stall = gaps_of(log).stall_s if objectives.stall_s < inf else np.zeros(len(requests))
    return _are_good(ttft, _tpot_s(times), stall, objectives)


def _are_good(ttft: Floats, tpot: Floats, stall: Floats, objectives: Objectives) -> Flags:
    late = (ttft > objectives.ttft_s) | (tpot > objectives.tpot_s) | (stall > objectives.stall_s)
    return ~(np.isnan(ttft) | late)


def _tpot_s(times: tuple[Floats, Floats, Integers]) -> Floats:
    first_s, last_s, tokens = times
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(tokens > 1, (last_s - first_s) / (tokens - 1), nan)


class _Repeated(Sequence[float]):
    """Values in order, each as often as it was seen."""

    def __init__(self, values: Floats, weights: Integers) -> None:
        order = np.argsort(values)
        self._values, self._ends = values[order], np.cumsum(weights[order])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, rank: int) -> float:  # type: ignore[override]
        place = np.searchsorted(self._ends, rank % len(self), side="right")
        return float(self._values[place])


def _pooled(values: Floats, weights: Integers) -> tuple[Percentile, ...]:
    ordered = _Repeated(values, weights)
    return tuple(ordered_percentile(ordered, p) for p in PERCENTILES)


def _percentiles(samples: Floats) -> tuple[Percentile, ...]:
    ordered = array("d", np.sort(samples).tobytes())
    return tuple(ordered_percentile(ordered, p) for p in PERCENTILES)
