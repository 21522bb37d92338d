"""Client: one request to an OpenAI-compatible server, every read of its answer with its time.

A read is stamped when it arrives and parsed after the answer has ended, a few reads at a time, so
that parsing delays no other answer's stamp by much. What remains of the client's own delay is
measured (overhead.py).

Counts:  seconds on the machine's monotonic clock. A connection is part of the time to first token
         where one has to be made; it is kept for the next request. A request whose kept connection
         ends before any answer, because the server had closed it, is sent again on another; its
         time still runs from the first sending.
Ignores: proxies that the environment names.
Failed:  any status but 200, an answer that is no stream of events, and whatever ends it early: in
         words, never as an exception.
"""

import asyncio
import json
import os
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from prefill_decode.event_stream import (
    ServerSentEvents,
    StreamReader,
    StreamResult,
    error_message,
    event_data,
)

MOST_ANSWER_BYTES = 256 * 2**20
MOST_MESSAGE_BYTES = 64 * 2**10  # of an answer that is no stream
MOST_MODELS_BYTES = 8 * 2**20  # of a list of models
MOST_MESSAGE = 300  # characters
PROBE_S = 20.0  # for a list of models
KEEP_ALIVE_S = 3.0  # servers close an idle connection after 5 s or more: never use it then
READS_AT_A_TIME = 8  # parsed before other answers' reads get their turn
REFUSED = (400, 422)
PATHS = {"chat": "/chat/completions", "completions": "/completions"}
EXTENSIONS = ("ignore_eos", "min_tokens")
Api = Literal["chat", "completions"]
Observer = Callable[[float, float, Any], None]  # (request sent, event read, its data)


@dataclass(frozen=True)
class Target:
    """Where requests go, and what they say beside the prompt."""

    base_url: str  # ends with /v1, or as the user's did
    model: str
    api: Api = "chat"
    timeout_s: float = 600.0
    api_key: str | None = field(default=None, repr=False)
    optional: tuple[str, ...] = ("stream_options", "temperature", *EXTENSIONS)
    length_name: str = "max_tokens"

    @property
    def url(self) -> str:
        return self.base_url + PATHS[self.api]

    @property
    def headers(self) -> dict[str, str]:
        bearer = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {"Content-Type": "application/json", **bearer}

    def body(self, prompt: str | list[int], output_tokens: int) -> bytes:
        if self.api == "chat":
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]}
        else:
            asked = {"prompt": prompt}
        extras = {
            "stream_options": {"include_usage": True},
            "temperature": 0,
            "ignore_eos": True,
            "min_tokens": output_tokens,
        }
        asked |= {"model": self.model, "stream": True, self.length_name: output_tokens}
        return json.dumps(asked | {name: extras[name] for name in self.optional}).encode()

    def without(self, message: str) -> "Target | None":
        """The target without the options that a refusal names; if it names none, without those
        that OpenAI does not have; None if there is nothing to leave out."""
        if "max_completion_tokens" in message and self.length_name == "max_tokens":
            return replace(self, length_name="max_completion_tokens")
        named = [name for name in self.optional if name in message] or EXTENSIONS
        kept = tuple(name for name in self.optional if name not in named)
        return replace(self, optional=kept) if kept != self.optional else None


@dataclass(frozen=True)
class Answer:
    """What came back, not parsed yet. Times are of the monotonic clock."""

    sent_s: float
    ended_s: float
    reads: tuple[tuple[float, bytes], ...]
    status: int | None  # None if no answer began
    failure: str | None
    num_resent: int = 0  # times that a kept connection turned out to be closed


def base_url(url: str) -> str:
    """The part before /chat/completions. ValueError for anything but an http address."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known or parts.query or parts.fragment:
        raise ValueError(f"a server's address is like http://127.0.0.1:8000; got {url!r}")
    if parts.username is not None or parts.password is not None:
        raise ValueError(  # it would stand in every report
            "an address has no user and no password here; a key goes into --api-key or "
            "OPENAI_API_KEY"
        )
    path = parts.path.rstrip("/")
    for end in PATHS.values():
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def open_session() -> aiohttp.ClientSession:
    """A session in which no request waits for another, nor for a limit of the client's."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=None)
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_reuse)
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        trace_configs=[trace],
    )


async def _note_reuse(session: object, context: Any, reused: object) -> None:
    if context.trace_request_ctx is not None:
        context.trace_request_ctx.append(reused)


