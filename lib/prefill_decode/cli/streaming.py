"""Streaming: the verbs that read streams of tokens, recorded or from a server."""

import argparse
import json
import os
import sys
import time
from itertools import islice
from math import inf, isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from prefill_decode.cli.loads import draw_arrivals, objectives_of, traced_requests
from prefill_decode.cli.shared import (
    FINDING,
    FINE,
    INTERRUPTED,
    check_out,
    checked_key,
    complain,
    print_json,
    print_last,
    printable,
)
from prefill_decode.cli.values import MOST_REQUESTS
from prefill_decode.units import format_seconds, format_significant

if TYPE_CHECKING:
    from prefill_decode.endpoint.bench import Bench, Plan
    from prefill_decode.endpoint.load import Progress
    from prefill_decode.event_stream import StreamResult

STDIN = "-"
REQUESTS = 100  # where neither their number nor a duration is given
PROGRESS_S = 5.0  # between two lines, where no terminal shows them


def stream(options: argparse.Namespace) -> int:
    """Metrics of one streamed answer, recorded event by event or read by read."""
    from prefill_decode.stream_recording import read_recording

    if options.file == STDIN:
        result = read_recording(sys.stdin.buffer, "stdin", options.max_tokens)
    else:
        with open(options.file, "rb") as file:
            result = read_recording(file, options.file, options.max_tokens)
    if options.json:
        print_json(result.as_dict())
    else:
        print_last(printable_lines(stream_table(result)))
    return FINE if result.success else FINDING


def printable_lines(text: str) -> str:
    """The text of a server, which may hold anything, as lines that move no cursor."""
    return "\n".join(printable(line) for line in text.split("\n"))


def stream_table(result: "StreamResult") -> str:
    """What is known of a streamed answer, a line each."""
    rows = [
        ("answer", "complete" if result.success else f"failed: {result.error}"),
        ("finish_reason", result.finish_reason or "unknown"),
        ("TTFT", _time(result.ttft_s)),
        ("first content", _time(result.time_to_first_content_s)),
        ("TPOT", _time(result.tpot_s)),
        ("decode", f"{format_significant(result.decode_tokens_per_s)} tokens/s"),
        ("output tokens", _known(result.output_tokens)),
        ("prompt tokens", _known(result.prompt_tokens)),
        ("short", {True: "yes", False: "no", None: "unknown"}[result.short_output]),
        ("events", str(len(result.event_times_s))),
        ("event gaps", _listed([_time(gap) for gap in result.event_gaps_s])),
        ("tokens per event", _listed([str(n) for n in result.tokens_per_event or ()])),
        *(("note", note) for note in result.notes),
    ]
    return "\n".join(f"{name:18}{value}" for name, value in rows)


def _time(time_s: float) -> str:
    return format_seconds(time_s) if isfinite(time_s) else "unknown"


def _known(count: int | None) -> str:
    return "unknown" if count is None else str(count)


def _listed(words: list[str], most: int = 12) -> str:
    if not words:
        return "unknown"
    more = f" and {len(words) - most} more" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def bench(options: argparse.Namespace) -> int:
    """Measure an OpenAI-compatible server under load, in an open loop or a closed one."""
    import asyncio

    from prefill_decode.endpoint.bench import run_bench
    from prefill_decode.endpoint.bench_report import report, table

    objectives = objectives_of(options)
    plan = _plan(options)
    check_out("--out", options.out)
    progress = ProgressLine(sys.stderr)
    try:
        found = asyncio.run(run_bench(plan, progress))
    finally:
        progress.end()
    unwritten = _write_exchanges(options.out, found)
    if found.interrupted:
        print("prefill-decode: interrupted; what had ended is kept", file=sys.stderr)
    if not found.exchanges:
        print("prefill-decode: no request ended", file=sys.stderr)
        return INTERRUPTED if found.interrupted else FINDING
    document = report(found, objectives)
    if options.json:
        print_json(document)
    else:
        print_last(printable_lines(table(found, objectives)))
    if unwritten is not None:  # the report must not be lost with the file
        raise unwritten
    if found.interrupted:
        return INTERRUPTED
    if document["num_answered"] == 0:
        complain(f"every request failed: {document['errors'][0]['message']}")
        return FINDING
    return FINE


