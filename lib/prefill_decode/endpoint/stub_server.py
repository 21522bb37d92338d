"""Stub server: an OpenAI-compatible server that computes nothing and answers on a known schedule.

The first event comes `first_s` after the request, the others `gap_s` apart, with one token each.
Every event says when it was sent and when its request was received, on the machine's monotonic
clock, so that a client on the same machine can tell its own delays from the server's. The model's
name chooses a misbehaviour: see MODES.

Counts:  a prompt of w words as 8 + 1.5 w tokens, one of ids as its ids.
Ignores: HTTP but for what a client of this book sends: Content-Length, no pipelining, no TLS.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

FIRST_S, GAP_S, TOKENS = 0.02, 0.005, 8
BETWEEN_PIECES_S = 0.005
LONGEST_BODY_BYTES = 16 * 2**20
LATE_TOKENS = 16
BEFORE_FAULT = 2  # tokens that come before a misbehaviour inside the stream
MODES = (
    "steady",
    "several",  # four tokens an event, with usage in each
    "no_usage",
    "pings",  # comments between events
    "slow",  # ten times the gap
    "late",  # the first `LATE_TOKENS` in one piece, as a client that reads late gets them
    "stops",  # the model ends its answer at half of what was asked
    "short",  # the server does
    "picky",  # refuses ignore_eos and min_tokens by name
    "error",  # inside the stream
    "flaky",  # every second request, inside the stream
    "cut",  # the connection, inside the stream
    "ends",  # the stream, without [DONE] and finish_reason
    "role_only",
    "empty",  # a stream without events
    "garbage",  # an event that is no JSON
    "drops",  # a kept connection, when a second request comes on it
    "no_http",
    "closes",  # before it answers
    "never",  # answers
    "plain_json",  # an answer that is no stream
    "http_500",
    "http_503",  # with a page instead of an error object
)


@dataclass(frozen=True)
class StubTiming:
    first_s: float = FIRST_S
    gap_s: float = GAP_S


class StubServer:
    """Counts the requests it got and those in its hands at once; `port` is known once it runs."""

    def __init__(self, timing: StubTiming = StubTiming()) -> None:
        self.timing = timing
        self.port = 0
        self.bodies: list[dict[str, Any]] = []
        self.now = self.most_at_once = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request, until either side or `stop` ends it."""
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            kept = False
            while await self._answer(reader, writer, kept):
                kept = True
        self._connections.discard(task)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    async def stop(self) -> None:
        """Ends every connection."""
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections)

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bool
    ) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        received_s = time.monotonic()
        if head.startswith("GET"):
            models = {"object": "list", "data": [{"id": mode, "object": "model"} for mode in MODES]}
            await _send_whole(writer, "200 OK", "application/json", json.dumps(models))
            return True
        body = json.loads(await reader.readexactly(_content_length(head)))
        if kept and body.get("model") == "drops":
            return False
        self.bodies.append(body)
        self.now += 1
        self.most_at_once = max(self.most_at_once, self.now)
        try:
            return await self._reply(body, _Stream(writer, self.timing, body, received_s))
        finally:
            self.now -= 1

    async def _reply(self, body: dict[str, Any], stream: "_Stream") -> bool:
        mode = body.get("model")
        if mode == "flaky":
            mode = "error" if len(self.bodies) % 2 == 0 else "steady"
        if mode in ("no_http", "closes", "never", "plain_json", "http_500", "http_503"):
            return await _reply_without_stream(mode, stream.writer)
        refused = [name for name in ("ignore_eos", "min_tokens") if name in body]
        if mode == "picky" and refused:
            error = {"error": {"message": f"Unrecognized request argument: {refused[0]}"}}
            await _send_whole(
                stream.writer, "400 Bad Request", "application/json", json.dumps(error)
            )
            return True
        return await stream.run(mode)


