"""Doors: who may come in, decided before a byte of a body is read, and what a connection may take.

A web page that a user has open can send requests to servers on the user's own machine, under a
name that its owner points at 127.0.0.1. So a server that binds to loopback answers only under
loopback's names, bodies must say that they are JSON (no page can, without a permission that this
server never gives), and a server that others can reach asks for a key.
"""

import asyncio
import hmac
import ipaddress
import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from prefill_decode.endpoint.errors import ApiError

LAST_WORDS_S = 2.0  # for a client to read why it is hung up on
LOG = logging.getLogger(__name__)
OPEN_PATHS = {"/health"}  # no key needed


@dataclass(frozen=True)
class Limits:
    most_body_bytes: int = 4_000_000
    most_connections: int = 2000
    most_tokens_behind: int = 1000  # for each answer of a stream whose reader is too slow
    header_s: float = 10.0  # from a connection, or a request's first byte, to its last header
    body_s: float = 30.0
    keep_alive_s: int = 30
    stall_s: float = 60.0  # how long a reader may take nothing at all


def is_loopback(host: str) -> bool:
    """Whether every address of a host is this machine's own. ValueError for an unknown host."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host must be a name or address; got {host!r:.60}: {error}") from error
    return all(ipaddress.ip_address(str(address).split("%")[0]).is_loopback for address in found)


class Doorkeeper:
    """Lets in who names this server rightly and has the key; others get their answer here."""

    def __init__(self, app: ASGIApp, api_key: str | None, allowed_host: str | None) -> None:
        """`allowed_host`: the loopback name it was bound to; None: no name is checked."""
        self.app = app
        self.api_key = None if api_key is None else api_key.encode()
        self.allowed_host = allowed_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                self._check_host(headers)
                if scope["path"] not in OPEN_PATHS:
                    self._check_key(headers)
        except ApiError as error:
            await send_error(error, send)
        else:
            await self._let_in(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except Exception:  # the client has had its answer, or the end of its connection
            LOG.exception("%s %s failed", scope["method"], ascii(scope["path"]))

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        if self.allowed_host is None or b"host" not in headers:
            return
        name = _without_port(headers[b"host"].decode("latin-1")).lower()
        if name in ("localhost", self.allowed_host.lower()) or _is_loopback_address(name):
            return
        raise ApiError(
            403,
            "this server answers only as localhost or under a loopback address; the Host header "
            f"says {ascii(name)[:80]}",
            code="foreign_host",
        )

    def _check_key(self, headers: Mapping[bytes, bytes]) -> None:
        if self.api_key is None:
            return
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(key.strip(), self.api_key):
            return
        words = "is wrong" if key else "is missing"
        raise ApiError(
            401,
            f"the API key {words}: send it as Authorization: Bearer KEY",
            code="invalid_api_key",
        )


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback_address(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


async def send_error(error: ApiError, send: Send, close: bool = False) -> None:
    body = json.dumps(error.body()).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *((name.encode(), value.encode()) for name, value in error.headers.items()),
    ]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class PatientProtocol(H11Protocol):
    """HTTP/1.1 with an end to patience: with senders of slow headers, with readers that stand
    still, with more connections than the server can hold. What is no HTTP gets an answer in the
    shape of all errors."""

    def __init__(self, *arguments: Any, limits: Limits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.limits = limits
        self.app = self._enter
        self._headers_due: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._hung_up = False

    async def _enter(self, scope: Any, receive: Any, send: Any) -> None:
        if len(self.connections) <= self.limits.most_connections:
            await self.config.loaded_app(scope, receive, send)
            return
        most = self.limits.most_connections
        told = f"this server holds {most} connections and has no room for more; try again later"
        error = ApiError(503, told, code="too_many_connections", retry_after_s=1)
        await send_error(error, send, close=True)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > 2 * self.limits.most_connections:
            self.transport.abort()
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        if self._hung_up:
            return
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_headers()
        elif self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._headers_due, self._stalled):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.stall_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        if self._stalled is None:  # closing waits for a reader
            self._stalled = self.loop.call_later(self.limits.stall_s, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, unless an answer has begun, and hang up."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and (
            self.cycle is None or not self.cycle.response_started or self.cycle.response_complete
        ):
            body = json.dumps(ApiError(400, "this is no valid HTTP/1.1 request").body()).encode()
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(body))))
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            for part in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(part) or b"")
        self._hang_up()

    def _hang_up(self) -> None:
        """Say no more, and hear out what is on its way: closing at once would reset the connection,
        and the answer be lost."""
        self._hung_up = True
        self.transport.write_eof()
        self.loop.call_later(LAST_WORDS_S, self.transport.abort)

    def _await_headers(self) -> None:
        if self._headers_due is None:
            self._headers_due = self.loop.call_later(self.limits.header_s, self._give_up)

    def _give_up(self) -> None:
        """No request has come in time: nothing is owed to anyone."""
        self._headers_due = None
        self.transport.close()
