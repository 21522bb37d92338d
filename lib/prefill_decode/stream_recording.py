"""Stream recording: one streamed answer in a file of JSON lines, read back as its events.

    {"t": 0.214, "data": {"choices": [...]}}    an event: its data, or "[DONE]"
    {"t": 0.214, "base64": "ZGF0YTog..."}       a read from the network, cut anywhere

`t` is seconds since the request was sent. A file holds lines of one kind. An event that is made
of several reads came with the read that completed it.

Refuses: a line that is neither, a time that is none or runs backwards, a file without lines. A
         ValueError names the line.
"""

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import IO, Any

from prefill_decode.event_stream import (
    MOST_EVENT_BYTES,
    ServerSentEvents,
    StreamReader,
    StreamResult,
    event_data,
)

MOST_LINE_BYTES = 2 * MOST_EVENT_BYTES
KINDS = ("data", "base64")
CUT_INSIDE = "the stream was cut inside an event"


@dataclass(frozen=True)
class RecordedLine:
    number: int  # in the file, from 1
    t_s: float
    kind: str  # "data" or "base64"
    value: Any  # the event's data, or the bytes of the read


def read_recording(file: IO[bytes], name: str, max_tokens: int | None = None) -> StreamResult:
    """The result of the answer recorded in `file`, which ValueErrors call `name`."""
    reader, split, kind = StreamReader(max_tokens), ServerSentEvents(), None
    last_s = 0.0
    for line in _lines(file, name):
        last_s, kind = line.t_s, kind or line.kind
        try:
            if line.kind != kind:
                raise ValueError(f"lines hold {kind!r} or {line.kind!r}, never both in one file")
            take_line(reader, split, line)
        except ValueError as error:
            raise ValueError(f"{name}, line {line.number}: {error}") from error
    if kind is None:
        raise ValueError(f"{name}: a recording has a line for each event; the file is empty")
    end_stream(reader, split, last_s)
    return reader.finish()


def take_line(reader: StreamReader, split: ServerSentEvents, line: RecordedLine) -> None:
    """Hands on the event of a line, or those that its read completed."""
    if line.kind == "data":
        reader.take(line.t_s, line.value)
        return
    reader.take(line.t_s, None)  # a read that completes no event must not run backwards either
    for raw in split.feed(line.value):
        reader.take(line.t_s, event_data(raw))


def end_stream(reader: StreamReader, split: ServerSentEvents, t_s: float) -> None:
    """Hands on an event that nothing but the stream's end ended, if it is whole."""
    rest = split.close()
    if rest is None:
        return
    data = event_data(rest)
    if isinstance(data, bytes) and rest:
        reader.fail(CUT_INSIDE)
    else:
        reader.take(t_s, data)


def _lines(file: IO[bytes], name: str) -> Iterator[RecordedLine]:
    number = 0
    while raw := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(raw) > MOST_LINE_BYTES:
            raise ValueError(f"{name}, line {number}: a line has at most {MOST_LINE_BYTES} bytes")
        if not raw.strip():
            continue
        try:
            yield _parse(number, raw)
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from error


def _parse(number: int, raw: bytes) -> RecordedLine:
    try:
        line = json.loads(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
    except RecursionError as error:
        raise ValueError("not valid JSON: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    given = [kind for kind in KINDS if isinstance(line, dict) and kind in line]
    if len(given) != 1:
        raise ValueError(
            'a line is {"t": seconds, "data": ...} or {"t": seconds, "base64": "..."}; got '
            f"{raw[:80].decode('utf-8', 'replace').strip()}"
        )
    kind = given[0]
    value = line[kind] if kind == "data" else _decoded(line[kind])
    return RecordedLine(number, _seconds(line), kind, value)


def _seconds(line: dict[str, Any]) -> float:
    if "t" not in line:
        raise ValueError('"t" is missing, the seconds since the request was sent')
    t = line["t"]
    known = isinstance(t, int | float) and not isinstance(t, bool) and abs(t) < 1e30
    if not known or not isfinite(t) or t < 0:
        raise ValueError(f'"t" is a finite number of seconds, 0 or more; got {str(t)[:40]}')
    return float(t)


def _decoded(text: Any) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f'"base64" is text; got {str(text)[:40]}')
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f'"base64" cannot be decoded: {error}') from error
