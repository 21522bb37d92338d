"""Event stream: a streamed answer of an OpenAI-compatible server, from bytes to its metrics.

    bytes --ServerSentEvents--> events --StreamReader--> StreamResult --to_record--> RequestRecord

A token-carrying event brings text of an answer: content, reasoning, a refusal, a tool call, or a
completion's text. One that only names the role, is empty or reports usage is none.

    TTFT         the first token-carrying event
    output       usage.completion_tokens; unknown without it, never the number of events
    TPOT         (t_last - t_first) / (output - 1): serving_metrics.mean_token_time_s
    event gaps   between neighbouring token-carrying events of one answer

Counts:  seconds since the request was sent, as the reader of the network saw them. Tokens of each
         event only where usage comes with every one of them and rises with every one.
Ignores: what the text says (<think> inside content is content); events after [DONE] or a failure.
Failed:  an error inside the stream, whatever the HTTP status was; an event that cannot be read; an
         end without [DONE] and without finish_reason; no token at all.
Source:  WHATWG HTML, section 9.2, "Server-sent events"; OpenAI API reference, "Streaming".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite, nan
from typing import Any

from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import mean_token_time_s

MOST_EVENT_BYTES = 16 * 2**20
MOST_MESSAGE = 500  # characters of an error that are kept
DONE = "[DONE]"
BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\r|\n")
ANSWER_FIELDS = ("content", "refusal")
OTHER_TOKEN_FIELDS = ("reasoning_content", "reasoning")
CALL_FIELDS = ("name", "arguments")
ENDED_BY_MODEL = ("stop", "tool_calls", "function_call")  # the answer is as long as it wanted
ENDED_BY_FAILURE = ("error", "abort")


class ServerSentEvents:
    """The `data` of each event in a stream of bytes that is cut anywhere."""

    def __init__(self) -> None:
        self._line: list[bytes] = []  # pieces of the line that has not ended
        self._data: list[bytes] = []  # data lines of the event that has not ended
        self._held_bytes = 0
        self._after_return = False  # a line feed that comes next belongs to the line that ended
        self._started = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes. ValueError for one above MOST_EVENT_BYTES."""
        if not data:
            return []
        if self._after_return and data.startswith(b"\n"):
            data = data[1:]
        *ended, rest = LINE_END.split(data)
        self._after_return = data.endswith(b"\r")
        events: list[bytes] = []
        for piece in ended:
            self._hold(piece)
            events += self._end_line()
        self._hold(rest)
        return events

    def close(self) -> bytes | None:
        """What an event held that no empty line ended; None if there was none."""
        if any(self._line):
            self._end_line()
        data, self._data = self._data, []
        return b"\n".join(data) if data else None

    def _hold(self, piece: bytes) -> None:
        self._line.append(piece)
        self._held_bytes += len(piece)
        if self._held_bytes > MOST_EVENT_BYTES:
            raise ValueError(
                f"an event has at most {MOST_EVENT_BYTES} bytes; got more without its end: "
                "is this a stream of server-sent events?"
            )

    def _end_line(self) -> list[bytes]:
        line = b"".join(self._line)
        self._line.clear()
        if not self._started:
            line = line.removeprefix(BOM)
        self._started = True
        if not line:
            return self._end_event()
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        else:
            self._held_bytes -= len(line)
        return []

    def _end_event(self) -> list[bytes]:
        data, self._data, self._held_bytes = self._data, [], 0
        return [b"\n".join(data)] if data else []


def event_data(raw: bytes) -> Any:
    """The JSON value of an event's data, "[DONE]", or the bytes themselves if they are neither."""
    if raw == DONE.encode():
        return DONE
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        return raw


