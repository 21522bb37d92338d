"""StallRunner: one burst in three ways on the same processors, ready to be timed.

    one piece   one engine here, on all threads; the prompt in a step of its own
    chunked     the same engine; the prompt in pieces, each beside the streams
    apart       a prefill worker and a decode worker, as `prefill-decode serve` starts them, each
                with half of the threads; its coordinator here

All three get the same requests and, weights and arithmetic being alike, give the same tokens. Every
run of a way notes its times in `noted_s`, under the names of `GAPS`, `MEDIANS`, `QUIETS`,
`JOINS` and `WAITS`; whether its requests were within objectives, and whether their tokens were
those of one engine, is kept beside.

Ignores: HTTP; the coordinator's own processor time, which the workers share their processors with.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from prefill_decode.disaggregated.burst import PROMPT, QUIET_GAPS, Lived, live_through
from prefill_decode.disaggregated.launch import Fleet, pids_of, threads_each, workers_here
from prefill_decode.engine.answering import Answering
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.measure import (
    Machine,
    Timings,
    processor_time_s,
    products_of,
    torch_threads,
)
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import RequestRecord
from prefill_decode.roofline import StepWork, step_work
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import is_good
from prefill_decode.stall_cost import (
    APART,
    CHUNKED,
    ONE_PIECE,
    WAYS,
    Foreseen,
    decode_chunks,
)
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.step import Chunk

WHOLE_GAP = f"worst gap, {ONE_PIECE} / {APART}"
PIECE_GAP = f"worst gap, {CHUNKED} / {APART}"
WAIT = f"TTFT, {APART} / {ONE_PIECE}, factor off the law"
GOOD_APART = f"readers' goodput, share of requests, {APART}"
GOOD_WHOLE = f"readers' goodput, share of requests, {ONE_PIECE}"
QUIET = f"with nobody, worst gap, {ONE_PIECE} / {APART}"
TOKENS = "share of answers with the tokens of one engine"
GAPS = {way: f"{way}: worst gap" for way in WAYS}
MEDIANS = {way: f"{way}: median gap" for way in WAYS}
QUIETS = {way: f"{way}: worst gap with nobody" for way in WAYS}
JOINS = {way: f"{way}: worst first gap of an answer" for way in WAYS}
WAITS = {way: f"{way}: TTFT" for way in WAYS}
SLOWER = 8  # than foreseen: for so long streams have tokens to give
REFERENCE = 2  # than foreseen: for so long they are compared


class StallRunner:
    """`close` ends both workers. `served`: how the workers find `model`, a shipped name or a
    config.json, of which they take as many layers."""

    def __init__(
        self, model: ModelSpec, served: str, foreseen: Foreseen, machine: Machine, seed: int = 0
    ) -> None:
        self.model, self.foreseen, self.burst = model, foreseen, foreseen.burst
        self.threads = threads_each(machine)
        self.objectives = {"readers": foreseen.readers, "askers": foreseen.askers}
        dice = random.Random(seed)
        sizes = {f"stream {i}": self.burst.context_tokens for i in range(self.burst.streams)}
        self.prompts = {
            name: [dice.randrange(model.vocab_size) for _ in range(size)]
            for name, size in {**sizes, PROMPT: self.burst.prompt_tokens}.items()
        }
        self.noted_s: dict[str, list[float]] = {}
        self.good: dict[tuple[str, str], list[float]] = {}  # by way and objectives
        self.alike: dict[str, list[float]] = {}  # by way
        self.lived: dict[str, Lived] = {}  # the last run of each way
        with torch_threads(self.threads):  # two workers would disturb each other's look at it
            products_of(machine.device, model.dtype)
        self._engine = self._built(seed)
        self._reference = self._answers_of_one_engine()
        self._open = ExitStack()
        self._workers = self._open.enter_context(workers_here(self._fleet(served, seed)))

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        return {f"all of {way}": partial(self._run, way) for way in WAYS}

    @property
    def chunks(self) -> dict[str, list[Chunk]]:
        """The heaviest step of each way, by the name of its worst gap."""
        burst, joined = self.burst, decode_chunks(self.burst, with_prompt=True)
        last = Chunk(burst.chunk_tokens, burst.prompt_tokens - burst.chunk_tokens)
        return {
            GAPS[ONE_PIECE]: [Chunk(burst.prompt_tokens)],
            GAPS[CHUNKED]: [*decode_chunks(burst, with_prompt=False), last],
            GAPS[APART]: joined,
        }

    @property
    def works(self) -> dict[str, StepWork]:
        return {name: step_work(self.model, step) for name, step in self.chunks.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """What a record says of the run."""
        objectives = {
            name: {"ttft_s": wanted.ttft_s, "stall_s": wanted.stall_s}
            for name, wanted in self.objectives.items()
        }
        sizes = {"num_layers": self.model.num_layers, **asdict(self.burst)}
        return {**sizes, "threads_each": self.threads, "objectives": objectives}

    @property
    def timelines(self) -> dict[str, tuple[RequestRecord, ...]]:
        """The last run of each way: its streams and, last, its prompt."""
        return {way: lived.records for way, lived in self.lived.items()}

    def seen(self, times: Timings) -> Timings:
        """What the runs noted, in the place of the runs."""
        rest = {name: values for name, values in times.raw_s.items() if name not in self.steps}
        warm_up = {name: values for name, values in times.warmup_s.items() if name in rest}
        return replace(times, raw_s=rest, warmup_s=warm_up).with_noted(self.noted_s)

    def goodput(self, times: Timings) -> dict[str, dict[str, Interval]]:
        """The share of a burst's requests within the objectives, by their name and by way."""
        return {
            name: {way: median_interval(_in_rounds(times, self.good[way, name])) for way in WAYS}
            for name in self.objectives
        }

    def found(self, times: Timings, slower: Sequence[float] | None = None) -> dict[str, Interval]:
        """What was predicted, measured. `slower`: in every round, how many times as long products
        take on a worker's threads; as foreseen where they were not among what was timed."""
        waits = (times.times_s(WAITS[way]) for way in (APART, ONE_PIECE))
        ratios = [apart_s / one_s for apart_s, one_s in zip(*waits, strict=True)]
        laws = [self.foreseen.wait_ratio] * len(ratios) if slower is None else slower
        misses = [max(r / law, law / r) for r, law in zip(ratios, laws, strict=True)]
        good = self.goodput(times)["readers"]
        alike = [min(each) for each in zip(*self.alike.values(), strict=False)]
        return {
            WHOLE_GAP: times.ratio(GAPS[ONE_PIECE], over=GAPS[APART]),
            PIECE_GAP: times.ratio(GAPS[CHUNKED], over=GAPS[APART]),
            WAIT: median_interval(misses),
            GOOD_APART: good[APART],
            GOOD_WHOLE: good[ONE_PIECE],
            QUIET: times.ratio(QUIETS[ONE_PIECE], over=QUIETS[APART]),
            TOKENS: median_interval(alike),
        }

    def own_s(self) -> float:
        """Processor seconds of this process and of both workers."""
        return processor_time_s(self.pids.values())

    @property
    def pids(self) -> dict[str, int]:
        """Of the workers, by name."""
        return pids_of(self._workers)

    def close(self) -> None:
        self._open.close()

    def _run(self, way: str) -> None:
        lived = live_through(self._serving(way), self.burst, self.prompts, self._tokens(SLOWER))
        self.lived[way] = lived
        self._note(GAPS[way], lived.worst_gap_s)
        self._note(MEDIANS[way], lived.median_gap_s)
        self._note(QUIETS[way], lived.quiet_gap_s)
        self._note(JOINS[way], lived.joining_s)
        self._note(WAITS[way], lived.ttft_s)
        for name, objectives in self.objectives.items():
            good = [is_good(record, objectives) for record in lived.records]
            self.good.setdefault((way, name), []).append(sum(good) / len(good))
        self.alike.setdefault(way, []).append(lived.alike(self._reference))

    def _note(self, name: str, time_s: float) -> None:
        self.noted_s.setdefault(name, []).append(time_s)

    def _serving(self, way: str) -> Answering:
        if way == APART:
            return self._workers
        burst = self.burst
        if way == CHUNKED:
            most = burst.streams + burst.chunk_tokens
            settings = SchedulerSettings("chunked", most, burst.streams + 1)
        else:
            most = self._engine.capacity_tokens
            settings = SchedulerSettings("prefill_first", most, burst.streams + 1)
        return ServingEngine(self._engine, settings, reuse=False)

    def _answers_of_one_engine(self) -> dict[str, Sequence[int]]:
        """Longer ones than are likely to be compared."""
        least = self._tokens(REFERENCE)
        serving = self._serving(ONE_PIECE)
        lived = live_through(serving, self.burst, self.prompts, self._tokens(SLOWER), least)
        return dict(lived.token_ids)

    def _tokens(self, slower: int) -> int:
        """Of a stream, in a burst so many times slower than the slowest that is foreseen."""
        apart = self.foreseen.latencies[APART]
        during = apart.ttft_s / apart.quiet_gap_s + self.burst.answer_tokens
        return 2 * QUIET_GAPS + int(slower * during)

    def _capacity_tokens(self) -> int:
        burst = self.burst
        longest = max(burst.context_tokens + self._tokens(SLOWER), burst.prompt_tokens)
        return max(longest + burst.answer_tokens, burst.streams * burst.context_tokens)

    def _num_blocks(self) -> int:
        per_sequence = -(-self._capacity_tokens() // BLOCK_TOKENS)
        return (self.burst.streams + 1) * per_sequence

    def _built(self, seed: int) -> PagedEngine:
        return PagedEngine(
            self.model,
            num_blocks=self._num_blocks(),
            block_tokens=BLOCK_TOKENS,
            capacity_tokens=self._capacity_tokens(),
            seed=seed,
        )

    def _fleet(self, served: str, seed: int) -> Fleet:
        return Fleet(
            num_prefill=1,
            num_decode=1,
            model=served,
            vocab_size=self.model.vocab_size,
            num_blocks=self._num_blocks(),
            num_layers=self.model.num_layers,
            dtype=self.model.dtype,
            seed=seed,
            block_tokens=BLOCK_TOKENS,
            capacity_tokens=self._capacity_tokens(),
            most_tokens_per_step=self._capacity_tokens(),
            most_sequences=self.burst.streams + 1,
            reuse=False,
            threads=self.threads,
        )


def _in_rounds(times: Timings, values: Sequence[float]) -> list[float]:
    """Those of the rounds that count, one for each run."""
    return times.with_noted({"value": values}).times_s("value")
