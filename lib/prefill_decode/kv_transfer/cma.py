"""CMA: one process copies from the memory of another on its host, as RDMA READ does between hosts.

`process_vm_readv` (Linux, cross memory attach) copies straight into the target blocks; the owner's
threads do nothing for it. Where the owner's regions are, it says itself over the channel; that they
are where it says, on this host and in this process, a random proof in its memory shows, read by the
same call. A system that does not allow it answers with an error, and the stream is used.

There is no checksum: both sides would have to read all bytes once more, at a rate not far above the
copy's own, and the copy is made by one kernel from memory to memory, as any load is. What could be
wrong is that the blocks changed meanwhile: generations are read before and after by the same call,
and the owner confirms the end."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefill_decode.kv_transfer.errors import Corrupt, PeerLost, Refused
from prefill_decode.kv_transfer.pool import Pool, runs

PROOF_BYTES = 32
Vectors = NDArray[np.uint64]  # [n, 2], addresses and lengths


def describe(pool: Pool, proof: NDArray[np.uint8]) -> dict[str, Any]:
    """Where this process has its pool, for a reader's `Memory`."""
    return {
        "pid": os.getpid(),
        "proof": proof.tobytes().hex(),
        "proof_at": proof.ctypes.data,
        "generations_at": pool.generations.ctypes.data,
        "regions_at": [region.ctypes.data for region in pool.regions],
    }


class Memory:
    """Another process's pool. Refused where it cannot be read, or is not the one that said so."""

    lane = "cma"

    def __init__(self, said: Any, num_regions: int) -> None:
        try:
            self._pid, self.generations_at = int(said["pid"]), int(said["generations_at"])
            self.regions_at = [int(address) for address in said["regions_at"]]
            proof, proof_at = bytes.fromhex(said["proof"]), int(said["proof_at"])
        except (TypeError, ValueError, LookupError):
            raise Refused("the owner does not say where its memory is") from None
        if len(self.regions_at) != num_regions or len(proof) != PROOF_BYTES:
            raise Refused("the owner does not say where all of its memory is")
        try:
            self._call = ctypes.CDLL(None, use_errno=True).process_vm_readv
        except AttributeError:
            raise Refused("this system has no process_vm_readv") from None
        self._call.restype = ctypes.c_ssize_t
        found = np.zeros(PROOF_BYTES, np.uint8)
        try:
            self.copy(vectors(proof_at, [(0, PROOF_BYTES)]), vectors(found.ctypes.data, [(0, 32)]))
        except (PeerLost, Corrupt) as error:
            raise Refused(f"the owner's memory cannot be read: {error}") from None
        if found.tobytes() != proof:
            raise Refused("the owner's memory is not that of a process on this host")

    def generations(self, blocks: Sequence[int]) -> tuple[int, ...]:
        found = np.empty(len(blocks), np.int64)
        for first in range(0, len(blocks), 1024):
            part = blocks[first : first + 1024]
            here = [(8 * first, 8 * (first + len(part)))]
            self.copy(vectors(self.generations_at, runs(part, 8)), vectors(found.ctypes.data, here))
        return tuple(found.tolist())

    def copy(self, there: NDArray[np.uint64], here: NDArray[np.uint64]) -> None:
        """From vectors there to vectors here, [n, 2] addresses and lengths, as many bytes on both
        sides, at most 1024 vectors each.

        PeerLost where the process has gone, Corrupt where it has no such memory."""
        num_bytes = int(here[:, 1].sum())
        ctypes.set_errno(0)
        copied = self._call(
            ctypes.c_int(self._pid),
            ctypes.c_void_p(here.ctypes.data),
            ctypes.c_ulong(len(here)),
            ctypes.c_void_p(there.ctypes.data),
            ctypes.c_ulong(len(there)),
            ctypes.c_ulong(0),
        )
        if copied < 0:
            words = os.strerror(ctypes.get_errno())
            raise PeerLost(f"process {self._pid} is not to be read: {words}")
        if copied != num_bytes:
            raise Corrupt(f"{num_bytes} bytes were to be copied, and {copied} were")


def vectors(base: int, spans: Sequence[tuple[int, int]]) -> Vectors:
    """[n, 2] addresses and lengths of spans (start, stop) from a base on: `struct iovec`."""
    found = np.array(spans, np.uint64)
    found[:, 1] -= found[:, 0]
    found[:, 0] += np.uint64(base)
    return found
