"""A channel carries messages whole, between sides that have the same key, and nothing else."""

import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_decode.kv_transfer import (
    Channel,
    Corrupt,
    DeadlinePassed,
    Listener,
    PeerLost,
    Refused,
    TransferError,
    dial,
)
from prefill_decode.kv_transfer import channel as channels
from prefill_decode.kv_transfer.layout import VERSION
from prefill_decode.kv_transfer.wire import DATA, GREETING, HEADER, MAGIC, MESSAGE, Header
from tests.kv_transfer.pools import KEY, num_descriptors, until


@contextmanager
def pair(key: bytes | None = None) -> Iterator[tuple[Channel, Channel]]:
    """Two channels that know each other."""
    with Listener("tcp:127.0.0.1:0", key) as listener, dial(listener.address, key) as dialled:
        accepted = listener.accept(5.0)
        assert accepted is not None
        with accepted:
            yield dialled, accepted


def raw(address: str) -> socket.socket:
    _, host, port = address.split(":")
    connection = socket.create_connection((host, int(port)), 5.0)
    connection.settimeout(5.0)
    return connection


def frame(kind: int, body: bytes = b"", **changes: int) -> bytes:
    """One that nobody has a key for; `changes` to what its header says."""
    plain = Channel.__new__(Channel)
    plain._keys = None
    header = Header(kind, length=len(body))
    digest = plain._digest(header, [body], 0)
    packed = bytearray(header.packed() + digest + body)
    for name, value in changes.items():
        at, form = {"magic": (0, "<I"), "version": (4, "B"), "length": (12, "<I")}[name]
        struct.pack_into(form, packed, at, value)
    return bytes(packed)


def greeting(has_key: bool = False) -> bytes:
    return frame(GREETING, bytes([has_key]) + os.urandom(32))


