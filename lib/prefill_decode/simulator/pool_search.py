"""Pool search: which whole-worker split of a fleet carries most of a load within its objectives.

A split gives so many workers to prefill and so many to decode; the rival keeps every worker whole
and reads prompts in chunks between decodes. Each is simulated with the same requests, stretched to
the rate that is tried (common random numbers): a difference between two splits is then theirs, and
not the luck of their arrivals.

Counts:  requests that arrived after the first quarter, when batches have filled. The greatest rate
         is that at which a share of these, as asked, is answered within every objective; it is
         found to 1.5 %. Rates are of the whole fleet; a device's share is that over the devices.
         A queue that grows slowly keeps a promise for a while, so what counts as carried is no
         more than what ends per second from then until the last arrival.
Ignores: what the simulator ignores. Where there are not several requests for each place in the
         batches, they hardly fill, and the rate carried says little.
Source:  Zhong et al., "DistServe" (2024), for the greatest rate within objectives as the measure
         of a placement.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt
from statistics import fmean

from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator.fleet import Fleet
from prefill_decode.simulator.outcome import Outcome
from prefill_decode.simulator.pool_law import Law, law_of, whole_per_s
from prefill_decode.simulator.pool_workers import Split, Workers, fleet_of_split
from prefill_decode.simulator.simulate import simulate
from prefill_decode.statistics import Interval, median_interval

SHARE_GOOD = 0.9  # of requests within the objectives, where nothing else is asked
FILLING = 0.25  # of the requests, that arrive while batches fill
RATE_TOLERANCE = 0.015
STRIDE = 1.1  # from the guess to the second rate; each next stride is the square of the last
MOST_STRIDES = 8  # a factor of 10^10

MakeLoad = Callable[[int], Sequence[Request]]  # by seed


@dataclass(frozen=True)
class Found:
    """What a split carries: a rate for each seed, in the seeds' order."""

    split: Split
    num_devices: int
    rates_per_s: tuple[float, ...]
    law_per_s: float  # by the roofline, before any simulation
    busy: dict[str, float]  # share of the time by pool, at those rates; a mean over seeds

    @property
    def rate_per_s(self) -> Interval:
        return median_interval(self.rates_per_s)

    @property
    def of_a_device_per_s(self) -> Interval:
        return median_interval([rate / self.num_devices for rate in self.rates_per_s])


@dataclass(frozen=True)
class Search:
    found: tuple[Found, ...]
    law: Law
    num_seeds: int
    num_requests: int

    @property
    def best_by_seed(self) -> tuple[Found, ...]:
        """The one with the greatest rate for each seed, the first of equals."""
        return tuple(
            max(self.found, key=lambda each: each.rates_per_s[place] / each.num_devices)
            for place in range(self.num_seeds)
        )

    @property
    def best(self) -> Found:
        """Best for most seeds; among equals the one with the greater median."""
        wins = Counter(each.split for each in self.best_by_seed)
        return max(self.found, key=lambda each: (wins[each.split], each.rate_per_s.median))

    @property
    def wins(self) -> int:
        """Seeds for which `best` is best."""
        return sum(each is self.best for each in self.best_by_seed)

    def of(self, split: Split) -> Found:
        return next(each for each in self.found if each.split == split)


def search(
    workers: Workers,
    splits: Sequence[Split],
    make_load: MakeLoad,
    objectives: Objectives,
    seeds: Sequence[int],
    share_good: float = SHARE_GOOD,
    rate_per_s: float | None = None,
) -> Search:
    """Every split with every seed's requests: the greatest rate within the objectives, or, where
    `rate_per_s` is given, the goodput at that rate. ValueError without objectives for TTFT and for
    what comes after it: no queue would then be too long."""
    _check(splits, seeds, objectives, share_good)
    loads = [make_load(seed) for seed in seeds]
    law = law_of(workers.prefill, workers.decode, loads[0], objectives)
    found = []
    for split in splits:
        fleet = fleet_of_split(workers, split)
        expected = _expected_per_s(workers, split, law, loads[0], objectives)
        guess = expected or split.workers * law.prefill_per_s
        rates, outcomes = [], []
        for load in loads:
            if rate_per_s is None:
                rate, outcome = greatest_rate(fleet, load, objectives, guess, share_good)
                guess, rate = rate or guess, carried_per_s(rate, outcome)
            else:
                outcome = simulate(fleet, at_rate(load, rate_per_s))
                rate = rate_per_s * share_within(outcome, objectives)
            rates.append(rate)
            outcomes.append(outcome)
        busy = _busy(fleet, outcomes)
        found.append(Found(split, fleet.num_devices, tuple(rates), expected, busy))
    return Search(tuple(found), law, len(seeds), len(loads[0]))


