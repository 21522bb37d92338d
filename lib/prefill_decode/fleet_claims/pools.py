"""Pools: the best whole-worker split of one fleet for loads that lean to one phase or the other.

The law of the roofline says where both pools are busy; the simulator says which split carries the
greatest rate. The load in balance between the two that lean is made so by the law, and tells
whether the search would find 1:1 where 1:1 is right.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import monotonic
from typing import Any

from prefill_decode.fleet_claims.holding import that_hold_the_model
from prefill_decode.fleet_claims.queue import (
    error_over_single_steps,
    mean_tokens,
    wait_over_closed_form,
)
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator import (
    Law,
    Prices,
    Split,
    Workers,
    at_rate,
    best_split,
    carried_per_s,
    datasheet_workers,
    fleet_of_split,
    greatest_rate,
    law_of,
    splits_of,
)
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.step import Chunk
from prefill_decode.workload import (
    SERVICES,
    fixed_lengths,
    make_requests,
    percentile_lengths,
    poisson_arrivals,
)

PROMPT_HEAVY, OUTPUT_HEAVY, BALANCED = "prompt-heavy", "output-heavy", "equal work"
LEANING = (PROMPT_HEAVY, OUTPUT_HEAVY)
WAIT = "wait in a queue, simulated / closed form"
SINGLE_STEPS = "error, runs of steps / single steps"
SPLIT = "{}: prefill workers / decode workers"
SWAPPED = "{}: rate with the other's split / with its own"
TTFT_PREFILLS, TPOT_STEPS = 8.0, 1.4  # promised, where nothing else is
LONGEST_ANSWER = 4096  # that is tried for the load in balance


@dataclass(frozen=True)
class Load:
    """Requests of fixed lengths, or with a published service's; Poisson arrivals either way."""

    name: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    service: str | None = None

    def requests(self, number: int, seed: int) -> list[Request]:
        arrivals_s = poisson_arrivals(1.0, number, seed)
        if self.service is None:
            lengths = [fixed_lengths(n, number) for n in (self.prompt_tokens, self.output_tokens)]
        else:
            like = SERVICES[self.service]
            lengths = [
                percentile_lengths(like.prompt_tokens, number, seed, "prompt lengths"),
                percentile_lengths(like.output_tokens, number, seed, "output lengths"),
            ]
        return make_requests(arrivals_s, *lengths)


@dataclass(frozen=True)
class Setting:
    """The fleet, what it promises, and the loads: two that lean and one that the law balances."""

    model_name: str
    accelerator: str
    num_workers: int
    prompt_heavy: tuple[int, int]  # prompt and output tokens
    output_heavy: tuple[int, int]
    promises_s: tuple[float, float] | None = None  # TTFT, TPOT; None: by the roofline
    places: int = 32  # sequences that a worker decodes at a time
    num_requests: int = 600

    @cached_property
    def workers(self) -> Workers:
        name = self.accelerator
        return datasheet_workers(
            self.model_name, name, name, whole=name, most_sequences=self.places
        )

    @cached_property
    def objectives(self) -> Objectives:
        """The promises: unless given, so many times the least prefill of the longest prompt, and
        the least step of a full batch of the longest answers."""
        if self.promises_s is not None:
            return Objectives(*self.promises_s)
        pool = self.workers.decode
        prices = Prices(pool.model, pool.ceilings, pool.calibration)
        prompt_s = prices.step_s_by_roofline([Chunk(self.prompt_heavy[0])])
        prompt, output = self.output_heavy
        context = prompt + output // 2
        step_s = prices.decodes(self.places, self.places * context)[0]
        return Objectives(TTFT_PREFILLS * prompt_s, TPOT_STEPS * step_s)

    @property
    def parameters(self) -> dict[str, Any]:
        """Whatever a figure depends on, for the record."""
        return {
            "accelerator": self.accelerator,
            "num_workers": self.num_workers,
            "places": self.places,
            "prompt_heavy": list(self.prompt_heavy),
            "output_heavy": list(self.output_heavy),
            "ttft_s": self.objectives.ttft_s,
            "tpot_s": self.objectives.tpot_s,
            "num_requests": self.num_requests,
        }

    @property
    def model(self) -> ModelSpec:
        return self.workers.prefill.model

    @property
    def hardware(self) -> Hardware:
        return self.workers.prefill.hardware

    @cached_property
    def loads(self) -> dict[str, Load]:
        """By name; the services are shown and decide nothing."""
        given = {
            PROMPT_HEAVY: Load(PROMPT_HEAVY, *self.prompt_heavy),
            OUTPUT_HEAVY: Load(OUTPUT_HEAVY, *self.output_heavy),
        }
        middle = round((self.prompt_heavy[0] * self.output_heavy[0]) ** 0.5)
        balanced = {BALANCED: Load(BALANCED, middle, self._output_in_balance(middle))}
        services = {name: Load(name, service=name) for name in SERVICES if "azure" in name}
        return given | balanced | services

    @cached_property
    def laws(self) -> dict[str, Law]:
        return {name: self.law(load) for name, load in self.loads.items()}

    def law(self, load: Load) -> Law:
        """Of the first seed's requests; fixed lengths are the same for all."""
        requests = load.requests(self.num_requests, 0)
        return law_of(self.workers.prefill, self.workers.decode, requests, self.objectives)

    def lean(self, load: Load) -> float:
        """Prompt tokens for each output token."""
        prompts, outputs = mean_tokens(load.requests(self.num_requests, 0))
        return prompts / outputs

    def path(self, count: int = 33) -> list[tuple[float, float]]:
        """(prompt tokens for each output token, the law's prefill workers for each decode worker)
        along loads between the two that lean, evenly in the logarithm of both lengths."""
        places = []
        for step in range(count):
            share = step / (count - 1)
            prompt, output = (
                round(first ** (1 - share) * last**share)
                for first, last in zip(self.output_heavy, self.prompt_heavy, strict=True)
            )
            places.append((prompt / output, self._ratio(prompt, output)))
        return places

    def elsewhere(self, names: Sequence[str]) -> list["Setting"]:
        """The same on other accelerators that hold the model, with the same promises."""
        promises_s = (self.objectives.ttft_s, self.objectives.tpot_s)
        others = [replace(self, accelerator=name, promises_s=promises_s) for name in names]
        return that_hold_the_model(others)

    def best_by_law(self, name: str) -> Split:
        return Split(*self.laws[name].best(self.num_workers))

    def swapped_by_law(self, name: str) -> float:
        """The rate with the other leaning load's split over that with its own."""
        own, other = self.best_by_law(name), self.best_by_law(_other(name))
        law = self.laws[name]
        return law.rate_per_s(other.prefill, other.decode) / law.rate_per_s(own.prefill, own.decode)

    def _output_in_balance(self, prompt_tokens: int) -> int:
        """The answer's length at which the law asks for as many workers of each kind."""
        low, high = 2, LONGEST_ANSWER
        while low < high:
            middle = (low + high) // 2
            if self._ratio(prompt_tokens, middle) > 1:
                low = middle + 1
            else:
                high = middle
        return low

    def _ratio(self, prompt_tokens: int, output_tokens: int) -> float:
        requests = make_requests([0.0], [prompt_tokens], [output_tokens])
        return law_of(self.workers.prefill, self.workers.decode, requests, self.objectives).ratio