def taken(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    found = b""
    try:
        while got := connection.recv(2**16):
            found += got
    except ConnectionResetError:
        pass
    return found


@pytest.mark.parametrize("key", [None, KEY])
@settings(max_examples=25, deadline=None)
@given(messages=st.lists(st.binary(max_size=300), max_size=6), large=st.integers(0, 2**20))
def test_messages_arrive_whole_and_in_order_both_ways(key, messages, large):
    messages = [*messages, bytes(large)]
    with pair(key) as ends:
        for sender, receiver in (ends, ends[::-1]):
            thread = threading.Thread(target=lambda s=sender: [s.send(m) for m in messages])
            thread.start()
            assert [receiver.receive(5.0) for _ in messages] == messages
            thread.join()
            assert receiver.receive(0) is None


def test_many_threads_may_send():
    with pair(KEY) as (one, other):
        threads = [
            threading.Thread(target=lambda i=i: [one.send(bytes([i]) * 1000) for _ in range(50)])
            for i in range(8)
        ]
        for thread in threads:
            thread.start()
        found = [other.receive(5.0) for _ in range(400)]
        for thread in threads:
            thread.join()
    assert all(message is not None and message == message[:1] * 1000 for message in found)


def test_a_message_that_comes_in_pieces_is_waited_for_without_being_held_up():
    with Listener("tcp:127.0.0.1:0") as listener, raw(listener.address) as connection:
        connection.sendall(greeting())
        with listener.accept(5.0) as channel:  # type: ignore[union-attr]
            assert select.select([channel], [], [], 0)[0] == []
            for byte in frame(MESSAGE, b"slow"):
                assert channel.receive(0) is None
                connection.send(bytes([byte]))
                assert select.select([channel], [], [], 5.0)[0]
            assert channel.receive(0) == b"slow"
            connection.close()
            with pytest.raises(PeerLost):
                channel.receive(5.0)


@pytest.mark.parametrize("keys", [(KEY, b"another"), (KEY, None), (None, KEY)])
def test_sides_with_other_keys_refuse_each_other_at_once(keys):
    with Listener("tcp:127.0.0.1:0", keys[0]) as listener:
        with pytest.raises(Refused, match="key"):
            dial(listener.address, keys[1])
        assert listener.accept(0.05) is None
        with dial(listener.address, keys[0]), listener.accept(5.0):  # type: ignore[union-attr]
            pass  # who has it is let in


def test_what_proved_the_key_once_does_not_prove_it_again():
    """All that a peer with the key has sent, sent once more by one without it."""
    with (
        Listener("tcp:127.0.0.1:0", KEY) as listener,
        socket.create_server(("127.0.0.1", 0)) as between,
    ):
        heard: list[bytes] = []

        def pass_on() -> None:
            inner, _ = between.accept()
            with inner, raw(listener.address) as outer:
                ends = {inner: outer, outer: inner}
                while ready := select.select(list(ends), [], [], 0.5)[0]:
                    for end in ready:
                        got = end.recv(2**16)
                        if not got:
                            return
                        ends[end].sendall(got)
                        if end is inner:
                            heard.append(got)

        thread = threading.Thread(target=pass_on)
        thread.start()
        with dial(f"tcp:127.0.0.1:{between.getsockname()[1]}", KEY) as dialled:
            dialled.send(b"stop all workers")
            with listener.accept(5.0) as honest:  # type: ignore[union-attr]
                assert honest.receive(5.0) == b"stop all workers"
        thread.join()
        with raw(listener.address) as replayer:
            replayer.sendall(b"".join(heard))
            assert b"not the same" in taken(replayer)
        assert listener.accept(0.05) is None


def test_a_listener_does_not_prove_the_key_to_a_stranger_nor_by_the_strangers_own_words():
    with Listener("tcp:127.0.0.1:0", KEY) as listener, raw(listener.address) as stranger:
        stranger.sendall(greeting(True))
        own = stranger.recv(HEADER.size + 33)
        stranger.settimeout(0.2)
        with pytest.raises(TimeoutError):
            stranger.recv(1)
        stranger.settimeout(5.0)
        stranger.sendall(own)  # a mirror
        assert stranger.recv(2**16) == b""


@pytest.mark.parametrize("meddle", ["twice", "left out", "changed", "put in"])
def test_with_a_key_no_frame_can_be_repeated_left_out_changed_or_put_in(meddle):
    with pair(KEY) as (one, other):
        sent: list[bytes] = []
        real = one.connection
        here, there = socket.socketpair()
        with here, there:
            one.connection = here
            for message in (b"first", b"second", b"third"):
                one.send(message)
                sent.append(there.recv(2**16))
            one.connection = real
        changed = sent[1][:-1] + b"!"
        real.sendall(
            {
                "twice": sent[0] * 2,
                "left out": sent[0] + sent[2],
                "changed": sent[0] + changed,
                "put in": sent[0] + frame(MESSAGE, b"second"),
            }[meddle]
        )
        assert other.receive(5.0) == b"first"
        with pytest.raises(Corrupt):
            other.receive(5.0)


@pytest.mark.parametrize(
    ("sent", "error"),
    ids=count(),
    argvalues=[
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", Corrupt),
        (frame(MESSAGE, b"x", magic=7), Corrupt),
        (frame(MESSAGE, b"x", version=VERSION + 1), Refused),
        (frame(MESSAGE, b"x", length=2**32 - 1), Corrupt),
        (frame(MESSAGE, b"message")[:-1] + b"x", Corrupt),
        (frame(200), Corrupt),
        (frame(GREETING), Corrupt),
        (frame(DATA, b"x"), Corrupt),
        (frame(MESSAGE, b"message")[:-1], PeerLost),
        (frame(MESSAGE, b"message")[:10], PeerLost),
        (b"", PeerLost),
    ],
)
def test_what_is_no_frame_ends_the_channel_and_says_why(sent, error):
    with Listener("tcp:127.0.0.1:0") as listener, raw(listener.address) as connection:
        connection.sendall(greeting())
        with listener.accept(5.0) as channel:  # type: ignore[union-attr]
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            with pytest.raises(error):
                channel.receive(5.0)
            taken(connection)  # hung up


@pytest.mark.parametrize(
    "sent",
    ids=count(),
    argvalues=[
        b"\x16\x03\x01" * 20,
        frame(GREETING, bytes(33), length=2**32 - 1),
        frame(GREETING, bytes(33), length=channels.MOST_GREETING_BYTES + 1),
        frame(GREETING, bytes(20)),
        frame(MESSAGE, b"no greeting"),
        frame(GREETING, bytes(33), version=VERSION + 1),
    ],
)
def test_a_stranger_who_does_not_greet_is_hung_up_on_and_others_are_let_in(sent):
    with Listener("tcp:127.0.0.1:0") as listener, raw(listener.address) as stranger:
        stranger.sendall(sent)
        said = taken(stranger)
        assert said[:5] == MAGIC + bytes([VERSION])
        with dial(listener.address), listener.accept(5.0):  # type: ignore[union-attr]
            pass


def test_a_peer_of_another_version_is_named_on_both_sides():
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(frame(GREETING, bytes(33), version=9))
                taken(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Refused, match=f"version is {VERSION} here and 9 there"):
            dial(f"tcp:127.0.0.1:{other.getsockname()[1]}")
        thread.join()


def test_silent_strangers_hold_up_nobody_and_are_hung_up_on_in_time(monkeypatch):
    monkeypatch.setattr("prefill_decode.kv_transfer.listener.GREETING_S", 0.3)
    with Listener("tcp:127.0.0.1:0") as listener:
        strangers = [raw(listener.address) for _ in range(20)]
        with dial(listener.address), listener.accept(5.0):  # type: ignore[union-attr]
            pass
        for stranger in strangers:
            with stranger:
                taken(stranger)


def test_strangers_without_end_are_limited(monkeypatch):
    monkeypatch.setattr("prefill_decode.kv_transfer.listener.MOST_GREETED", 4)
    with Listener("tcp:127.0.0.1:0") as listener:
        strangers = [raw(listener.address) for _ in range(4)]
        assert until(lambda: len(listener._greeted) == 4)
        with raw(listener.address) as fifth:
            assert taken(fifth) == b""
        for stranger in strangers:
            stranger.close()
        assert until(lambda: not listener._greeted)
        with dial(listener.address):
            pass


def test_a_peer_that_takes_nothing_is_given_up_and_nothing_is_sent_after():
    with pair() as (one, _):
        with pytest.raises(DeadlinePassed):
            one.send(bytes(2**25), timeout_s=0.1)
        with pytest.raises(PeerLost):
            one.send(b"more")


def test_a_message_too_large_for_the_other_side_is_not_allocated():
    with pair() as (one, other):
        other.most_bytes = 100
        one.send(bytes(101))
        with pytest.raises(Corrupt, match="at most 100"):
            other.receive(5.0)


def test_nobody_there_is_said_at_once(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for address in (f"tcp:127.0.0.1:{port}", f"unix:{tmp_path}/none"):
        with pytest.raises(PeerLost, match="nobody answers"):
            dial(address)


def test_one_who_listens_and_says_nothing_is_waited_for_only_so_long():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(DeadlinePassed):
            dial(f"tcp:127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.2)
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "address",
    ["", "unix:", "tcp:", "tcp:1", "tcp:host:port", "tcp:::99999", "pipe:x", "unix:" + "x" * 200],
)
def test_an_address_is_of_two_kinds(address):
    with pytest.raises(ValueError, match=r"is unix:PATH or tcp:HOST:PORT|has at most"):
        Listener(address)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_beyond_loopback_nobody_listens_without_a_key(host):
    with pytest.raises(ValueError, match="beyond loopback"):
        Listener(f"tcp:{host}:0")
    if host == "0.0.0.0":
        with Listener(f"tcp:{host}:0", KEY) as listener:
            port = listener.address.rpartition(":")[2]
            with dial(f"tcp:127.0.0.1:{port}", KEY):
                pass


def test_a_socket_is_its_users_alone_and_goes_with_the_listener(tmp_path: Path):
    path = tmp_path / "socket"
    with Listener(f"unix:{path}") as listener:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with dial(listener.address), listener.accept(5.0):  # type: ignore[union-attr]
            pass
        with pytest.raises(OSError, match="in use"):
            Listener(f"unix:{path}")
        with dial(listener.address):
            pass
    assert not path.exists()


def test_a_socket_left_behind_is_taken_over_and_another_file_is_not(tmp_path: Path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with Listener(f"unix:{path}") as first:
        path.unlink()
        with Listener(f"unix:{path}"):
            first.close()
            assert path.exists()  # not its own any more
    path.write_text("a letter")
    with pytest.raises(OSError, match="in use"):
        Listener(f"unix:{path}")
    assert path.read_text() == "a letter"


def test_a_port_can_be_listened_at_again_at_once():
    with Listener("tcp:127.0.0.1:0") as first:
        address = first.address
        dialled = dial(address)
        accepted = first.accept(5.0)
    with Listener(address), dial(address):
        pass
    for channel in (dialled, accepted):
        assert channel is not None
        channel.close()


def test_closing_leaves_neither_threads_nor_descriptors():
    threads, descriptors = threading.active_count(), num_descriptors()
    for _ in range(10):
        listener = Listener("tcp:127.0.0.1:0", KEY)
        stranger = raw(listener.address)
        dialled = dial(listener.address, KEY)
        assert until(lambda listener=listener: bool(select.select([listener], [], [], 0)[0]))
        listener.close()
        listener.close()
        assert listener.accept(None) is None
        with pytest.raises(TransferError):
            dialled.receive(5.0)
        for opened in (stranger, dialled):
            opened.close()
    assert (threading.active_count(), num_descriptors()) == (threads, descriptors)
