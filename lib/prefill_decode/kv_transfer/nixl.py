"""NIXL: one-sided reads by NVIDIA's transfer library over UCX, which has them between hosts too.

Optional: nothing here imports it before it is asked for. As with `cma`, the owner says over the
channel where its pool is, which alone it registers, and a random proof beside it is read first; the
channel goes on saying what is ready, what is released and what is done. What NIXL itself has for
that is not used: neither its notifications nor its listener, and not its lists of descriptors on
the wire, which are pickled. The one thing of its own that is sent is where an agent is reached, in
bytes that only UCX reads, and believes: wrong ones can end the process. They are taken from an
owner that has proved the key, or over a Unix socket, which is its user's alone.

UCX would go another way without a word, so an agent may go one alone: shared memory on one host,
RDMA between two. Over shared memory nobody moves the owner's agent on: a read that ends has needed
no other process, and where the system does not allow that, the proof is not read in time. For RDMA
the owner's processor helps to connect. UCX's TCP is left out: its port asks nobody for a key, and
UCX ended an owner whose reader had given up ("Fatal: unexpected error: Endpoint timeout").

No checksum, for the reasons that `cma` gives. A read that is given up may not be over: its agent is
ended before anyone else gets the blocks, and then nothing is registered that could be written."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefill_decode.kv_transfer.addresses import is_local
from prefill_decode.kv_transfer.cma import PROOF_BYTES, vectors
from prefill_decode.kv_transfer.errors import PeerLost, Refused, TransferError
from prefill_decode.kv_transfer.pool import Pool, Walk

PROOF_S = 2.0  # to read the proof: a connection is made meanwhile
POLL_S = 1e-3  # between two moves of an owner's agent
OVERRIDING = ("UCX_TLS", "UCX_NET_DEVICES")  # UCX prefers them to what it is told
RDMA_DEVICES = Path("/sys/class/infiniband")
MISSING = (
    "NIXL is not installed here: pip install --no-deps nixl-cu12 (its dependencies would bring a "
    "torch for CUDA, and nothing of it is needed)"
)


@dataclass(frozen=True)
class Fabric:
    """A way between two agents, the only one that they may take."""

    name: str
    config: str  # for UCX, without the prefix of its variables
    errors: str  # whether UCX watches the peer, which over shared memory it cannot
    needs_owner: bool  # whose agent must be moved on while a reader is there

    @property
    def lane(self) -> str:
        return f"nixl/{self.name}"


SHM = Fabric("shm", "TLS=sm", "none", needs_owner=False)
RDMA = Fabric("rdma", "TLS=ib", "peer", needs_owner=True)


def fabric_of(connection: socket.socket) -> Fabric:
    """The way beside this channel; both sides see it alike. Refused where there is none."""
    if is_local(connection):
        return SHM
    if not _has_rdma():
        raise Refused("NIXL needs an RDMA device to read from another host, and there is none here")
    return RDMA


def refuse_if_missing() -> None:
    """ValueError where NIXL is not installed."""
    if find_spec("nixl_cu12") is None:
        raise ValueError(MISSING)


class Agent:
    """One of NIXL's, with these arrays registered; used by one thread at a time.

    Refused where NIXL is not installed or does not start."""

    def __init__(self, fabric: Fabric, arrays: Sequence[NDArray[Any]]) -> None:
        library = _library()
        self._arrays = list(arrays)  # they must not go before it does
        config = library.nixl_agent_config(enable_prog_thread=False, backends=[])
        options = {"engine_config": fabric.config, "ucx_error_handling_mode": fabric.errors}
        rows = [(array.ctypes.data, array.nbytes, 0, "") for array in arrays]
        self._agent: Any = None
        try:
            self._agent = library.nixl_agent(token_hex(8), config)
            self._agent.create_backend("UCX", options)
            self._registered = self._agent.register_memory(rows, "DRAM")
        except Exception as error:
            self._agent = None
            raise Refused(f"NIXL does not start over {fabric.name}: {error}") from None

    def reached_at(self) -> bytes:
        return bytes(self._agent.get_agent_metadata())

    def meet(self, reached_at: bytes) -> str:
        """The name of the agent there. Refused for bytes that are none of NIXL's."""
        try:
            name = self._agent.add_remote_agent(reached_at)
        except Exception as error:
            raise Refused(f"NIXL does not reach the owner: {error}") from None
        return bytes(name).decode("utf-8", "replace")

    def read(
        self,
        name: str,
        there: NDArray[np.uint64],
        here: NDArray[np.uint64],
        check: Callable[[], None],
    ) -> None:
        """From vectors there to vectors here, [n, 2] addresses and lengths, as many bytes of both.

        `check` is called while it is not over; after what it raises the agent must be closed.
        PeerLost where the owner is not to be read."""
        agent = self._agent
        lists = [agent.get_xfer_descs(rows, "DRAM") for rows in _paired(here, there)]
        transfer = None
        try:
            transfer = agent.initialize_xfer("READ", *lists, name)
            state = agent.transfer(transfer)
            while state == "PROC":
                check()
                state = agent.check_xfer_state(transfer)
        except TransferError:
            raise
        except Exception as error:  # NIXL's have no class in common
            raise PeerLost(f"the owner is not to be read: {error}") from None
        finally:
            with suppress(Exception):
                if transfer is not None:
                    transfer.release()
            del transfer, agent, lists  # no traceback keeps them
        if state != "DONE":
            raise PeerLost("the owner is not to be read any more")

    def move_on(self) -> None:
        self._agent.get_new_notifs()

    def close(self) -> None:
        """It writes nothing after. A second time does nothing."""
        if self._agent is not None:
            with suppress(Exception):
                self._agent.deregister_memory(self._registered)
            self._agent = self._registered = None