@dataclass(frozen=True)
class StreamResult:
    """Times in seconds since the request was sent. NaN or None is unknown, and null on disk."""

    ttft_s: float
    time_to_first_content_s: float  # the first text of the answer, reasoning excluded
    tpot_s: float
    decode_tokens_per_s: float
    output_tokens: int | None
    prompt_tokens: int | None
    event_times_s: tuple[float, ...]  # of token-carrying events
    event_gaps_s: tuple[float, ...]
    tokens_per_event: tuple[int, ...] | None
    itl_even_split_s: tuple[float, ...] | None  # each gap shared by the tokens that it brought
    num_answers: int  # 1, or n where the request asked for several
    finish_reason: str | None
    done_seen: bool
    success: bool
    error: str | None
    short_output: bool | None  # fewer tokens than asked, though the model did not end its answer
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON."""
        return {name: _on_disk(value) for name, value in vars(self).items()}


class StreamReader:
    """Takes the events of one answer in order and says at its end what they were.

    `max_tokens` is what the request asked for, where that is known.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self._max_tokens = max_tokens
        self._last_s = 0.0
        self._times_s: dict[int, list[float]] = {}  # of token-carrying events, for each answer
        self._first_content_s = nan
        self._totals: list[int | None] = []  # of usage, for each token-carrying event
        self._usage: list[int] = []  # every total of output tokens that was reported, in order
        self._final_usage: int | None = None  # of an event without an answer
        self._prompt_tokens: int | None = None
        self._reasons: dict[int, str | None] = {}  # for each answer
        self._done = False
        self._error: str | None = None

    @property
    def closed(self) -> bool:
        """Whether [DONE] or a failure was seen: what comes after is ignored."""
        return self._done or self._error is not None

    def take(self, t_s: float, data: Any) -> None:
        """One event: a JSON value, "[DONE]", or bytes that are neither.

        ValueError if `t_s` is not finite or earlier than the event before.
        """
        if not (isfinite(t_s) and t_s >= self._last_s):
            raise ValueError(
                f"time runs backwards: an event at {t_s} s follows one at {self._last_s} s; "
                "record every time on one monotonic clock that starts with the request"
            )
        self._last_s = t_s
        if data == DONE:
            self._done = True
        if self.closed or data in (b"", None):
            return
        try:
            self._read(t_s, data)
        except _UnreadableEvent as problem:
            self.fail(str(problem))

    def fail(self, error: str) -> None:
        """The request failed; the first reason is kept, and so are the tokens before it."""
        if self._error is None:
            self._error = error[:MOST_MESSAGE]

    def _read(self, t_s: float, data: Any) -> None:
        message = error_message(data)
        if message is not None:
            self.fail(message)
            return
        choices = _choices(data)
        total = self._take_usage(data.get("usage"), final=not choices)
        for choice in choices:
            answer = choice.get("index") or 0
            reason = choice.get("finish_reason")
            self._reasons[answer] = reason or self._reasons.get(answer)
            brings_answer, brings_token = _brings(choice)
            if brings_token:
                self._times_s.setdefault(answer, []).append(t_s)
                self._totals.append(total)
            if brings_answer and not isfinite(self._first_content_s):
                self._first_content_s = t_s
            if reason in ENDED_BY_FAILURE:
                self.fail(f"the server ended the answer with finish_reason {reason!r}")

    def _take_usage(self, usage: Any, final: bool) -> int | None:
        if not isinstance(usage, Mapping):
            return None
        prompt, output = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
        self._prompt_tokens = self._prompt_tokens if prompt is None else prompt
        if output is not None:
            self._usage.append(output)
            self._final_usage = output if final else self._final_usage
        return output

    def finish(self) -> StreamResult:
        """What the stream was, now that it has ended."""
        times_s = sorted(t_s for times in self._times_s.values() for t_s in times)
        notes: list[str] = []
        output_tokens = self._output_tokens(bool(times_s), notes)
        per_event = self._tokens_per_event(output_tokens, notes)
        several = len(self._reasons) > 1
        if several:
            notes.append("several answers share the tokens counted, so TPOT is unknown")
        counted = 0 if output_tokens is None or several else output_tokens
        tpot_s = mean_token_time_s(times_s, counted)
        error = self._error or self._fault_of_the_end(times_s)
        reason = next((reason for reason in self._reasons.values() if reason), None)
        return StreamResult(
            ttft_s=times_s[0] if times_s else nan,
            time_to_first_content_s=self._first_content_s,
            tpot_s=tpot_s,
            decode_tokens_per_s=1 / tpot_s if tpot_s > 0 else nan,
            output_tokens=output_tokens,
            prompt_tokens=self._prompt_tokens,
            event_times_s=tuple(times_s),
            event_gaps_s=_gaps(self._times_s),
            tokens_per_event=per_event,
            itl_even_split_s=_even_split(times_s, per_event),
            num_answers=max(1, len(self._reasons)),
            finish_reason=reason,
            done_seen=self._done,
            success=error is None,
            error=error,
            short_output=_is_short(output_tokens, self._max_tokens, reason),
            notes=tuple(notes),
        )

    def _output_tokens(self, any_token: bool, notes: list[str]) -> int | None:
        """The total of the answer; None where usage is missing or cannot be a total."""
        fell = next(((a, b) for a, b in pairwise(self._usage) if b < a), None)
        if fell is not None and self._final_usage is None:
            notes.append(
                f"usage fell from {fell[0]} to {fell[1]} tokens, so it is no running total"
            )
            return None
        total = self._usage[-1] if self._usage else None
        if any_token and total == 0:
            notes.append("usage says 0 tokens, but tokens came: their number is unknown")
            return None
        if any_token and total is None:
            notes.append("the stream reports no usage, so its tokens cannot be counted")
        return total

    def _tokens_per_event(self, total: int | None, notes: list[str]) -> tuple[int, ...] | None:
        """Tokens that each event brought, where usage is a running total; else None."""
        totals = [count for count in self._totals if count is not None]
        if not totals or len(totals) < len(self._totals) or len(self._reasons) > 1:
            return None
        brought = tuple(later - earlier for earlier, later in pairwise([0, *totals]))
        if total is None or min(brought) < 1 or totals[-1] > total:
            if len(totals) > 1:
                notes.append(
                    "usage does not rise with every event, so tokens per event are unknown"
                )
            return None
        return brought

    def _fault_of_the_end(self, times_s: list[float]) -> str | None:
        reasons = self._reasons.values()
        if not self._done and not (reasons and all(reasons)):
            return "the stream was cut: it ended without [DONE] and without finish_reason"
        return None if times_s else "the answer ended without a single token"


