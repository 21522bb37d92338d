"""PaceRunner: a plan's loads on a prefill worker and a decode worker, and on one that does both.

    pair              two processes of one thread each, held to a processor of its own where the
                      system allows; their coordinator here
    one whole worker  an engine here, on one thread

All requests of a load are asked at once; a run ends with the last token. All give the same tokens.
What the workers' processes computed meanwhile is their processor time: with one thread, who is
idle has none.

Timed:   from before the first request is asked until the last token is here.
Ignores: HTTP, text; the coordinator's own processor time, which shares the workers' processors.
"""

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any

from prefill_decode.calibrating import Calibrator, design
from prefill_decode.disaggregated.launch import Fleet, pids_of, threads_each, workers_here
from prefill_decode.engine.answering import Answering, FailedAnswer
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.fleet_claims.pace import (
    LOADS,
    LONG_CONTEXT,
    MOST_ROWS,
    PLACES,
    REQUESTS,
    SETTINGS,
    TOGETHER,
    TOKENS,
    WAYS,
    WHOLE,
    Found,
    Plan,
    computing,
    timed,
)
from prefill_decode.measure import (
    Ceilings,
    Machine,
    Timings,
    measure_ceilings,
    process_time_of_s,
    processor_time_s,
    torch_threads,
)
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request
from prefill_decode.roofline import StepWork, step_work
from prefill_decode.step import Chunk

NUM_BLOCKS = 64
Answers = Mapping[str, Sequence[int]]  # token ids by request


def calibrate_share(
    model: ModelSpec, machine: Machine, budget_s: float, seed: int = 0
) -> Calibrator:
    """Steps as long as the loads', timed on one thread, in about `budget_s` seconds; a third of
    them for the ceilings of that thread. ValueError where two workers cannot have a processor
    each."""
    threads_each(machine)
    share = replace(machine, threads=1)
    with torch_threads(1):
        ceilings = measure_ceilings(share, model.dtype, budget_s / 3, seed)
        calibrator = share_calibrator(model, share, ceilings, seed)
        calibrator.run(budget_s * 2 / 3)
    return calibrator


def share_calibrator(
    model: ModelSpec, share: Machine, ceilings: Ceilings, seed: int = 0
) -> Calibrator:
    """Of a machine of one thread; without waking, since nobody pauses."""
    episodes = [one for one in design(MOST_ROWS, PLACES, LONG_CONTEXT) if not one.idle_s]
    return Calibrator(
        model, share, episodes=episodes, ceilings=ceilings, seed=seed, num_blocks=NUM_BLOCKS
    )