class ProgressLine:
    """How far a run is: one line that renews itself on a terminal, else a line every 5 s."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._shown_s = time.monotonic()
        self._shown = ""

    def __call__(self, progress: "Progress") -> None:
        total = "" if progress.planned is None else f" of {progress.planned}"
        told = f"{progress.sent} sent{total}, {progress.ended} ended, {progress.failed} failed"
        if self._file.isatty():
            if told != self._shown:
                self._file.write(f"\r{told}")
        elif time.monotonic() > self._shown_s + PROGRESS_S:
            self._shown_s = time.monotonic()
            self._file.write(f"{told}\n")
        self._shown = told
        self._file.flush()

    def end(self) -> None:
        if self._file.isatty() and self._shown:
            self._file.write("\n")


def _plan(options: argparse.Namespace) -> "Plan":
    from prefill_decode.endpoint.bench import Plan

    if options.prompt_ids and options.api != "completions":
        raise ValueError("--prompt-ids is for --api completions: a chat holds text")
    if options.trace is None and (options.spread or options.max_model_len is not None):
        raise ValueError("--spread and --max-model-len are for --trace, which is not given")
    if options.burstiness is not None and options.rate is None:
        raise ValueError("--burstiness is of the arrivals that --rate makes; give a rate")
    common = {
        "url": options.url,
        "model": options.model,
        "api": options.api,
        "api_key": checked_key(
            options.api_key or os.environ.get("OPENAI_API_KEY") or None,
            "--api-key or OPENAI_API_KEY",
        ),
        "timeout_s": options.timeout,
        "seed": options.seed,
        "prompt_ids": options.prompt_ids,
        "warmup": options.warmup,
        "overhead": not options.no_overhead,
    }
    return Plan(**common, **_load(options))


def _load(options: argparse.Namespace) -> dict[str, Any]:
    """The requests of a plan, and the loop that sends them."""
    from statistics import median

    from prefill_decode.endpoint.bench import endless_requests, mean_rate_per_s
    from prefill_decode.workload import fixed_lengths, make_requests

    if options.trace is not None:
        requests, trace = traced_requests(options)
        return {
            "requests": requests,
            "num_requests": len(requests),
            "prompt_tokens": round(median(request.prompt_tokens for request in requests)),
            "rate_per_s": mean_rate_per_s(requests),
            "trace": trace,
        }
    prompt, output, number = options.prompt_tokens, options.output_tokens, options.requests
    if number is None and options.duration is None:
        number = REQUESTS
    if options.rate is None:
        return {
            "requests": islice(endless_requests(prompt, output), number),
            "num_requests": number,
            "prompt_tokens": prompt,
            "concurrency": options.concurrency or 1,
            "duration_s": options.duration or inf,
        }
    burstiness = 1.0 if options.burstiness is None else options.burstiness
    arrivals_s = draw_arrivals(options.rate, number or _enough(options), burstiness, options.seed)
    arrivals_s = [s for s in arrivals_s if s < (options.duration or inf)]
    if not arrivals_s:
        raise ValueError(
            f"at {options.rate:g} requests/s none arrives within {options.duration:g} s; give a "
            "longer --duration"
        )
    prompts = fixed_lengths(prompt, len(arrivals_s))
    requests = make_requests(arrivals_s, prompts, fixed_lengths(output, len(arrivals_s)))
    return {
        "requests": requests,
        "num_requests": len(requests),
        "prompt_tokens": prompt,
        "rate_per_s": options.rate,
        "burstiness": burstiness,
    }


def _enough(options: argparse.Namespace) -> int:
    """So many arrivals that their last one comes after the duration."""
    expected = options.rate * options.duration
    if expected > MOST_REQUESTS:
        raise ValueError(
            f"a run plans at most {MOST_REQUESTS} requests; --rate x --duration is {expected:g}"
        )
    spread = max(1.0, options.burstiness or 0.0)
    return int(expected + 10 * spread * expected**0.5 + 20 * spread**2)


def _write_exchanges(path: Path | None, found: "Bench") -> OSError | None:
    """Why the file could not be written, if it could not."""
    if path is None:
        return None
    from prefill_decode.endpoint.bench_report import exchange_line
    from prefill_decode.results import write_atomically

    lines = (json.dumps(exchange_line(each), allow_nan=False) for each in found.exchanges)
    try:
        write_atomically(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        return OSError(error.errno, f"--out was not written: {error.strerror}", str(path))
    return None
