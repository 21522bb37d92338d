"""Event response: answers on their way to a reader, and what becomes of them when it has left."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from prefill_decode.endpoint.errors import ApiError
from prefill_decode.endpoint.replies import Replies, error_events
from prefill_decode.endpoint.service import AnswerStream, Service

Result = TypeVar("Result")


async def unless_gone(receive: Receive, work: Awaitable[Result]) -> Result | None:
    """What the work gives; None, and the work ended, if the client leaves before it does."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        leaving.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventResponse(Response):
    """A stream of events: as many in one write as a step has brought.

    It ends with data: [DONE], also after an error. A reader that left, or that is too far behind,
    gets nothing more: its connection is closed, its request dropped."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, stream: AnswerStream, replies: Replies) -> None:
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self.service = service
        self.stream = stream
        self.replies = replies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        ends = {
            sending,
            asyncio.ensure_future(_gone(receive)),
            asyncio.ensure_future(self.stream.behind.wait()),
        }
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            self.service.close(self.stream)
        if not sending.cancelled():
            sending.result()  # raises what went wrong

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)

        async def write(data: bytes, more: bool = True) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": more})

        await write(self.replies.opening(len(self.stream.answers)))
        try:
            while pieces := await self.stream.take():
                await write(self.replies.events(pieces))
        except ApiError as error:
            await write(error_events(error), more=False)
        else:
            await write(self.replies.ending(), more=False)
