"""Mailbox: what the threads of a worker, its signals and its coordinator have for its loop."""

import contextlib
import os
import queue
import select
from collections.abc import Callable, Iterator

from prefill_decode.disaggregated.messages import Message, decode, encode
from prefill_decode.kv_transfer import Channel, Corrupt

Event = Callable[[], None]  # what is to be done about it, in the loop's thread


class Mailbox:
    """`post` and `stop` from any thread and from signal handlers, all else from the loop's."""

    def __init__(self) -> None:
        self.stopped = False
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def post(self, event: Event) -> None:
        self._events.put(event)
        self._ring()

    def stop(self) -> None:
        self.stopped = True
        self._ring()

    def events(self) -> Iterator[Event]:
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._events.get_nowait()

    def wait(self, channel: Channel, timeout_s: float) -> None:
        """Until there is something, or for so long."""
        ready = select.poll()
        ready.register(self._woken, select.POLLIN)
        ready.register(channel, select.POLLIN)
        if self._woken in (end for end, _ in ready.poll(timeout_s * 1e3)):
            os.read(self._woken, 2**12)

    def close(self) -> None:
        """After the last thread that may post has ended."""
        os.close(self._woken)
        os.close(self._wake)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it rings already
            os.write(self._wake, b".")


def messages(channel: Channel) -> Iterator[Message]:
    """Those that are there now. TransferError once the coordinator has gone, or for what is no
    message."""
    while (data := channel.receive(0)) is not None:
        try:
            message = decode(data)
        except ValueError as error:
            raise Corrupt(str(error)) from None
        yield message


def say(channel: Channel, message: Message) -> None:
    channel.send(encode(message))
