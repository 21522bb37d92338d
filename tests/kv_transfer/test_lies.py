"""Peers that lie: whatever comes, a side writes and sends nothing that it should not, says what
was wrong, and goes on with the others."""

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
import xxhash

from prefill_decode.kv_transfer import (
    Channel,
    Corrupt,
    DeadlinePassed,
    Expired,
    Layout,
    Listener,
    Offer,
    PeerLost,
    Pool,
    Reader,
    Refused,
    TransferError,
    dial,
)
from prefill_decode.kv_transfer.requests import Request, hello, read_request
from prefill_decode.kv_transfer.wire import (
    DATA,
    DONE,
    FAILED,
    HEADER,
    HELLO,
    LOOK,
    MESSAGE,
    READ,
    READY,
    RELEASE,
    Header,
)
from tests.kv_transfer.pools import (
    KEY,
    LAYERS,
    Reading,
    Sides,
    copied,
    holds,
    layout,
    make_pool,
    sides,
    unchanged,
    until,
)

BLOCKS, TARGETS = [3, 4, 9], [5, 1, 2]
REGION_BYTES = len(BLOCKS) * 256


def packed(
    header: Header, body: bytes = b"", flip: int | None = None, cut: int = 0, **said: int
) -> bytes:
    """A frame; with one of its bytes another than its checksum says, or without its last ones, or
    with a header that says something else (its checksum being right)."""
    plain = Channel.__new__(Channel)
    plain._keys = None
    header = replace(header, **{"length": len(body), **said})
    if header.kind == DATA:
        end = xxhash.xxh3_64_digest(body)
        frame = bytearray(header.packed() + plain._digest(header, [], 0) + body + end)
    else:
        frame = bytearray(header.packed() + plain._digest(header, [body], 0) + body)
    if flip is not None:
        frame[flip] ^= 1
    return bytes(frame[: len(frame) - cut])


# --- owners that lie ---------------------------------------------------------------------------


@contextmanager
def lying(
    answer: Callable[[Channel, int], None], said: bytes | None = None
) -> Iterator[tuple[Reader, Pool]]:
    """A reader, and an owner that answers its requests like that; `said` is its hello."""
    listener = Listener("tcp:127.0.0.1:0")

    def serve() -> None:
        while (channel := listener.accept(None)) is not None:
            with channel:
                try:
                    channel.receive_frame(5.0)
                    channel.send_frame(
                        Header(HELLO), [said or hello(layout(), incarnation="first")]
                    )
                    frame = channel.receive_frame(5.0)
                    if frame is not None:
                        answer(channel, frame.header.number)
                    channel.receive_frame(5.0)
                except (TransferError, OSError):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    pool = make_pool(seed=2)
    reader = Reader(listener.address, pool)
    try:
        yield reader, pool
    finally:
        reader.close()
        listener.close()
        thread.join()


def offer(**changes: object) -> Offer:
    told: dict = {
        "transfer_id": "x",
        "address": "tcp:127.0.0.1:1",
        "incarnation": "first",
        "blocks": tuple(BLOCKS),
        "generations": (0, 0, 0),
    }
    return Offer(**(told | changes))


BODY = bytes(REGION_BYTES)
AS_DUE = Header(DATA)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"flip": HEADER.size + 5}, Corrupt),  # a byte of the cache
        ({"flip": -1}, Corrupt),  # the last of its checksum
        ({"flip": 30}, Corrupt),  # the header's checksum
        ({"flip": 9}, Corrupt),  # the header
        ({"cut": 1}, PeerLost),
        ({"cut": REGION_BYTES}, PeerLost),
        ({"cut": REGION_BYTES + 20}, PeerLost),
        ({"length": REGION_BYTES + 1}, Corrupt),
        ({"length": 2**32 - 1}, Corrupt),
        ({"length": 0, "body": b""}, Corrupt),
        ({"body": BODY + b"x"}, Corrupt),
        ({"offset": 1}, Corrupt),
        ({"offset": 2**63}, Corrupt),
        ({"region": 1}, Corrupt),
        ({"region": 2 * LAYERS}, Corrupt),
        ({"number": 77}, Corrupt),
        ({"kind": DONE}, Corrupt),
        ({"kind": READY}, Corrupt),
        ({"kind": MESSAGE}, Corrupt),
        ({"kind": FAILED, "body": b""}, Corrupt),
        ({"kind": FAILED, "body": b"\xff no such kind"}, Corrupt),
        ({"kind": FAILED, "body": b"\x01 gone"}, Expired),
    ],
)
def test_a_frame_that_lies_is_noticed_and_writes_to_no_other_block(sent, error):
    def answer(channel: Channel, number: int) -> None:
        said = {"body": BODY, "number": number, **sent}
        channel.connection.sendall(packed(AS_DUE, **said))
        channel.connection.shutdown(socket.SHUT_WR)

    with lying(answer) as (reader, pool):
        before = copied(pool)
        with pytest.raises(error):
            reader.read(offer(), TARGETS, 5.0)
        assert unchanged(pool, before, TARGETS)
        if error is not PeerLost and sent.get("flip") not in (HEADER.size + 5, -1):
            assert unchanged(pool, before, [])