class _UnreadableEvent(Exception):
    """An event that is no chunk of an answer."""


def error_message(data: Any) -> str | None:
    """What an error says, in any of the forms that servers use; None if `data` is no error.

    {"error": {"message": ...}}, {"error": ...}, {"object": "error", "message": ...}, a message or
    detail without choices, or plain text.
    """
    if isinstance(data, str):
        return data
    if not isinstance(data, Mapping):
        return None
    error = data.get("error")
    if error is None and (data.get("object") == "error" or "choices" not in data):
        error = data.get("message") or data.get("detail")
    if error is None or error is False:
        return None
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) and message else json.dumps(error)


def to_record(result: StreamResult, request: Request, sent_s: float | None = None) -> RequestRecord:
    """The record of a request that was sent at `sent_s` (its arrival, if not said).

    Where tokens of each event are unknown but the total is known they are shared evenly: TTFT,
    TPOT and gaps do not depend on how. Where more events came than tokens, some event brought
    the rest of a token: the ones that followed most closely are left out, never the first or the
    last. A short answer is a failure. ValueError for several answers to one request.
    """
    if result.num_answers > 1:
        raise ValueError(f"a record holds one answer; got {result.num_answers}: ask for n = 1")
    start_s = request.arrival_s if sent_s is None else sent_s
    times_s, tokens = _shared(result)
    return RequestRecord(
        request,
        tuple(start_s + t_s for t_s in times_s),
        tokens,
        failure_of(result, request.output_tokens),
        tokens_counted=result.output_tokens is not None,
    )


def failure_of(result: StreamResult, asked_tokens: int | None = None) -> str | None:
    """Why a request was not answered: its error, or that its answer was cut short."""
    if result.error is not None or not result.short_output:
        return result.error
    asked = "asked" if asked_tokens is None else f"asked ({asked_tokens})"
    ended = f"finish_reason {result.finish_reason!r}"
    return f"fewer tokens came than {asked}: {result.output_tokens}, {ended}"


