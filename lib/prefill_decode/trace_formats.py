"""Trace formats: one row of a public trace, from its text to numbers. A first line says which.

    azure     CSV   TIMESTAMP,ContextTokens,GeneratedTokens                a date and time
    burstgpt  CSV   Timestamp,Model,Request tokens,Response tokens,...     seconds
    vidur     CSV   arrived_at,num_prefill_tokens,num_decode_tokens        seconds
    plain     CSV   timestamp,prompt_tokens,output_tokens                  seconds
    mooncake  JSON lines with timestamp (ms), input_length, output_length and perhaps hash_ids

Counts:  Mooncake's hash_ids as pieces of a prompt: each names 512 tokens and all before them, the
         last one what is left.
Source:  Azure/AzurePublicDataset (2023, 2024); HPMLL/BurstGPT; microsoft/vidur, processed traces;
         kvcache-ai/Mooncake, FAST25 release.
"""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite
from typing import Any

from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.workload import MOST_TOKENS

MOONCAKE = ("timestamp", "input_length", "output_length")
MOONCAKE_BLOCK_TOKENS = 512
SHOWN = 80  # letters of a line that is not understood


class BadRow(Exception):
    """Why a row cannot be used."""


class SkippedRow(Exception):
    """Why a row is understood and yet no request to be sent again."""


@dataclass(frozen=True)
class Columns:
    """Of a CSV: the three that are used, and those that may stand beside them."""

    used: tuple[str, str, str]  # timestamp, prompt, output
    others: tuple[str, ...] = ()


CSVS = {
    "azure": Columns(("TIMESTAMP", "ContextTokens", "GeneratedTokens")),
    "plain": Columns(("timestamp", "prompt_tokens", "output_tokens")),
    "vidur": Columns(
        ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        ("num_total_tokens", "pd_ratio"),
    ),
    "burstgpt": Columns(
        ("Timestamp", "Request tokens", "Response tokens"),
        ("Model", "Total tokens", "Log Type", "Session ID", "Elapsed time"),
    ),
}


@dataclass(frozen=True)
class Row:
    """What a line says. `odd`: what is strange about it, though it can be used."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    pieces: tuple[tuple[int, int], ...] = ()  # as of a Request
    odd: tuple[str, ...] = ()

    @property
    def asks(self) -> tuple[object, ...]:
        return self.arrival_s, self.prompt_tokens, self.output_tokens, self.pieces


@dataclass(frozen=True)
class Format:
    """Of a whole trace. `header` are a CSV's columns in their order."""

    kind: str
    header: tuple[str, ...] = ()

    def row(self, line: str) -> Row:
        """BadRow or SkippedRow, with the reason, for a line that is no request."""
        if self.kind == "mooncake":
            return _mooncake_row(line)
        columns = CSVS[self.kind]
        cells = _cells(line, self.header, columns)
        time, *lengths = (cells[name] for name in columns.used)
        told = _Told(_date_s(time) if self.kind == "azure" else _finite_s(time))
        told.take_lengths(*lengths)
        if self.kind == "burstgpt":
            told.check_answered(cells.get("Total tokens", ""))
        return told.row()


def format_of(first_line: str) -> Format:
    """What a trace that begins so is. ValueError, naming the columns, for none that is known."""
    if first_line.lstrip().startswith("{"):
        return Format("mooncake")
    header = tuple(cell.strip(' "\r\n') for cell in first_line.split(","))
    best = max(CSVS, key=lambda kind: len(set(CSVS[kind].used) & set(header)))
    columns = CSVS[best]
    missing = [name for name in columns.used if name not in header]
    known = (*columns.used, *columns.others)
    unknown = [name for name in header if name not in known]
    if not (missing or unknown) and len(set(header)) == len(header):
        return Format(best, header)
    heads = ", ".join(",".join(each.used) for each in CSVS.values())
    why = ""
    if len(missing) < len(columns.used):
        hints = "".join(did_you_mean(name, known) for name in unknown[:1])
        why = (
            f"; of {best}'s columns {', '.join(missing) or 'none'} are missing, "
            f"{', '.join(map(repr, unknown)) or 'none'} unknown{hints}"
        )
        if not (missing or unknown):
            why = "; a column is there twice"
    raise ValueError(
        f"a trace begins with the columns {heads}, or holds Mooncake's JSON lines; got "
        f"{first_line.strip()[:SHOWN]!r}{why}"
    )