def test_a_frame_more_than_was_asked_for_writes_nothing():
    def answer(channel: Channel, number: int) -> None:
        for region in range(2 * LAYERS):
            channel.connection.sendall(packed(Header(DATA, number, region), BODY))
        channel.connection.sendall(packed(Header(DATA, number, 2 * LAYERS - 1), b"\1" * 256))

    with lying(answer) as (reader, pool):
        with pytest.raises(Corrupt):
            reader.read(offer(), TARGETS, 5.0)
        assert all((region[TARGETS] == 0).all() for region in pool.regions)


def test_a_late_answer_to_a_read_before_is_not_taken_for_this_one():
    turn = []

    def answer(channel: Channel, number: int) -> None:
        turn.append(number)
        if len(turn) == 1:
            time.sleep(0.3)
        channel.connection.sendall(packed(Header(DATA, turn[0]), BODY))

    with lying(answer) as (reader, pool):
        before = copied(pool)
        with pytest.raises(DeadlinePassed):
            reader.read(offer(), TARGETS, 0.1)
        with pytest.raises(Corrupt, match=r"number=2.*number=1"):
            reader.read(offer(), TARGETS, 5.0)
        assert unchanged(pool, before, [])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"no json", Corrupt),
        (b"[" * 50_000, Corrupt),
        (b"[]", Corrupt),
        (b"{}", Corrupt),
        (json.dumps({"layout": {"model": "tiny"}}).encode(), Corrupt),
        (hello(layout(dtype="bfloat16"), incarnation="first"), Refused),
        (hello(layout(), incarnation="second"), Expired),
        (hello(layout()), Expired),
    ],
)
def test_an_owner_who_is_not_the_one_that_offered_is_not_read(said, error):
    with lying(lambda channel, number: None, said) as (reader, pool):
        before = copied(pool)
        with pytest.raises(error):
            reader.read(offer(), TARGETS, 5.0)
        assert unchanged(pool, before, [])


def test_who_is_there_and_who_was_expected_are_both_named():
    other = hello(layout(), incarnation="second")
    with (
        lying(lambda channel, number: None, other) as (reader, _),
        pytest.raises(Expired, match=r"'first'.*'second'"),
    ):
        reader.read(offer(), TARGETS, 5.0)


def test_a_silent_owner_and_one_that_trickles_are_left_at_the_deadline():
    def trickle(channel: Channel, number: int) -> None:
        for byte in packed(Header(DATA, number), BODY):
            channel.connection.sendall(bytes([byte]))
            time.sleep(0.01)

    for answer in (lambda channel, number: None, trickle):
        with lying(answer) as (reader, _), pytest.raises(DeadlinePassed):
            reader.read(offer(), TARGETS, 0.3)


@pytest.mark.parametrize(
    "memory",
    [
        None,
        {},
        {"pid": 1},
        {"pid": "x", "proof": "", "proof_at": 0, "generations_at": 0, "regions_at": []},
        {
            "pid": 2**22 - 1,
            "proof": "00" * 32,
            "proof_at": 4096,
            "generations_at": 0,
            "regions_at": [0] * 2 * LAYERS,
        },
    ],
)
def test_memory_that_is_not_where_the_owner_says_is_not_copied(memory):
    with lying(lambda channel, number: None, hello(layout(), memory=memory)) as (reader, pool):
        reader.lane = "cma"
        before = copied(pool)
        with pytest.raises(Refused):
            reader.read(offer(), TARGETS, 5.0)
        assert unchanged(pool, before, [])


