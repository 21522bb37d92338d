"""Streaming: the verbs that read streams of tokens, recorded or from a server."""

import argparse
import sys
from math import isfinite
from typing import TYPE_CHECKING

from prefill_decode.cli.shared import FINDING, FINE, print_json, print_last, printable
from prefill_decode.units import format_seconds, format_significant

if TYPE_CHECKING:
    from prefill_decode.event_stream import StreamResult

STDIN = "-"


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
