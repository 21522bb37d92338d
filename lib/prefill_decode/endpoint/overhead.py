"""Overhead: what this client adds to the times it measures, on this machine, under this load.

A stub server in a process of its own answers on a known schedule and says when it sent each event.
The client measures it as it would any server; what its times have beyond the stub's own is the
client's delay, and the loopback's.

    TTFT overhead = (read - request sent) - (event sent - request received)
    gap error     = |(read - read before) - (sent - sent before)|

Ignores: the network to the real server, and that the real load differs: a lower bound.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from prefill_decode.endpoint.client import Target, open_session
from prefill_decode.endpoint.load import Load, Progress
from prefill_decode.endpoint.prompts import Prompts
from prefill_decode.endpoint.stub_server import TOKENS
from prefill_decode.request import Request
from prefill_decode.statistics import Percentile, percentile
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals

SHOWN = (0.5, 0.95)
LEAST_REQUESTS = 64  # the p95 of TTFT needs 59
LEAST_RATE_PER_S = 20.0  # or the measurement would outlast the run
OPEN_S = 3.0
START_S = 60.0  # for the stub's process to start, also on a busy machine


@dataclass(frozen=True)
class Overhead:
    """What the client adds: percentiles of the two quantities above, seconds."""

    ttft_s: tuple[Percentile, ...]
    gap_error_s: tuple[Percentile, ...]
    load: str  # that it was measured under

    def as_dict(self) -> dict[str, Any]:
        return {
            "load": self.load,
            "ttft_s": {found.name: found.as_dict() for found in self.ttft_s},
            "gap_error_s": {found.name: found.as_dict() for found in self.gap_error_s},
        }


async def measure_overhead(
    concurrency: int | None, rate_per_s: float, prompt_tokens: int = TOKENS
) -> Overhead:
    """At so many streams of a closed loop; without them in an open one at this rate, 20/s at
    least. Prompts are as long as the run's. ValueError if the stub does not start."""
    reads: dict[float, list[tuple[float, float, float]]] = {}  # (read, sent, received) by request

    def observe(request_sent_s: float, read_s: float, data: Any) -> None:
        if isinstance(data, dict) and data["choices"] and data["choices"][0].get("text"):
            stamps = (read_s, data["sent_s"], data["received_s"])
            reads.setdefault(request_sent_s, []).append(stamps)

    async with stub() as port, open_session() as session:
        target = Target(f"http://127.0.0.1:{port}/v1", "steady", "completions", timeout_s=30.0)
        load = Load(session, target, Prompts(0), Progress(None))
        streams = concurrency or LEAST_REQUESTS // 4
        connecting = _requests([0.0] * streams, prompt_tokens)
        await load.closed_loop(connecting, streams)
        load = replace(load, observe=observe)
        if concurrency is not None:
            arrivals_s = [0.0] * max(LEAST_REQUESTS, 2 * concurrency)
            await load.closed_loop(_requests(arrivals_s, prompt_tokens), concurrency)
            shown = f"{concurrency} streams"
        else:
            rate_per_s = max(rate_per_s, LEAST_RATE_PER_S)
            arrivals_s = poisson_arrivals(
                rate_per_s, max(LEAST_REQUESTS, int(OPEN_S * rate_per_s)), 0
            )
            await load.open_loop(_requests(arrivals_s, prompt_tokens))
            shown = f"{rate_per_s:.3g} requests/s"
    return _overhead(reads, shown)


def _overhead(reads: dict[float, list[tuple[float, float, float]]], load: str) -> Overhead:
    ttfts_s, errors_s = [], []
    for request_sent_s, events in reads.items():
        read_s, sent_s, received_s = events[0]
        ttfts_s.append((read_s - request_sent_s) - (sent_s - received_s))
        for (read_before_s, sent_before_s, _), (read_s, sent_s, _) in pairwise(events):
            errors_s.append(abs((read_s - read_before_s) - (sent_s - sent_before_s)))
    return Overhead(
        tuple(percentile(ttfts_s, p) for p in SHOWN),
        tuple(percentile(errors_s, p) for p in SHOWN),
        load,
    )


def _requests(arrivals_s: list[float], prompt_tokens: int) -> list[Request]:
    prompts = fixed_lengths(prompt_tokens, len(arrivals_s))
    return make_requests(arrivals_s, prompts, fixed_lengths(TOKENS, len(arrivals_s)))


@asynccontextmanager
async def stub() -> AsyncIterator[int]:
    """The port of a stub server, which ends with the block."""
    words = [sys.executable, "-m", "prefill_decode.endpoint.stub_server"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        if not line.strip().isdigit():
            raise ValueError("the stub server did not start; leave it out with --no-overhead")
        yield int(line)
    except TimeoutError as error:
        raise ValueError("the stub server did not start; use --no-overhead") from error
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(START_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
