"""Exporter: the owner's side. It offers blocks of its pool and lets readers have them.

A thread for each connection sends what is asked for, layer after layer as they become ready, from
the blocks themselves. It is asked by index: every index must be one of those offered, in the
generation in which it was, before anything is sent and again after all has been. A reader that
takes nothing for a while loses its connection, not the lease: until the lease ends it may come
again. Nothing here ever waits for one reader on behalf of another."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from secrets import token_bytes
from typing import Any

import numpy as np

from prefill_decode.kv_transfer import cma
from prefill_decode.kv_transfer.addresses import is_local
from prefill_decode.kv_transfer.channel import STALL_S, Channel, Frame
from prefill_decode.kv_transfer.errors import Corrupt, Expired, PeerLost, Refused, TransferError
from prefill_decode.kv_transfer.leases import How, Lease, Leases
from prefill_decode.kv_transfer.listener import GREETING_S, Listener
from prefill_decode.kv_transfer.nixl import POLL_S, Fabric, Lent, fabric_of
from prefill_decode.kv_transfer.offer import Offer
from prefill_decode.kv_transfer.pacing import Pace
from prefill_decode.kv_transfer.pool import Pool, Walk
from prefill_decode.kv_transfer.requests import (
    MOST_HELLO_BYTES,
    Request,
    failure,
    hello,
    read_hello,
    read_name,
    read_request,
)
from prefill_decode.kv_transfer.wire import (
    DATA,
    DONE,
    FAILED,
    HELLO,
    LOOK,
    READ,
    READY,
    RELEASE,
    Header,
)

FRAME_BYTES = 2**22  # an end of the lease waits for it
MOST_READERS = 256  # connections
LOOK_S = 0.05  # between two looks whether a lease or a waiting reader has gone


class Exporter:
    """`address`: "unix:PATH" or "tcp:HOST:PORT", port 0 is any. `on_end(transfer_id, how)` is
    called once for each offer, from a thread of the exporter: nothing reads its blocks after.
    `nixl`: readers that ask for it may read through NIXL, which starts with the first of them.

    ValueError for a place beyond loopback without a key; OSError where it is taken."""

    def __init__(
        self,
        pool: Pool,
        address: str,
        incarnation: str,
        *,
        key: bytes | None = None,
        lease_s: float = 30.0,
        stall_s: float = STALL_S,
        pace_bytes_per_s: float | None = None,
        nixl: bool = False,
        on_end: Callable[[str, How], None],
    ) -> None:
        self.pool, self.incarnation, self.lease_s, self.stall_s = (
            pool,
            incarnation,
            lease_s,
            stall_s,
        )
        self._pace = None if pace_bytes_per_s is None else Pace(pace_bytes_per_s)
        self._proof = np.frombuffer(token_bytes(cma.PROOF_BYTES), np.uint8)
        self._lent = Lent(pool, self._proof) if nixl else None
        self._fabrics: dict[Channel, Fabric] = {}  # of those whose reader needs the agent moved on
        self._listener = Listener(address, key)
        self.address = self._listener.address
        self._leases = Leases(on_end)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._readers: dict[threading.Thread, Channel] = {}
        self._accepting = threading.Thread(target=self._accept_all, name="exporter", daemon=True)
        self._accepting.start()

    def offer(
        self,
        transfer_id: str,
        blocks: Sequence[int],
        *,
        layers_ready: int = 0,
        lease_s: float | None = None,
    ) -> Offer:
        """ValueError for an id that was offered before and for blocks that are not the pool's."""
        self.pool.check(blocks)
        generations = self.pool.generations_of(blocks)
        offer = Offer(transfer_id, self.address, self.incarnation, tuple(blocks), generations)
        self._leases.add(offer, layers_ready, self.lease_s if lease_s is None else lease_s)
        return offer

    def layers_ready(self, transfer_id: str, count: int) -> None:
        """The first so many layers may be read. Unknown ids are fine."""
        self._leases.layers_ready(transfer_id, count)

    def withdraw(self, transfer_id: str) -> None:
        """Its readers get Expired. Unknown ids are fine."""
        self._leases.end(transfer_id, "withdrawn", "it was withdrawn")

    def fail(self, transfer_id: str, reason: str) -> None:
        """As `withdraw`, with words for its readers."""
        self._leases.end(transfer_id, "withdrawn", reason)

    def close(self) -> None:
        """Withdraws all offers and hangs up. A second time does nothing."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._listener.close()
        self._accepting.join()
        self._leases.close()
        with self._lock:
            readers = list(self._readers.items())
        for thread, channel in readers:
            channel.hang_up()
            thread.join()
        if self._lent is not None:
            self._lent.close()

    def _accept_all(self) -> None:
        while not self._closed.is_set():
            channel = self._listener.accept(None)
            if channel is None:
                return
            thread = threading.Thread(target=self._serve, args=(channel,), name="export")
            thread.daemon = True
            with self._lock:
                if len(self._readers) >= MOST_READERS:
                    channel.close()
                    continue
                self._readers[thread] = channel
            thread.start()

    def _serve(self, channel: Channel) -> None:
        try:
            with suppress(TransferError, OSError):  # a hang-up tells the reader
                self._answer_hello(channel)
                while True:
                    self._answer(channel, self._heard(channel, None))
        finally:
            self._fabrics.pop(channel, None)
            channel.close()
            with self._lock:
                del self._readers[threading.current_thread()]

    def _heard(self, channel: Channel, lease: Lease | None) -> Frame:
        """What the reader says next. Expired where the lease ends meanwhile."""
        look_s = None if lease is None else LOOK_S
        while (frame := channel.receive_frame(self._moved_on(channel) or look_s)) is None:
            if lease is not None:
                lease.check()
        return frame

    def _moved_on(self, channel: Channel) -> float | None:
        """When to do so again, for a reader that needs it."""
        if self._lent is None or (fabric := self._fabrics.get(channel)) is None:
            return None
        self._lent.move_on(fabric)
        return POLL_S

    def _answer_hello(self, channel: Channel) -> None:
        channel.most_bytes = MOST_HELLO_BYTES
        frame = channel.receive_frame(GREETING_S)
        if frame is None or frame.header.kind != HELLO:
            raise Corrupt("a reader begins with a hello")
        memory = None
        if self._pace is None and is_local(channel.connection):
            memory = cma.describe(self.pool, self._proof)
        words = hello(self.pool.layout, incarnation=self.incarnation, memory=memory)
        channel.send_frame(Header(HELLO), [words], self.stall_s)
        if read_hello(frame.body, self.pool.layout).get("nixl"):
            words = hello(self.pool.layout, nixl=self._lend(channel))
            channel.send_frame(Header(HELLO), [words], self.stall_s)
        channel.most_bytes = 2**10 + self.pool.num_blocks * 12

    def _lend(self, channel: Channel) -> dict[str, Any]:
        """For a reader that would read through NIXL."""
        try:
            if self._lent is None or self._pace is not None:
                raise Refused("it does not lend its memory through NIXL")
            fabric = fabric_of(channel.connection)
            said = self._lent.describe(fabric)
        except Refused as error:
            return {"refused": str(error)}
        if fabric.needs_owner:
            self._fabrics[channel] = fabric
        return said

    def _answer(self, channel: Channel, frame: Frame) -> None:
        kind, number = frame.header.kind, frame.header.number
        if kind == RELEASE:
            self._leases.end(read_name(frame.body), "released", "it has been read")
        elif kind in (READ, LOOK):
            request = read_request(frame.body, self.pool.num_blocks)
            try:
                self._grant(channel, number, request, self._stream if kind == READ else self._watch)
            except (Refused, Expired) as error:
                channel.send_frame(Header(FAILED, number), [failure(error)], self.stall_s)
        else:
            raise Corrupt(f"a reader sends no frame of kind {kind}")

    def _grant(
        self,
        channel: Channel,
        number: int,
        request: Request,
        serve: Callable[[Channel, int, Request, Lease], None],
    ) -> None:
        lease = self._leases.enter(request.transfer_id, channel)
        try:
            offered = dict(zip(lease.offer.blocks, lease.offer.generations, strict=True))
            for block, generation in zip(request.blocks, request.generations, strict=True):
                if block not in offered:
                    raise Refused(f"block {block} is not one of {request.transfer_id}")
                if generation != offered[block]:
                    raise Expired(f"block {block} was not offered in generation {generation}")
            if len(set(request.blocks)) < len(request.blocks):
                raise Refused(f"{request.transfer_id} has each block once")
            self._check_generations(request)
            serve(channel, number, request, lease)
        finally:
            self._leases.leave(lease, channel)

    def _check_generations(self, request: Request) -> None:
        if self.pool.generations_of(request.blocks) != request.generations:
            raise Expired(f"blocks of {request.transfer_id} have another holder by now")

    def _stream(self, channel: Channel, number: int, request: Request, lease: Lease) -> None:
        """All bytes of all layers, and DONE."""
        most_bytes = FRAME_BYTES
        if self._pace is not None:
            most_bytes = min(FRAME_BYTES, self._pace.piece_bytes)
            self._pace.begin()
        walk = Walk(request.blocks, self.pool.layout.block_bytes)
        for region in range(len(self.pool.regions)):
            self._wait_for_layers(channel, lease, region // 2 + 1)
            walk.restart()
            while walk.offset < walk.total:
                lease.check()
                header = Header(DATA, number, region, walk.offset)
                groups = [self.pool.views(region, spans) for spans in walk.take_groups(most_bytes)]
                if self._pace is not None:
                    self._pace.wait_for(walk.offset - header.offset)
                channel.send_data(header, groups, self.stall_s)
            self._check_generations(request)
        channel.send_frame(Header(DONE, number), [], self.stall_s)

    def _watch(self, channel: Channel, number: int, request: Request, lease: Lease) -> None:
        """Says which layers are ready, and DONE when the reader has copied them: only if all was
        still as offered then, which the reader's own look cannot tell."""
        told = 0
        while told < self.pool.layout.num_layers:
            told = self._wait_for_layers(channel, lease, told + 1)
            channel.send_frame(Header(READY, number, offset=told), [], self.stall_s)
        frame = self._heard(channel, lease)
        if frame.header.kind != RELEASE or frame.header.number != number:
            raise Corrupt("a reader that looks ends with a release")
        lease.check()
        self._check_generations(request)
        self._leases.end(request.transfer_id, "released", "it has been read")
        channel.send_frame(Header(DONE, number), [], self.stall_s)

    def _wait_for_layers(self, channel: Channel, lease: Lease, count: int) -> int:
        look_s = self._moved_on(channel) or LOOK_S
        while (ready := self._leases.wait_for_layers(lease, count, look_s)) < count:
            self._moved_on(channel)
            if not channel.is_quiet():
                raise PeerLost("the reader has gone, or speaks out of turn")
        return ready