# --- readers that lie --------------------------------------------------------------------------


@contextmanager
def known(both: Sides) -> Iterator[Channel]:
    """A channel to the exporter whose hello has been said."""
    with dial(both.exporter.address) as channel:
        channel.send_frame(Header(HELLO), [hello(layout())])
        frame = channel.receive_frame(5.0)
        assert frame is not None
        assert frame.header.kind == HELLO
        yield channel


def goes_on(both: Sides) -> None:
    """Others are served as before."""
    good = both.exporter.offer(f"good {time.monotonic()}", BLOCKS, layers_ready=LAYERS)
    both.reader.read(good, TARGETS, 10.0)
    assert holds(both.target, TARGETS, copied(both.source), BLOCKS)


def answered(channel: Channel) -> tuple[int, bytes]:
    frame = channel.receive_frame(5.0)
    assert frame is not None
    return frame.header.kind, bytes(frame.body)


@pytest.mark.parametrize("kind", [READ, LOOK])
@pytest.mark.parametrize(
    ("blocks", "raised", "words"),
    [
        ((99, 4, 9), 0, "block 99 is not one"),
        ((2**32 - 1, 4, 9), 0, "is not one"),
        ((3, 4, 10), 0, "block 10 is not one"),
        ((3, 3, 4), 0, "once"),
        ((3, 4, 9), 1, "was not offered in generation"),
        ((3, 4, 9), -(2**62), "was not offered in generation"),
    ],
)
def test_what_was_not_offered_is_not_given(tmp_path, kind, blocks, raised, words):
    with sides(tmp_path) as both, known(both) as channel:
        both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        generations = tuple(
            int(both.source.generations[block]) + raised if block < 32 else 0 for block in blocks
        )
        asked = Request("x", blocks, generations).packed()
        for number in (1, 2):  # the connection stays
            channel.send_frame(Header(kind, number), [asked])
            told, body = answered(channel)
            assert told == FAILED
            assert words in body.decode()
        goes_on(both)


@pytest.mark.parametrize("kind", [READ, LOOK])
def test_blocks_with_another_holder_are_not_even_begun_with(tmp_path, kind):
    with sides(tmp_path) as both, known(both) as channel:
        asked = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        both.source.generations[BLOCKS[0]] += 1
        channel.send_frame(
            Header(kind, 1), [Request("x", asked.blocks, asked.generations).packed()]
        )
        told, body = answered(channel)
        assert told == FAILED
        assert b"another holder" in body
        goes_on(both)


def test_a_reader_that_copies_is_told_if_a_block_got_another_holder_meanwhile(tmp_path):
    with sides(tmp_path) as both, known(both) as channel:
        asked = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        channel.send_frame(
            Header(LOOK, 1), [Request("x", asked.blocks, asked.generations).packed()]
        )
        assert answered(channel)[0] == READY
        both.source.generations[BLOCKS[-1]] += 1
        channel.send_frame(Header(RELEASE, 1), [b"x"])
        told, body = answered(channel)
        assert told == FAILED
        assert b"another holder" in body
        goes_on(both)


@pytest.mark.parametrize("kind", [READ, LOOK])
def test_an_id_that_is_not_known_is_expired(tmp_path, kind):
    with sides(tmp_path) as both, known(both) as channel:
        channel.send_frame(Header(kind, 1), [Request("none", (1,), (0,)).packed()])
        told, body = answered(channel)
        assert told == FAILED
        assert b"not offered here" in body
        channel.send_frame(Header(RELEASE), [b"none"])
        goes_on(both)


GOOD = Request("x", tuple(BLOCKS), (0, 0, 0)).packed()