class Lent:
    """An owner's agents, one for each fabric that a reader came by; for any thread."""

    def __init__(self, pool: Pool, proof: NDArray[np.uint8]) -> None:
        self._pool, self._proof = pool, proof
        self._lock = threading.Lock()
        self._agents: dict[str, Agent] = {}

    def describe(self, fabric: Fabric) -> dict[str, Any]:
        """For a reader's `NixlMemory`. Refused where NIXL does not start."""
        pool, proof = self._pool, self._proof
        with self._lock:
            if fabric.name not in self._agents:
                arrays: list[NDArray[Any]] = [*pool.regions, pool.generations, proof]
                self._agents[fabric.name] = Agent(fabric, arrays)
            reached_at = self._agents[fabric.name].reached_at()
        return {
            "reached_at": reached_at.hex(),
            "proof": proof.tobytes().hex(),
            "proof_at": proof.ctypes.data,
            "generations_at": pool.generations.ctypes.data,
            "regions_at": [region.ctypes.data for region in pool.regions],
        }

    def move_on(self, fabric: Fabric) -> None:
        with self._lock:
            if fabric.name in self._agents:
                self._agents[fabric.name].move_on()

    def close(self) -> None:
        with self._lock:
            while self._agents:
                self._agents.popitem()[1].close()


