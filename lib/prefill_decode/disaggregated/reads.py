"""Reads: caches that are being read from other processes, each in a thread, while steps go on.

Every read ends once, with what has moved or with why it did not: after that nothing writes to its
blocks. Connections are kept for the next read from the same peer."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from prefill_decode.kv_transfer import Lane, Moved, Offer, Pool, Reader, Refused, TransferError

Outcome = Moved | TransferError


class Reads:
    """`on_end(transfer_id, outcome)` is called from a thread of a read. At most `most` run at a
    time; more wait their turn."""

    def __init__(
        self,
        pool: Pool,
        on_end: Callable[[str, Outcome], None],
        *,
        key: bytes | None = None,
        lane: Lane = "auto",
        most: int = 64,
    ) -> None:
        self._pool, self._on_end, self._key, self._lane = pool, on_end, key, lane
        self._most = most
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="read")
        self._lock = threading.Lock()
        self._under_way: dict[str, Reader | None] = {}  # None: it waits for a thread
        self._aborted: set[str] = set()
        self._idle: list[Reader] = []  # the last one used last
        self._closed = False

    def begin(self, offer: Offer, targets: Sequence[int], due_s: float) -> None:
        """Read an offer into these blocks until `due_s` on the monotonic clock."""
        with self._lock:
            assert offer.transfer_id not in self._under_way, "a transfer is read once at a time"
            self._under_way[offer.transfer_id] = None
        self._threads.submit(self._read, offer, targets, due_s)

    def abort(self, transfer_id: str) -> None:
        """It ends soon, with TransferError unless all has moved by then. Unknown ids are fine."""
        with self._lock:
            if transfer_id in self._under_way:
                self._aborted.add(transfer_id)
                reader = self._under_way[transfer_id]
                if reader is not None:
                    reader.abort(transfer_id)

    def close(self) -> None:
        """Aborts all, and returns when they have ended."""
        with self._lock:
            self._closed = True
            under_way = list(self._under_way)
        for transfer_id in under_way:
            self.abort(transfer_id)
        self._threads.shutdown()
        for reader in self._idle:
            reader.close()

    def _read(self, offer: Offer, targets: Sequence[int], due_s: float) -> None:
        outcome: Outcome
        try:
            reader = self._taken(offer)
            try:
                outcome = reader.read(offer, targets, due_s - time.monotonic())
            finally:
                self._give_back(reader)
        except TransferError as error:
            outcome = error
        except (ValueError, OSError) as error:  # an address that is none, no descriptor left
            outcome = Refused(str(error))
        with self._lock:
            del self._under_way[offer.transfer_id]
            self._aborted.discard(offer.transfer_id)
        self._on_end(offer.transfer_id, outcome)

    def _taken(self, offer: Offer) -> Reader:
        with self._lock:
            if offer.transfer_id in self._aborted or self._closed:
                raise TransferError(f"{offer.transfer_id} was aborted before it began")
            found = [reader for reader in self._idle if reader.address == offer.address]
            if found:
                reader = found[-1]
                self._idle.remove(reader)
            else:
                reader = Reader(offer.address, self._pool, key=self._key, lane=self._lane)
            self._under_way[offer.transfer_id] = reader
            return reader

    def _give_back(self, reader: Reader) -> None:
        with self._lock:
            self._idle.append(reader)
            left_over = self._idle[: -self._most]
            del self._idle[: -self._most]
        for old in left_over:
            old.close()