@pytest.mark.parametrize(
    "sent",
    ids=count(),
    argvalues=[
        packed(Header(READ, 1), GOOD, flip=40),
        packed(Header(READ, 1), GOOD[:-1]),
        packed(Header(READ, 1), GOOD + b"x"),
        packed(Header(READ, 1), b""),
        packed(Header(READ, 1), struct.pack("<II", 1, 2**32 - 1) + b"x"),
        packed(Header(READ, 1), struct.pack("<II", 2**32 - 1, 1) + b"x"),
        packed(Header(READ, 1), struct.pack("<II", 1, 0) + b"x"),
        packed(Header(READ, 1), struct.pack("<II", 1, 33) + bytes(1 + 33 * 12)),
        packed(Header(READ, 1), struct.pack("<II", 2, 1) + b"\xff\xfe" + bytes(12)),
        packed(Header(READ, 1), struct.pack("<II", 300, 1) + bytes(300 + 12)),
        packed(Header(READ, 1), GOOD, length=2**32 - 1),
        packed(Header(RELEASE), b""),
        packed(Header(RELEASE), b"\xff"),
        packed(Header(DATA, 1), b"x"),
        packed(Header(DONE, 1)),
        packed(Header(HELLO), hello(layout())),
        packed(Header(MESSAGE), b"x"),
        packed(Header(READ, 1), GOOD, cut=5),
        b"GET / HTTP/1.1\r\n\r\n" + bytes(40),
    ],
)
def test_a_reader_that_does_not_speak_the_protocol_is_hung_up_on(tmp_path, sent):
    with sides(tmp_path) as both, known(both) as channel:
        both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        channel.connection.sendall(sent)
        channel.connection.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerLost):
            channel.receive_frame(5.0)
        goes_on(both)
        assert ("x", "released") not in both.ends.told


@pytest.mark.parametrize(
    "said",
    [b"no json", b"[" * 60_000, b"{}", bytes(2**16 + 1), hello(layout(dtype="bfloat16"))],
)
def test_a_reader_that_does_not_fit_is_told_the_layout_and_hung_up_on(tmp_path, said):
    with sides(tmp_path) as both, dial(both.exporter.address) as channel:
        channel.send_frame(Header(HELLO), [said])
        if len(said) <= 2**16:
            kind, body = answered(channel)
            assert kind == HELLO
            assert json.loads(body)["layout"] == layout().to_json()
        with pytest.raises(PeerLost):
            answered(channel)
        goes_on(both)


def test_a_hello_of_4_gb_is_not_waited_for(tmp_path):
    with sides(tmp_path) as both, dial(both.exporter.address) as channel:
        channel.connection.sendall(packed(Header(HELLO), b"{", length=2**32 - 1))
        with pytest.raises(PeerLost):
            channel.receive_frame(5.0)
        goes_on(both)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("model", "other"),
        ("weights", "xyz"),
        ("dtype", "bfloat16"),
        ("num_layers", LAYERS + 1),
        ("num_kv_heads", 4),
        ("head_dim", 16),
        ("block_tokens", 8),
        ("block_bytes", 512),
        ("version", 2),
    ],
)
def test_two_caches_that_are_not_alike_refuse_each_other_and_both_go_on(tmp_path, field, other):
    theirs = layout(**{field: other})
    regions = [np.zeros((32, theirs.block_bytes), np.uint8) for _ in range(2 * theirs.num_layers)]
    pool = Pool(theirs, regions, np.zeros(32, np.int64))
    with sides(tmp_path) as both:
        good = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        reader = Reader(both.exporter.address, pool)
        for _ in range(2):
            with pytest.raises(Refused, match=f"{field} is {other!r} here and"):
                reader.read(good, TARGETS, 5.0)
        reader.close()
        both.reader.read(good, TARGETS, 10.0)


def test_all_differences_are_named(tmp_path):
    theirs = layout(dtype="bfloat16", num_kv_heads=1, model="other")
    with sides(tmp_path) as both:
        pool = Pool(theirs, both.target.regions, both.target.generations)
        reader = Reader(both.exporter.address, pool)
        good = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(Refused, match=r"model is.*dtype is.*num_kv_heads is"):
            reader.read(good, TARGETS, 5.0)
        reader.close()


@pytest.mark.parametrize(("ours", "theirs"), [(KEY, b"another"), (KEY, None), (None, KEY)])
def test_other_keys_refuse_each_other_and_nobody_hangs(tmp_path, ours, theirs):
    with sides(tmp_path, key=ours) as both:
        stranger = Reader(both.exporter.address, both.target, key=theirs)
        good = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(Refused, match="key"):
            stranger.read(good, TARGETS, 5.0)
        stranger.close()
        goes_on(both)


