"""Trace: requests as they once arrived at a real service, from a file.

    Azure      CSV   TIMESTAMP,ContextTokens,GeneratedTokens      a date and time
    plain      CSV   timestamp,prompt_tokens,output_tokens        seconds
    Mooncake   JSON lines with timestamp (ms), input_length, output_length

Counts:  every row: used, rejected because it cannot be read, or skipped because it does not fit;
         nothing is dropped in silence. Odd rows that are used are flagged. Rows are sorted by time.
Ignores: what prompts have in common (Mooncake's hash_ids).
Traps:   a clock of 3 s (Mooncake's) sends every request of those 3 s at once: `quantum_s` says so,
         and `spread_arrivals` spreads them.
Source:  Azure/AzurePublicDataset (2023, 2024); kvcache-ai/Mooncake, FAST25 release.
"""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from math import isfinite, nan
from pathlib import Path
from statistics import median
from typing import Any

from prefill_decode.request import Request
from prefill_decode.workload import MOST_TOKENS

AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN = ("timestamp", "prompt_tokens", "output_tokens")
MOONCAKE = ("timestamp", "input_length", "output_length")
COLUMNS = ("timestamp", "prompt", "output")
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


@dataclass(frozen=True)
class Trace:
    """The rows that are used, by arrival, and what became of all others. Keys are line numbers."""

    path: str
    kind: str  # "azure", "plain" or "mooncake"
    data_rows: int
    rows: tuple[TraceRow, ...]
    rejected_lines: dict[int, str]
    skipped_lines: dict[int, str]
    flagged_lines: dict[int, str]  # odd, but used
    quantum_s: float  # of the clock, if it is coarse; else NaN

    def requests(self) -> list[Request]:
        """A request a row. One without output asks for one token, which its prefill yields."""
        return [
            Request(f"line {row.line}", row.arrival_s, row.prompt_tokens, max(1, row.output_tokens))
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
        self._before: tuple[float, int, int] | None = None

    def read(self, lines: Iterator[tuple[int, str]]) -> Trace:
        kind, first, header = _opening(lines, self._path)
        for number, line in chain(first, lines):
            if line.strip():
                self._data_rows += 1
                self._take(number, line, kind, header)
        rows = tuple(sorted(self._rows, key=_arrival))
        if kind == "azure" and rows:  # dates become seconds from the first arrival
            rows = tuple(replace(r, arrival_s=r.arrival_s - rows[0].arrival_s) for r in rows)
        flagged = {line: "; ".join(why) for line, why in self._flagged.items()}
        return Trace(
            self._path, kind, self._data_rows, rows, self._rejected, self._skipped, flagged,
            _quantum_s(rows),
        )  # fmt: skip

    def _take(self, number: int, line: str, kind: str, header: list[str]) -> None:
        try:
            cells = _json_cells(line) if kind == "mooncake" else _csv_cells(line, header)
            self._keep(number, _seconds(cells[0], kind), cells)
        except _BadRow as problem:
            self._rejected[number] = str(problem)

    def _keep(self, number: int, arrival_s: float, cells: list[str]) -> None:
        prompt, output = _tokens(cells[1], "prompt"), _tokens(cells[2], "output")
        if prompt == 0:
            raise _BadRow("zero prompt tokens")
        for cell, tokens in ((cells[1], prompt), (cells[2], output)):
            if not cell.isdigit():
                self._flag(number, f"{cell} is accepted as {tokens}")
        before, self._before = self._before, (arrival_s, prompt, output)
        if before is not None and arrival_s < before[0]:
            self._flag(number, "earlier than the row before (arrivals get sorted)")
        if before == self._before:
            self._flag(number, "identical to the row before: kept, both are requests")
        if output == 0:
            self._flag(number, "zero output tokens: prefill only")
        most = self._max_model_len
        if most is not None and prompt + output > most:
            self._skipped[number] = f"{prompt} + {output} > max_model_len {most}"
            self._flagged.pop(number, None)
        else:
            self._rows.append(TraceRow(number, arrival_s, prompt, output))

    def _flag(self, number: int, why: str) -> None:
        self._flagged.setdefault(number, []).append(why)


class _BadRow(Exception):
    """Why a row cannot be used."""


def _numbered(file: Any, path: str) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise ValueError(f"{path}, line {number}: a row has at most {MOST_LINE_BYTES} letters")
        yield number, line


def _opening(
    lines: Iterator[tuple[int, str]], path: str
) -> tuple[str, list[tuple[int, str]], list[str]]:
    """(kind, rows read already, the columns' order in a CSV)."""
    for number, line in lines:
        if not line.strip():
            continue
        if line.lstrip().startswith("{"):
            return "mooncake", [(number, line)], []
        header = [cell.strip(' "\r\n') for cell in line.split(",")]
        for kind, names in (("azure", AZURE), ("plain", PLAIN)):
            if sorted(header) == sorted(names):
                places = dict(zip(names, COLUMNS, strict=True))
                return kind, [], [places[name] for name in header]
        raise ValueError(
            f"{path}, line {number}: a trace begins with the columns {','.join(AZURE)} or "
            f"{','.join(PLAIN)}, or holds Mooncake's JSON lines; got {line.strip()[:80]!r}"
        )
    raise ValueError(f"{path}: a trace has a row for each request; the file is empty")


def _csv_cells(line: str, header: list[str]) -> list[str]:
    """Timestamp, prompt and output."""
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error as error:
        raise _BadRow(f"not a row of a CSV: {error}") from error
    if len(cells) > len(header):
        raise _BadRow("too many columns")
    if len(cells) < len(header) or not all(cells):
        raise _BadRow("missing value")
    named = dict(zip(header, cells, strict=True))
    return [named[name] for name in COLUMNS]


def _json_cells(line: str) -> list[str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow("not valid JSON") from error
    if not isinstance(row, dict):
        raise _BadRow("not an object")
    cells = [row.get(name) for name in MOONCAKE]
    if any(cell is None for cell in cells):
        raise _BadRow("missing value")
    if not all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells):
        raise _BadRow("not a number")
    return [str(cell) for cell in cells]


def _seconds(cell: str, kind: str) -> float:
    if kind == "azure":
        return _date_s(cell)
    value = _number(cell)
    if not isfinite(value):
        raise _BadRow("timestamp not finite")
    return value / 1000 if kind == "mooncake" else value


def _date_s(cell: str) -> float:
    try:
        date = datetime.fromisoformat(cell)
    except ValueError as error:
        raise _BadRow("not a date and time") from error
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _tokens(cell: str, of: str) -> int:
    value = _number(cell)
    if value < 0:
        raise _BadRow(f"negative {of} length")
    if not isfinite(value) or value != int(value):
        raise _BadRow(f"{of} length not a whole number")
    if value > MOST_TOKENS:
        raise _BadRow(f"{of} length beyond {MOST_TOKENS}")
    return int(value)


def _number(cell: str) -> float:
    try:
        return float(cell.replace("_", " "))  # Python would read 1_000
    except (ValueError, OverflowError) as error:
        raise _BadRow("not a number") from error


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
