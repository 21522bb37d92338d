"""Wire: the frames that two sides exchange, and how their bytes go through a socket.

A frame is a header of 32 bytes, little-endian, and then as many bytes as its length says; a DATA
frame has 8 more:

    magic 4 | version 1 | kind 1 | region 2 | number 4 | length 4 | offset 8 | digest 8

`number` is that of the request it belongs to. Region and offset place the bytes of a DATA frame:
they continue region `region` of the cache at byte `offset` of what was asked for. The digest covers
the header before it and all bytes after it; that of DATA the header alone, so that it is known to
be right before a byte is written anywhere, and a second one of the bytes follows them.

Sockets block, and the kernel ends every wait: `send_pieces` when the peer has taken nothing for a
while, `receive_pieces` at a moment on the clock. Nothing is ever unpickled."""

import math
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from prefill_decode.kv_transfer.errors import Corrupt, DeadlinePassed, PeerLost, Refused
from prefill_decode.kv_transfer.layout import VERSION

MAGIC = b"PDKV"
HEADER = struct.Struct("<4sBBHIIQ8s")
DIGEST_BYTES = 8
UNSIGNED = HEADER.size - DIGEST_BYTES
MOST_PIECES = 1024  # IOV_MAX: of one sendmsg, recvmsg or process_vm_readv
LONGEST_WAIT_S = 10.0**8
GREETING, PROOF, REFUSAL, MESSAGE, HELLO, READ, LOOK, READY, DATA, DONE, FAILED, RELEASE = range(12)
KINDS = frozenset(range(12))


@dataclass(frozen=True)
class Header:
    kind: int
    number: int = 0
    region: int = 0
    offset: int = 0
    length: int = 0

    def packed(self) -> bytes:
        """All but the digest."""
        words = (self.kind, self.region, self.number, self.length, self.offset)
        return HEADER.pack(MAGIC, VERSION, *words, b"")[:UNSIGNED]


def read_header(data: bytes) -> tuple[Header, bytes]:
    """And the digest that was sent. Refused for another version, Corrupt for what is no header."""
    magic, version, kind, region, number, length, offset, digest = HEADER.unpack(data)
    if magic != MAGIC:
        raise Corrupt(f"a frame begins with {MAGIC!r}; got {magic!r}")
    if version != VERSION:
        raise Refused(f"version is {VERSION} here and {version} there")
    if kind not in KINDS:
        raise Corrupt(f"there is no frame of kind {kind}")
    return Header(kind, number, region, offset, length), digest


def send_pieces(
    connection: socket.socket, pieces: Sequence[bytes | memoryview], stall_s: float
) -> None:
    """All of them, one after the other. DeadlinePassed once the peer takes nothing for `stall_s`,
    PeerLost where it has gone; either way a part of them may have been sent."""
    _set_wait(connection, socket.SO_SNDTIMEO, stall_s)
    left = [memoryview(piece) for piece in pieces if len(piece)]
    while left:
        try:
            sent = connection.sendmsg(left[:MOST_PIECES])
        except BlockingIOError:
            raise DeadlinePassed(f"the peer has taken nothing for {stall_s:g} s") from None
        except OSError as error:
            lost(error)
        left = _after(left, sent)


def receive_pieces(
    connection: socket.socket, pieces: Sequence[memoryview], deadline: float
) -> None:
    """Fills all of them. DeadlinePassed at `deadline`, a time of `time.monotonic`; PeerLost where
    the peer goes before."""
    left = [piece for piece in pieces if len(piece)]
    while left:
        wait_s = deadline - time.monotonic()
        if wait_s <= 0:
            raise DeadlinePassed("the deadline passed in the middle of a frame")
        _set_wait(connection, socket.SO_RCVTIMEO, wait_s)
        try:
            got = connection.recvmsg_into(left[:MOST_PIECES], 0, socket.MSG_WAITALL)[0]
        except BlockingIOError:
            continue
        except OSError as error:
            lost(error)
        if not got:
            raise PeerLost("the peer hung up in the middle of a frame")
        left = _after(left, got)


def lost(error: OSError) -> NoReturn:
    raise PeerLost(f"the peer is lost: {error.strerror or error}") from error


def hang_up(connection: socket.socket) -> None:
    """Ends all waiting on it, in any thread; it stays to be closed by the one that owns it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _after(pieces: list[memoryview], done: int) -> list[memoryview]:
    """What is left of them after so many bytes."""
    for index, piece in enumerate(pieces):
        if done < len(piece):
            return [piece[done:], *pieces[index + 1 :]]
        done -= len(piece)
    return []


def _set_wait(connection: socket.socket, option: int, wait_s: float) -> None:
    """A wait of zero would be one without end."""
    fraction, seconds = math.modf(min(max(wait_s, 1e-4), LONGEST_WAIT_S))
    try:
        connection.setsockopt(
            socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(fraction * 1e6))
        )
    except OSError as error:
        lost(error)