def test_a_reader_that_takes_nothing_ends_alone_and_may_come_again(tmp_path):
    source, target = make_pool(32, 2**17, 1), make_pool(32, 2**17, 2)
    with sides(tmp_path, source=source, target=target, stall_s=0.3) as both:
        asked = both.exporter.offer("slow", list(range(32)), layers_ready=LAYERS)
        with dial(both.exporter.address) as channel:
            channel.send_frame(Header(HELLO), [hello(source.layout)])
            assert answered(channel)[0] == HELLO
            request = Request("slow", asked.blocks, asked.generations).packed()
            channel.send_frame(Header(READ, 1), [request])
            goes_on(both)
            assert until(lambda: not any(x.readers for x in both.exporter._leases._leases.values()))
        assert ("slow", "released") not in both.ends.told
        both.reader.read(asked, list(range(32)), 10.0)
        assert both.ended("slow", "released")


def test_the_end_of_a_lease_waits_for_its_reader_but_not_for_one_that_takes_nothing(tmp_path):
    source = make_pool(32, 2**17, 1)
    with sides(tmp_path, source=source, target=make_pool(32, 2**17, 2)) as both:
        asked = both.exporter.offer("held", list(range(32)), layers_ready=LAYERS)
        with dial(both.exporter.address) as channel:
            channel.send_frame(Header(HELLO), [hello(source.layout)])
            assert answered(channel)[0] == HELLO
            request = Request("held", asked.blocks, asked.generations).packed()
            channel.send_frame(Header(READ, 1), [request])
            assert until(lambda: not channel.is_quiet())
            both.exporter.withdraw("held")
            assert both.ends.told == []  # it is being read
            assert both.ended("held", "withdrawn")  # it was hung up on
        goes_on(both)


def test_a_reader_that_goes_while_layers_are_waited_for_leaves_the_lease(tmp_path):
    with sides(tmp_path) as both:
        asked = both.exporter.offer("x", BLOCKS, layers_ready=1)
        leases = both.exporter._leases._leases
        for kind in (READ, LOOK):
            with known(both) as channel:
                request = Request("x", asked.blocks, asked.generations).packed()
                channel.send_frame(Header(kind, 1), [request])
                assert until(lambda: bool(leases["x"].readers))
            assert until(lambda: not leases["x"].readers)
        both.exporter.layers_ready("x", LAYERS)
        both.reader.read(asked, TARGETS, 10.0)
        assert both.ended("x", "released")


def test_more_readers_than_there_may_be_are_hung_up_on(tmp_path, monkeypatch):
    monkeypatch.setattr("prefill_decode.kv_transfer.exporter.MOST_READERS", 2)
    with sides(tmp_path) as both, known(both), known(both) as second:
        with dial(both.exporter.address) as third, pytest.raises(PeerLost):
            third.receive_frame(5.0)
        second.close()
        assert until(lambda: len(both.exporter._readers) == 1)
        goes_on(both)


def test_requests_survive_the_wire():
    request = Request("a name, ä", (0, 5, 2**32 - 1), (0, 2**40, 7))
    assert read_request(request.packed(), 10) == request


def test_layouts_are_compared_by_what_a_rank_holds():
    """Fewer heads on each side than a model has are fine, where both sides have as many."""
    assert layout(num_kv_heads=1).differences(layout(num_kv_heads=1)) == []
    assert isinstance(Layout.from_json(layout().to_json()), Layout)


def test_closing_ends_reads_in_progress_on_both_sides(tmp_path):
    with sides(tmp_path) as both:
        waiting = Reading(both, both.exporter.offer("x", BLOCKS), TARGETS, 30.0)
        assert until(lambda: bool(both.exporter._leases._leases["x"].readers))
        both.exporter.close()
        waiting.join(5.0)
        assert isinstance(waiting.error, (Expired, PeerLost))
        assert both.ends.told == [("x", "withdrawn")]
        with pytest.raises(ValueError, match="closed"):
            both.exporter.offer("y", BLOCKS)
    with sides(tmp_path) as both:
        asked = both.exporter.offer("x", BLOCKS)
        waiting = Reading(both, asked, TARGETS, 30.0)
        assert until(lambda: bool(both.exporter._leases._leases["x"].readers))
        both.reader.close()
        waiting.join(5.0)
        assert isinstance(waiting.error, TransferError)
        with pytest.raises(TransferError, match="closed"):
            both.reader.read(asked, TARGETS, 5.0)
