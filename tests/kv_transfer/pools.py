"""Pools with random contents, and both sides of a transfer, for the tests beside this file."""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from prefill_decode.kv_transfer import Exporter, How, Lane, Layout, Pool, Reader
from prefill_decode.kv_transfer.nixl import SHM, Agent

LAYERS = 3
KEY = b"the same on both sides"
LANES: list[tuple[str, Lane]] = [("unix", "stream"), ("tcp", "stream")]
if hasattr(ctypes.CDLL(None), "process_vm_readv"):
    LANES += [("unix", "cma"), ("tcp", "cma")]
if find_spec("nixl_cu12"):
    LANES += [("unix", "nixl")]


def name_of(kind: str, lane: Lane) -> str:
    """What a read by this lane from such an address says that it took."""
    return {"nixl": "nixl/shm", "cma": "cma"}.get(lane, kind)


def layout(block_bytes: int = 256, **changes: object) -> Layout:
    told: dict = {
        "model": "tiny",
        "weights": "abc",
        "dtype": "float32",
        "num_layers": LAYERS,
        "num_kv_heads": 2,
        "head_dim": 8,
        "block_tokens": 4,
        "block_bytes": block_bytes,
    }
    return Layout(**(told | changes))


def make_pool(num_blocks: int = 32, block_bytes: int = 256, seed: int = 0) -> Pool:
    die = np.random.default_rng(seed)
    regions = [die.integers(0, 256, (num_blocks, block_bytes), np.uint8) for _ in range(2 * LAYERS)]
    return Pool(layout(block_bytes), regions, die.integers(0, 9, num_blocks))


def copied(pool: Pool) -> list[np.ndarray]:
    return [region.copy() for region in pool.regions]


def holds(pool: Pool, targets: list[int], source: list[np.ndarray], blocks: list[int]) -> bool:
    """Whether the targets hold what the blocks do."""
    return all(
        np.array_equal(mine[targets], theirs[blocks])
        for mine, theirs in zip(pool.regions, source, strict=True)
    )


def unchanged(pool: Pool, before: list[np.ndarray], but: list[int]) -> bool:
    """Whether all blocks but these are as before."""
    others = [block for block in range(pool.num_blocks) if block not in but]
    return holds(pool, others, before, others)


@dataclass
class Ends:
    """What an exporter said of its leases' ends."""

    told: list[tuple[str, How]] = field(default_factory=list)

    def __call__(self, transfer_id: str, how: How) -> None:
        self.told.append((transfer_id, how))


def until(holds_now: Callable[[], bool], patience_s: float = 10.0) -> bool:
    """Whether it comes to hold."""
    end = time.monotonic() + patience_s
    while not (found := holds_now()) and time.monotonic() < end:
        time.sleep(0.002)
    return found


def num_descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@dataclass
class Sides:
    source: Pool
    target: Pool
    exporter: Exporter
    reader: Reader
    ends: Ends

    def ended(self, transfer_id: str, how: How) -> bool:
        return until(lambda: (transfer_id, how) in self.ends.told)


@contextmanager
def sides(
    folder: Path,
    kind: str = "unix",
    lane: Lane = "stream",
    key: bytes | None = None,
    source: Pool | None = None,
    target: Pool | None = None,
    **options: object,
) -> Iterator[Sides]:
    """An exporter and a reader; afterwards neither has left a thread or a descriptor."""
    if lane == "nixl":  # what a library opens when it is loaded is its own affair
        Agent(SHM, [np.zeros(8, np.uint8)]).close()
    before, descriptors = set(threading.enumerate()), num_descriptors()
    source, target = source or make_pool(seed=1), target or make_pool(seed=2)
    ends = Ends()
    address = f"unix:{folder}/s" if kind == "unix" else "tcp:127.0.0.1:0"
    options = {"nixl": lane == "nixl", **options}
    exporter = Exporter(source, address, "first", key=key, on_end=ends, **options)  # type: ignore[arg-type]
    reader = Reader(exporter.address, target, key=key, lane=lane)
    try:
        yield Sides(source, target, exporter, reader, ends)
    finally:
        reader.close()
        exporter.close()
    assert set(threading.enumerate()) <= before
    assert num_descriptors() == descriptors


class Reading(threading.Thread):
    """A read in a thread of its own; `error` is what it ended with."""

    def __init__(self, both: Sides, *asked: object) -> None:
        super().__init__(daemon=True)
        self._read, self._asked = both.reader.read, asked
        self.error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self.moved = self._read(*self._asked)  # type: ignore[arg-type]
        except BaseException as error:
            self.error = error
