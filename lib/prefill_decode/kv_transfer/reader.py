"""Reader: the side that takes blocks which another process offers, into blocks of its own.

It alone writes them, and only while `read` runs: what comes late has nowhere to go. The owner
streams the bytes through the channel, each frame with its checksum, or the reader copies them from
the owner's memory itself (`cma`, `nixl`). A failed connection is made again for the next read."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np

from prefill_decode.kv_transfer.addresses import is_local, read_address
from prefill_decode.kv_transfer.channel import Channel, Frame, Group, Place, dial
from prefill_decode.kv_transfer.cma import Memory, Vectors, vectors
from prefill_decode.kv_transfer.errors import (
    Corrupt,
    DeadlinePassed,
    Expired,
    Refused,
    TransferError,
)
from prefill_decode.kv_transfer.nixl import NixlMemory, fabric_of
from prefill_decode.kv_transfer.offer import Offer
from prefill_decode.kv_transfer.pool import Pool, Walk, runs
from prefill_decode.kv_transfer.requests import Request, hello, read_failure, read_hello
from prefill_decode.kv_transfer.wire import (
    DATA,
    DONE,
    FAILED,
    HELLO,
    LOOK,
    MOST_PIECES,
    READ,
    READY,
    RELEASE,
    Header,
)

Lane = Literal["auto", "stream", "cma", "nixl"]  # auto: cma, else stream
COPY_BYTES = 2**24  # of one copy: an abort waits for it
MOST_ABORTED = 1024  # ids that are remembered


@dataclass(frozen=True)
class Moved:
    """`moved_bytes` of cache; `wire_bytes` with all that was said about it by the owner."""

    moved_bytes: int
    wire_bytes: int
    seconds: float
    first_byte_s: float  # until the first layer began to come
    lane: str  # "unix", "tcp", "cma", "nixl/shm" or "nixl/rdma"


@dataclass
class _Peer:
    channel: Channel
    incarnation: str
    memory: Memory | NixlMemory | None


class Reader:
    """One peer; one read at a time, from any thread."""

    def __init__(
        self,
        address: str,
        pool: Pool,
        *,
        key: bytes | None = None,
        lane: Lane = "auto",
        connect_s: float = 5.0,
    ) -> None:
        self._kind = read_address(address)[0]
        self.address, self.pool, self.lane, self.connect_s = address, pool, lane, connect_s
        self._key = key
        self._reading = threading.Lock()
        self._lock = threading.Lock()  # of what follows
        self._peer: _Peer | None = None
        self._current: str | None = None
        self._aborted: dict[str, None] = {}  # in the order in which they came
        self._closed = False
        self._number = 0
        self._under_way = False  # asked, and not answered to the end

    def read(self, offer: Offer, targets: Sequence[int], deadline_s: float) -> Moved:
        """Fills these blocks with those of the offer, in its order, and ends the lease.

        Any TransferError: they hold nothing of use, and are written no more. Refused: the two sides
        do not agree, or the lane cannot be had. ValueError for targets that are not the pool's."""
        self.pool.check(targets)
        if len(targets) != len(offer.blocks):
            raise ValueError(
                f"each block has its target; got {len(targets)} targets for "
                f"{len(offer.blocks)} blocks"
            )
        began = time.monotonic()
        deadline = began + deadline_s
        if not self._reading.acquire(timeout=min(max(deadline_s, 0.0), threading.TIMEOUT_MAX)):
            raise DeadlinePassed(f"another read took longer than the {deadline_s:g} s of this one")
        try:
            self._begin(offer.transfer_id)
            try:
                return self._read(offer, targets, began, deadline)
            except TransferError as error:
                if self._is_aborted(offer.transfer_id):
                    raise TransferError(f"{offer.transfer_id} was aborted") from error
                raise
        finally:
            if self._under_way:
                self._drop()
            with self._lock:
                self._current = None
            self._reading.release()

    def abort(self, transfer_id: str | None = None) -> None:
        """From any thread: the read of this transfer ends soon with TransferError, now or when it
        begins; without an id, the one in progress."""
        with self._lock:
            aborted = self._current if transfer_id is None else transfer_id
            if aborted is None:
                return
            self._aborted[aborted] = None
            if len(self._aborted) > MOST_ABORTED:
                del self._aborted[next(iter(self._aborted))]
            if aborted == self._current and self._peer is not None:
                self._peer.channel.hang_up()

    def close(self) -> None:
        """Aborts the read in progress, and waits for its end. A second time does nothing."""
        with self._lock:
            self._closed = True
        self.abort()
        with self._reading:
            self._drop()

    def _begin(self, transfer_id: str) -> None:
        with self._lock:
            if self._closed:
                raise TransferError("the reader is closed")
            if transfer_id in self._aborted:
                raise TransferError(f"{transfer_id} was aborted")
            self._current = transfer_id

    def _is_aborted(self, transfer_id: str) -> bool:
        with self._lock:
            return self._closed or transfer_id in self._aborted

    def _read(self, offer: Offer, targets: Sequence[int], began: float, deadline: float) -> Moved:
        peer = self._reached(offer, deadline)
        received_bytes = peer.channel.received_bytes
        move = self._stream if peer.memory is None else self._copy
        first_at = move(peer, offer, targets, deadline)
        moved_bytes = len(targets) * self.pool.region_bytes
        wire_bytes = peer.channel.received_bytes - received_bytes
        return Moved(
            moved_bytes,
            wire_bytes + (moved_bytes if peer.memory is not None else 0),
            time.monotonic() - began,
            first_at - began,
            self._kind if peer.memory is None else peer.memory.lane,
        )

    def _stream(self, peer: _Peer, offer: Offer, targets: Sequence[int], deadline: float) -> float:
        """When the first bytes came."""
        number = self._ask(peer.channel, READ, offer, deadline)
        walk = Walk(targets, self.pool.layout.block_bytes)
        first_at = 0.0
        for region in range(len(self.pool.regions)):
            walk.restart()
            while walk.offset < walk.total:
                self._check_due(offer, deadline)
                place = partial(self._place, walk, Header(DATA, number, region, walk.offset))
                self._answer(peer.channel, number, DATA, deadline, place)
                first_at = first_at or time.monotonic()
        self._answer(peer.channel, number, DONE, deadline)
        self._under_way = False
        self._release(peer.channel, number, offer, deadline)
        return first_at

    def _place(self, walk: Walk, due: Header, header: Header) -> list[Group]:
        """Where the bytes of a frame belong. Corrupt for one that is not due."""
        if header != replace(due, length=header.length):
            raise Corrupt(f"{due} was due; got {header}")
        if not 0 < header.length <= walk.total - walk.offset:
            raise Corrupt(
                f"{walk.total - walk.offset} bytes of region {due.region} were left; "
                f"got {header.length}"
            )
        return [self.pool.views(due.region, spans) for spans in walk.take_groups(header.length)]

    def _copy(self, peer: _Peer, offer: Offer, targets: Sequence[int], deadline: float) -> float:
        """When the first layer was there to be copied."""
        assert peer.memory is not None
        if isinstance(peer.memory, NixlMemory):
            peer.memory.check = partial(self._check_due, offer, deadline)
        number = self._ask(peer.channel, LOOK, offer, deadline)
        pieces = self._pieces(offer, targets)  # while the owner looks
        self._check_generations(peer.memory, offer)
        done = 0
        first_at = 0.0
        while done < self.pool.layout.num_layers:
            ready = self._answer(peer.channel, number, READY, deadline).header.offset
            first_at = first_at or time.monotonic()
            if not done < ready <= self.pool.layout.num_layers:
                raise Corrupt(f"more than {done} layers were to be ready; got {ready}")
            for region in range(2 * done, 2 * ready):
                self._copy_region(peer.memory, region, pieces, offer, deadline)
            done = ready
        self._check_generations(peer.memory, offer)
        self._release(peer.channel, number, offer, deadline)
        self._answer(peer.channel, number, DONE, deadline)
        self._under_way = False
        return first_at

    def _pieces(self, offer: Offer, targets: Sequence[int]) -> list[tuple[Vectors, Vectors]]:
        """What to copy of a region, there and here, in pieces, counted from where a region begins:
        alike for all of them."""
        block_bytes = self.pool.layout.block_bytes
        blocks_each = max(1, min(MOST_PIECES, COPY_BYTES // block_bytes))
        found = []
        for first in range(0, len(targets), blocks_each):
            last = first + blocks_each
            there = vectors(0, runs(offer.blocks[first:last], block_bytes))
            here = vectors(0, runs(targets[first:last], block_bytes))
            found.append((there, here))
        return found

    def _copy_region(
        self,
        memory: Memory | NixlMemory,
        region: int,
        pieces: Sequence[tuple[Vectors, Vectors]],
        offer: Offer,
        deadline: float,
    ) -> None:
        there_at = np.array([memory.regions_at[region], 0], np.uint64)
        here_at = np.array([self.pool.regions[region].ctypes.data, 0], np.uint64)
        for there, here in pieces:
            self._check_due(offer, deadline)
            memory.copy(there + there_at, here + here_at)

    def _check_generations(self, memory: Memory | NixlMemory, offer: Offer) -> None:
        if memory.generations(offer.blocks) != offer.generations:
            raise Expired(f"blocks of {offer.transfer_id} have another holder by now")

    def _check_due(self, offer: Offer, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise DeadlinePassed(f"the deadline of {offer.transfer_id} has passed")
        if self._is_aborted(offer.transfer_id):
            raise TransferError(f"{offer.transfer_id} was aborted")

    def _ask(self, channel: Channel, kind: int, offer: Offer, deadline: float) -> int:
        self._number += 1
        self._under_way = True
        request = Request(offer.transfer_id, offer.blocks, offer.generations)
        channel.send_frame(Header(kind, self._number), [request.packed()], _left_s(deadline))
        return self._number

    def _answer(
        self,
        channel: Channel,
        number: int,
        kind: int,
        deadline: float,
        place: Place | None = None,
    ) -> Frame:
        """The next frame, of this kind."""
        frame = channel.receive_frame(_left_s(deadline), place)
        if frame is None:
            raise DeadlinePassed("the deadline passed while the owner said nothing")
        if frame.header.number != number:
            raise Corrupt(f"an answer to {number} was due; got one to {frame.header.number}")
        if frame.header.kind == FAILED:
            self._under_way = False
            raise read_failure(frame.body)
        if frame.header.kind != kind:
            raise Corrupt(f"a frame of kind {kind} was due; got one of {frame.header.kind}")
        return frame

    def _release(self, channel: Channel, number: int, offer: Offer, deadline: float) -> None:
        words = offer.transfer_id.encode()
        channel.send_frame(Header(RELEASE, number), [words], _left_s(deadline))

    def _reached(self, offer: Offer, deadline: float) -> _Peer:
        """The peer, if it is the one that made the offer."""
        peer = self._peer
        kept = peer is not None and peer.channel.is_quiet()
        if peer is None or not kept or peer.incarnation != offer.incarnation:
            self._drop()
            peer = self._met(min(deadline, time.monotonic() + self.connect_s))
            with self._lock:
                self._peer = peer
        self._check_due(offer, deadline)
        if peer.incarnation != offer.incarnation:
            raise Expired(
                f"{offer.transfer_id} was offered by {offer.incarnation!r:.80}; at {self.address} "
                f"is {peer.incarnation!r:.80} by now"
            )
        return peer

    def _met(self, deadline: float) -> _Peer:
        channel = dial(self.address, self._key, _left_s(deadline))
        try:
            words = hello(self.pool.layout, nixl=self.lane == "nixl")
            channel.send_frame(Header(HELLO), [words], _left_s(deadline))
            said = self._hello(channel, deadline)
            memory = self._memory(channel, said, deadline)
            return _Peer(channel, str(said.get("incarnation")), memory)
        except BaseException:
            channel.close()
            raise

    def _hello(self, channel: Channel, deadline: float) -> dict[str, object]:
        frame = channel.receive_frame(_left_s(deadline))
        if frame is None:
            raise DeadlinePassed(f"no hello came from {self.address} in time")
        if frame.header.kind != HELLO:
            raise Corrupt(f"a hello was due; got a frame of kind {frame.header.kind}")
        return read_hello(frame.body, self.pool.layout)

    def _memory(
        self, channel: Channel, said: dict[str, object], deadline: float
    ) -> Memory | NixlMemory | None:
        """None for the stream. Refused where another lane must be and cannot."""
        if self.lane == "stream":
            return None
        if self.lane == "nixl":
            if self._key is None and self._kind != "unix":
                raise Refused(
                    "what NIXL says is believed over a Unix socket, or from an owner that has "
                    "proved the key: give both sides one"
                )
            said = self._hello(channel, deadline)
            fabric = fabric_of(channel.connection)
            return NixlMemory(said.get("nixl"), self.pool, fabric, _left_s(deadline))
        try:
            if not is_local(channel.connection):
                raise Refused("the owner is on another host")
            return Memory(said.get("memory"), len(self.pool.regions))
        except Refused:
            if self.lane == "cma":
                raise
            return None

    def _drop(self) -> None:
        with self._lock:
            peer, self._peer = self._peer, None
        self._under_way = False
        if peer is not None:
            peer.channel.close()
            if isinstance(peer.memory, NixlMemory):
                peer.memory.close()


def _left_s(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)