class PaceRunner:
    """`steps` are to be interleaved, `found` then says what they took; `close` ends both workers.
    `served`: how the workers find the plan's model, of which they take as many layers, with the
    weights of the calibrator's seed."""

    def __init__(self, plan: Plan, calibrator: Calibrator, served: str) -> None:
        self.plan, self.calibrator = plan, calibrator
        self.model = calibrator.model
        dice = random.Random(calibrator.seed)
        self._prompts = {
            one.request_id: [
                dice.randrange(self.model.vocab_size) for _ in range(one.prompt_tokens)
            ]
            for one in plan.requests(TOGETHER)
        }
        self._computing_s: dict[str, list[float]] = {}
        self._alike: dict[str, list[float]] = {}  # by load, of the pair
        self._engine = PagedEngine(
            self.model,
            num_blocks=NUM_BLOCKS,
            block_tokens=BLOCK_TOKENS,
            capacity_tokens=NUM_BLOCKS * BLOCK_TOKENS,
            weights=calibrator.runner.engine.weights,
        )
        self._expected = self._answers_of_one(TOGETHER)
        self._open = ExitStack()
        self._workers = self._open.enter_context(workers_here(self._fleet(served)))
        self._held = _held_apart(list(pids_of(self._workers).values()))

    @property
    def steps(self) -> Mapping[str, Callable[[], None]]:
        """Of a round; the ceilings' kernels on one thread are among them."""
        runs = {timed(way, load): partial(self._run, way, load) for way in WAYS for load in LOADS}
        kernels = {
            name: partial(_on_one_thread, run) for name, run in self.ceilings.steps().items()
        }
        return runs | kernels

    @property
    def ceilings(self) -> Ceilings:
        """Of one thread."""
        return self.calibrator.ceilings

    @property
    def chunks(self) -> dict[str, list[Chunk]]:
        return {timed(WHOLE, load): self.plan.chunks(load) for load in LOADS}

    @property
    def works(self) -> dict[str, StepWork]:
        return {name: step_work(self.model, chunks) for name, chunks in self.chunks.items()}

    @property
    def parameters(self) -> dict[str, Any]:
        """What a record says of the run."""
        loads = {name: list(lengths) for name, lengths in self.plan.lengths.items()}
        return {
            "num_layers": self.model.num_layers,
            "threads_each": 1,
            "processors_of_their_own": self._held,
            "places": PLACES,
            "requests": REQUESTS,
            "loads": loads,
        }

    def own_s(self) -> float:
        """Processor seconds of this process and of both workers."""
        return processor_time_s(pids_of(self._workers).values())

    def found(self, times: Timings) -> Found:
        alike = [min(each) for each in zip(*self._alike.values(), strict=False)]
        counted = times.with_noted({TOKENS: alike}).times_s(TOKENS)
        return Found(self.plan, times.with_noted(self._computing_s), counted)

    def close(self) -> None:
        self._open.close()

    def _run(self, way: str, load: str) -> None:
        if way == WHOLE:
            self._answers_of_one(load)
            return
        before_s = self._processor_times_s()
        answers = ask_at_once(self._workers, self._asked(load))
        after_s = self._processor_times_s()
        if set(before_s) != set(after_s) or any(map(isnan, after_s.values())):
            raise RuntimeError("a worker ended during a run, so its time is not known: run again")
        for (name, pid), used_s in after_s.items():
            noted = self._computing_s.setdefault(computing(name.partition("-")[0], load), [])
            noted.append(used_s - before_s[name, pid])
        same = [ids == self._expected[name] for name, ids in answers.items()]
        self._alike.setdefault(load, []).append(sum(same) / len(same))

    def _processor_times_s(self) -> dict[tuple[str, int], float]:
        """Of the workers that are there, by name and process."""
        return {each: process_time_of_s(each[1]) for each in pids_of(self._workers).items()}

    def _answers_of_one(self, load: str) -> Answers:
        serving = ServingEngine(self._engine, SETTINGS, reuse=False)
        with torch_threads(1):
            return ask_at_once(serving, self._asked(load))

    def _asked(self, load: str) -> list[tuple[Request, list[int]]]:
        return [(one, self._prompts[one.request_id]) for one in self.plan.requests(load)]

    def _fleet(self, served: str) -> Fleet:
        return Fleet(
            num_prefill=1,
            num_decode=1,
            model=served,
            vocab_size=self.model.vocab_size,
            num_blocks=NUM_BLOCKS,
            num_layers=self.model.num_layers,
            dtype=self.model.dtype,
            seed=self.calibrator.seed,
            block_tokens=BLOCK_TOKENS,
            most_tokens_per_step=MOST_ROWS,
            most_sequences=PLACES,
            reuse=False,
            threads=1,
            own_cpus=True,
        )


def _held_apart(pids: Sequence[int]) -> bool:
    """Whether each of two processes runs on one processor, and not on the other's."""
    if sys.platform != "linux":
        return False
    first, second = (os.sched_getaffinity(pid) for pid in pids)
    return len(first) == len(second) == 1 and first != second


def _on_one_thread(run: Callable[[], object]) -> None:
    with torch_threads(1):
        run()


def ask_at_once(serving: Answering, asked: Sequence[tuple[Request, Sequence[int]]]) -> Answers:
    """All requests, with their prompts, to whoever answers; when the last token is here, all
    tokens. RuntimeError where an answer fails."""
    answers: dict[str, list[int]] = {request.request_id: [] for request, _ in asked}
    for request, prompt_ids in asked:
        serving.submit(request.request_id, prompt_ids, request.output_tokens)
    left = len(asked)
    while left:
        for token in serving.step():
            if isinstance(token, FailedAnswer):
                raise RuntimeError(f"{token.request_id} failed: {token.reason}")
            answers[token.request_id].append(token.token_id)
            left -= token.finish_reason is not None
    return answers
