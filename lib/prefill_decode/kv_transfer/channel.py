"""Channel: a connection of two sides that know each other, for frames and for small messages.

Both begin with a nonce. With a key, each then proves that it has it by an HMAC-SHA256 over both
nonces and its part, and the digest of every later header is a keyed one over a counter, so that
nothing can be replayed, left out or put in. Without a key, and for the bytes of a cache, it is
xxh3, which finds accidents. Nothing is secret: it is who may speak that is checked, not who may
listen.

Sizes are checked before anything is allocated. A message is received in full or not yet; a frame
that is no frame ends the connection."""

import hmac
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from secrets import token_bytes
from typing import Self

import xxhash

from prefill_decode.kv_transfer.addresses import connect
from prefill_decode.kv_transfer.errors import Corrupt, DeadlinePassed, PeerLost, Refused
from prefill_decode.kv_transfer.wire import (
    DATA,
    DIGEST_BYTES,
    GREETING,
    HEADER,
    MESSAGE,
    PROOF,
    REFUSAL,
    Header,
    hang_up,
    lost,
    read_header,
    receive_pieces,
    send_pieces,
)

NONCE_BYTES = 32
MOST_BYTES = 2**26  # of a message
MOST_GREETING_BYTES = 2**10  # of a frame from one who has not proved anything
STALL_S = 10.0
Group = list[memoryview]  # pieces that go in one call, few enough bytes to stay in a cache
Place = Callable[[Header], list[Group]]


@dataclass(frozen=True)
class Frame:
    header: Header
    body: bytes | bytearray  # empty for DATA: its bytes are where they belong


