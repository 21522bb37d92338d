"""A stub server in a thread of its own, so that the command can be called as a user calls it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from prefill_decode.endpoint.stub_server import StubServer, StubTiming, running


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
