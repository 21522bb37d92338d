"""Owners that are stopped, killed and started again, each a real process."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from prefill_decode.kv_transfer import (
    DeadlinePassed,
    Expired,
    Offer,
    PeerLost,
    Reader,
    TransferError,
)
from tests.conftest import ROOT
from tests.kv_transfer.pools import (
    LANES,
    LAYERS,
    copied,
    holds,
    make_pool,
    name_of,
    num_descriptors,
    unchanged,
    until,
)

NUM_BLOCKS, BLOCK_BYTES = 64, 2**16
BLOCKS, TARGETS = list(range(40)), list(range(63, 23, -1))
SIZES = [str(NUM_BLOCKS), str(BLOCK_BYTES)]
every_lane = pytest.mark.parametrize(("kind", "lane"), LANES)


def strike(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Kills or stops a child; back when its last thread has taken it, which a signal does not wait
    for: until then it may still answer."""
    process.send_signal(number)
    if number == signal.SIGSTOP:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
    else:
        process.wait()


class Owner:
    def __init__(self, address: str, incarnation: str = "first") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kv_transfer.owner", address, incarnation, *SIZES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._said: queue.Queue[list] = queue.Queue()
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()
        self.address: str = self.heard("at")[0]

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def heard(self, word: str) -> list:
        """The rest of the next line, which begins with this word."""
        said = self._said.get(timeout=30.0)
        assert said[0] == word, said
        return said[1:]

    def offer(self, name: str, layers_ready: int = LAYERS, lease_s: float = 30.0) -> Offer:
        self.tell("offer", name, BLOCKS, layers_ready, lease_s)
        return Offer.from_json(self.heard("offer")[0])

    def stop(self) -> None:
        for number in (signal.SIGCONT, signal.SIGKILL):
            self.process.send_signal(number)
        self.process.wait()
        self._listening.join()
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            with suppress(BrokenPipeError):
                end.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))


@contextmanager
def owned(address: str, incarnation: str = "first") -> Iterator[Owner]:
    owner = Owner(address, incarnation)
    try:
        yield owner
    finally:
        owner.stop()


@pytest.fixture
def place(tmp_path: Path, kind: str) -> str:
    return f"unix:{tmp_path}/s" if kind == "unix" else "tcp:127.0.0.1:0"


class Reads(threading.Thread):
    def __init__(self, reader: Reader, offer: Offer, deadline_s: float) -> None:
        super().__init__()
        self._asked = reader, offer, deadline_s
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        reader, offer, deadline_s = self._asked
        try:
            reader.read(offer, TARGETS, deadline_s)
        except TransferError as error:
            self.error = error


@every_lane
def test_blocks_of_another_process_arrive(place, lane, kind):
    source, target = make_pool(NUM_BLOCKS, BLOCK_BYTES, 1), make_pool(NUM_BLOCKS, BLOCK_BYTES, 2)
    before = copied(target)
    with owned(place) as owner:
        reader = Reader(owner.address, target, lane=lane)
        moved = reader.read(owner.offer("x"), TARGETS, 30.0)
        assert moved.lane == name_of(kind, lane)
        assert owner.heard("ended") == ["x", "released"]
        assert holds(target, TARGETS, copied(source), BLOCKS)
        assert unchanged(target, before, TARGETS)
        stale = owner.offer("y")
        owner.tell("raise", BLOCKS[3])
        owner.offer("z")  # so that the raise has been done
        with pytest.raises(Expired, match="holder"):
            reader.read(stale, TARGETS, 30.0)
        reader.close()


@every_lane
def test_a_killed_owner_fails_its_read_alone_and_its_successor_is_read(place, lane, kind):
    """On the same address, in another incarnation: an offer of before does not hold there."""
    target = make_pool(NUM_BLOCKS, BLOCK_BYTES, 2)
    descriptors = num_descriptors()
    with owned(place) as owner:
        address = owner.address
        reader = Reader(address, target, lane=lane)
        old = owner.offer("x", layers_ready=1)
        read = Reads(reader, old, 30.0)
        assert until(lambda: holds_layer(target, 0))
        strike(owner.process, signal.SIGKILL)
        read.join(5.0)
        assert isinstance(read.error, PeerLost)
        before = copied(target)
        with pytest.raises(PeerLost):
            reader.read(old, TARGETS, 5.0)
    with owned(address, "second") as owner:
        with pytest.raises(Expired, match=r"'first'.*'second'"):
            reader.read(old, TARGETS, 5.0)
        assert unchanged(target, before, [])
        reader.read(owner.offer("x"), TARGETS, 30.0)
        assert holds_layer(target, LAYERS - 1)
        reader.close()
    assert num_descriptors() == descriptors


