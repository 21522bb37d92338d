"""Undifferentiated: the same requests over the same devices, with and without a policy for the
phases: largest gaps, first tokens, and what is carried within the same objectives.

Every way gets a seed's requests at the same rates. What is expected of each stands in `ways`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from time import monotonic

import numpy as np

from prefill_decode.fleet_claims.queue import error_over_single_steps, mean_tokens
from prefill_decode.fleet_claims.ways import (
    APART,
    CHUNKED,
    ONE_PIECE,
    WAYS,
    WITH_LAW,
    Setting,
)
from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator import (
    Fleet,
    at_rate,
    carried_per_s,
    greatest_rate,
    simulate,
)
from prefill_decode.simulator.gaps import gaps_of
from prefill_decode.simulator.pool_search import FILLING
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.workload import (
    SERVICES,
    fixed_lengths,
    make_requests,
    percentile_lengths,
    poisson_arrivals,
)

__all__ = ["APART", "CHUNKED", "OTHERS", "Found", "Setting", "simulate_seeds"]

OTHERS = (CHUNKED, APART)  # that one piece is compared with
GAP = f"largest gap, {ONE_PIECE} / {{}}"
TTFT = f"mean TTFT, {ONE_PIECE} / {CHUNKED}"
WITHIN = f"requests/s within the objectives, {{}} / {ONE_PIECE}"
PROMPTS_ALONE = f"prompts alone: requests/s within the objectives, {CHUNKED} / {ONE_PIECE}"
ANSWERS_ALONE = f"answers alone: largest gap, {ONE_PIECE} / {CHUNKED}"
SINGLE_STEPS = "error, runs of steps / single steps"
SHARES = (0.25, 0.5, 0.75, 1.0, 1.2, 1.35)  # of the rate at which the ways are compared
AT_HAND = 1.0
HELD = (0, 1, 2, 4)  # prompts that a gap may hold: 0 is what the claim is judged by
TINY_PROMPT = 8  # tokens


@dataclass(frozen=True)
class Seen:
    """Of one seed's requests that came once batches had filled."""

    ttft_s: float  # mean
    gap_s: float  # median of the answers' largest gaps


@dataclass(frozen=True)
class Found:
    """What every seed found, in the seeds' order. Rates are of the whole fleet."""

    setting: Setting
    num_seeds: int
    seen: Mapping[str, Mapping[float, Sequence[Seen]]]  # by way and share of the rate
    services: Mapping[str, Mapping[str, Sequence[Seen]]]  # by service and way
    within_per_s: Mapping[str, Mapping[int, Sequence[float]]]  # by way, and prompts in a gap
    prompts_alone: Sequence[float]
    answers_alone: Sequence[float]
    errors: Sequence[float]
    duration_s: float  # that it took to simulate

    def of(self, way: str, figure: str, share: float = AT_HAND) -> Interval:
        return median_interval(self._values(way, figure, share))

    def of_a_device_per_s(self, way: str, held: int = 0) -> Interval:
        devices = self.setting.num_workers
        return median_interval([rate / devices for rate in self.within_per_s[way][held]])

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        whole_s = self._values(ONE_PIECE, "gap_s")
        waits_s = [self._values(way, "ttft_s") for way in (ONE_PIECE, CHUNKED)]
        found = {TTFT: ratio_interval(*waits_s)}
        for way in OTHERS:
            found[GAP.format(way)] = ratio_interval(whole_s, self._values(way, "gap_s"))
            rates = (self.within_per_s[each][0] for each in (way, ONE_PIECE))
            found[WITHIN.format(way)] = ratio_interval(*rates)
        return found | {
            PROMPTS_ALONE: median_interval(self.prompts_alone),
            ANSWERS_ALONE: median_interval(self.answers_alone),
            SINGLE_STEPS: median_interval(self.errors),
        }

    def _values(self, way: str, figure: str, share: float = AT_HAND) -> list[float]:
        return [getattr(each, figure) for each in self.seen[way][share]]


