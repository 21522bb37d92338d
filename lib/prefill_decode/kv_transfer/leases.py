"""Leases: what is offered, until when, and who reads it.

A lease ends once: released by a reader who has it all, withdrawn by its owner, or expired. Its end
is told when the last reader has gone; one that does not go within `GRACE_S` is hung up on."""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from prefill_decode.kv_transfer.channel import Channel
from prefill_decode.kv_transfer.errors import Expired
from prefill_decode.kv_transfer.offer import Offer

How = Literal["released", "withdrawn", "expired"]
GRACE_S = 1.0
IDLE_S = 60.0
MOST_REMEMBERED = 4096  # ids of leases that are over
LOG = logging.getLogger(__name__)


@dataclass
class Lease:
    offer: Offer
    layers_ready: int
    ends_at: float
    how: How | None = None  # it ended
    words: str = ""  # for its readers
    readers: list[Channel] = field(default_factory=list)

    def check(self) -> None:
        """Expired, with the reason, where it is over."""
        if self.how is not None:
            raise Expired(f"{self.offer.transfer_id} is over: {self.words}")


class Leases:
    """`on_end(transfer_id, how)` is called once for each, from a thread of its own and without any
    lock."""

    def __init__(self, on_end: Callable[[str, How], None]) -> None:
        self._on_end = on_end
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for readers
        self._due = threading.Condition(self._lock)  # for the keeper
        self._leases: dict[str, Lease] = {}
        self._over: OrderedDict[str, str] = OrderedDict()  # why, in words
        self._closing = False
        self._next_look = 0.0
        self._keeper = threading.Thread(target=self._keep, name="leases", daemon=True)
        self._keeper.start()

    def add(self, offer: Offer, layers_ready: int, lease_s: float) -> None:
        with self._changed:
            if self._closing:
                raise ValueError("nothing can be offered any more: the exporter is closed")
            if offer.transfer_id in self._leases or offer.transfer_id in self._over:
                raise ValueError(
                    f"a transfer is offered once; got {offer.transfer_id!r} again: take a new id"
                )
            ends_at = time.monotonic() + lease_s
            self._leases[offer.transfer_id] = Lease(offer, layers_ready, ends_at)
            if ends_at < self._next_look:
                self._due.notify()

    def layers_ready(self, transfer_id: str, count: int) -> None:
        with self._changed:
            lease = self._leases.get(transfer_id)
            if lease is not None and count > lease.layers_ready:
                lease.layers_ready = count
                self._changed.notify_all()

    def end(self, transfer_id: str, how: How, words: str) -> None:
        """Unknown ones are fine, and so are those that are over."""
        with self._changed:
            lease = self._leases.get(transfer_id)
            if lease is not None:
                self._end(lease, how, words)

    def enter(self, transfer_id: str, reader: Channel) -> Lease:
        """Expired where it is over, or was never there."""
        with self._changed:
            lease = self._leases.get(transfer_id)
            if lease is None:
                words = self._over.get(transfer_id, "it is not offered here")
                raise Expired(f"{transfer_id} is over: {words}")
            lease.check()
            lease.readers.append(reader)
            return lease

    def leave(self, lease: Lease, reader: Channel) -> None:
        with self._changed:
            lease.readers.remove(reader)
            if lease.how is not None:
                self._due.notify()

    def wait_for_layers(self, lease: Lease, count: int, timeout_s: float) -> int:
        """How many are ready: at least `count`, or what there is after `timeout_s`. Expired."""
        with self._changed:
            self._changed.wait_for(
                lambda: lease.layers_ready >= count or lease.how is not None, timeout_s
            )
            lease.check()
            return lease.layers_ready

    def close(self) -> None:
        """Ends all of them as withdrawn, and returns when that has been told."""
        with self._lock:
            self._closing = True
            for lease in self._leases.values():
                self._end(lease, "withdrawn", "its owner has closed")
            self._due.notify()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    def _end(self, lease: Lease, how: How, words: str) -> None:
        if lease.how is None:
            lease.how, lease.words = how, words
            lease.ends_at = time.monotonic() + (0.0 if self._closing else GRACE_S)
            self._changed.notify_all()
            self._due.notify()

    def _keep(self) -> None:
        while True:
            with self._changed:
                ended = self._ended()
                if not ended:
                    if self._closing and not self._leases:
                        return
                    self._next_look = self._next_end()
                    self._due.wait(max(self._next_look - time.monotonic(), 0.0))
                    continue
            for lease in ended:
                assert lease.how is not None
                try:
                    self._on_end(lease.offer.transfer_id, lease.how)
                except Exception:
                    LOG.exception("the end of %s could not be told", lease.offer.transfer_id)

    def _ended(self) -> list[Lease]:
        """Takes out those that are over and have no reader."""
        now = time.monotonic()
        for lease in self._leases.values():
            if lease.how is None and lease.ends_at <= now:
                self._end(lease, "expired", "its time has passed")
            elif lease.how is not None and lease.ends_at <= now:
                for reader in lease.readers:
                    reader.hang_up()
                lease.ends_at = now + GRACE_S
        ended = [lease for lease in self._leases.values() if lease.how and not lease.readers]
        for lease in ended:
            del self._leases[lease.offer.transfer_id]
            self._over[lease.offer.transfer_id] = lease.words
            while len(self._over) > MOST_REMEMBERED:
                self._over.popitem(last=False)
        return ended

    def _next_end(self) -> float:
        """When something is due, if nothing happens before."""
        ends = [lease.ends_at for lease in self._leases.values()]
        return min([*ends, time.monotonic() + IDLE_S])
