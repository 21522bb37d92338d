"""Replay: requests in real time on an engine in this process, as records.

The loop is a server's without its network: what has arrived is submitted, a step runs, its tokens
are noted; where there is nothing to run it sleeps until the next arrival. Prompts are random, equal
where the requests say that they begin alike. Answers are greedy and end with their last token.

Timed:   a token, when its step has ended and the tokens are on the host.
Ignores: HTTP, text, other threads.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from prefill_decode.engine.answering import Answering, FailedAnswer
from prefill_decode.engine.model import ROWS_TOGETHER
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.request import Request, RequestRecord
from prefill_decode.scheduling import QueueFull


def replay(
    engine: Answering, requests: Sequence[Request], vocab_size: int, seed: int = 0
) -> list[RequestRecord]:
    """What became of each request, in their order; seconds from when the loop began. A request that
    the engine refuses has the refusal as its failure.

    ValueError for no requests, for names that are not unique, and for prompts that continue an
    answer, whose tokens are not known before."""
    _check(requests)
    prompts = [prompt_ids(request, vocab_size, seed) for request in requests]
    order = sorted(range(len(requests)), key=lambda index: requests[index].arrival_s)
    times_s: dict[str, list[float]] = {request.request_id: [] for request in requests}
    failures: dict[str, str] = {}
    unfinished: set[str] = set()
    arrived = 0
    started_s = time.perf_counter()
    with _woken(engine, started_s, [requests[index].arrival_s for index in order]):
        while arrived < len(order) or unfinished:
            now_s = time.perf_counter() - started_s
            while arrived < len(order) and requests[order[arrived]].arrival_s <= now_s:
                one, ids = requests[order[arrived]], prompts[order[arrived]]
                try:
                    engine.submit(one.request_id, ids, one.output_tokens)
                    unfinished.add(one.request_id)
                except (ValueError, QueueFull) as refusal:
                    failures[one.request_id] = str(refusal)
                arrived += 1
            if not unfinished:
                if arrived < len(order):
                    time.sleep(max(0.0, requests[order[arrived]].arrival_s - now_s))
                continue
            news = engine.step()
            now_s = time.perf_counter() - started_s
            for token in news:
                if isinstance(token, FailedAnswer):
                    failures[token.request_id] = token.reason
                    unfinished.discard(token.request_id)
                    continue
                times_s[token.request_id].append(now_s)
                if token.finish_reason is not None:
                    unfinished.discard(token.request_id)
    return [_record(request, times_s, failures) for request in requests]


def warm_up(engine: Answering, vocab_size: int, most_rows: int) -> None:
    """Steps of every number of rows that the engine tells apart: a library compiles each once, and
    a server has met them all."""
    lengths = range(ROWS_TOGETHER, most_rows + 1, ROWS_TOGETHER)
    for rows in lengths:
        replay(engine, [Request(f"warm-up {rows}", 0.0, rows, 1)], vocab_size)


def prompt_ids(request: Request, vocab_size: int, seed: int = 0) -> list[int]:
    """The tokens of a prompt: those of its pieces, by their numbers, then its own."""
    ids: list[int] = []
    for text, tokens in request.pieces:
        dice = random.Random(f"text {text} {seed}")
        ids += [dice.randrange(vocab_size) for _ in range(tokens)]
    dice = random.Random(f"prompt {request.request_id} {seed}")
    return ids + [dice.randrange(vocab_size) for _ in range(request.prompt_tokens - len(ids))]


@contextmanager
def _woken(engine: Answering, started_s: float, arrivals_s: Sequence[float]) -> Iterator[None]:
    """Wakes the engine when a request has arrived: a step that waits for other processes must not
    keep an arrival waiting. One in this process never only waits."""
    if isinstance(engine, ServingEngine):
        yield
        return
    over = threading.Event()

    def ring() -> None:
        for arrival_s in arrivals_s:
            while (early_s := arrival_s - (time.perf_counter() - started_s)) > 0:
                if over.wait(early_s):
                    return
            engine.wake()

    thread = threading.Thread(target=ring, name="arrivals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _record(
    request: Request, times_s: dict[str, list[float]], failures: dict[str, str]
) -> RequestRecord:
    times = tuple(times_s[request.request_id])
    failure = failures.get(request.request_id)
    return RequestRecord(request, times, (1,) * len(times), failure)


def _check(requests: Sequence[Request]) -> None:
    if not requests:
        raise ValueError("a replay needs at least one request; got none")
    if len({request.request_id for request in requests}) < len(requests):
        raise ValueError("requests to be replayed have names of their own; got one twice")
    if any(request.answer is not None for request in requests):
        raise ValueError(
            "a prompt that continues an answer cannot be replayed before the answer is known: give "
            "requests whose pieces are texts alone"
        )
    if min(request.arrival_s for request in requests) < 0:
        raise ValueError("requests to be replayed arrive at 0 s or later")
