"""Servers for tests, each in a thread of its own, on a free port of loopback: the application, and
the stub with known timing."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import pytest

from prefill_decode.endpoint.doors import Limits
from prefill_decode.endpoint.running import _config, _Server, bind, url_of
from prefill_decode.endpoint.server import Served, create_app
from prefill_decode.endpoint.server_metrics import ServerMetrics
from prefill_decode.endpoint.service import Service
from prefill_decode.endpoint.stub_server import StubServer, StubTiming, running
from prefill_decode.endpoint.tokenizer import ByteTokenizer
from tests.endpoint.fake_engine import FakeEngine

MODEL = "tiny"


@dataclass
class RunningServer:
    """A server that runs until `stop`."""

    engine: Any
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    allowed_host: str | None = "localhost"
    tokenizer: Any = field(default_factory=lambda: ByteTokenizer(512))

    def start(self) -> None:
        self.bound = bind("127.0.0.1", 0)
        self.url = url_of(self.bound)
        self.port = self.bound.getsockname()[1]
        self.started = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self.thread.start()
        assert self.started.wait(20)
        self.http = httpx.Client(base_url=self.url, timeout=20)

    async def _run(self) -> None:
        self.service = Service(self.engine, ServerMetrics())
        served = Served(self.service, self.tokenizer, MODEL, self.limits, Random(1))
        app = create_app(served, self.api_key, self.allowed_host)
        self.server = _Server(_config(app, self.limits), self.started.set)
        self.service.start()
        await self.server.serve(sockets=[self.bound])
        await self.service.stop()

    def stop(self) -> None:
        self.http.close()
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive(), "the server does not stop"

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json={"model": MODEL, **body})

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])

    def outcomes(self, outcome: str) -> float:
        return self.metric(f'prefill_decode_requests_total{{outcome="{outcome}"}}')

    def assert_idle(self) -> None:
        """Nothing runs, and every block has come back."""
        wait_until(lambda: not self.service.streams and not self.engine.has_work)
        wait_until(lambda: self.metric("prefill_decode_running_sequences") == 0)
        assert self.metric("prefill_decode_free_blocks") == self.metric("prefill_decode_blocks")


def wait_until(true: Callable[[], bool], most_s: float = 20.0) -> None:
    end_s = time.monotonic() + most_s
    while not true():
        assert time.monotonic() < end_s, "it did not come to pass"
        time.sleep(0.01)


@pytest.fixture
def serve() -> Iterator[Callable[..., RunningServer]]:
    """Starts servers; all of them end with the test."""
    started: list[RunningServer] = []

    def start(engine: Any = None, **settings: Any) -> RunningServer:
        server = RunningServer(engine or FakeEngine(), **settings)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        if hasattr(server.engine, "may_step"):
            server.engine.may_step.set()
        server.stop()


@pytest.fixture
def stub() -> Iterator[StubServer]:
    server, ready, end = StubServer(StubTiming(0.02, 0.005)), threading.Event(), []

    async def serve() -> None:
        stop = asyncio.Event()
        end.append((asyncio.get_running_loop(), stop))
        async with running(server):
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield server
    loop, stop = end[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)
    assert not thread.is_alive()
