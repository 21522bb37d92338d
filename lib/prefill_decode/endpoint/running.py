"""Running: one server from its socket to its exit code.

The first SIGTERM or SIGINT lets running requests finish for a while and refuses new ones; the
second, or the end of that time, ends those that still run with an error that says so. Where the
engine fails, every request is told, and the server ends with exit code 1."""

import asyncio
import contextlib
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from prefill_decode.endpoint.doors import Limits, PatientProtocol
from prefill_decode.endpoint.errors import ApiError
from prefill_decode.endpoint.service import Service

LAST_WORDS_S = 5  # for answers to reach their readers, once nothing more is added to them
SPARE_FILES = 100  # beside connections
SEND_BUFFER_BYTES = 65_536  # small: a slow reader shall be noticed, not buffered for
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens: who comes before the server is ready waits for it. ValueError if the
    address is taken, which binding alone does not find out under SO_REUSEADDR."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small writes at once only where the protocol is named: else each event waits
    # until the one before has been acknowledged, which the reader's system may put off for 40 ms
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        bound.bind((host, port))
        bound.listen()
    except (OSError, OverflowError) as error:
        bound.close()
        raise ValueError(
            f"--host and --port must be an address that is free; got {host}, {port}: {error}"
        ) from error
    return bound


def url_of(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def run(
    app: ASGIApp,
    service: Service,
    bound: socket.socket,
    limits: Limits,
    grace_s: float,
    ready: Callable[[], None],
) -> int:
    """Serve until a signal or a failure; the exit code."""
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    server = _Server(_config(app, _allow_files(limits)), ready)
    service.start()
    stopping = asyncio.ensure_future(_stop(server, service, signals, grace_s))
    try:
        await server.serve(sockets=[bound])
    finally:
        stopping.cancel()
        await service.stop()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return 0 if service.failure is None else 1


def _config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=partial(PatientProtocol, limits=limits),  # type: ignore[arg-type]
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive_s,
        timeout_graceful_shutdown=LAST_WORDS_S,
    )


async def _stop(
    server: "_Server", service: Service, signals: "asyncio.Queue[int]", grace_s: float
) -> None:
    """Wait for a reason to stop, and then for the requests that may still finish."""
    died = asyncio.ensure_future(service.died.wait())
    asked = asyncio.ensure_future(signals.get())
    await asyncio.wait({died, asked}, return_when=asyncio.FIRST_COMPLETED)
    service.stopping = True
    if asked.done():
        again = asyncio.ensure_future(signals.get())
        idle = asyncio.ensure_future(_idle(service))
        ends = {died, again, idle}
        await asyncio.wait(ends, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        service.fail_all(ApiError(503, "the server stopped before the end", code="stopping"))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(_idle(service), LAST_WORDS_S)
    server.should_exit = True


async def _idle(service: Service) -> None:
    while service.streams:
        await asyncio.sleep(0.02)


class _Server(uvicorn.Server):
    """uvicorn's, with its signals left to `run`, and a word when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def _allow_files(limits: Limits) -> Limits:
    """A connection is an open file: allow as many as there may be, or else fewer connections."""
    wanted = 2 * limits.most_connections + SPARE_FILES  # half of them to be told there is no room
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limits
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return replace(limits, most_connections=max(1, (allowed - SPARE_FILES) // 2))
