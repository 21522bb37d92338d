"""Link: what every transport between two processes of this machine takes, beside a plain copy.

Another process offers memory, this one reads it: adjacent blocks, as one piece, and blocks of 64
KiB scattered on both sides, as a paged cache has them. Every read is one of a new offer, and is
timed from asking for the bytes until they are there and verified. In the same rounds this process
copies as much from memory of its own, in one thread: no transport that copies is a better one.

Counts:  checksums where a transport makes them, the question, the answer, and the lease's end.
Ignores: making the offer, first contact, first touch of memory, networks between hosts."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from prefill_decode.disaggregated.lender import Lender, questions
from prefill_decode.kv_transfer import (
    Exporter,
    Lane,
    Layout,
    Offer,
    Pool,
    Reader,
    TransferError,
)
from prefill_decode.measure import Timings
from prefill_decode.units import format_bytes

Transport = Literal["unix", "tcp", "cma", "nixl"]
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
OWN: tuple[Transport, ...] = ("unix", "tcp", "cma")  # that no other library is needed for
LANES: dict[Transport, Lane] = {
    "unix": "stream",
    "tcp": "stream",
    "cma": "cma",
    "nixl": "nixl",
}
TINY_BYTES, LARGE_BYTES = 4, 2**16  # of a block; a block of each of two regions moves at once
SHORT_BYTES = 2**16  # a copy of so little, or less, is not timed
REPEATS = {2**16: 20, 2**23: 5}  # of loads up to so many bytes, for a median; larger ones go once
LONGEST_READ_S = 60.0
COPY = "copy"
MOST_OF_CACHE = 0.5  # source and target lie in it both


@dataclass(frozen=True)
class Load:
    """So many bytes in adjacent blocks, or in scattered ones."""

    num_bytes: int
    scattered: bool = False

    def __post_init__(self) -> None:
        if self.num_bytes < 1 or self.num_bytes % (2 * self.block_bytes):
            raise ValueError(
                f"bytes move in pairs of blocks of {TINY_BYTES} bytes, or of {LARGE_BYTES} from "
                f"{2 * LARGE_BYTES} on; got {self.num_bytes}: take a multiple"
            )

    @property
    def block_bytes(self) -> int:
        return TINY_BYTES if self.num_bytes < 2 * LARGE_BYTES else LARGE_BYTES

    @property
    def num_blocks(self) -> int:
        return self.num_bytes // (2 * self.block_bytes)

    @property
    def repeats(self) -> int:
        """How many times it goes for one time to be noted, their median."""
        return next((n for most, n in REPEATS.items() if self.num_bytes <= most), 1)

    @property
    def name(self) -> str:
        return format_bytes(self.num_bytes) + (" in blocks" if self.scattered else "")


LOADS = tuple(Load(2**n) for n in (3, 16, 20, 24, 27))
PAGED = Load(2**27, scattered=True)


class LinkRunner:
    """One step for each transport, which moves every load once and notes its time in `noted_s`.

    `missing` says of each transport that this machine lacks why. RuntimeError where bytes came
    that were not those offered. `close` ends the other process."""

    def __init__(
        self,
        loads: Sequence[Load],
        transports: Sequence[Transport] = TRANSPORTS,
        seed: int = 0,
    ) -> None:
        self.loads, self.seed = list(loads), seed
        most = _most_blocks(self.loads)
        self.lender = Lender(lend_memory, most, seed)
        self.noted_s: dict[str, list[float]] = {}
        self.missing: dict[str, str] = {}
        try:
            addresses: Mapping[str, str] = self.lender.hear()
            self._sources = {size: _filled(size, blocks, seed) for size, blocks in most.items()}
            self._pools = {size: memory_pool(size, blocks) for size, blocks in most.items()}
            self._readers = {
                (transport, size): Reader(
                    addresses[f"{_kind(transport)} {size}"], pool, lane=LANES[transport]
                )
                for transport in transports
                for size, pool in self._pools.items()
            }
            self.transports = [one for one in transports if self._is_there(one)]
        except BaseException:
            self.close()
            raise

    @staticmethod
    def name(transport: str, load: Load) -> str:
        return f"{transport}, {load.name}"

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        moves = {f"all of {one}": self._moves(one) for one in self.transports}
        return {**moves, f"all of {COPY}": self._copies}

    def seen(self, times: Timings) -> Timings:
        """The times of the loads, in the place of their sums."""
        rest = {name: values for name, values in times.raw_s.items() if name not in self.steps}
        warm_up = {name: values for name, values in times.warmup_s.items() if name in rest}
        return replace(times, raw_s=rest, warmup_s=warm_up).with_noted(self.noted_s)

    @property
    def pid(self) -> int:
        """Of the other process."""
        return self.lender.pid

    def own_s(self) -> float:
        return self.lender.own_s()

    def close(self) -> None:
        for reader in getattr(self, "_readers", {}).values():
            reader.close()
        self.lender.close()

    def _moves(self, transport: Transport) -> Callable[[], None]:
        def run() -> None:
            for load in self.loads:
                times_s = [self._read(transport, load) for _ in range(load.repeats)]
                self._note(self.name(transport, load), median(times_s))

        return run

    def _read(self, transport: Transport, load: Load) -> float:
        """Seconds of one read, of bytes that are new to their place."""
        reader = self._readers[transport, load.block_bytes]
        offer, targets = self._offered(transport, load)
        started_s = time.perf_counter()
        reader.read(offer, targets, LONGEST_READ_S)
        return time.perf_counter() - started_s

    def _offered(self, transport: Transport, load: Load) -> tuple[Offer, list[int]]:
        size, wanted = load.block_bytes, range(load.num_blocks)
        blocks, targets = list(wanted), list(wanted)
        if load.scattered:
            blocks, targets = _scattered(blocks, self.seed), _scattered(targets, self.seed + 1)
        return self.lender.ask(f"{_kind(transport)} {size}", blocks), targets

    def _copies(self) -> None:
        """As much from memory of this process, whatever is scattered elsewhere."""
        for load in self.loads:
            if load.scattered or load.num_bytes <= SHORT_BYTES:
                continue
            times_s = [self._copy(load) for _ in range(load.repeats)]
            self._note(self.name(COPY, load), median(times_s))

    def _copy(self, load: Load) -> float:
        pool, sources = self._pools[load.block_bytes], self._sources[load.block_bytes]
        started_s = time.perf_counter()
        for target, source in zip(pool.regions, sources, strict=True):
            np.copyto(target[: load.num_blocks], source[: load.num_blocks])
        return time.perf_counter() - started_s

    def _is_there(self, transport: Transport) -> bool:
        try:
            for load in self.loads:
                self._check(transport, load)
        except TransferError as error:
            self.missing[transport] = str(error)
            return False
        return True

    def _check(self, transport: Transport, load: Load) -> None:
        """Moves a load, and compares every byte with those that were offered."""
        offer, targets = self._offered(transport, load)
        size = load.block_bytes
        self._readers[transport, size].read(offer, targets, LONGEST_READ_S)
        for region, source in zip(self._pools[size].regions, self._sources[size], strict=True):
            if not np.array_equal(region[targets], source[list(offer.blocks)]):
                raise RuntimeError(f"over {transport} other bytes came than those offered")
            region[targets] = 0

    def _note(self, name: str, time_s: float) -> None:
        self.noted_s.setdefault(name, []).append(time_s)


def lend_memory(connection: Connection, folder: str, most: Mapping[int, int], seed: int) -> None:
    """The other process: a pool for each size of block, and an exporter for each way to it."""
    pools = {size: memory_pool(size, blocks) for size, blocks in most.items()}
    for size, pool in pools.items():
        for region, filled in zip(pool.regions, _filled(size, pool.num_blocks, seed), strict=True):
            np.copyto(region, filled)
    exporters = {
        f"{kind} {size}": Exporter(pool, address, "lender", nixl=True, on_end=lambda *ended: None)
        for size, pool in pools.items()
        for kind, address in _addresses(folder, size).items()
    }
    connection.send({name: exporter.address for name, exporter in exporters.items()})
    for number, (name, blocks) in enumerate(questions(connection)):
        layers = pools[int(name.split()[1])].layout.num_layers
        connection.send(exporters[name].offer(str(number), blocks, layers_ready=layers))
    for exporter in exporters.values():
        exporter.close()


def _addresses(folder: str, size: int) -> dict[str, str]:
    return {"unix": f"unix:{Path(folder, str(size))}", "tcp": "tcp:127.0.0.1:0"}


def _kind(transport: Transport) -> str:
    """Of the address where it is asked for."""
    return "tcp" if transport == "tcp" else "unix"


def _most_blocks(loads: Sequence[Load]) -> dict[int, int]:
    """Blocks of each size that the loads need."""
    most: dict[int, int] = {}
    for load in loads:
        most[load.block_bytes] = max(most.get(load.block_bytes, 0), load.num_blocks)
    return most


def memory_pool(block_bytes: int, num_blocks: int) -> Pool:
    layout = Layout("none", "", "uint8", 1, 1, block_bytes, 1, block_bytes)
    regions = [np.ones((num_blocks, block_bytes), np.uint8) for _ in range(2)]  # touched
    return Pool(layout, regions, np.zeros(num_blocks, np.int64))


def _filled(block_bytes: int, num_blocks: int, seed: int) -> list[NDArray[np.uint8]]:
    """Random bytes for two regions."""
    dice = np.random.default_rng(seed)
    return [dice.integers(0, 256, (num_blocks, block_bytes), np.uint8) for _ in range(2)]


def _scattered(blocks: Sequence[int], seed: int) -> list[int]:
    return random.Random(seed).sample(blocks, len(blocks))
