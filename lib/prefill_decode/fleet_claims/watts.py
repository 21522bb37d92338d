"""Watts: what accelerators carry for each watt in each phase by the roofline, and the fleets of one
or two kinds that a limit of power buys.

Ignores: hosts, networks and cooling, which add to every watt, and what a part draws below its
         limit. The power that a maker prints is a limit, not a measurement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import inf
from typing import Any

from prefill_decode.hardware import Accelerator, Hardware, accelerator, accelerators
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator import (
    Law,
    Prices,
    Split,
    Workers,
    datasheet_workers,
    law_of,
    whole_per_s,
)
from prefill_decode.step import Chunk
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals

DTYPE = "bfloat16"
TTFT_PREFILLS, TPOT_STEPS = 3.0, 1.75  # promised, where nothing else is


@dataclass(frozen=True)
class Choice:
    """Accelerators for the two phases, and how many of each."""

    prefill: str
    decode: str
    split: Split
    rate_per_s: float  # by the law
    power_w: float

    @property
    def is_mixed(self) -> bool:
        return self.prefill != self.decode

    def __str__(self) -> str:
        if self.split.whole:
            return f"{self.split.whole} {self.prefill}, whole"
        if self.is_mixed:
            return f"{self.split.prefill} {self.prefill} + {self.split.decode} {self.decode}"
        return f"{self.split.prefill} + {self.split.decode} {self.prefill}"


@dataclass(frozen=True)
class Setting:
    """What is served, and from which accelerators a limit of power may be spent."""

    model_name: str
    candidates: tuple[str, ...]  # as `hardware` names them
    power_w: float
    load: tuple[int, int]  # prompt and output tokens
    link_bytes_per_s: float  # the same between all workers: a network's, not a maker's own
    promises_s: tuple[float, float] | None = None  # TTFT, TPOT; None: by the roofline
    places: int = 16
    num_requests: int = 400

    @cached_property
    def rows(self) -> dict[str, Accelerator]:
        """The candidates by their names in full."""
        found = [accelerator(name) for name in self.candidates]
        for row in found:
            _check(row)
        return {row.name: row for row in found}

    @cached_property
    def all_rows(self) -> dict[str, Accelerator]:
        """Every accelerator of which enough is printed and on which the model fits."""
        known = {row.name: row for row in accelerators() if _is_known(row)}
        return {name: row for name, row in known.items() if self._fits(row)}

    @property
    def model(self) -> ModelSpec:
        return self.workers(*[next(iter(self.rows))] * 2).prefill.model

    @property
    def hardware(self) -> list[Hardware]:
        return [row.at(DTYPE) for row in self.rows.values()]

    @cached_property
    def objectives(self) -> Objectives:
        """The promises: unless given, so many times the least prefill of the candidate that is
        slowest at it, and the least step of a full batch of the one that is slowest at that."""
        if self.promises_s is not None:
            return Objectives(*self.promises_s)
        prompt, output = self.load
        prompts_s, steps_s = [], []
        for name in self.rows:
            pool = self.workers(name, name).decode
            prices = Prices(pool.model, pool.ceilings, pool.calibration)
            prompts_s.append(prices.step_s_by_roofline([Chunk(prompt)]))
            tokens = self.places * (prompt + output // 2)
            steps_s.append(prices.decodes(self.places, tokens)[0])
        return Objectives(TTFT_PREFILLS * max(prompts_s), TPOT_STEPS * max(steps_s))

    @property
    def parameters(self) -> dict[str, Any]:
        """Whatever a figure depends on, for the record."""
        return {
            "candidates": list(self.candidates),
            "power_w": self.power_w,
            "load": list(self.load),
            "objectives_s": [self.objectives.ttft_s, self.objectives.tpot_s],
            "link_bytes_per_s": self.link_bytes_per_s,
            "places": self.places,
            "num_requests": self.num_requests,
        }

    def workers(self, prefill: str, decode: str) -> Workers:
        return datasheet_workers(
            self.model_name,
            prefill,
            decode,
            whole=prefill if prefill == decode else None,
            most_sequences=self.places,
            link_bytes_per_s=self.link_bytes_per_s,
            dtype=DTYPE,
        )

    def requests(self, number: int, seed: int, output_tokens: int | None = None) -> list[Request]:
        prompt, output = self.load
        lengths = fixed_lengths(prompt, number), fixed_lengths(output_tokens or output, number)
        return make_requests(poisson_arrivals(1.0, number, seed), *lengths)

    @cached_property
    def laws(self) -> dict[str, Law]:
        """Of every accelerator as both kinds of worker."""
        request = self.requests(2, 0)
        found = {}
        for name in self.all_rows | self.rows:
            workers = self.workers(name, name)
            found[name] = law_of(workers.prefill, workers.decode, request, self.objectives)
        return found

    def per_watt(self, name: str) -> tuple[float, float]:
        """(prompts, answers) that each watt of one worker carries a second, by the law."""
        law, power_w = self.laws[name], power_w_of((self.all_rows | self.rows)[name])
        return law.prefill_per_s / power_w, law.decode_per_s / power_w

    def best(self, names: Sequence[str], mixed: bool) -> list[Choice]:
        """The fleets under the limit of power with the greatest rate by the law, one for each pair
        of accelerators (or each accelerator, unless mixed), best first."""
        pairs = [pair for pair in product(names, names) if (pair[0] != pair[1]) == mixed]
        choices = [choice for pair in pairs if (choice := self._choice(*pair)) is not None]
        return sorted(choices, key=lambda each: -each.rate_per_s)

    @cached_property
    def mixed(self) -> Choice:
        return self.best(list(self.rows), mixed=True)[0]

    @cached_property
    def uniform(self) -> list[Choice]:
        return self.best(list(self.rows), mixed=False)

    @cached_property
    def whole(self) -> list[Choice]:
        """Uniform fleets whose workers do both phases, best first by the law."""
        choices, request = [], self.requests(2, 0)
        for name, row in self.rows.items():
            pool, count = self.workers(name, name).whole, int(self.power_w // power_w_of(row))
            assert pool is not None
            rate = count * whole_per_s(pool, request, self.objectives)
            if rate:
                power_w = count * power_w_of(row)
                choices.append(Choice(name, name, Split(whole=count), rate, power_w))
        return sorted(choices, key=lambda each: -each.rate_per_s)

    @property
    def rivals(self) -> list[Choice]:
        """The best uniform fleets, split and whole."""
        return [*self.uniform[:1], *self.whole[:1]]

    @property
    def gain(self) -> float:
        """Of the mixed pair over the best uniform fleet, by the law; 0 is none."""
        return self.mixed.rate_per_s / max(each.rate_per_s for each in self.rivals) - 1

    @property
    def turn(self) -> float:
        """How many times better the pair's decode accelerator is at decode for a watt, against its
        prefill accelerator, than at prefill, by the law."""
        one, other = self.per_watt(self.mixed.decode), self.per_watt(self.mixed.prefill)
        return (one[1] / other[1]) / (one[0] / other[0])

    @property
    def one_phase(self) -> float:
        """The mixed pair's rate over the best uniform fleet's where nobody decodes, by the law."""
        best = max(
            int(self.power_w // power_w_of(row)) * self.laws[name].prefill_per_s
            for name, row in self.rows.items()
        )
        return self.mixed.split.prefill * self.laws[self.mixed.prefill].prefill_per_s / best

    @property
    def of_all(self) -> tuple[Choice, Choice]:
        """(the best mixed pair, the best uniform fleet) of all that is cited, by the law."""
        names = list(self.all_rows)
        return self.best(names, mixed=True)[0], self.best(names, mixed=False)[0]

    def gain_of_many(self, names: Sequence[str]) -> float:
        """As `gain`, where there is so much power that whole workers are no limit."""

        def watts(prefill: str, decode: str) -> float:  # for a request each second
            answers = self.per_watt(decode)[1]  # 0 where no step is short enough
            return 1 / self.per_watt(prefill)[0] + (1 / answers if answers else inf)

        pairs = product(names, names)
        return min(watts(a, a) for a in names) / min(watts(a, b) for a, b in pairs) - 1

    def ranks(self, phase: int) -> list[str]:
        """All that is cited, by prompts (phase 0) or answers (1) for each watt, best first."""
        return sorted(self.all_rows, key=lambda name: -self.per_watt(name)[phase])

    def _choice(self, prefill: str, decode: str) -> Choice | None:
        rows = self.all_rows | self.rows
        each = power_w_of(rows[prefill]), power_w_of(rows[decode])
        reads, answers = self.laws[prefill].prefill_per_s, self.laws[decode].decode_per_s
        found = None
        for count in range(1, int(self.power_w // each[0]) + 1):
            others = int((self.power_w - count * each[0]) // each[1])
            if others < 1:
                continue
            rate = min(count * reads, others * answers)
            if found is None or rate > found.rate_per_s:
                used_w = count * each[0] + others * each[1]
                found = Choice(prefill, decode, Split(count, others), rate, used_w)
        return found

    def _fits(self, row: Accelerator) -> bool:
        try:
            self.workers(row.name, row.name)
        except ValueError:  # the weights leave no room
            return False
        return True


def power_w_of(row: Accelerator) -> float:
    assert row.power_w is not None
    return float(row.power_w)


def _is_known(row: Accelerator) -> bool:
    known = row.power_w is not None and row.capacity_bytes is not None
    return known and row.peak_flops_per_s(DTYPE) is not None


def _check(row: Accelerator) -> None:
    if not _is_known(row):
        raise ValueError(
            f"a fleet under a limit of power needs a part's peak, memory and power in print; "
            f"{row.name} lacks one: take another"
        )


def other_loads(setting: Setting, loads: Sequence[tuple[int, int]]) -> list[Setting]:
    """The same under other loads, prompt and output tokens: each has its own best fleets, and
    the same promises."""
    promises_s = (setting.objectives.ttft_s, setting.objectives.tpot_s)
    return [replace(setting, load=load, promises_s=promises_s) for load in loads]
