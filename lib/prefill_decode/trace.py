"""Trace: requests as they once arrived at a real service, from a file.

Which formats are read, `trace_formats` says.

Counts:  every row: used, rejected because it cannot be read, or skipped because it does not fit or
         was never answered; nothing is dropped in silence. Odd rows that are used are flagged. Rows
         are sorted by time. What prompts have in common, where the trace says it (Mooncake's).
Traps:   a clock of 3 s (Mooncake's) or of 1 s (BurstGPT's) sends every request of a tick at once:
         `quantum_s` says so, and `spread_arrivals` spreads them.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

from prefill_decode.request import Request
from prefill_decode.trace_formats import BadRow, Format, Row, SkippedRow, format_of

MOST_LINE_BYTES = 2**20
LINES_SHOWN = 8  # of a reason, in a summary
COARSE_S = 0.1  # a clock that ticks so seldom, with several arrivals at a tick, is quantised
SHARE_OF_TIES = 0.2
JITTER = 0.01  # of a tick
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class TraceRow:
    """One request. `output_tokens` may be 0: the service only read the prompt."""

    line: int  # in the file, from 1
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[tuple[int, int], ...] = ()  # what the prompt begins with, as of a Request


@dataclass(frozen=True)
class Trace:
    """The rows that are used, by arrival, and what became of all others. Keys are line numbers."""

    path: str
    kind: str  # of its format
    data_rows: int
    rows: tuple[TraceRow, ...]
    rejected_lines: dict[int, str]
    skipped_lines: dict[int, str]
    flagged_lines: dict[int, str]  # odd, but used
    quantum_s: float  # of the clock, if it is coarse; else NaN

    def requests(self) -> list[Request]:
        """A request a row. One without output asks for one token, which its prefill yields."""
        return [
            Request(
                f"line {row.line}",
                row.arrival_s,
                row.prompt_tokens,
                max(1, row.output_tokens),
                row.pieces,
            )
            for row in self.rows
        ]

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON: the counts and reasons, not the rows."""
        return {
            "path": self.path,
            "kind": self.kind,
            "data_rows": self.data_rows,
            "accepted_requests": len(self.rows),
            "rejected_lines": {str(line): why for line, why in self.rejected_lines.items()},
            "skipped_lines": {str(line): why for line, why in self.skipped_lines.items()},
            "flagged_lines": {str(line): why for line, why in self.flagged_lines.items()},
            "quantum_s": self.quantum_s if isfinite(self.quantum_s) else None,
        }


