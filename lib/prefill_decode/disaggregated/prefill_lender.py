"""Prefill lender: an engine in a process of its own that reads prompts and lends their cache, over
as many links as wanted, each of a speed of its own. For measuring; it serves no requests.

Ignores: scheduling, sampling beyond the likeliest token. Where the engine is on an accelerator,
         each layer is copied to the host's memory before it may leave, within the prefill."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from prefill_decode.disaggregated.engine_memory import layout_of
from prefill_decode.disaggregated.lender import Lender, questions
from prefill_decode.engine import PagedEngine, PlacedChunk
from prefill_decode.kv_transfer import Exporter, Offer, Pool
from prefill_decode.model_spec import ModelSpec

LEASE_S = 600.0


@dataclass(frozen=True)
class Room:
    """Blocks of a cache, for one sequence or for several."""

    num_blocks: int
    block_tokens: int

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True)
class Prefilled:
    """When a prefill began and ended, by the clock that all processes of a host share."""

    started_s: float
    ended_s: float
    token_id: int

    @property
    def time_s(self) -> float:
        return self.ended_s - self.started_s


class PrefillLender:
    """`threads` for the other process's torch. `close` ends it."""

    def __init__(
        self, model: ModelSpec, room: Room, *, threads: int, device: str = "cpu", seed: int = 0
    ) -> None:
        self.lender = Lender(_lend_prefills, model, room, threads, device, seed)

    def listen(self, link: str, kind: str, bytes_per_s: float | None = None) -> str:
        """The address of a new link over "unix" or "tcp", of this speed."""
        address: str = self.lender.ask("listen", link, kind, bytes_per_s)
        return address

    def prefill(self, pieces: Sequence[Sequence[int]], table: Sequence[int]) -> Prefilled:
        found: Prefilled = self.lender.ask("prefill", pieces, table)
        return found

    def offer(self, link: str, table: Sequence[int]) -> Offer:
        """What these blocks hold, all of it at once."""
        found: Offer = self.lender.ask("offer", link, table)
        return found

    def layered(self, link: str, token_ids: Sequence[int], table: Sequence[int]) -> Offer:
        """Begins a prefill whose layers may be read as they are ready; `prefilled` ends it."""
        found: Offer = self.lender.ask("layered", link, token_ids, table)
        return found

    def prefilled(self) -> Prefilled:
        found: Prefilled = self.lender.hear()
        return found

    def own_s(self) -> float:
        return self.lender.own_s()

    def close(self) -> None:
        self.lender.close()


def cache_pool(
    model: ModelSpec, room: Room, regions: Sequence[NDArray[np.uint8]] | None = None
) -> Pool:
    """A pool that fits this model's cache; of its own memory unless some is given."""
    layout = layout_of(model, room.block_tokens, "by seed")
    if regions is None:
        shape = (room.num_blocks, layout.block_bytes)
        regions = [np.ones(shape, np.uint8) for _ in range(2 * model.num_layers)]  # touched
    return Pool(layout, regions, np.zeros(room.num_blocks, np.int64))


class _Side:
    """All that the other process has."""

    def __init__(
        self, folder: str, model: ModelSpec, room: Room, threads: int, device: str, seed: int
    ) -> None:
        torch.set_num_threads(threads)
        self.folder, self.device = folder, device
        self.engine = PagedEngine(
            model,
            device,
            num_blocks=room.num_blocks,
            block_tokens=room.block_tokens,
            capacity_tokens=room.num_blocks * room.block_tokens,
            seed=seed,
        )
        own = self.engine.cache.regions() if device == "cpu" else None
        self.pool = cache_pool(model, room, own)
        self.exporters: dict[str, Exporter] = {}
        self.offered = 0

    def listen(self, link: str, kind: str, bytes_per_s: float | None) -> str:
        path = Path(self.folder, str(len(self.exporters)))
        address = f"unix:{path}" if kind == "unix" else "tcp:127.0.0.1:0"
        exporter = Exporter(
            self.pool,
            address,
            "lender",
            lease_s=LEASE_S,
            pace_bytes_per_s=bytes_per_s,
            nixl=True,
            on_end=lambda *ended: None,
        )
        self.exporters[link] = exporter
        return exporter.address

    def offer(self, link: str, table: Sequence[int], layers_ready: int | None = None) -> Offer:
        self.offered += 1
        ready = self.pool.layout.num_layers if layers_ready is None else layers_ready
        return self.exporters[link].offer(str(self.offered), table, layers_ready=ready)

    def prefill(
        self,
        pieces: Sequence[Sequence[int]],
        table: Sequence[int],
        ready: Callable[[int], None] = lambda count: None,
    ) -> Prefilled:
        """`ready(count)` as layers of the last piece are there."""

        def on_layer(index: int) -> None:
            self._stage(index, table)
            ready(index + 1)

        started_s, done = time.perf_counter(), 0
        for number, piece in enumerate(pieces, start=1):
            hook = on_layer if number == len(pieces) else None
            logits = self.engine.forward([PlacedChunk(list(piece), done, list(table))], hook)
            done += len(piece)
        token_id = int(logits[-1].argmax())
        return Prefilled(started_s, time.perf_counter(), token_id)

    def _stage(self, layer: int, table: Sequence[int]) -> None:
        """From an accelerator into the pool; on a CPU the cache is the pool."""
        if self.device == "cpu":
            return
        cache = self.engine.cache
        for region, cached in enumerate((cache.keys[layer], cache.values[layer]), start=2 * layer):
            self.pool.regions[region][list(table)] = bytes_of(cached[list(table)])


def bytes_of(blocks: torch.Tensor) -> NDArray[np.uint8]:
    """[n, ...] on any device as bytes on the host, [n, block_bytes]."""
    raw: NDArray[np.uint8] = blocks.contiguous().view(torch.uint8).flatten(1).cpu().numpy()
    return raw


def _lend_prefills(connection: Connection, folder: str, *given: Any) -> None:
    side = _Side(folder, *given)
    answers: Mapping[str, Callable[..., object]] = {
        "listen": side.listen,
        "offer": side.offer,
        "prefill": side.prefill,
        "layered": partial(_layered, connection, side),
    }
    for what, *words in questions(connection):
        connection.send(answers[what](*words))
    for exporter in side.exporters.values():
        exporter.close()


def _layered(
    connection: Connection, side: _Side, link: str, token_ids: Sequence[int], table: Sequence[int]
) -> Prefilled:
    """Sends the offer first, and then lets layers be read one by one."""
    offer = side.offer(link, table, layers_ready=0)
    connection.send(offer)
    ready = partial(side.exporters[link].layers_ready, offer.transfer_id)
    return side.prefill([token_ids], table, ready)