@dataclass
class _Told:
    """A row while it is read."""

    arrival_s: float
    prompt: int = 0
    output: int = 0
    odd: list[str] = field(default_factory=list)

    def take_lengths(self, prompt: str, output: str) -> None:
        self.prompt, self.output = _tokens(prompt, "prompt"), _tokens(output, "output")
        if self.prompt == 0:
            raise BadRow("zero prompt tokens")
        for cell, tokens in ((prompt, self.prompt), (output, self.output)):
            if not cell.isdigit():
                self.odd.append(f"{cell} is accepted as {tokens}")

    def check_answered(self, total: str) -> None:
        """What BurstGPT says beside the lengths: no response is a failure, not a short answer."""
        if self.output == 0:
            raise SkippedRow("zero response tokens: the service failed to answer")
        if total and _tokens(total, "total") != self.prompt + self.output:
            self.odd.append("total tokens are not those of prompt and response")

    def row(self, pieces: tuple[tuple[int, int], ...] = ()) -> Row:
        return Row(self.arrival_s, self.prompt, self.output, pieces, tuple(self.odd))


def _cells(line: str, header: Sequence[str], columns: Columns) -> dict[str, str]:
    try:
        cells = [cell.strip() for cell in next(csv.reader([line], strict=True))]
    except csv.Error as error:
        raise BadRow(f"not a row of a CSV: {error}") from error
    if len(cells) > len(header):
        raise BadRow("too many columns")
    named = dict(zip(header, cells, strict=False))
    if len(cells) < len(header) or not all(named[name] for name in columns.used):
        raise BadRow("missing value")
    return named


def _mooncake_row(line: str) -> Row:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow("not valid JSON") from error
    if not isinstance(said, dict):
        raise BadRow("not an object")
    cells = [said.get(name) for name in MOONCAKE]
    if any(cell is None for cell in cells):
        raise BadRow("missing value")
    if not all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells):
        raise BadRow("not a number")
    told = _Told(_finite_s(str(cells[0])) / 1000)
    told.take_lengths(str(cells[1]), str(cells[2]))
    return told.row(_pieces(said.get("hash_ids", []), told))


def _pieces(ids: Any, told: _Told) -> tuple[tuple[int, int], ...]:
    """Of a prompt, by the ids of its blocks: equal ids are equal beginnings."""
    if not (isinstance(ids, list) and all(type(each) is int for each in ids)):
        raise BadRow("hash_ids not a list of whole numbers")
    if not ids:
        return ()
    size, blocks = MOONCAKE_BLOCK_TOKENS, -(-told.prompt // MOONCAKE_BLOCK_TOKENS)
    if len(ids) != blocks:
        told.odd.append(f"hash_ids not one for each {size} tokens: its prompt shares nothing")
        return ()
    return (*((each, size) for each in ids[:-1]), (ids[-1], told.prompt - size * (blocks - 1)))


def _date_s(cell: str) -> float:
    try:
        date = datetime.fromisoformat(cell)
    except ValueError as error:
        raise BadRow("not a date and time") from error
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _finite_s(cell: str) -> float:
    value = _number(cell)
    if not isfinite(value):
        raise BadRow("timestamp not finite")
    return value


def _tokens(cell: str, of: str) -> int:
    value = _number(cell)
    if value < 0:
        raise BadRow(f"negative {of} length")
    if not isfinite(value) or value != int(value):
        raise BadRow(f"{of} length not a whole number")
    if value > MOST_TOKENS:
        raise BadRow(f"{of} length beyond {MOST_TOKENS}")
    return int(value)


def _number(cell: str) -> float:
    try:
        return float(cell.replace("_", " "))  # Python would read 1_000
    except (ValueError, OverflowError) as error:
        raise BadRow("not a number") from error