def read_trace(path: Path, max_model_len: int | None = None) -> Trace:
    """The trace in a file. Rows with more tokens than `max_model_len` are skipped.

    ValueError for a file that is no trace, or whose every row is unusable: the summary says why.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            found = _Reading(str(path), max_model_len).read(_numbered(file, str(path)))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: a trace is UTF-8 text; {error}") from error
    if not found.rows:
        raise ValueError(f"{path}: no row can be used: {summary(found)}")
    return found


def summary(trace: Trace) -> str:
    """How many rows are used, and why the others are not, with their lines."""
    told = [
        f"{len(trace.rows)} requests of {trace.data_rows} rows; {len(trace.rejected_lines)} "
        f"rejected, {len(trace.skipped_lines)} skipped, {len(trace.flagged_lines)} flagged"
    ]
    parts = [
        ("rejected", trace.rejected_lines),
        ("skipped", trace.skipped_lines),
        ("flagged", trace.flagged_lines),
    ]
    for name, lines in parts:
        for why in dict.fromkeys(lines.values()):
            told.append(f"  {name}: {why}: {_listed([n for n in lines if lines[n] == why])}")
    if isfinite(trace.quantum_s):
        told.append(
            f"  the clock ticks every {trace.quantum_s:g} s, so a plain replay sends bursts: "
            "spread the arrivals"
        )
    return "\n".join(told)


def spread_arrivals(trace: Trace, seed: int) -> Trace:
    """The trace with each tick's arrivals drawn evenly from the time until the next tick.

    Only of a trace whose clock is coarse; any other is returned as it is.
    """
    if not isfinite(trace.quantum_s):
        return trace
    dice = random.Random(f"spread {seed}")
    rows = [
        replace(row, arrival_s=row.arrival_s + dice.random() * trace.quantum_s)
        for row in trace.rows
    ]
    return replace(trace, rows=tuple(sorted(rows, key=_arrival)), quantum_s=nan)


class _Reading:
    """What has been read of a trace so far."""

    def __init__(self, path: str, max_model_len: int | None) -> None:
        self._path, self._max_model_len = path, max_model_len
        self._data_rows = 0
        self._rows: list[TraceRow] = []
        self._rejected: dict[int, str] = {}
        self._skipped: dict[int, str] = {}
        self._flagged: dict[int, list[str]] = {}
        self._before: Row | None = None

    def read(self, lines: Iterator[tuple[int, str]]) -> Trace:
        found, first = _opening(lines, self._path)
        for number, line in chain(first, lines):
            if line.strip():
                self._data_rows += 1
                self._take(number, line, found)
        rows = tuple(sorted(self._rows, key=_arrival))
        if found.kind == "azure" and rows:  # dates become seconds from the first arrival
            rows = tuple(replace(r, arrival_s=r.arrival_s - rows[0].arrival_s) for r in rows)
        flagged = {line: "; ".join(why) for line, why in self._flagged.items()}
        return Trace(
            self._path, found.kind, self._data_rows, rows, self._rejected, self._skipped, flagged,
            _quantum_s(rows),
        )  # fmt: skip

    def _take(self, number: int, line: str, found: Format) -> None:
        try:
            self._keep(number, found.row(line))
        except BadRow as problem:
            self._rejected[number] = str(problem)
        except SkippedRow as reason:
            self._skipped[number] = str(reason)

    def _keep(self, number: int, row: Row) -> None:
        for why in row.odd:
            self._flag(number, why)
        before, self._before = self._before, row
        if before is not None and row.arrival_s < before.arrival_s:
            self._flag(number, "earlier than the row before (arrivals get sorted)")
        if before is not None and before.asks == row.asks:
            self._flag(number, "identical to the row before: kept, both are requests")
        prompt, output = row.prompt_tokens, row.output_tokens
        if output == 0:
            self._flag(number, "zero output tokens: prefill only")
        most = self._max_model_len
        if most is not None and prompt + output > most:
            self._skipped[number] = f"{prompt} + {output} > max_model_len {most}"
            self._flagged.pop(number, None)
        else:
            self._rows.append(TraceRow(number, row.arrival_s, prompt, output, row.pieces))

    def _flag(self, number: int, why: str) -> None:
        self._flagged.setdefault(number, []).append(why)


def _numbered(file: Any, path: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"{path}, line {number}: a row has at most {MOST_LINE_BYTES} letters")
        yield number, line


def _opening(lines: Iterator[tuple[int, str]], path: str) -> tuple[Format, list[tuple[int, str]]]:
    """The format, and the rows that were read to find it."""
    for number, line in lines:
        if not line.strip():
            continue
        try:
            found = format_of(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        return found, [] if found.header else [(number, line)]
    raise ValueError(f"{path}: a trace has a row for each request; the file is empty")


def _quantum_s(rows: tuple[TraceRow, ...]) -> float:
    """The tick of a coarse clock, seconds; NaN for a fine one, or where nothing arrives together.

    Nearly all gaps are multiples of a tick, give or take JITTER: Mooncake's ticks of 3 s differ
    by some milliseconds.
    """
    ticks = sorted({row.arrival_s for row in rows})
    gaps = sorted(later - earlier for earlier, later in pairwise(ticks))
    if len(rows) - len(ticks) < SHARE_OF_TIES * len(rows) or len(gaps) < 2:
        return nan
    short = gaps[len(gaps) // 10]  # a single odd gap does not decide
    quantum_s = median(gap for gap in gaps if abs(gap - short) <= JITTER * short)
    whole = sum(abs(gap / quantum_s - round(gap / quantum_s)) <= JITTER for gap in gaps)
    return quantum_s if quantum_s >= COARSE_S and whole >= NEARLY_ALL * len(gaps) else nan


def _listed(lines: list[int]) -> str:
    more = f" and {len(lines) - LINES_SHOWN} more" if len(lines) > LINES_SHOWN else ""
    word = "line" if len(lines) == 1 else "lines"
    return f"{word} {', '.join(map(str, lines[:LINES_SHOWN]))}{more}"


def _arrival(row: TraceRow) -> float:
    return row.arrival_s
