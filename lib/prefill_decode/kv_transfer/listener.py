"""Listener: where peers dial in. Each is greeted in a thread of its own, so that a silent one holds
up nobody, and is handed out once it has proved itself."""

import os
import select
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Self

from prefill_decode.kv_transfer.addresses import listen, prepared, read_address
from prefill_decode.kv_transfer.channel import Channel, greet
from prefill_decode.kv_transfer.errors import TransferError

GREETING_S = 5.0
MOST_GREETED = 64  # at once; more are hung up on


class Listener:
    """ValueError for a place beyond loopback without a key; OSError where it is taken."""

    def __init__(self, address: str, key: bytes | None = None) -> None:
        self._listening, self.address = listen(address, key)
        kind, path, _ = read_address(self.address)
        self._path = path if kind == "unix" else None
        self._file = os.stat(path).st_ino if kind == "unix" else 0
        self._key = key
        self._known: SimpleQueue[Channel | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._greeted: dict[threading.Thread, Channel] = {}
        self._closing = False
        self._signal, self._told = os.pipe()  # one byte for each known peer
        self._wake, self._woken = os.pipe()
        self._accepting = threading.Thread(target=self._accept_all, name="listener", daemon=True)
        self._accepting.start()

    def accept(self, timeout_s: float | None) -> Channel | None:
        """The next known peer; None where there is none within `timeout_s`, or at the close."""
        try:
            channel = self._known.get(timeout=timeout_s)
        except Empty:
            return None
        if channel is not None:
            os.read(self._signal, 1)
        else:
            self._known.put(None)  # for the next one who waits
        return channel

    def fileno(self) -> int:
        """Readable when `accept` need not wait."""
        return self._signal

    def close(self) -> None:
        """Hangs up on all that have not been handed out. A second time does nothing."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            greeted = list(self._greeted.items())
        os.write(self._woken, b".")
        for _, channel in greeted:
            channel.hang_up()
        for thread in (self._accepting, *(thread for thread, _ in greeted)):
            thread.join()
        self._listening.close()
        self._unlink()
        with suppress(Empty):
            while (left := self._known.get_nowait()) is not None:
                left.close()
        self._known.put(None)
        for end in (self._signal, self._told, self._wake, self._woken):
            os.close(end)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept_all(self) -> None:
        ready = select.poll()
        ready.register(self._listening, select.POLLIN)
        ready.register(self._wake, select.POLLIN)
        while not self._closing:
            if self._wake in (end for end, _ in ready.poll()):
                return
            try:
                connection, _ = self._listening.accept()
            except OSError:  # gone again, or no descriptor is left
                time.sleep(0.01)
                continue
            self._begin_greeting(Channel(prepared(connection)))

    def _begin_greeting(self, channel: Channel) -> None:
        thread = threading.Thread(target=self._greet, args=(channel,), name="greeting", daemon=True)
        with self._lock:
            if self._closing or len(self._greeted) >= MOST_GREETED:
                channel.close()
                return
            self._greeted[thread] = channel
            thread.start()

    def _greet(self, channel: Channel) -> None:
        known = False
        try:
            greet(channel, self._key, time.monotonic() + GREETING_S, dialled=False)
            known = True
        except (TransferError, OSError):
            pass  # it has been told, as far as it may know
        finally:
            with self._lock:
                del self._greeted[threading.current_thread()]
                if known and not self._closing:
                    os.write(self._told, b".")
                    self._known.put(channel)
                else:
                    channel.close()

    def _unlink(self) -> None:
        """Its own file, not that of one who listens there by now."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                if os.stat(self._path).st_ino == self._file:
                    os.unlink(self._path)
