"""Load: requests sent to a server in an open loop or in a closed one.

    open     every request has a time to be sent, fixed in advance, and is sent then, however many
             are still waiting: what users do who know nothing of each other
    closed   so many streams, each of which sends its next request when its last one has ended;
             one that failed is followed after a pause, or a server that is gone, or full, would be
             asked as fast as this client can

In a closed loop a slow server is asked less often, so its queue never shows. In an open one a
latency also counts from when a request should have been sent: a client that sends late because it
is itself held up would otherwise leave out the very waits that matter (coordinated omission).

A prompt takes tens of ms to make where it is long, and no request may be sent late for another's.
Those of an open loop are made before the run starts, as many as AHEAD_S permits, the rest in a
thread, each once the request before it is being sent. Those of a closed loop are made in a thread
too, between two requests of a stream, which pauses for so long.

Counts:  seconds from the start of the run.
Ignores: nothing that was sent: what Ctrl-C cut off is counted apart.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, nan
from typing import Any, TypeVar

import aiohttp

from prefill_decode.endpoint.client import Answer, Observer, Target, parsed, send
from prefill_decode.endpoint.prompts import Prompts
from prefill_decode.event_stream import StreamResult
from prefill_decode.request import Request

WATCHED_S = 0.25  # between two looks at the progress
PAUSE_S = 0.1  # of a stream whose request failed
AHEAD_S = 2.0  # to make prompts before a run; kept connections would close after 3
T = TypeVar("T")


@dataclass(frozen=True)
class Exchange:
    """A request that was sent and what came of it. Times are seconds from the run's start."""

    request: Request  # its arrival is the time it should have been sent
    sent_s: float
    ended_s: float
    result: StreamResult
    num_resent: int = 0  # times that it was sent on a connection that the server had closed


@dataclass
class Progress:
    """How far a run is."""

    planned: int | None  # None where only time ends the run
    sent: int = 0
    ended: int = 0
    failed: int = 0


@dataclass
class Load:
    """Sends requests in one session; `stop` ends the sending, and what is under way. A run starts
    when its loop begins to send."""

    session: aiohttp.ClientSession
    target: Target
    prompts: Prompts
    progress: Progress
    observe: Observer | None = None
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    start_s: float = field(default=nan, init=False)

    async def open_loop(self, requests: Iterable[Request]) -> tuple[list[Exchange], int]:
        """(what ended, how many were cut off by `stop`). Requests come by arrival."""
        stopped, tasks = asyncio.create_task(self.stop.wait()), []
        async for request, body in self._with_bodies(requests):
            await _until(self.start_s + request.arrival_s, stopped)
            if stopped.done():
                break
            tasks.append(asyncio.create_task(self._send_and_parse(request, body)))
            await asyncio.sleep(0)  # it begins to send before anything else is made
        return await _ended(tasks, stopped)

    async def closed_loop(
        self, requests: Iterable[Request], concurrency: int, duration_s: float = inf
    ) -> tuple[list[Exchange], int]:
        """Likewise; each of `concurrency` streams sends until the requests or the time ends."""
        asked, parsing = iter(requests), list[asyncio.Task[Exchange]]()
        cut, self.start_s = 0, time.monotonic()

        async def stream() -> None:
            nonlocal cut
            while (request := next(asked, None)) is not None:
                body = await asyncio.to_thread(self._body, request)
                now_s = time.monotonic() - self.start_s
                if now_s >= duration_s or self.stop.is_set():
                    return
                cut += 1
                answer = await self._send(body)
                cut -= 1
                request = replace(request, arrival_s=now_s)
                parsing.append(asyncio.create_task(self._parse(request, answer)))
                if answer.failure is not None:
                    await asyncio.wait({stopped}, timeout=PAUSE_S)

        stopped = asyncio.create_task(self.stop.wait())
        streams = [asyncio.create_task(stream()) for _ in range(concurrency)]
        await _ended(streams, stopped)
        return list(await asyncio.gather(*parsing)), cut

    async def _with_bodies(
        self, requests: Iterable[Request]
    ) -> AsyncIterator[tuple[Request, bytes]]:
        """Each request with its body. The run starts once those made ahead of it are there."""
        asked, ahead = iter(requests), deque[tuple[Request, bytes]]()
        end_s = time.monotonic() + AHEAD_S
        while time.monotonic() < end_s and not self.stop.is_set():
            if (request := next(asked, None)) is None:
                break
            ahead.append((request, self._body(request)))
            await asyncio.sleep(0)  # Ctrl-C, and who watches the progress
        self.start_s = time.monotonic()
        while ahead:
            yield ahead.popleft()
        for request in asked:
            yield request, await asyncio.to_thread(self._body, request)

    def _body(self, request: Request) -> bytes:
        prompt = self.prompts.prompt(request.request_id, request.prompt_tokens)
        return self.target.body(prompt, request.output_tokens)

    async def _send_and_parse(self, request: Request, body: bytes) -> Exchange:
        return await self._parse(request, await self._send(body))

    async def _send(self, body: bytes) -> Answer:
        self.progress.sent += 1
        return await send(self.session, self.target, body)

    async def _parse(self, request: Request, answer: Answer) -> Exchange:
        result = await parsed(answer, request.output_tokens, self.observe)
        self.progress.ended += 1
        self.progress.failed += not result.success
        sent_s, ended_s = answer.sent_s - self.start_s, answer.ended_s - self.start_s
        return Exchange(request, sent_s, ended_s, result, answer.num_resent)


async def _until(due_s: float, stopped: "asyncio.Task[bool]") -> None:
    """Returns at that time of the monotonic clock, never before it, or when `stopped` ends."""
    while (wait_s := due_s - time.monotonic()) > 0 and not stopped.done():
        await asyncio.wait({stopped}, timeout=wait_s)


async def watched(work: "asyncio.Future[T] | asyncio.Task[T]", show: Callable[[], None]) -> T:
    """The work's result; `show` is called while it lasts."""
    while True:
        done, _ = await asyncio.wait({work}, timeout=WATCHED_S)
        show()
        if done:
            return work.result()


async def _ended(
    tasks: Sequence["asyncio.Task[T]"], stopped: "asyncio.Task[bool]"
) -> tuple[list[T], int]:
    """(results, how many were cancelled) once all tasks have ended or `stopped` has."""
    everything = asyncio.gather(*tasks, return_exceptions=True)
    either: set[asyncio.Future[Any]] = {everything, stopped}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()  # those that have ended stay as they are
    stopped.cancel()
    await asyncio.gather(everything, stopped, return_exceptions=True)
    kept = [task.result() for task in tasks if not task.cancelled()]
    return kept, len(tasks) - len(kept)
