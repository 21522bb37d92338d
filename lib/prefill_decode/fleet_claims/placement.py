"""Placement: who gets a request whose beginning is in somebody's cache.

Conversations in turns over a fleet of whole workers. The law says what a cache holds of a prompt
under three placements: where its conversation goes on, at any worker alike, and everything at one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from statistics import fmean
from time import monotonic
from typing import Any

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request
from prefill_decode.scheduling import Routing
from prefill_decode.simulator import Fleet, Outcome, Pool, Prices, datasheet_workers, simulate
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.step import Chunk
from prefill_decode.workload import Conversations

FILLING = 0.25  # of the requests, while caches fill
SLACKS = (0.0, 1.0, 2.0, 4.0, 16.0, inf)
AT_HAND = 4.0  # the slack of the claim
ROUND_ROBIN, LEAST_LOADED, AWARE = "round-robin", "least-loaded", "prefix-aware"
CHASING = "prefix-aware, whatever the load"
HITS = "prompt tokens found in caches, prefix-aware / round-robin"
TTFT = "mean TTFT, round-robin / prefix-aware"
BUSIEST = "requests of the busiest worker / of a mean one, whatever the load"
NOTHING_SHARED = "mean TTFT, round-robin / prefix-aware, nothing shared"


@dataclass(frozen=True)
class Way:
    """A routing with its slack."""

    name: str
    routing: Routing
    slack: float = inf


ROUTINGS = (
    Way(ROUND_ROBIN, "round_robin"),
    Way(LEAST_LOADED, "least_loaded"),
    Way(AWARE, "prefix_aware", AT_HAND),
    Way(CHASING, "prefix_aware", inf),
)


@dataclass(frozen=True)
class Seen:
    """What one seed's requests met under one routing."""

    hit_rate: float  # of prompt tokens, found in the cache of the worker that got them
    ttft_s: float  # mean, of requests that came once caches had filled
    busiest: float  # requests of the busiest worker over those of a mean one


@dataclass(frozen=True)
class Setting:
    """The fleet and its conversations. `busy` is the share of the time that prefills would take of
    every worker under round-robin, by the law; it sets the rate."""

    model_name: str
    accelerator: str
    num_workers: int
    turns: int
    system_tokens: int
    question_tokens: tuple[int, int]
    busy: float
    answer_tokens: tuple[int, int] = (20, 100)
    think_prefills: float = 21.5  # between two questions, mean, in prefills under round-robin
    num_conversations: int = 140

    @cached_property
    def pool(self) -> Pool:
        name = self.accelerator
        pool = datasheet_workers(self.model_name, name, name, whole=name).whole
        assert pool is not None
        return replace(pool, instances=self.num_workers)

    @property
    def model(self) -> ModelSpec:
        return self.pool.model

    @property
    def hardware(self) -> Hardware:
        return self.pool.hardware

    @property
    def parameters(self) -> dict[str, Any]:
        """Whatever a figure depends on, for the record."""
        return {
            "accelerator": self.accelerator,
            "num_workers": self.num_workers,
            "turns": self.turns,
            "system_tokens": self.system_tokens,
            "question_tokens": list(self.question_tokens),
            "answer_tokens": list(self.answer_tokens),
            "busy": self.busy,
            "think_prefills": self.think_prefills,
            "num_conversations": self.num_conversations,
        }

    @property
    def think_s(self) -> float:
        return self.think_prefills * self.law(self.num_workers).prefill_s

    @cached_property
    def rate_per_s(self) -> float:
        """Of requests."""
        return self.busy * self.num_workers / self.law(self.num_workers).prefill_s

    def requests(self, seed: int) -> list[Request]:
        talks = Conversations(
            self.num_conversations,
            self.rate_per_s / self.turns,
            self.turns,
            self.think_s,
            1,
            self.system_tokens,
            self.question_tokens,
            self.answer_tokens,
        )
        return talks.requests(seed)

    def law(self, places: int) -> "Law":
        """Where every turn may meet any of so many workers alike; with one place, the worker that
        has seen its conversation."""
        prices = Prices(self.pool.model, self.pool.ceilings, self.pool.calibration)
        prompts, hits, prefills_s = [], [], []
        for turn in range(self.turns):
            for chance, held in self._held(turn, places):
                prompt = self._prompt(turn)
                prompts.append(chance * prompt)
                hits.append(chance * held)
                step = [Chunk(prompt - held, held)]
                prefills_s.append(chance * prices.step_s_by_roofline(step))
        return Law(sum(hits) / sum(prompts), sum(prefills_s) / self.turns)

    def _held(self, turn: int, places: int) -> Iterator[tuple[float, int]]:
        """(chance, tokens) of what the worker that gets this turn has: as far as the last turn that
        it got, or the system prompt, which every worker has."""
        left, size = 1.0, self.pool.block_tokens
        for earlier in range(turn - 1, -1, -1):
            known = self._prompt(earlier) + round(fmean(self.answer_tokens))
            yield left / places, known // size * size
            left *= 1 - 1 / places
        if left:
            yield left, self.system_tokens // size * size

    def _prompt(self, turn: int) -> int:
        asked = (turn + 1) * fmean(self.question_tokens)
        return round(self.system_tokens + asked + turn * fmean(self.answer_tokens))