class Channel:
    """`send` from any thread; receive from one at a time; `hang_up` from any."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.most_bytes = MOST_GREETING_BYTES
        self.received_bytes = 0
        self._sending = threading.Lock()
        self._ready = select.poll()
        self._ready.register(connection, select.POLLIN)
        self._keys: tuple[bytes, bytes] | None = None  # of what is sent, of what is received
        self._num_sent = self._num_received = 0
        self._head = bytearray(HEADER.size)
        self._coming: tuple[Header, bytes, bytearray] | None = None  # its digest, its body
        self._filled = 0  # bytes of the header, or of the body

    def send(self, data: bytes, timeout_s: float = STALL_S) -> None:
        """One message. DeadlinePassed once the peer takes nothing for so long, PeerLost where it
        has gone: after either the channel is of no more use."""
        self.send_frame(Header(MESSAGE), [data], timeout_s)

    def receive(self, timeout_s: float | None) -> bytes | None:
        """The next message, or None where none is complete within `timeout_s`; 0 only looks.

        PeerLost once the peer has gone, Corrupt for what is no message."""
        frame = self.receive_frame(timeout_s)
        if frame is None:
            return None
        if frame.header.kind != MESSAGE:
            self.hang_up()
            raise Corrupt(f"a message was due; got a frame of kind {frame.header.kind}")
        return bytes(frame.body)

    def fileno(self) -> int:
        """Readable when `receive` has something to look at."""
        return self.connection.fileno()

    def send_frame(
        self, header: Header, pieces: Sequence[bytes | memoryview], stall_s: float = STALL_S
    ) -> None:
        header = replace(header, length=sum(map(len, pieces)))
        with self._sending, self._whole_or_over():
            digest = self._digest(header, pieces, 0)
            self._num_sent += 1
            send_pieces(self.connection, [header.packed(), digest, *pieces], stall_s)

    def send_data(self, header: Header, groups: Sequence[Group], stall_s: float) -> None:
        """A DATA frame: its bytes are sent group by group while they are warm from the checksum,
        which follows them."""
        header = replace(header, length=sum(len(piece) for group in groups for piece in group))
        with self._sending, self._whole_or_over():
            before = [header.packed(), self._digest(header, [], 0)]
            self._num_sent += 1
            plain = xxhash.xxh3_64()
            for group in groups:
                for piece in group:
                    plain.update(piece)
                after = [plain.digest()] if group is groups[-1] else []
                send_pieces(self.connection, [*before, *group, *after], stall_s)
                before = []

    def receive_frame(self, timeout_s: float | None, place: Place | None = None) -> Frame | None:
        """`place` says where the bytes of a DATA frame belong, and raises where they do not."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._whole_or_over():
            if self._coming is None:
                if not self._fill(self._head, deadline):
                    return None
                self._coming = self._begun(place is not None)
            header, digest, body = self._coming
            if not self._fill(body, deadline):
                return None
            self._check(digest, self._digest(header, [body], 1))
            self._num_received += 1
            if header.kind == DATA and place is not None:
                self._receive_data(place(header), deadline or time.monotonic() + STALL_S)
            self.received_bytes += HEADER.size + header.length
            self._coming = None
        return Frame(header, body)

    def _receive_data(self, groups: list[Group], deadline: float) -> None:
        plain = xxhash.xxh3_64()
        digest = bytearray(DIGEST_BYTES)
        for group in groups:
            after = [memoryview(digest)] if group is groups[-1] else []
            receive_pieces(self.connection, [*group, *after], deadline)
            for piece in group:
                plain.update(piece)
        self.received_bytes += DIGEST_BYTES
        self._check(bytes(digest), plain.digest())

    @contextmanager
    def _whole_or_over(self) -> Iterator[None]:
        """A frame that was cut, or is none, is the last one."""
        try:
            yield
        except BaseException:
            self.hang_up()
            raise

    def is_quiet(self) -> bool:
        """Whether the peer is there and has said nothing that was not received."""
        try:
            self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def hang_up(self) -> None:
        """Ends all waiting on it, in any thread."""
        hang_up(self.connection)

    def close(self) -> None:
        self.hang_up()
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def use_keys(self, keys: tuple[bytes, bytes] | None) -> None:
        """From here on, and with room for messages: the peer is known."""
        self._keys = keys
        self.most_bytes = MOST_BYTES

    def _begun(self, data_due: bool) -> tuple[Header, bytes, bytearray]:
        header, digest = read_header(bytes(self._head))
        if header.kind == DATA:
            if not data_due:
                raise Corrupt("bytes of a cache came that nobody asked for")
            return header, digest, bytearray()
        if header.length > self.most_bytes:
            raise Corrupt(
                f"a frame has at most {self.most_bytes} bytes here; got a length of {header.length}"
            )
        return header, digest, bytearray(header.length)

    def _fill(self, buffer: bytearray, deadline: float | None) -> bool:
        """Whether it has been filled by then; what came stays for the next try."""
        with memoryview(buffer) as view:
            while self._filled < len(view):
                try:
                    got = self.connection.recv_into(view[self._filled :], 0, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    if not self._wait(deadline):
                        return False
                    continue
                except OSError as error:
                    lost(error)
                if not got:
                    raise PeerLost("the peer has hung up")
                self._filled += got
        self._filled = 0
        return True

    def _wait(self, deadline: float | None) -> bool:
        if deadline is None:
            return bool(self._ready.poll())
        left_s = deadline - time.monotonic()
        return left_s > 0 and bool(self._ready.poll(left_s * 1e3))

    def _check(self, digest: bytes, expected: bytes) -> None:
        if not hmac.compare_digest(digest, expected):
            raise Corrupt("a frame's checksum is not that of its bytes")

    def _digest(
        self, header: Header, pieces: Sequence[bytes | bytearray | memoryview], direction: int
    ) -> bytes:
        """8 bytes; direction 0 is sending, 1 receiving."""
        if self._keys is None:
            plain = xxhash.xxh3_64(header.packed())
            for piece in pieces:
                plain.update(piece)
            return plain.digest()
        count = (self._num_sent, self._num_received)[direction]
        keyed = hmac.new(self._keys[direction], count.to_bytes(8, "little"), sha256)
        for piece in (header.packed(), *pieces):
            keyed.update(piece)
        return keyed.digest()[:DIGEST_BYTES]


def dial(address: str, key: bytes | None = None, timeout_s: float = 5.0) -> Channel:
    """PeerLost where nobody answers, DeadlinePassed where it takes too long, Refused where the
    keys are not the same on both sides."""
    deadline = time.monotonic() + timeout_s
    channel = Channel(connect(address, timeout_s))
    try:
        greet(channel, key, deadline, dialled=True)
    except BaseException:
        channel.close()
        raise
    return channel


def greet(channel: Channel, key: bytes | None, deadline: float, dialled: bool) -> None:
    """Who dialled proves itself first, so that a stranger learns nothing."""
    own = bytes([key is not None]) + token_bytes(NONCE_BYTES)
    channel.send_frame(Header(GREETING), [own], max(deadline - time.monotonic(), 0.1))
    other = _due(channel, GREETING, deadline)
    if len(other) != len(own):
        raise Corrupt("a greeting has a flag and a nonce")
    if own[0] != other[0]:
        sides = ("no key here and one", "a key here and none")
        raise Refused(f"there is {sides[own[0]]} there: give both sides the same")
    if key is None:
        channel.use_keys(None)
        return
    nonces = own + other if dialled else other + own
    parts = [hmac.digest(key, part + nonces, "sha256") for part in (b"dialled", b"listening")]
    mine, theirs = parts if dialled else parts[::-1]
    if dialled:
        channel.send_frame(Header(PROOF), [mine])
    if not hmac.compare_digest(_due(channel, PROOF, deadline), theirs):
        words = "the keys of the two sides are not the same"
        channel.send_frame(Header(REFUSAL), [words.encode()])
        raise Refused(words)
    if not dialled:
        channel.send_frame(Header(PROOF), [mine])
    keys = [hmac.digest(key, b"frames" + part, "sha256") for part in (mine, theirs)]
    channel.use_keys((keys[0], keys[1]))


def _due(channel: Channel, kind: int, deadline: float) -> bytes:
    frame = channel.receive_frame(max(deadline - time.monotonic(), 0.0))
    if frame is None:
        raise DeadlinePassed("the peer did not greet in time")
    if frame.header.kind == REFUSAL:
        raise Refused(bytes(frame.body).decode("utf-8", "replace"))
    if frame.header.kind != kind:
        raise Corrupt(f"a frame of kind {kind} was due; got one of kind {frame.header.kind}")
    return bytes(frame.body)