def best_split(
    workers: Workers,
    splits: Sequence[Split],
    load: Sequence[Request],
    objectives: Objectives,
    law: Law,
    share_good: float = SHARE_GOOD,
) -> tuple[Split, float]:
    """The best of these splits into phases and its greatest rate, the others' rates unknown: the
    law says whom to try first, and who fails beyond the best rate so far cannot be best."""
    order = sorted(splits, key=lambda each: -law.rate_per_s(each.prefill, each.decode))
    best, best_per_s = order[0], 0.0
    for split in order:
        fleet = fleet_of_split(workers, split)
        guess = law.rate_per_s(split.prefill, split.decode) or law.prefill_per_s
        if best_per_s:
            guess = best_per_s * (1 + RATE_TOLERANCE)
            if share_within(simulate(fleet, at_rate(load, guess)), objectives) < share_good:
                continue
        rate = carried_per_s(*greatest_rate(fleet, load, objectives, guess, share_good))
        if rate > best_per_s:
            best, best_per_s = split, rate
    return best, best_per_s


def greatest_rate(
    fleet: Fleet,
    load: Sequence[Request],
    objectives: Objectives,
    guess_per_s: float,
    share_good: float = SHARE_GOOD,
) -> tuple[float, Outcome]:
    """The greatest rate, requests/s, at which `share_good` of the load is within the objectives,
    and what became of the load at it; 0, and what became at the lowest rate tried, for none."""

    def at(rate: float) -> tuple[bool, Outcome]:
        outcome = simulate(fleet, at_rate(load, rate))
        return share_within(outcome, objectives) >= share_good, outcome

    rate = guess_per_s
    holds, outcome = at(rate)
    best = (rate, outcome) if holds else None
    stride = STRIDE if holds else 1 / STRIDE
    for _ in range(MOST_STRIDES):
        other = rate * stride
        now_holds, outcome = at(other)
        if now_holds:
            best = (other, outcome)
        if now_holds != holds:
            break
        rate, stride = other, stride**2
    else:
        if holds:
            raise ValueError(
                f"{len(load)} requests are within the objectives at any rate: too few to show a "
                "limit; give more"
            )
    if best is None:
        return 0.0, outcome
    low, high = min(rate, other), max(rate, other)
    while high > low * (1 + RATE_TOLERANCE):
        middle = sqrt(low * high)
        now_holds, outcome = at(middle)
        if now_holds:
            low, best = middle, (middle, outcome)
        else:
            high = middle
    return best


def carried_per_s(rate_per_s: float, outcome: Outcome) -> float:
    """Of requests that came at this rate, those that ended a second once batches had filled, as
    long as more arrived; at most the rate itself."""
    arrivals_s = sorted(request.arrival_s for request in outcome.requests)
    start_s, end_s = arrivals_s[int(FILLING * len(arrivals_s))], arrivals_s[-1]
    ended = int(((outcome.last_s > start_s) & (outcome.last_s <= end_s)).sum())
    return min(rate_per_s, ended / (end_s - start_s)) if end_s > start_s else 0.0


def at_rate(load: Sequence[Request], rate_per_s: float) -> list[Request]:
    """The same requests, their arrivals stretched from 0 s on to this mean rate."""
    arrivals_s = [request.arrival_s for request in load]
    first_s, last_s = min(arrivals_s), max(arrivals_s)
    if not (rate_per_s > 0 and last_s > first_s):
        raise ValueError(
            "a load is stretched to a positive rate, and its requests arrive at more than one "
            f"moment; got {rate_per_s} and {len(load)} requests in {last_s - first_s} s"
        )
    stretch = (len(load) - 1) / (last_s - first_s) / rate_per_s
    return [replace(one, arrival_s=(one.arrival_s - first_s) * stretch) for one in load]


def share_within(outcome: Outcome, objectives: Objectives) -> float:
    """Of the requests that arrived after batches had filled, those within the objectives."""
    good = outcome.is_good(objectives)
    order = sorted(range(len(good)), key=lambda index: outcome.requests[index].arrival_s)
    counted = order[int(FILLING * len(order)) :]
    return sum(bool(good[index]) for index in counted) / len(counted)


def _expected_per_s(
    workers: Workers, split: Split, law: Law, load: Sequence[Request], objectives: Objectives
) -> float:
    if split.whole and workers.whole is not None:
        return split.whole * whole_per_s(workers.whole, load, objectives)
    return law.rate_per_s(split.prefill, split.decode)


def _busy(fleet: Fleet, outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        pool.name: fmean(
            use.busy_share for outcome in outcomes for use in outcome.uses if use.pool == pool.name
        )
        for pool in fleet.pools
    }


def _check(
    splits: Sequence[Split], seeds: Sequence[int], objectives: Objectives, share_good: float
) -> None:
    if not splits or not seeds:
        raise ValueError(
            f"a search needs a split and a seed; got {len(splits)} and {len(seeds)} of them"
        )
    if inf in (objectives.ttft_s, min(objectives.tpot_s, objectives.stall_s)):
        raise ValueError(
            "a search needs an objective for TTFT and one for what follows it (TPOT or the largest "
            f"gap): without, no queue is too long; got {objectives}"
        )
    if not 0 < share_good <= 1:
        raise ValueError(f"a share of requests lies above 0, up to 1; got {share_good}")