def _choices(data: Any) -> list[Mapping[str, Any]]:
    if isinstance(data, bytes):
        shown = data[:MOST_MESSAGE].decode("utf-8", "replace")
        raise _UnreadableEvent(f"an event is no JSON: {shown}")
    choices = data.get("choices") if isinstance(data, Mapping) else data
    if isinstance(data, Mapping) and choices is None:
        return []
    if not (isinstance(data, Mapping) and isinstance(choices, list)):
        raise _UnreadableEvent(f"an event is no chunk of an answer: {json.dumps(data)[:200]}")
    if not all(isinstance(c, Mapping) and _is_index(c.get("index")) for c in choices):
        raise _UnreadableEvent(f"an event's choices cannot be read: {json.dumps(choices)[:200]}")
    return choices


def _is_index(index: Any) -> bool:
    return index is None or _count(index) is not None


def _brings(choice: Mapping[str, Any]) -> tuple[bool, bool]:
    """(text of the answer, anything at all) in a choice of a chat or a completions chunk."""
    delta = choice.get("delta")
    delta = delta if isinstance(delta, Mapping) else {}
    answer = bool(choice.get("text")) or any(delta.get(field) for field in ANSWER_FIELDS)
    other = any(delta.get(field) for field in OTHER_TOKEN_FIELDS)
    return answer, answer or other or _calls(delta)


def _calls(delta: Mapping[str, Any]) -> bool:
    """Whether a tool call's name or arguments came, or another part of them."""
    calls = delta.get("tool_calls")
    tools = calls if isinstance(calls, list) else []
    functions = [tool.get("function") for tool in tools if isinstance(tool, Mapping)]
    return any(
        isinstance(function, Mapping) and any(function.get(field) for field in CALL_FIELDS)
        for function in [*functions, delta.get("function_call")]
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _gaps(times_s: Mapping[int, list[float]]) -> tuple[float, ...]:
    return tuple(b - a for answer in sorted(times_s) for a, b in pairwise(times_s[answer]))


def _even_split(times_s: list[float], tokens: tuple[int, ...] | None) -> tuple[float, ...] | None:
    if tokens is None:
        return None
    gaps_s = [later - earlier for earlier, later in pairwise(times_s)]
    shared = zip(gaps_s, tokens[1:], strict=True)
    return tuple(gap / brought for gap, brought in shared for _ in range(brought))


def _is_short(output_tokens: int | None, asked: int | None, reason: str | None) -> bool | None:
    if output_tokens is None or asked is None:
        return None
    return output_tokens < asked and reason not in ENDED_BY_MODEL


def _shared(result: StreamResult) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Event times and tokens of each event that sum to the total, if that is known."""
    times_s, total = result.event_times_s, result.output_tokens
    if total is None or not times_s:
        return times_s, (1,) * len(times_s)
    if result.tokens_per_event is not None:
        rest = total - sum(result.tokens_per_event)  # brought by events without text
        return times_s, (*result.tokens_per_event[:-1], result.tokens_per_event[-1] + rest)
    times_s = _closest_left_out(times_s, total)
    each, more = divmod(total, len(times_s))
    return times_s, tuple(each + (place < more) for place in range(len(times_s)))


def _closest_left_out(times_s: tuple[float, ...], most: int) -> tuple[float, ...]:
    """At most `most` of the times: the first, the last, and those with the largest gaps before."""
    if len(times_s) <= most:
        return times_s
    if most < 2:
        return times_s[:1]
    inner = sorted(range(1, len(times_s) - 1), key=lambda i: times_s[i] - times_s[i - 1])
    kept = sorted([0, *inner[len(times_s) - most :], len(times_s) - 1])
    return tuple(times_s[i] for i in kept)


def _on_disk(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_on_disk(each) for each in value]
    return None if isinstance(value, float) and not isfinite(value) else value
