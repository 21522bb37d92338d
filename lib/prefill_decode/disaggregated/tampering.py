"""Tampering: is a wrong bit noticed? Every transfer here passes a relay that turns one bit over.

Counts:  a transfer as noticed that ended with an error, whichever, before it was taken for good.
Ignores: who would turn two bits so that the checksum stays the same: only a key keeps those off."""

import random
import socket
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from prefill_decode.disaggregated.lender import Lender
from prefill_decode.disaggregated.link import LARGE_BYTES, lend_memory, memory_pool
from prefill_decode.kv_transfer import Offer, Reader, TransferError

TRIES = 12
NUM_BLOCKS = 4  # of each of two regions
LONGEST_READ_S = 10.0
PIECE_BYTES = 2**16


def flips_noticed(seed: int = 0, tries: int = TRIES) -> list[float]:
    """1 for every transfer that ended with an error because of its bit, 0 for one that did not."""
    dice = random.Random(seed)
    lender = Lender(lend_memory, {LARGE_BYTES: NUM_BLOCKS}, seed)
    link, moved_bytes = f"unix {LARGE_BYTES}", 2 * NUM_BLOCKS * LARGE_BYTES
    try:
        path = lender.hear()[link].removeprefix("unix:")
        found = []
        for _ in range(tries):
            offer = lender.ask(link, list(range(NUM_BLOCKS)))
            bit = dice.randrange(8 * moved_bytes // 10, 8 * moved_bytes)  # past the greetings
            found.append(float(_is_noticed(path, offer, bit)))
        return found
    finally:
        lender.close()


def _is_noticed(path: str, offer: Offer, bit: int | None) -> bool:
    pool = memory_pool(LARGE_BYTES, NUM_BLOCKS)
    with tempfile.TemporaryDirectory(prefix="prefill-decode-") as folder:
        relay = Relay(str(Path(folder, "relay")), path, bit)
        reader = Reader(relay.address, pool, lane="stream")
        try:
            reader.read(offer, list(range(NUM_BLOCKS)), LONGEST_READ_S)
        except TransferError:
            return True
        finally:
            reader.close()
            relay.close()
    return False


class Relay:
    """Between one reader and the Unix socket at `path`; turns over bit `bit` of what it is sent."""

    def __init__(self, own_path: str, path: str, bit: int | None) -> None:
        self.address = f"unix:{own_path}"
        self._bit = bit
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(own_path)
        self._listening.listen(1)
        self._path = path
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """After the reader's: both directions have ended then."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        try:
            near, _ = self._listening.accept()
        except OSError:
            return
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(self._path)
            asking = threading.Thread(target=_pass_on, args=(near, far, None), daemon=True)
            asking.start()
            _pass_on(far, near, self._bit)
            asking.join()


def _pass_on(source: socket.socket, target: socket.socket, bit: int | None) -> None:
    """Everything from one to the other, with one bit turned over, until either has ended."""
    place, flip = (-1, 0) if bit is None else divmod(bit, 8)
    done = 0
    with suppress(OSError):
        while data := bytearray(source.recv(PIECE_BYTES)):
            if done <= place < done + len(data):
                data[place - done] ^= 1 << flip
            done += len(data)
            target.sendall(data)
    for connection in (source, target):
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