def holds_layer(target, layer: int) -> bool:
    source = make_pool(NUM_BLOCKS, BLOCK_BYTES, 1)
    return all(
        (target.regions[region][TARGETS] == source.regions[region][BLOCKS]).all()
        for region in (2 * layer, 2 * layer + 1)
    )


@every_lane
def test_a_stopped_owner_is_left_at_the_deadline_and_what_it_says_later_goes_nowhere(
    place, lane, kind
):
    target = make_pool(NUM_BLOCKS, BLOCK_BYTES, 2)
    with owned(place) as owner, owned(place.replace("/s", "/t"), "other") as other:
        reader = Reader(owner.address, target, lane=lane)
        good = Reader(other.address, make_pool(NUM_BLOCKS, BLOCK_BYTES, 3), lane=lane)
        first = owner.offer("first")
        reader.read(first, TARGETS, 30.0)
        assert owner.heard("ended") == ["first", "released"]
        late = owner.offer("late", lease_s=3.0)
        for region in target.regions:
            region[:] = 0
        strike(owner.process, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(DeadlinePassed):
            reader.read(late, TARGETS, 0.5)
        assert time.monotonic() - began >= 0.5
        before = copied(target)
        good.read(other.offer("x"), TARGETS, 30.0)  # another owner is read meanwhile
        good.close()
        owner.process.send_signal(signal.SIGCONT)
        assert owner.heard("ended") == ["late", "expired"]
        assert unchanged(target, before, [])
        reader.read(owner.offer("next"), TARGETS, 30.0)
        assert holds_layer(target, LAYERS - 1)
        reader.close()


@every_lane
def test_an_owner_stopped_for_a_while_only_makes_a_read_slower(place, lane, kind):
    target = make_pool(NUM_BLOCKS, BLOCK_BYTES, 2)
    with owned(place) as owner:
        reader = Reader(owner.address, target, lane=lane)
        owner_offer = owner.offer("x", layers_ready=1)
        read = Reads(reader, owner_offer, 30.0)
        assert until(lambda: holds_layer(target, 0))
        strike(owner.process, signal.SIGSTOP)
        owner.tell("layers_ready", "x", LAYERS)
        read.join(0.3)
        assert read.is_alive()
        owner.process.send_signal(signal.SIGCONT)
        read.join(10.0)
        assert read.error is None
        assert owner.heard("ended") == ["x", "released"]
        assert holds_layer(target, LAYERS - 1)
        reader.close()


READER = """
import json, sys
from prefill_decode.kv_transfer import Offer, Reader
from tests.kv_transfer.pools import make_pool
pool = make_pool({num_blocks}, {block_bytes}, 2)
print("ready", flush=True)
offer = Offer.from_json(json.loads(sys.stdin.readline()))
Reader(offer.address, pool, lane={lane!r}).read(offer, {targets}, 60.0)
"""


@every_lane
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_reader_leaves_the_lease_to_its_deadline(place, lane, kind, number):
    """Killed or stopped in the middle: the blocks are the owner's again when their time is over,
    and until then another may read them."""
    code = READER.format(num_blocks=NUM_BLOCKS, block_bytes=BLOCK_BYTES, lane=lane, targets=TARGETS)
    target = make_pool(NUM_BLOCKS, BLOCK_BYTES, 3)
    with owned(place) as owner:
        lost = [
            subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in lost:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        read, lapsed = owner.offer("read", layers_ready=1), owner.offer("lapsed", 1, lease_s=1.0)
        for process, asked in zip(lost, (read, lapsed), strict=True):
            assert process.stdin is not None
            process.stdin.write(json.dumps(asked.to_json()) + "\n")
            process.stdin.flush()
        time.sleep(0.2)
        for process in lost:
            strike(process, number)
        owner.tell("layers_ready", "read", LAYERS)
        reader = Reader(owner.address, target, lane=lane)
        reader.read(read, TARGETS, 30.0)
        ended = sorted(owner.heard("ended") for _ in range(2))
        assert ended == [["lapsed", "expired"], ["read", "released"]]
        assert holds_layer(target, LAYERS - 1)
        reader.close()
        for process in lost:
            process.kill()
            process.communicate()
