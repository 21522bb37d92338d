"""Lender: a second process of one's own that offers blocks to be read, for measuring.

It runs what it is given until the connection to it ends, and answers one question with one answer.
"""

import multiprocessing
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from prefill_decode.measure import processor_time_s

LONGEST_STOP_S = 10.0
Target = Callable[..., None]  # (connection, folder, ...)


class Lender:
    """`target(connection, folder, *words)` in a fresh process, `folder` for its sockets.

    ConnectionError, with its exit code, where it ends before it has answered."""

    def __init__(self, target: Target, *words: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="prefill-decode-")
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_run, args=(target, theirs, self._folder.name, *words), daemon=True
        )
        self.process.start()
        theirs.close()

    def ask(self, *words: Any) -> Any:
        with suppress(OSError):  # it has ended: `hear` says so
            self._connection.send(words)
        return self.hear()

    def hear(self) -> Any:
        """Its next answer."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self.process.join(LONGEST_STOP_S)
            raise ConnectionError(
                f"the process that lends memory has ended with code {self.process.exitcode}"
            ) from None

    @property
    def pid(self) -> int:
        assert self.process.pid is not None  # it was started
        return self.process.pid

    def own_s(self) -> float:
        """Processor seconds of this process and of the other."""
        return processor_time_s([self.pid])

    def close(self) -> None:
        """Ends it. A second time does nothing."""
        if self._connection.closed:
            return
        self._connection.close()
        self.process.join(LONGEST_STOP_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        self._folder.cleanup()


def _run(target: Target, *words: Any) -> None:
    """An interrupt is for who asks: what that ends, ends this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target(*words)


def questions(connection: Connection) -> Any:
    """What is asked, until whoever asks has gone."""
    while True:
        try:
            asked = connection.recv()
        except (EOFError, OSError):
            return
        yield asked
