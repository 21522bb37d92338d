"""Bench: one measured run against a server, from its address to what became of every request.

In order: the server's models (is it there?), probes (which options it takes, how it counts a
prompt's tokens), the client's own overhead, the warm-up, the run. Ctrl-C ends the run and keeps
what had ended.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from math import inf, isfinite
from typing import Any, Literal

import aiohttp

from prefill_decode.endpoint.client import (
    REFUSED,
    Answer,
    Api,
    Target,
    base_url,
    open_session,
    parsed,
    send,
    served_models,
)
from prefill_decode.endpoint.load import Exchange, Load, Progress, watched
from prefill_decode.endpoint.overhead import Overhead, measure_overhead
from prefill_decode.endpoint.prompts import Prompts, calibrated
from prefill_decode.request import Request

HOPELESS = (401, 403, 404)  # a wrong key or name: every request would meet it
MOST_REFUSALS = 6
MOST_PROBE_WORDS = 500  # a word has several tokens where the model knows only bytes


@dataclass(frozen=True)
class Plan:
    """What to send where. `concurrency` makes the loop a closed one."""

    url: str
    requests: Iterable[Request]
    num_requests: int | None  # None where only the duration ends the run
    prompt_tokens: int  # of a typical request, to probe with
    model: str | None = None
    api: Api = "chat"
    api_key: str | None = None
    timeout_s: float = 600.0
    concurrency: int | None = None
    rate_per_s: float | None = None  # of an open loop
    burstiness: float | None = None  # their coefficient of variation, of gaps that were drawn
    duration_s: float = inf
    seed: int = 0
    prompt_ids: bool = False
    warmup: int = 0
    warmup_tokens: int = 16  # of a warm-up's answer
    overhead: bool = True
    trace: dict[str, Any] | None = None

    @property
    def loop(self) -> Literal["open", "closed"]:
        return "open" if self.concurrency is None else "closed"


@dataclass(frozen=True)
class Bench:
    """A run and all that was learnt before it."""

    plan: Plan
    target: Target
    exchanges: tuple[Exchange, ...]
    num_cut: int  # under way when Ctrl-C came
    interrupted: bool
    warmup: tuple[Exchange, ...]
    overhead: Overhead | None
    notes: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        """From the run's start to its last answer's end."""
        return max((exchange.ended_s for exchange in self.exchanges), default=0.0)


async def run_bench(plan: Plan, show: Callable[[Progress], None]) -> Bench:
    """Runs the plan; `show` sees its progress. ValueError if the server cannot be used at all."""
    notes: list[str] = []
    async with open_session() as session:
        target = await reached(session, plan, notes)
        target, prompts = await probed(session, target, plan, notes)
        overhead = None
        if plan.overhead:
            rate_per_s = plan.rate_per_s or 0.0
            overhead = await measure_overhead(plan.concurrency, rate_per_s, plan.prompt_tokens)
        warmup = await _warmed_up(session, target, prompts, plan)
        load = Load(session, target, prompts, Progress(plan.num_requests))
        with _stopped_by_signals(load.stop):
            work = asyncio.create_task(_loop(load, plan))
            exchanges, num_cut = await watched(work, lambda: show(load.progress))
        stopped = load.stop.is_set()
    return Bench(
        plan, target, tuple(exchanges), num_cut, stopped, tuple(warmup), overhead, tuple(notes)
    )


async def _loop(load: Load, plan: Plan) -> tuple[list[Exchange], int]:
    if plan.concurrency is None:
        return await load.open_loop(plan.requests)
    return await load.closed_loop(plan.requests, plan.concurrency, plan.duration_s)


async def reached(session: aiohttp.ClientSession, plan: Plan, notes: list[str]) -> Target:
    """The plan's server and model, the first it lists where none is named. ValueError if there
    is none."""
    target = Target(base_url(plan.url), plan.model or "", plan.api, plan.timeout_s, plan.api_key)
    models, why = await served_models(session, target)
    if plan.model is not None:
        return target
    if not models:
        raise ValueError(
            f"{target.base_url}/models lists no models ({why or 'the list is empty'}); is the "
            "address right? If it is, name one with --model"
        )
    if len(models) > 1:
        notes.append(f"the server lists {len(models)} models; this is the first, {models[0]}")
    return replace(target, model=models[0])


async def probed(
    session: aiohttp.ClientSession, target: Target, plan: Plan, notes: list[str]
) -> tuple[Target, Prompts]:
    """The options the server takes, and prompts of the lengths it counts."""
    probed = min(plan.prompt_tokens, MOST_PROBE_WORDS)
    if plan.prompt_ids:
        ids, learnt = Prompts(plan.seed, ids=True), list[str]()
        fewer, answer = await _accepted(session, target, ids, probed, learnt)
        if answer.failure is None:
            notes += learnt
            return fewer, ids
        notes.append(f"the server takes no prompt of token ids ({answer.failure}): words are sent")
    counts: list[tuple[int, int]] = []
    for num_words in (probed, max(1, probed // 2)):
        target, answer = await _accepted(session, target, Prompts(plan.seed), num_words, notes)
        result = await parsed(answer, 1)
        if not result.success or not result.prompt_tokens:
            why = result.error or "it reports no usage"
            notes.append(f"prompts are as many words as tokens were asked: a probe failed: {why}")
            return target, Prompts(plan.seed)
        counts.append((num_words, result.prompt_tokens))
    return target, calibrated(plan.seed, *counts)


async def _accepted(
    session: aiohttp.ClientSession, target: Target, prompts: Prompts, length: int, notes: list[str]
) -> tuple[Target, Answer]:
    """The answer to a probe, and the target without the options that the server refused."""
    prompt = prompts.prompt(f"probe of {length}", length)
    answer = await send(session, target, target.body(prompt, 1))
    for _ in range(MOST_REFUSALS):
        fewer = target.without(answer.failure or "") if answer.status in REFUSED else None
        if fewer is None:
            break
        again = await send(session, fewer, fewer.body(prompt, 1))
        left_out = [name for name in target.optional if name not in fewer.optional]
        notes.append(f"{', '.join(left_out) or target.length_name} was left out: {answer.failure}")
        target, answer = fewer, again
    if answer.status in HOPELESS:
        raise ValueError(f"{target.url} refuses the model {target.model!r}: {answer.failure}")
    return target, answer


async def _warmed_up(
    session: aiohttp.ClientSession, target: Target, prompts: Prompts, plan: Plan
) -> list[Exchange]:
    if plan.warmup == 0:
        return []
    load = Load(session, target, prompts, Progress(plan.warmup))
    requests = [
        Request(f"warm-up {i}", 0.0, plan.prompt_tokens, plan.warmup_tokens)
        for i in range(plan.warmup)
    ]
    exchanges, _ = await load.closed_loop(requests, min(plan.warmup, plan.concurrency or 1))
    return exchanges


def endless_requests(prompt_tokens: int, output_tokens: int) -> Iterator[Request]:
    """Requests without end, all alike, for a run that ends with time."""
    return (Request(str(i), 0.0, prompt_tokens, output_tokens) for i in count())


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """The first Ctrl-C sets `stop`; a second one interrupts as ever."""
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in signals}

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    def end() -> None:
        stop.set()
        restore()

    for number in signals:
        loop.add_signal_handler(number, end)
    try:
        yield
    finally:
        restore()


def mean_rate_per_s(requests: list[Request]) -> float:
    """Of arrivals, from the first to the last; 0 where they are all at once."""
    took_s = requests[-1].arrival_s - requests[0].arrival_s
    return (len(requests) - 1) / took_s if isfinite(took_s) and took_s > 0 else 0.0