@dataclass(frozen=True)
class Found:
    """What every seed found, in the seeds' order."""

    setting: Setting
    num_seeds: int
    best: Mapping[str, Sequence[Split]]  # by load
    rates_per_s: Mapping[str, Sequence[float]]  # of the best
    swapped_per_s: Mapping[str, Sequence[float]]  # of leaning loads, with the other's best by law
    whole_per_s: Mapping[str, Sequence[float]]  # of leaning loads, without splitting
    waits: Sequence[float]  # over the closed form
    errors: Sequence[float]
    duration_s: float  # that it took to simulate

    def ratio(self, name: str) -> Interval:
        return median_interval([split.ratio for split in self.best[name]])

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        found = {SPLIT.format(name): self.ratio(name) for name in (*LEANING, BALANCED)}
        for name in LEANING:
            rates = self.swapped_per_s[name], self.rates_per_s[name]
            found[SWAPPED.format(name)] = ratio_interval(*rates)
        return found | {
            WAIT: median_interval(self.waits),
            SINGLE_STEPS: median_interval(self.errors),
        }


def simulate_seeds(setting: Setting, seeds: Sequence[int]) -> Found:
    """Every load's best split for every seed, and what checks the simulator."""
    begun_s, loads = monotonic(), setting.loads
    best: dict[str, list[Split]] = {name: [] for name in loads}
    rates: dict[str, list[float]] = {name: [] for name in loads}
    swapped: dict[str, list[float]] = {name: [] for name in LEANING}
    whole: dict[str, list[float]] = {name: [] for name in LEANING}
    waits, errors = [], []
    for seed in seeds:
        for name, load in loads.items():
            requests = load.requests(setting.num_requests, seed)
            split, rate = _best(setting, name, requests)
            best[name].append(split)
            rates[name].append(rate)
            if name in LEANING:
                other = setting.best_by_law(_other(name))
                swapped[name].append(_rate(setting, name, other, requests))
                all_whole = Split(whole=setting.num_workers)
                whole[name].append(_rate(setting, name, all_whole, requests))
        waits.append(wait_over_closed_form(setting.workers.prefill, setting.prompt_heavy[0], seed))
        errors.append(_error(setting, seed))
    taken_s = monotonic() - begun_s
    return Found(setting, len(seeds), best, rates, swapped, whole, waits, errors, taken_s)


def _best(setting: Setting, name: str, requests: Sequence[Request]) -> tuple[Split, float]:
    splits = splits_of(setting.num_workers, whole=False)
    return best_split(setting.workers, splits, requests, setting.objectives, setting.laws[name])


def _rate(setting: Setting, name: str, split: Split, requests: Sequence[Request]) -> float:
    fleet, law = fleet_of_split(setting.workers, split), setting.laws[name]
    own = setting.best_by_law(name)
    guess = law.rate_per_s(split.prefill or own.prefill, split.decode or own.decode)
    return carried_per_s(*greatest_rate(fleet, requests, setting.objectives, guess))


def _error(setting: Setting, seed: int) -> float:
    name = BALANCED
    split = setting.best_by_law(name)
    rate = setting.laws[name].rate_per_s(split.prefill, split.decode)
    requests = at_rate(setting.loads[name].requests(setting.num_requests, seed), rate)
    return error_over_single_steps(fleet_of_split(setting.workers, split), requests)


def _other(name: str) -> str:
    return OUTPUT_HEAVY if name == PROMPT_HEAVY else PROMPT_HEAVY
