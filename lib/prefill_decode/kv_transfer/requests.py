"""Requests: what a reader says to an owner of blocks and is answered, in bytes and back.

Each side begins with a HELLO, a JSON object with its layout; the owner's also has its incarnation
and, where a reader may try to copy from it, where its memory is. READ asks for blocks to be sent,
LOOK for leave to copy them: both name a transfer, its blocks and their generations. Anything else
is Corrupt."""

import json
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from prefill_decode.kv_transfer.errors import Corrupt, Expired, Refused, TransferError
from prefill_decode.kv_transfer.layout import Layout
from prefill_decode.kv_transfer.offer import MOST_ID

COUNTS = struct.Struct("<II")  # bytes of the id, blocks
BLOCK = np.dtype([("block", "<u4"), ("generation", "<i8")])
MOST_HELLO_BYTES = 2**16
FAILURES: tuple[type[TransferError], ...] = (Refused, Expired)


@dataclass(frozen=True)
class Request:
    transfer_id: str
    blocks: tuple[int, ...]
    generations: tuple[int, ...]

    def packed(self) -> bytes:
        name = self.transfer_id.encode()
        table = np.empty(len(self.blocks), BLOCK)
        table["block"], table["generation"] = self.blocks, self.generations
        return COUNTS.pack(len(name), len(table)) + name + table.tobytes()


def read_request(body: bytes | bytearray, most_blocks: int) -> Request:
    """Corrupt where the lengths do not fit together, or there are more blocks than a pool has."""
    if len(body) < COUNTS.size:
        raise Corrupt(f"a request has at least {COUNTS.size} bytes; got {len(body)}")
    name_bytes, num_blocks = COUNTS.unpack_from(body)
    if not 0 < num_blocks <= most_blocks:
        raise Corrupt(f"a request is for 1 to {most_blocks} blocks; got {num_blocks}")
    due = COUNTS.size + name_bytes + num_blocks * BLOCK.itemsize
    if len(body) != due:
        raise Corrupt(f"a request of {num_blocks} blocks has {due} bytes; got {len(body)}")
    name = read_name(body[COUNTS.size : COUNTS.size + name_bytes])
    table = np.frombuffer(body, BLOCK, num_blocks, COUNTS.size + name_bytes)
    return Request(name, tuple(table["block"].tolist()), tuple(table["generation"].tolist()))


def read_name(body: bytes | bytearray) -> str:
    """A transfer's id."""
    try:
        name = bytes(body).decode()
    except UnicodeDecodeError:
        raise Corrupt("a transfer's id is text; got other bytes") from None
    if not 0 < len(name) <= MOST_ID:
        raise Corrupt(f"a transfer's id has 1 to {MOST_ID} characters; got {len(name)}")
    return name


def hello(layout: Layout, **words: Any) -> bytes:
    return json.dumps({"layout": layout.to_json(), **words}).encode()


def read_hello(body: bytes | bytearray, layout: Layout) -> dict[str, Any]:
    """Refused, with all differences, for another layout than this."""
    try:
        said = json.loads(body)
        theirs = Layout.from_json(said["layout"])
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise Corrupt(f"this is no hello: {error}") from None
    if differences := layout.differences(theirs):
        raise Refused("the two caches are not alike: " + "; ".join(differences))
    return dict(said)


def failure(error: TransferError) -> bytes:
    """For the reader: one of `FAILURES`, with its words."""
    return bytes([FAILURES.index(type(error))]) + str(error).encode()


def read_failure(body: bytes | bytearray) -> TransferError:
    if not body or body[0] >= len(FAILURES):
        return Corrupt("a failure of a kind that there is not")
    return FAILURES[body[0]](bytes(body[1:]).decode("utf-8", "replace"))