class NixlMemory:
    """Another process's pool, read into this one. Refused where that cannot be, or where it is not
    the pool of the one that said so.

    `check` is called while a read waits, and ends it by what it raises."""

    def __init__(
        self,
        said: Any,
        pool: Pool,
        fabric: Fabric,
        wait_s: float = PROOF_S,
    ) -> None:
        if isinstance(said, dict) and "refused" in said:
            raise Refused(f"the owner: {said['refused']!s:.300}")
        try:
            reached_at, proof = bytes.fromhex(said["reached_at"]), bytes.fromhex(said["proof"])
            self._generations_at, proof_at = int(said["generations_at"]), int(said["proof_at"])
            self.regions_at = [int(address) for address in said["regions_at"]]
        except (TypeError, ValueError, LookupError):
            raise Refused("the owner does not say where its memory is") from None
        places = (self._generations_at, proof_at, *self.regions_at)
        fine = len(proof) == PROOF_BYTES and all(0 < place < 2**63 for place in places)
        if len(self.regions_at) != len(pool.regions) or not fine:
            raise Refused("the owner does not say where all of its memory is")
        self.lane = fabric.lane
        self.check: Callable[[], None] = lambda: None
        self._found = np.zeros(max(PROOF_BYTES, 8 * pool.num_blocks), np.uint8)
        self._agent = Agent(fabric, (*pool.regions, self._found))
        try:
            self._name = self._agent.meet(reached_at)
            self._prove(proof, proof_at, min(wait_s, PROOF_S))
        except BaseException:
            self.close()
            raise

    def generations(self, blocks: Sequence[int]) -> tuple[int, ...]:
        there, here = Walk(blocks, 8), [(0, 8 * len(blocks))]
        spans = there.take(there.total)
        self.copy(vectors(self._generations_at, spans), vectors(self._found.ctypes.data, here))
        return tuple(self._found.view(np.int64)[: len(blocks)].tolist())

    def copy(self, there: NDArray[np.uint64], here: NDArray[np.uint64]) -> None:
        """As `cma.Memory.copy`. PeerLost, and what `check` raises."""
        self._agent.read(self._name, there, here, self.check)

    def close(self) -> None:
        """The pool is not written any more."""
        self._agent.close()

    def _prove(self, proof: bytes, proof_at: int, wait_s: float) -> None:
        end = time.monotonic() + wait_s

        def check() -> None:
            if time.monotonic() > end:
                raise Refused(f"nothing could be read by {self.lane} within {wait_s:.2g} s")

        whole = [(0, PROOF_BYTES)]
        try:
            self._agent.read(
                self._name, vectors(proof_at, whole), vectors(self._found.ctypes.data, whole), check
            )
        except PeerLost as error:
            raise Refused(f"the owner's memory cannot be read by {self.lane}: {error}") from None
        if self._found[:PROOF_BYTES].tobytes() != proof:
            raise Refused("the owner's memory is not that of the process that says so")


def _paired(*sides: NDArray[np.uint64]) -> list[NDArray[np.uint64]]:
    """The same bytes of each side in pieces as long on all: [n, 3] address, length, device 0."""
    ends = [np.cumsum(rows[:, 1]) for rows in sides]
    cuts = np.unique(np.concatenate(ends))
    lengths = np.diff(cuts, prepend=np.uint64(0))
    starts = cuts - lengths
    pieces = []
    for rows, stops in zip(sides, ends, strict=True):
        within = np.searchsorted(stops, starts, side="right")
        addresses = rows[within, 0] + starts - (stops[within] - rows[within, 1])
        pieces.append(np.column_stack([addresses, lengths, np.zeros_like(lengths)]))
    return pieces


def _library() -> Any:
    """Refused where it is not installed, or where the environment would overrule what it is told.

    On a host without RDMA its verbs are left out: UCX ends badly with them there. What it and UCX
    would write to stdout goes elsewhere."""
    if given := [name for name in OVERRIDING if name in os.environ]:
        raise Refused(f"{' and '.join(given)} in the environment would choose NIXL's way: unset it")
    if not _has_rdma():
        os.environ.setdefault("UCX_MODULES", "^ib")  # all before UCX is loaded
    os.environ.setdefault("UCX_LOG_FILE", "stderr")
    try:
        import nixl_cu12
    except ImportError as error:
        raise Refused(f"{MISSING}: {error}") from None
    logging.getLogger("nixl").setLevel(logging.WARNING)
    return nixl_cu12


def _has_rdma() -> bool:
    return RDMA_DEVICES.is_dir() and any(RDMA_DEVICES.iterdir())