async def served_models(
    session: aiohttp.ClientSession, target: Target
) -> tuple[list[str], str | None]:
    """The names that the server lists, and why there are none.

    ValueError if it cannot be reached."""
    url = target.base_url + "/models"
    try:
        async with asyncio.timeout(PROBE_S), session.get(url, headers=target.headers) as response:
            content = await _whole(response.content, MOST_MODELS_BYTES)
            status = response.status
    except TimeoutError as error:
        raise ValueError(f"{url}: no answer within {PROBE_S:g} s") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise ValueError(f"{url}: {described(error)}; is the server running?") from error
    if status != 200:
        message = error_message(event_data(content))
        return [], f"HTTP {status}" + (f": {message[:MOST_MESSAGE]}" if message else "")
    with suppress(ValueError, RecursionError, TypeError, KeyError):
        return [str(model["id"]) for model in json.loads(content)["data"]], None
    return [], "the answer is no list of models"


async def send(session: aiohttp.ClientSession, target: Target, body: bytes) -> Answer:
    """Sends a request and stamps every read of its answer."""
    reads: list[tuple[float, bytes]] = []
    status, failure = None, None
    stale: list[object] = []  # kept connections on which the request was sent in vain
    sent_s = time.monotonic()
    try:
        async with asyncio.timeout(target.timeout_s):
            async with await _posted(session, target, body, stale) as response:
                status = response.status
                failure = await _refusal(response)
                if failure is None:
                    failure = await _read(response.content, reads)
    except TimeoutError:
        failure = f"no end of the answer within {target.timeout_s:g} s"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        failure = described(error)
    return Answer(sent_s, time.monotonic(), tuple(reads), status, failure, len(stale))


async def _posted(
    session: aiohttp.ClientSession, target: Target, body: bytes, stale: list[object]
) -> aiohttp.ClientResponse:
    """The answer that begins. A server may close a connection that it said it would keep, and
    llama.cpp's does after every stream; each of those that are left is tried once at most."""
    while True:
        reused: list[object] = []
        try:
            return await session.post(
                target.url, data=body, headers=target.headers, trace_request_ctx=reused
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
            if not reused:
                raise
            stale += reused


async def _read(content: aiohttp.StreamReader, reads: list[tuple[float, bytes]]) -> str | None:
    held = 0
    async for data in content.iter_any():
        reads.append((time.monotonic(), data))
        held += len(data)
        if held > MOST_ANSWER_BYTES:
            return f"an answer has at most {MOST_ANSWER_BYTES} bytes; more came"
    return None


async def _whole(content: aiohttp.StreamReader, most_bytes: int) -> bytes:
    """All that comes, up to a limit, or to where the connection is cut."""
    held = bytearray()
    with suppress(aiohttp.ClientPayloadError):
        async for data in content.iter_any():
            held += data
            if len(held) >= most_bytes:
                break
    return bytes(held[:most_bytes])


async def _refusal(response: aiohttp.ClientResponse) -> str | None:
    """Why an answer is no stream of events; None if it is one."""
    if response.status == 200 and response.content_type == "text/event-stream":
        return None
    data = event_data(await _whole(response.content, MOST_MESSAGE_BYTES))
    message = error_message(data)
    if message is None:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else json.dumps(data)
        message = " ".join(text.split())
    if response.status != 200:
        return f"HTTP {response.status}: {message[:MOST_MESSAGE] or response.reason}"
    kind = response.content_type
    return f"the answer is {kind} instead of text/event-stream: {message[:MOST_MESSAGE]}"


def described(error: BaseException) -> str:
    """What went wrong with a connection, in words that do not change from request to request."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"no such host: {error.host}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"the certificate of {error.host} is not trusted"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection to {error.host}:{error.port}: {_reason(error.os_error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection before it answered"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "the connection was cut inside the answer"
    if isinstance(error, aiohttp.ClientResponseError):
        return f"the answer is no HTTP: {' '.join(error.message.split())[:MOST_MESSAGE]}"
    if isinstance(error, OSError) and error.strerror:
        return f"the connection failed: {_reason(error)}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:MOST_MESSAGE]}"


def _reason(error: OSError) -> str:
    """The system's own words: asyncio has others, with the address in them."""
    if isinstance(error, ssl.SSLError):
        return "it speaks no TLS; is it http:// instead of https://?"
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return (error.strerror or str(error)).lower()


async def parsed(answer: Answer, max_tokens: int, observe: Observer | None = None) -> StreamResult:
    """The metrics of an answer; `observe` gets each of its events."""
    split, reader = ServerSentEvents(), StreamReader(max_tokens)

    def take(t_s: float, raw: bytes) -> None:
        data = event_data(raw)
        reader.take(t_s - answer.sent_s, data)
        if observe is not None:
            observe(answer.sent_s, t_s, data)

    for place, (t_s, read) in enumerate(answer.reads, 1):
        try:
            for raw in split.feed(read):
                take(t_s, raw)
        except ValueError as error:  # an event without end
            reader.fail(str(error))
            break
        if place % READS_AT_A_TIME == 0:
            await asyncio.sleep(0)
    rest = split.close()
    if answer.failure is not None:
        if not reader.closed:
            reader.fail(answer.failure)
    elif rest:
        take(answer.reads[-1][0], rest)
    return reader.finish()
