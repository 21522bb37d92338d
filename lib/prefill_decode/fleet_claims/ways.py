"""Ways: how the same devices may serve both phases, and what closed forms expect of each way.

    one piece   whole workers; a prompt that waits is read at once, whole, and all decodes wait
    all in one  whole workers; a whole prompt in one step with all that decode (no closed form)
    chunked     whole workers; every decode in every step, prompts in what is left of its budget
    apart       workers for each phase, in the split that the roofline's law gives

Counts:  least times of the roofline; prompts of one length and answers of one length; workers that
         get requests in turn, from one Poisson stream; batches as large as Little's law makes them.
Ignores: what a step has of two prompts; streams that begin while others end; a cache that travels
         longer than a step; a decode worker's places, but in the greatest rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, log, sqrt
from typing import Any

from prefill_decode.fleet_claims.holding import that_hold_the_model
from prefill_decode.fleet_claims.prompt_runs import (
    MOST_PROMPTS,
    arrivals_at_most,
    longer_runs,
    mean_wait_s,
    median_longest,
)
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import NO_OBJECTIVES, Objectives
from prefill_decode.simulator import (
    Fleet,
    Pool,
    Prices,
    Split,
    Workers,
    datasheet_workers,
    fleet_of_split,
    law_of,
    whole_per_s,
)
from prefill_decode.simulator.pool_search import SHARE_GOOD
from prefill_decode.step import Chunk
from prefill_decode.workload import make_requests

ONE_PIECE, ALL_IN_ONE, CHUNKED, APART = "one piece", "all in one", "chunked", "apart"
WAYS = (ONE_PIECE, ALL_IN_ONE, CHUNKED, APART)
WITH_LAW = (ONE_PIECE, CHUNKED, APART)
TTFT_PREFILLS = 8.0  # promised, where nothing else is
SHARE_OF_LEAST = 0.9  # of the rate that the least of the ways carries: where all are compared
HANDOVER_STEPS = 2.5  # the rest of one, one in which the cache travels, and the answer's first
ROUNDS = 30  # of a fixed point or a bisection, more than it needs


@dataclass(frozen=True)
class Setting:
    """The devices, the load and what is promised. Rates are of the whole fleet."""

    model_name: str
    accelerator: str
    num_workers: int
    load: tuple[int, int]  # tokens of a prompt and of an answer
    chunk_tokens: int  # of a step, where prompts are cut
    promises_s: tuple[float, float] | None = None  # TTFT, largest gap; None: by the roofline
    places: int = 64  # sequences that a worker decodes at a time
    num_requests: int = 600

    @cached_property
    def workers(self) -> Workers:
        name = self.accelerator
        return datasheet_workers(
            self.model_name,
            name,
            name,
            whole=name,
            most_sequences=self.places,
            most_tokens_per_step=self.chunk_tokens,
        )

    @property
    def whole(self) -> Pool:
        pool = self.workers.whole
        assert pool is not None
        return pool

    @property
    def model(self) -> ModelSpec:
        return self.whole.model

    @property
    def hardware(self) -> Hardware:
        return self.whole.hardware

    @property
    def parameters(self) -> dict[str, Any]:
        """Whatever a figure depends on, for the record."""
        return {
            "accelerator": self.accelerator,
            "num_workers": self.num_workers,
            "load": list(self.load),
            "chunk_tokens": self.chunk_tokens,
            "ttft_s": self.objectives.ttft_s,
            "stall_s": self.objectives.stall_s,
            "places": self.places,
            "num_requests": self.num_requests,
        }

    @cached_property
    def prices(self) -> Prices:
        return Prices(self.model, self.whole.ceilings, self.whole.calibration)

    @cached_property
    def prefill_s(self) -> float:
        return self.prices.step_s_by_roofline([Chunk(self.load[0])])

    def decode_s(self, batch: float) -> float:
        """A step of so many streams in the middle of their answers; between whole batches, evenly
        between their steps."""
        low = max(1, int(batch))
        first_s, next_s = (
            self.prices.decodes(count, count * self.context_tokens)[0] for count in (low, low + 1)
        )
        return first_s + max(0.0, batch - low) * (next_s - first_s)

    def chunk_s(self, batch: float) -> float:
        """A full step: the last piece of a prompt, beside so many streams."""
        streams = round(batch)
        new = min(self.load[0], max(1, self.chunk_tokens - streams))
        beside = [Chunk(1, self.context_tokens)] * streams
        return self.prices.step_s_by_roofline([Chunk(new, self.load[0] - new), *beside])

    @property
    def context_tokens(self) -> int:
        return self.load[0] + self.load[1] // 2

    @property
    def decodes(self) -> int:
        """Steps of an answer after its first token."""
        return self.load[1] - 1

    @cached_property
    def objectives(self) -> Objectives:
        """The promises: unless given, so many times the least prefill, and midway, on a log scale,
        between a full step of the chunked way and a prompt in one piece, each beside few."""
        if self.promises_s is not None:
            return Objectives(ttft_s=self.promises_s[0], stall_s=self.promises_s[1])
        cut_s, whole_s = self.chunk_s(self.places), self.prefill_s + self.decode_s(1)
        return Objectives(ttft_s=TTFT_PREFILLS * self.prefill_s, stall_s=sqrt(cut_s * whole_s))

    def promise(self, prompts: int) -> Objectives:
        """The objectives; or the same TTFT, and gaps in which a worker may read so many prompts and
        half of one."""
        if prompts == 0:
            return self.objectives
        return self.promise_of((prompts + 0.5) * self.prefill_s + self.decode_s(self.places))

    def promise_of(self, stall_s: float) -> Objectives:
        """The same TTFT, and gaps no longer than this."""
        return replace(self.objectives, stall_s=stall_s)

    @cached_property
    def split(self) -> Split:
        law = law_of(self.workers.prefill, self.workers.decode, self._one(), self.objectives)
        return Split(*law.best(self.num_workers))

    def fleet(self, way: str, longest_tokens: int | None = None) -> Fleet:
        """Of all workers. `longest_tokens`: of a prompt with its answer, in other loads than the
        setting's; who loses its blocks is read again as a whole."""
        if way == APART:
            return replace(fleet_of_split(self.workers, self.split), routing="round_robin")
        most = max(longest_tokens or sum(self.load), self.places)
        settings = {
            ONE_PIECE: SchedulerSettings("prefill_first", most, self.places),
            ALL_IN_ONE: SchedulerSettings("decode_first", most + self.places, self.places),
            CHUNKED: self.whole.settings,
        }
        pool = replace(self.whole, instances=self.num_workers, settings=settings[way])
        return Fleet((pool,), "round_robin")

    def _one(self) -> list[Request]:
        return make_requests([0.0], [self.load[0]], [self.load[1]])

    @cached_property
    def capacities_per_s(self) -> dict[str, float]:
        """What every way carries at most, whatever its users wait."""
        own_s = self.prefill_s + self.decodes / self.places * self.decode_s(self.places)
        apart = law_of(self.workers.prefill, self.workers.decode, self._one(), NO_OBJECTIVES)
        return {
            ONE_PIECE: self.num_workers / own_s,
            CHUNKED: self.num_workers * whole_per_s(self.whole, self._one(), NO_OBJECTIVES),
            APART: apart.rate_per_s(self.split.prefill, self.split.decode),
        }

    @cached_property
    def rate_per_s(self) -> float:
        """At which all ways are compared, far enough below what the least of them carries."""
        return SHARE_OF_LEAST * min(self.capacities_per_s.values())

    def batch(self, way: str, rate_per_s: float) -> float:
        """Streams that a worker which decodes has, by Little's law; no more than its places."""
        workers = self.split.decode if way == APART else self.num_workers
        each_per_s = rate_per_s / workers
        batch = 1.0
        for _ in range(ROUNDS):
            token_s = self._token_s(way, each_per_s, batch)
            batch = min(float(self.places), each_per_s * self.decodes * token_s)
        return batch

    def _token_s(self, way: str, each_per_s: float, batch: float) -> float:
        """The mean time between two tokens of a stream."""
        step_s = self.decode_s(batch)
        if way == APART:
            return step_s
        if way == ONE_PIECE:
            free = 1 - each_per_s * self.prefill_s
            return step_s / free if free > 0 else inf
        reading = min(1.0, each_per_s * self.service_s(way, batch))
        return 1 / (reading / self.chunk_s(batch) + (1 - reading) / step_s)

    def service_s(self, way: str, batch: float) -> float:
        """What a prompt takes of a worker that reads it."""
        if way != CHUNKED:
            return self.prefill_s
        return self.chunk_s(batch) * self.load[0] / max(1.0, self.chunk_tokens - batch)

    def ttft_s(self, way: str, rate_per_s: float) -> float:
        """Mean, while lines are steady; infinite where they are not. A whole worker first ends the
        step that it is in; a piece of a prompt takes a step."""
        if rate_per_s >= self.capacities_per_s[way]:
            return inf
        readers = self.split.prefill if way == APART else self.num_workers
        batch = self.batch(way, rate_per_s)
        service_s = self.service_s(way, batch)
        busy = rate_per_s / readers * service_s
        if busy >= 1:
            return inf
        step_s = 0.0 if way == APART else self.decode_s(batch)
        return mean_wait_s(service_s, busy, readers) + step_s / 2 + service_s

    def gap_s(self, way: str, rate_per_s: float) -> float:
        """The median over answers of their largest gap."""
        batch = self.batch(way, rate_per_s)
        if way == CHUNKED:
            return self.chunk_s(batch)
        step_s = self.decode_s(batch)
        if way == APART:
            return HANDOVER_STEPS * step_s
        shares = longer_runs(rate_per_s * self.prefill_s, self.num_workers)
        return median_longest(shares, self._runs(rate_per_s)) * self.prefill_s + step_s

    def _runs(self, rate_per_s: float) -> float:
        """Runs of prompts that begin at a worker while an answer's own steps last."""
        each_per_s = rate_per_s / self.num_workers
        return each_per_s * self.decodes * self.decode_s(self.batch(ONE_PIECE, rate_per_s))

    def within_per_s(self, way: str, objectives: Objectives) -> float:
        """The greatest rate within the gap that is promised, whatever the first token takes."""
        most = self.capacities_per_s[way]
        if way == APART:
            law = law_of(self.workers.prefill, self.workers.decode, self._one(), objectives)
            return law.rate_per_s(self.split.prefill, self.split.decode)
        if way == CHUNKED:
            return most if self.chunk_s(self.batch(way, 0.99 * most)) <= objectives.stall_s else 0.0
        low, high = 0.0, most
        for _ in range(ROUNDS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._keeps(middle, objectives) else (low, middle)
        return low

    def _keeps(self, rate_per_s: float, objectives: Objectives) -> bool:
        """Whether enough answers of the one-piece way meet no run of too many prompts."""
        step_s = self.decode_s(self.batch(ONE_PIECE, rate_per_s))
        prompts = int((objectives.stall_s - step_s) / self.prefill_s)
        if prompts < 1:  # nobody else may come to this worker before the answer ends
            arrivals = rate_per_s * self.decodes * step_s
            return arrivals_at_most(arrivals, self.num_workers - 1) >= SHARE_GOOD
        most = min(prompts, MOST_PROMPTS)  # longer runs hardly come
        longer = longer_runs(rate_per_s * self.prefill_s, self.num_workers, most)[most]
        return self._runs(rate_per_s) * longer <= -log(SHARE_GOOD)

    def elsewhere(self, names: Sequence[str]) -> list["Setting"]:
        """The same on other accelerators that hold the model, each with promises of its own."""
        others = [replace(self, accelerator=name, promises_s=None) for name in names]
        return that_hold_the_model(others)

    @property
    def one_line(self) -> float:
        """The claim's TTFT of one piece over that of chunked: each way a single line of work, in
        which what is wasted lengthens every wait."""
        rate = self.rate_per_s
        free = {way: 1 - rate / self.capacities_per_s[way] for way in (ONE_PIECE, CHUNKED)}
        return free[CHUNKED] / free[ONE_PIECE]

    def gap_ratio(self, way: str) -> float:
        """One piece's largest gap over this way's, at the rate at which they are compared."""
        return self.gap_s(ONE_PIECE, self.rate_per_s) / self.gap_s(way, self.rate_per_s)

    def within_ratio(self, way: str) -> float:
        """What this way carries within the objectives, over what one piece does."""
        rates = [self.within_per_s(each, self.objectives) for each in (way, ONE_PIECE)]
        return rates[0] / rates[1]

    def work_ratio(self, way: str) -> float:
        """The same where nobody asks for short gaps: what the devices can do in all."""
        return self.capacities_per_s[way] / self.capacities_per_s[ONE_PIECE]

    @property
    def prompts_first(self) -> float:
        """The rival's: a prompt waits for other prompts alone where they go first."""
        return self.ttft_s(ONE_PIECE, self.rate_per_s) / self.ttft_s(CHUNKED, self.rate_per_s)
