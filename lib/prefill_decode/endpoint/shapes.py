"""ShapeRunner: requests to engines behind HTTP, ready to be timed side by side.

For every engine three requests: one with a short prompt, one with a long prompt, and several short
ones at once. Each is one measurement, and notes what a client sees of it:

    TTFT   from the request's sending to its first token, of a lone request
    ITL    the median gap between two tokens, of all streams, while all of them run

A stub that answers on a known schedule is measured in the same rounds: what a TTFT has beyond the
stub's own is the client's and the loopback's.

Counts:  the server's work beside the engine's: HTTP, text, scheduling. Prompts are random and new
         each time, of token ids where the server takes them, else of words by its own count.
Ignores: gaps while other streams are not there yet or have ended: they are no gaps of the batch.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count, pairwise
from statistics import median
from typing import Any, TypeVar

import aiohttp

from prefill_decode.endpoint.bench import Plan, probed, reached
from prefill_decode.endpoint.client import Answer, Api, Target, open_session, parsed, send
from prefill_decode.endpoint.launch import serving_pids
from prefill_decode.endpoint.overhead import stub
from prefill_decode.endpoint.prompts import Prompts
from prefill_decode.event_stream import StreamResult, failure_of
from prefill_decode.measure import processor_time_s
from prefill_decode.step import Chunk
from prefill_decode.units import counted

STUB = "stub"
SEEN, KNOWN = "TTFT of a stub, seen", "TTFT of a stub, known"
STEP_TOKENS = 512  # of prompts, that an engine takes in a step, or more
MOST_OFF = 0.1  # of a prompt's length, by the server's count
MOST_DOUBLINGS = 4  # of the output, where a run's tokens come too late to tell their gaps
T = TypeVar("T")


@dataclass(frozen=True)
class Engine:
    """An engine that answers: where it is, what it takes, how it counts."""

    name: str
    target: Target
    prompts: Prompts


class ShapeRunner:
    """A client with a loop of its own, and for each of `engines`, addresses by name, its requests.

    Every run of a step notes what it saw in `noted_s`, under the names that `ttft` holds for each
    engine and prompt length, `itl` for each engine and (streams, prompt length), and `SEEN` and
    `KNOWN`. ValueError for an engine that does not answer; RuntimeError, with the engine's words,
    from a step whose request fails. `close` ends the client and the stub."""

    def __init__(
        self,
        engines: Mapping[str, str],
        prompt_tokens: tuple[int, int],
        *,
        streams: int = 8,
        output_tokens: int = 8,
        seed: int = 0,
    ) -> None:
        short, long = prompt_tokens
        if not engines or not 0 < short < long or streams < 2 or output_tokens < 2:
            raise ValueError(
                "there is nothing to compare: give an engine, a short and a longer prompt, two "
                f"streams and two tokens; got {len(engines)} engines, prompts of {short} and "
                f"{long}, streams={streams}, output_tokens={output_tokens}"
            )
        self.lengths, self.streams, self.output_tokens = prompt_tokens, streams, output_tokens
        self.settings = [(1, short), (1, long), (streams, short)]
        self.ttft = {name: {n: _ttft(name, n) for n in prompt_tokens} for name in engines}
        self.itl = {name: {at: _itl(name, *at) for at in self.settings} for name in engines}
        self.noted_s: dict[str, list[float]] = {}
        self._calls, self._open_things = count(), AsyncExitStack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        try:
            self.engines = self._wait(self._meet(engines, seed))
            self._pids = serving_pids((*engines.values(), self._stub.base_url))
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        """One measurement each, by name."""
        found = {
            _step(engine.name, *at): self._measurement(engine, *at)
            for engine in self.engines
            for at in self.settings
        }
        return {**found, STUB: lambda: self._wait(self._see_stub())}

    def chunks(self, name: str) -> dict[str, list[Chunk]]:
        """The step behind each time of an engine, as a least: a prompt's whole, and the decodes
        of all streams, each with its prompt in the cache."""
        prompts = {self.ttft[name][n]: [Chunk(n)] for n in self.lengths}
        return prompts | {itl: [Chunk(1, at[1])] * at[0] for at, itl in self.itl[name].items()}

    @property
    def ratios(self) -> dict[str, dict[str, tuple[str, str]]]:
        """For each engine three comparisons by name: which time over which. The longer prompt,
        the streams, the longer context; each over the lone short one."""
        return {name: self._ratios(name) for name in self.ttft}

    def _ratios(self, name: str) -> dict[str, tuple[str, str]]:
        ttft, itl = self.ttft[name], self.itl[name]
        (short, long), alone = self.lengths, (1, self.lengths[0])
        return {
            f"{name}: TTFT, prompt of {long} / of {short}": (ttft[long], ttft[short]),
            f"{name}: ITL, {self.streams} streams / 1": (itl[self.streams, short], itl[alone]),
            f"{name}: ITL, after {long} / after {short}": (itl[1, long], itl[alone]),
        }

    def own_s(self) -> float:
        """Processor seconds of this process and of all that serve what it measures."""
        return processor_time_s(self._pids)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._wait(self._open_things.aclose())
        self._wait(self._loop.shutdown_default_executor())  # its threads, which look names up
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _meet(self, engines: Mapping[str, str], seed: int) -> list[Engine]:
        self._session = await self._open_things.enter_async_context(open_session())
        port = await self._open_things.enter_async_context(stub())
        self._stub = Target(f"http://127.0.0.1:{port}/v1", "steady", "completions", timeout_s=30.0)
        tokens = self.lengths[0]
        return [await _met(self._session, name, engines[name], tokens, seed) for name in engines]

    def _measurement(self, engine: Engine, streams: int, tokens: int) -> Callable[[], None]:
        def run() -> None:
            answers, gaps_s = self._answers_with_gaps(engine, streams, tokens)
            if streams == 1:
                self._note(self.ttft[engine.name][tokens], answers[0][1].ttft_s)
            self._note(self.itl[engine.name][streams, tokens], median(gaps_s))

        return run

    def _answers_with_gaps(
        self, engine: Engine, streams: int, tokens: int
    ) -> tuple[list[tuple[Answer, StreamResult]], list[float]]:
        """Answers, and the gaps while all of them came: of these there is at least one."""
        output_tokens = self.output_tokens
        if streams > 1:  # the first stream must still run when the last one begins
            output_tokens += streams * -(-tokens // STEP_TOKENS)
        for doublings in range(MOST_DOUBLINGS + 1):
            asked = output_tokens << doublings
            answers = self._wait(self._ask(engine, streams, tokens, asked))
            gaps_s = shared_gaps_s([(answer.sent_s, result) for answer, result in answers])
            if gaps_s:
                return answers, gaps_s
        raise RuntimeError(
            f"{engine.name}: {counted(streams, 'stream')} of {asked} tokens, all at once, showed "
            "no gap between two reads: close other programs, or give more output_tokens"
        )

    async def _ask(
        self, engine: Engine, streams: int, tokens: int, output_tokens: int
    ) -> list[tuple[Answer, StreamResult]]:
        """So many requests at once, answered. RuntimeError for one that is not as it was asked."""
        bodies = [
            engine.target.body(engine.prompts.prompt(str(next(self._calls)), tokens), output_tokens)
            for _ in range(streams)
        ]
        sent = [send(self._session, engine.target, body) for body in bodies]
        answers = await asyncio.gather(*sent)
        results = [await parsed(answer, output_tokens) for answer in answers]
        for result in results:
            _check(engine.name, result, tokens, output_tokens)
        return list(zip(answers, results, strict=True))

    async def _see_stub(self) -> None:
        stamps: list[tuple[float, float]] = []

        def observe(request_sent_s: float, read_s: float, data: Any) -> None:
            if isinstance(data, dict) and data["choices"] and data["choices"][0].get("text"):
                stamps.append((read_s - request_sent_s, data["sent_s"] - data["received_s"]))

        prompt = Prompts(0, ids=True).prompt(STUB, self.lengths[0])
        answer = await send(self._session, self._stub, self._stub.body(prompt, 1))
        _check(STUB, await parsed(answer, 1, observe), self.lengths[0], 1)
        self._note(SEEN, stamps[0][0])
        self._note(KNOWN, stamps[0][1])

    def _note(self, name: str, seconds: float) -> None:
        self.noted_s.setdefault(name, []).append(seconds)


def shared_gaps_s(streams: Sequence[tuple[float, StreamResult]]) -> list[float]:
    """Gaps between tokens while all streams run, from (when it was sent, its result); a gap that
    brought several tokens, in one event or in one read, is shared by them."""
    arrivals = [_arrivals(sent_s, result) for sent_s, result in streams]
    begin_s, end_s = max(min(stream) for stream in arrivals), min(max(s) for s in arrivals)
    return [
        (now_s - before_s) / stream[now_s]
        for stream in arrivals
        for before_s, now_s in pairwise(stream)
        if before_s >= begin_s and now_s <= end_s
    ]


def _arrivals(sent_s: float, result: StreamResult) -> dict[float, int]:
    """How many tokens came when, in order."""
    found: dict[float, int] = {}
    brought = result.tokens_per_event or (1,) * len(result.event_times_s)
    for t, tokens in zip(result.event_times_s, brought, strict=True):
        found[sent_s + t] = found.get(sent_s + t, 0) + tokens
    return found


def _check(name: str, result: StreamResult, tokens: int, output_tokens: int) -> None:
    failure = failure_of(result, output_tokens)
    if failure is not None:
        raise RuntimeError(f"{name}: {failure}")
    counted = result.prompt_tokens
    if counted is not None and abs(counted - tokens) > MOST_OFF * tokens:
        raise RuntimeError(f"{name}: a prompt of {tokens} tokens was counted as {counted}")


async def _met(
    session: aiohttp.ClientSession, name: str, url: str, tokens: int, seed: int
) -> Engine:
    """The engine at an address, by the interface that tells a prompt's length best."""
    try:
        return await _met_as("completions", session, name, url, tokens, seed)
    except ValueError:
        return await _met_as("chat", session, name, url, tokens, seed)


async def _met_as(
    api: Api, session: aiohttp.ClientSession, name: str, url: str, tokens: int, seed: int
) -> Engine:
    plan = Plan(url, (), 0, tokens, api=api, seed=seed, prompt_ids=api == "completions")
    notes: list[str] = []
    target = await reached(session, plan, notes)
    return Engine(name, *await probed(session, target, plan, notes))


def _step(name: str, streams: int, tokens: int) -> str:
    return f"{name}: {counted(streams, 'stream')}, prompts of {tokens}"


def _ttft(name: str, tokens: int) -> str:
    return f"{name}: TTFT, prompt of {tokens}"


def _itl(name: str, streams: int, tokens: int) -> str:
    return f"{name}: ITL, {counted(streams, 'stream')} after {tokens}"