class _Stream:
    """One streamed answer."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        timing: StubTiming,
        body: dict[str, Any],
        received_s: float,
    ) -> None:
        self.writer, self._timing, self._body = writer, timing, body
        self._received_s = received_s
        self._asked = body.get("max_tokens") or body.get("max_completion_tokens") or TOKENS
        self._held = b""
        self._holds = False  # what is written, until a token that is not late

    async def run(self, mode: str | None) -> bool:
        """Streams the answer; whether the connection can be used again."""
        _write_head(self.writer, "200 OK", "text/event-stream", "Transfer-Encoding: chunked")
        tokens = self._asked // 2 if mode in ("stops", "short") else self._asked
        tokens = 0 if mode in ("role_only", "empty") else tokens
        if mode != "empty" and "messages" in self._body:
            await self._event(self._chunk({"role": "assistant", "content": ""}))
        each = 4 if mode == "several" else 1
        gap_s = self._timing.gap_s * (10 if mode == "slow" else 1)
        for place, sent in enumerate(range(0, tokens, each)):
            due_s = self._received_s + self._timing.first_s + place * gap_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            self._holds = mode == "late" and sent < LATE_TOKENS - 1
            if sent == BEFORE_FAULT and await self._fault(mode):
                return mode != "cut"
            if mode == "pings":
                await self._chunked(b": ping\n\n")
            brought = min(each, tokens - sent)
            await self._event(self._token(brought, sent + brought if mode == "several" else None))
        self._holds = False
        return await self._end(mode, tokens)

    async def _fault(self, mode: str | None) -> bool:
        """Whether the stream has ended badly here."""
        if mode == "error":
            await self._event({"error": {"message": "engine stopped", "code": 500}})
            await self._raw("[DONE]")
            await self._close()
        elif mode == "garbage":
            await self._raw('{"choices": [')
            await self._close()
        elif mode == "ends":
            await self._close()
        elif mode == "cut":
            self.writer.write(b"ff\r\ndata: {")
            await self.writer.drain()
        return mode in ("error", "garbage", "ends", "cut")

    async def _end(self, mode: str | None, tokens: int) -> bool:
        if mode != "empty":
            await self._event(self._chunk({}, "stop" if mode == "stops" else "length"))
            options = self._body.get("stream_options") or {}
            if options.get("include_usage") and mode != "no_usage":
                await self._event({"choices": [], "usage": self._usage(tokens)})
            await self._raw("[DONE]")
        await self._close()
        return True

    def _token(self, brought: int, total: int | None) -> dict[str, Any]:
        chunk = self._chunk({"content": "w" * brought})
        return chunk if total is None else chunk | {"usage": self._usage(total)}

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        if "messages" in self._body:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
        else:
            choice = {"index": 0, "text": delta.get("content", ""), "finish_reason": finish}
        return {"choices": [choice], "received_s": self._received_s}

    def _usage(self, tokens: int) -> dict[str, int]:
        messages = self._body.get("messages")
        prompt = messages[0]["content"] if messages else self._body.get("prompt", "")
        length = len(prompt) if isinstance(prompt, list) else 8 + 3 * len(prompt.split()) // 2
        return {"prompt_tokens": length, "completion_tokens": tokens}

    async def _event(self, data: dict[str, Any]) -> None:
        await self._raw(json.dumps(data | {"sent_s": time.monotonic()}))

    async def _raw(self, text: str) -> None:
        await self._chunked(f"data: {text}\n\n".encode())

    async def _chunked(self, content: bytes) -> None:
        self._held += b"%x\r\n%s\r\n" % (len(content), content)
        if not self._holds:
            self.writer.write(self._held)
            self._held = b""
            await self.writer.drain()

    async def _close(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


async def _reply_without_stream(mode: str, writer: asyncio.StreamWriter) -> bool:
    if mode == "never":
        await asyncio.sleep(3600)
    elif mode == "no_http":
        writer.write(b"\x00\x01\x02 what?\r\n\r\n")
    elif mode == "plain_json":
        answer = {"choices": [{"message": {"content": "w"}}]}
        await _send_whole(writer, "200 OK", "application/json", json.dumps(answer))
    elif mode == "http_500":
        error = {"error": {"message": "out of memory", "type": "server_error"}}
        status = "500 Internal Server Error"
        await _send_whole(writer, status, "application/json", json.dumps(error))
    elif mode == "http_503":
        await _send_whole(writer, "503 Service Unavailable", "text/html", "<h1>try later</h1>")
    return mode not in ("never", "closes", "no_http")


def _content_length(head: str) -> int:
    for line in head.split("\r\n"):
        name, _, value = line.partition(":")
        if name.lower() == "content-length" and int(value) <= LONGEST_BODY_BYTES:
            return int(value)
    raise ConnectionError("a request has a Content-Length")


def _write_head(writer: asyncio.StreamWriter, status: str, kind: str, length: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{length}\r\n\r\n".encode())


async def _send_whole(writer: asyncio.StreamWriter, status: str, kind: str, text: str) -> None:
    """An answer that is no stream, in two pieces, as it may come from any server."""
    content = text.encode()
    _write_head(writer, status, kind, f"Content-Length: {len(content)}")
    writer.write(content[: len(content) // 2])
    await writer.drain()
    await asyncio.sleep(BETWEEN_PIECES_S)
    writer.write(content[len(content) // 2 :])
    await writer.drain()


@asynccontextmanager
async def running(server: StubServer) -> AsyncIterator[StubServer]:
    """Serves on a free port of the loopback inside the block."""
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=4096)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        await server.stop()


async def _serve_until_stdin_ends(timing: StubTiming) -> None:
    async with running(StubServer(timing)) as server:
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)  # it ends with the process that started this one


def main() -> int:
    """python -m prefill_decode.endpoint.stub_server: prints its port, ends when stdin does."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--first", type=float, default=FIRST_S, metavar="SECONDS")
    parser.add_argument("--gap", type=float, default=GAP_S, metavar="SECONDS")
    options = parser.parse_args()
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve_until_stdin_ends(StubTiming(options.first, options.gap)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