@dataclass(frozen=True)
class _Seed:
    """One seed's requests, the same for every way."""

    setting: Setting
    seed: int

    @cached_property
    def requests(self) -> list[Request]:
        return self.like(*self.setting.load)

    def like(self, prompt_tokens: int, output_tokens: int) -> list[Request]:
        number = self.setting.num_requests
        lengths = fixed_lengths(prompt_tokens, number), fixed_lengths(output_tokens, number)
        return make_requests(poisson_arrivals(1.0, number, self.seed), *lengths)

    def see(self, way: str, share: float) -> Seen:
        requests = at_rate(self.requests, share * self.setting.rate_per_s)
        return _see(self.setting.fleet(way), requests)

    def see_service(self, name: str, way: str) -> Seen:
        """At the rate that the law gives to requests of the service's mean lengths."""
        number, like = self.setting.num_requests, SERVICES[name]
        prompts = percentile_lengths(like.prompt_tokens, number, self.seed, "prompt lengths")
        outputs = percentile_lengths(like.output_tokens, number, self.seed, "output lengths")
        requests = make_requests(poisson_arrivals(1.0, number, self.seed), prompts, outputs)
        setting = for_service(self.setting, name)
        longest = max(map(sum, zip(prompts, outputs, strict=True)))
        return _see(setting.fleet(way, longest), at_rate(requests, setting.rate_per_s))

    def within_per_s(self, way: str, held: int) -> float:
        objectives = self.setting.promise(held)
        guess = self.setting.within_per_s(way, objectives) or self.setting.rate_per_s
        return _greatest_per_s(self.setting.fleet(way), self.requests, objectives, guess)

    def prompts_alone(self) -> float:
        """No answer has a second token, so nobody decodes beside a prompt."""
        setting, requests = self.setting, self.like(self.setting.load[0], 1)
        guess = 0.9 * setting.num_workers / setting.prefill_s
        chunked, one_piece = (
            _greatest_per_s(setting.fleet(way), requests, setting.objectives, guess)
            for way in (CHUNKED, ONE_PIECE)
        )
        return chunked / one_piece

    def answers_alone(self) -> float:
        """Full batches that are asked at once with next to no prompts: nobody reads any later."""
        setting = self.setting
        number = setting.num_workers * min(setting.places, setting.chunk_tokens // TINY_PROMPT)
        lengths = fixed_lengths(TINY_PROMPT, number), fixed_lengths(setting.load[1], number)
        requests = make_requests([0.0] * number, *lengths)
        one_piece, chunked = (
            _see(setting.fleet(way), requests).gap_s for way in (ONE_PIECE, CHUNKED)
        )
        return one_piece / chunked

    def error(self) -> float:
        """The largest of both kinds of fleet, with answers an eighth as long."""
        prompt, output = self.setting.load
        requests = at_rate(self.like(prompt, max(2, output // 8)), self.setting.rate_per_s)
        ways = (ONE_PIECE, APART)
        return max(error_over_single_steps(self.setting.fleet(way), requests) for way in ways)


def for_service(setting: Setting, name: str) -> Setting:
    """The same devices and promises for requests of a service's mean lengths."""
    like, number = SERVICES[name], 2000
    prompts = percentile_lengths(like.prompt_tokens, number, 0, "prompt lengths")
    outputs = percentile_lengths(like.output_tokens, number, 0, "output lengths")
    means = mean_tokens(make_requests([0.0] * number, prompts, outputs))
    promises_s = (setting.objectives.ttft_s, setting.objectives.stall_s)
    return replace(setting, load=(round(means[0]), round(means[1])), promises_s=promises_s)


def simulate_seeds(setting: Setting, seeds: Sequence[int]) -> Found:
    """Every way at every rate, its greatest rate, and what checks the simulator."""
    begun_s, dice = monotonic(), [_Seed(setting, seed) for seed in seeds]
    names = [name for name in SERVICES if name.startswith("azure")]
    shares = {way: SHARES if way in WITH_LAW else (AT_HAND,) for way in WAYS}
    seen = {
        way: {share: [die.see(way, share) for die in dice] for share in shares[way]} for way in WAYS
    }
    services = {
        name: {way: [die.see_service(name, way) for die in dice] for way in WAYS} for name in names
    }
    within = {
        way: {held: [die.within_per_s(way, held) for die in dice] for held in HELD}
        for way in WITH_LAW
    }
    prompts_alone = [die.prompts_alone() for die in dice]
    answers_alone = [die.answers_alone() for die in dice]
    errors = [die.error() for die in dice]
    return Found(
        setting,
        len(dice),
        seen,
        services,
        within,
        prompts_alone,
        answers_alone,
        errors,
        monotonic() - begun_s,
    )


def _see(fleet: Fleet, requests: Sequence[Request]) -> Seen:
    outcome = simulate(fleet, requests)
    arrivals_s = np.array([request.arrival_s for request in requests])
    counted = np.argsort(arrivals_s, kind="stable")[int(FILLING * len(arrivals_s)) :]
    waits_s = (outcome.first_s - arrivals_s)[counted].tolist()
    gaps_s = gaps_of(outcome.log).stall_s[counted].tolist()
    return Seen(fmean(waits_s), median(gap_s for gap_s in gaps_s if gap_s == gap_s))


def _greatest_per_s(
    fleet: Fleet, requests: Sequence[Request], objectives: Objectives, guess_per_s: float
) -> float:
    return carried_per_s(*greatest_rate(fleet, requests, objectives, guess_per_s))
