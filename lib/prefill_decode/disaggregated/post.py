"""Post: the threads that carry messages between the coordinator and one worker.

One sends and one receives, so that a worker that does not listen, or stops within a message, holds
up nobody else."""

import queue
import threading
from collections.abc import Callable

from prefill_decode.disaggregated.messages import Hello, Message, decode, encode
from prefill_decode.kv_transfer import Channel, TransferError

HELLO_S = 10.0  # for a worker's first message


class Post:
    """`send` and `hang_up` from any thread. `on_message` and `on_end` are called in the receiving
    one, `on_end` once and last, with the reason in words."""

    def __init__(
        self,
        channel: Channel,
        on_message: Callable[["Post", Message], None],
        on_end: Callable[["Post", str], None],
    ) -> None:
        self.hello: Hello | None = None
        self._channel = channel
        self._on_message, self._on_end = on_message, on_end
        self._outgoing: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reason = "has hung up"
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for name, run in (("post out", self._send_all), ("post in", self._receive_all))
        ]
        for thread in self._threads:
            thread.start()

    def send(self, message: Message) -> None:
        self._outgoing.put(message)

    def hang_up(self) -> None:
        """What was sent and not yet gone is dropped."""
        self._channel.hang_up()
        self._outgoing.put(None)

    def finish(self) -> None:
        """Hang up once all that was sent has gone."""
        self._outgoing.put(None)

    def join(self, timeout_s: float) -> None:
        for thread in self._threads:
            thread.join(timeout_s)

    def _send_all(self) -> None:
        try:
            while (message := self._outgoing.get()) is not None:
                self._channel.send(encode(message))
        except (TransferError, OSError) as error:
            self._reason = f"does not take what it is sent: {error}"
        self._channel.hang_up()

    def _receive_all(self) -> None:
        try:
            self._greet()
            while (data := self._channel.receive(None)) is not None:
                self._on_message(self, decode(data))
        except (TransferError, OSError, ValueError) as error:
            if self._reason == "has hung up":
                self._reason = f"is gone: {error}"
        self.hang_up()
        self._on_end(self, self._reason)
        self._threads[0].join()
        self._channel.close()

    def _greet(self) -> None:
        data = self._channel.receive(HELLO_S)
        hello = None if data is None else decode(data)
        if not isinstance(hello, Hello):
            raise ValueError(f"its first message is no hello: {hello!r:.100}")
        self.hello = hello
        self._on_message(self, hello)