@dataclass(frozen=True)
class Law:
    """Of mean lengths, with room for all caches and an empty queue."""

    hit_rate: float
    prefill_s: float  # mean


@dataclass(frozen=True)
class Found:
    """What every seed met, in the seeds' order."""

    setting: Setting
    num_seeds: int
    seen: dict[str, list[Seen]]  # by routing
    by_slack: dict[float, list[Seen]]  # prefix-aware
    alone: dict[str, list[Seen]]  # by routing, where no prompt shares anything
    duration_s: float  # that it took to simulate

    def of(self, name: str, figure: str) -> Interval:
        return median_interval([getattr(each, figure) for each in self.seen[name]])

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        hits, ttft = (
            {name: [getattr(each, figure) for each in seen] for name, seen in self.seen.items()}
            for figure in ("hit_rate", "ttft_s")
        )
        alone = {name: [each.ttft_s for each in seen] for name, seen in self.alone.items()}
        return {
            HITS: ratio_interval(hits[AWARE], hits[ROUND_ROBIN]),
            TTFT: ratio_interval(ttft[ROUND_ROBIN], ttft[AWARE]),
            BUSIEST: self.of(CHASING, "busiest"),
            NOTHING_SHARED: ratio_interval(alone[ROUND_ROBIN], alone[AWARE]),
        }


def simulate_seeds(setting: Setting, seeds: Sequence[int]) -> Found:
    """Every routing and every slack over every seed's conversations."""
    begun_s = monotonic()
    seen: dict[str, list[Seen]] = {way.name: [] for way in ROUTINGS}
    by_slack: dict[float, list[Seen]] = {slack: [] for slack in SLACKS}
    alone: dict[str, list[Seen]] = {ROUND_ROBIN: [], AWARE: []}
    for seed in seeds:
        requests = setting.requests(seed)
        for slack in SLACKS:
            way = Way(AWARE, "prefix_aware", slack)
            by_slack[slack].append(_see(setting, way, requests))
        for way in ROUTINGS:
            known = by_slack.get(way.slack) if way.routing == "prefix_aware" else None
            seen[way.name].append(known[-1] if known else _see(setting, way, requests))
            if way.name in alone:
                apart = [replace(one, pieces=(), answer=None) for one in requests]
                alone[way.name].append(_see(setting, way, apart))
    return Found(setting, len(seeds), seen, by_slack, alone, monotonic() - begun_s)


def _see(setting: Setting, way: Way, requests: Sequence[Request]) -> Seen:
    fleet = Fleet((setting.pool,), way.routing, way.slack)
    outcome = simulate(fleet, requests)
    sent = [use.requests for use in outcome.uses]
    prompts = sum(request.prompt_tokens for request in requests)
    return Seen(outcome.num_reused_tokens / prompts, _mean_ttft_s(outcome), max(sent) / fmean(sent))


def _mean_ttft_s(outcome: Outcome) -> float:
    waits = sorted(
        (request.arrival_s, first_s - request.arrival_s)
        for request, first_s in zip(outcome.requests, outcome.first_s.tolist(), strict=True)
    )
    return fmean(wait_s for _, wait_s in waits[int(FILLING * len(waits)) :])
