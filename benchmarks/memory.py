"""Memory: what our server holds while many streams ask it, and after they have gone.

    .venv/bin/python benchmarks/memory.py            # 6 minutes; --help for the rest

A closed loop of streams asks for answers whose lengths, and whose prompts', are drawn anew each
time, so that steps have ever new sizes. The server's resident memory is read from the start on,
every five seconds, while they ask and while nobody does.

Counts:  resident bytes of the server's process, weights and cache included.
Ignores: pages that the system shares or has swapped out; what lasts longer than this run to show.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import psutil

from prefill_decode.endpoint.bench import Plan, probed, reached
from prefill_decode.endpoint.client import open_session
from prefill_decode.endpoint.launch import ServedHere
from prefill_decode.endpoint.load import Load, Progress
from prefill_decode.event_stream import failure_of
from prefill_decode.request import Request
from prefill_decode.units import format_bytes

EVERY_S = 5.0
PROMPT_TOKENS, OUTPUT_TOKENS = (8, 256), (8, 64)  # from, to


@dataclass(frozen=True)
class Reading:
    time_s: float  # since the server was ready
    resident_bytes: int
    asked: bool  # whether the streams were asking


def endless(dice: random.Random) -> Iterator[Request]:
    for index in count():
        yield Request(str(index), 0.0, dice.randint(*PROMPT_TOKENS), dice.randint(*OUTPUT_TOKENS))


async def watch(pid: int, readings: list[Reading], load_ended: asyncio.Event) -> None:
    """Reads until it is cancelled."""
    server, started_s = psutil.Process(pid), time.monotonic()
    while True:
        now_s = time.monotonic() - started_s
        resident = server.memory_info().rss
        readings.append(Reading(now_s, resident, asked=not load_ended.is_set()))
        state = "nobody asks" if load_ended.is_set() else "asked"
        print(f"{now_s:6.0f} s  {format_bytes(resident)}  {state}", file=sys.stderr, flush=True)
        await asyncio.sleep(EVERY_S)


async def measure(served: ServedHere, options: argparse.Namespace) -> tuple[list[Reading], int]:
    """The readings, and how many answers came whole."""
    readings, load_ended = list[Reading](), asyncio.Event()
    plan = Plan(served.url, (), 0, PROMPT_TOKENS[1], api="completions", prompt_ids=True)
    watching = asyncio.create_task(watch(served.pid, readings, load_ended))
    async with open_session() as session:
        target = await reached(session, plan, [])
        target, prompts = await probed(session, target, plan, [])
        load = Load(session, target, prompts, Progress(None))
        requests = endless(random.Random(0))
        exchanges, _ = await load.closed_loop(requests, options.streams, options.seconds)
    load_ended.set()
    await asyncio.sleep(options.after)
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    return readings, sum(failure_of(each.result) is None for each in exchanges)


def report(readings: list[Reading], answers: int, options: argparse.Namespace) -> str:
    asked = [each.resident_bytes for each in readings if each.asked]
    after = [each.resident_bytes for each in readings if not each.asked]
    half = asked[len(asked) // 2 :]
    rows = [
        ("ready", readings[0].resident_bytes),
        ("most in the first half of the load", max(asked[: len(asked) // 2])),
        ("most in its second half", max(half)),
        *((("most after it", max(after)), ("at the end", after[-1])) if after else ()),
    ]
    lines = [f"| {what} | {format_bytes(resident)} |" for what, resident in rows]
    head = f"{options.streams} streams, {answers} answers: `serve {options.model}`, {options.dtype}"
    return "\n".join([head, "", "| resident memory | |", "| --- | ---: |", *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="that the streams ask")
    parser.add_argument("--after", type=float, default=300.0, help="seconds that nobody does")
    parser.add_argument("--blocks", type=int, default=640, help="of cache, 32 tokens each")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    options = parser.parse_args()
    room = ("--most-waiting", str(options.streams), "--blocks", str(options.blocks))
    served = ServedHere(options.model, options.dtype, "cpu", options.threads, room)
    try:
        readings, answers = asyncio.run(measure(served, options))
    finally:
        served.stop()
    print(report(readings, answers, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
