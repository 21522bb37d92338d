"""PagedEngine: chunks with their block tables in, logits out, one step at a time.

The engine keeps blocks of cache and no account of them: each chunk says which blocks its sequence
lies in and how many tokens they hold. Sequences that begin alike may share blocks, as long as no
chunk of the step writes them. How a sequence is cut into chunks, what else runs in the same step
and where its blocks lie never changes its tokens."""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefill_decode.engine.kv_cache import KVCache, on_device
from prefill_decode.engine.model import (
    CompiledDecodeSpan,
    DecodeSpan,
    OnLayer,
    PrefillSpan,
    RotaryTable,
    Span,
    StepPlan,
    forward,
)
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.kernels import LARGEST_HEAD
from prefill_decode.model_spec import ModelSpec

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class PlacedChunk:
    """The chunk a step runs for one sequence, and where its cache lies."""

    token_ids: Sequence[int]
    cached_tokens: int
    blocks: Sequence[int]  # room for the cached tokens and the new ones, or for more
    samples_token: bool = True

    @property
    def total_tokens(self) -> int:
        return self.cached_tokens + len(self.token_ids)


class PagedEngine:
    """A decoder and `num_blocks` blocks of cache, for sequences of up to `capacity_tokens`.

    Weights are random by seed, or those given: engines may share them."""

    def __init__(
        self,
        model: ModelSpec,
        device: str = "cpu",
        *,
        num_blocks: int,
        block_tokens: int,
        capacity_tokens: int,
        seed: int = 0,
        weights: Weights | None = None,
    ) -> None:
        _check_sizes(model, num_blocks, block_tokens, capacity_tokens)
        self.model = model
        self.device = device
        self.capacity_tokens = capacity_tokens
        self.weights = random_weights(model, device, seed) if weights is None else weights
        self.cache = KVCache(model, num_blocks, block_tokens, device)
        self.rotary = RotaryTable(model, capacity_tokens, device)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[PlacedChunk], on_layer: OnLayer | None = None) -> Tensor:
        """One step. Logits [S, vocab] of the chunks that sample, in their order. `on_layer(index)`
        is called once a layer has written the keys and values of the step's tokens.

        Raises ValueError, with nothing changed, for an empty step or chunk, a token id outside the
        vocabulary, a sequence that outgrows its blocks or the engine, an unknown block, or a block
        that is written by one chunk and in the table of another."""
        return self.run(self.plan(chunks), on_layer)

    @torch.inference_mode()
    def run(self, plan: StepPlan, on_layer: OnLayer | None = None) -> Tensor:
        return forward(self.model, self.weights, self.cache, self.rotary, plan, on_layer)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies block source to block target for each (source, target), before one is written."""
        self.cache.copy_blocks(pairs)

    def plan(self, chunks: Sequence[PlacedChunk]) -> StepPlan:
        """What the host decides about a step: where each row goes and what it may see."""
        tables = self._checked(chunks)
        runs = list(_runs(chunks, tables))
        places = [self._places(run) for run in runs]
        arrays = [*self._rows(chunks, tables)]
        for run, place in zip(runs, places, strict=True):
            arrays += [_array([]) if isinstance(place, slice) else place, run.unlike_totals]
        moved = iter(self._moved(arrays))
        token_ids, positions, blocks, offsets, sampled = (next(moved) for _ in range(5))
        spans = tuple(
            self._span(run, place, next(moved), next(moved))
            for run, place in zip(runs, places, strict=True)
        )
        every_row = len(sampled) == len(token_ids)
        return StepPlan(
            token_ids, positions, blocks, offsets, spans, None if every_row else sampled
        )

    def _rows(
        self, chunks: Sequence[PlacedChunk], tables: Sequence[Sequence[int]]
    ) -> Iterator[Indices]:
        """Token ids, positions, blocks and offsets of every row, and which rows are sampled."""
        size = self.cache.block_tokens
        yield _array([token for chunk in chunks for token in chunk.token_ids])
        positions = _array([p for c in chunks for p in range(c.cached_tokens, c.total_tokens)])
        yield positions
        yield _array(
            [
                table[position // size]
                for chunk, table in zip(chunks, tables, strict=True)
                for position in range(chunk.cached_tokens, chunk.total_tokens)
            ]
        )
        yield positions % size
        ends = accumulate(len(chunk.token_ids) for chunk in chunks)
        yield _array(
            [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.samples_token]
        )

    def _places(self, run: "_Run") -> Indices | slice:
        """Where the sequences of a run lie, as its span wants it."""
        if run.decodes and self._decodes_by_kernel():
            return run.padded_tables()
        first = run.tables[0][0]
        if run.tables == [[first + i] for i in range(len(run.tables))]:
            return slice(first, first + len(run.tables))
        num_kv_heads = self.model.num_kv_heads
        blocks = run.padded_tables()[:, None, :]  # [B, 1, n]
        return blocks * num_kv_heads + np.arange(num_kv_heads)[:, None]

    def _decodes_by_kernel(self) -> bool:
        has_kernels = self.weights.layers[0].qkv.kernels is not None
        return has_kernels and self.model.head_dim <= LARGEST_HEAD

    def _span(self, run: "_Run", place: Indices | slice, moved: Tensor, totals: Tensor) -> Span:
        seen = place if isinstance(place, slice) else moved
        longest = max(run.totals)
        if not run.decodes:
            return PrefillSpan(run.first, run.last, seen, longest)
        if self._decodes_by_kernel():
            return CompiledDecodeSpan(run.first, run.last, moved, longest)
        return DecodeSpan(run.first, run.last, seen, longest, totals if len(totals) else None)

    def _moved(self, arrays: Sequence[Indices]) -> list[Tensor]:
        """All of them on the device, by one copy."""
        flat = torch.from_numpy(np.concatenate([values.ravel() for values in arrays]))
        pieces = on_device(flat, self.device).split([values.size for values in arrays])
        return [piece.view(a.shape) for piece, a in zip(pieces, arrays, strict=True)]

    def _checked(self, chunks: Sequence[PlacedChunk]) -> list[list[int]]:
        """The block table of each chunk, as far as its tokens reach."""
        if not chunks:
            raise ValueError("a step needs at least one chunk; got an empty batch")
        for index, chunk in enumerate(chunks):
            self._check_tokens(index, chunk)
            self._check_room(index, chunk)
        size = self.cache.block_tokens
        tables = [list(chunk.blocks[: -(-chunk.total_tokens // size)]) for chunk in chunks]
        self._check_blocks(chunks, tables)
        return tables

    def _check_tokens(self, index: int, chunk: PlacedChunk) -> None:
        if not len(chunk.token_ids):
            raise ValueError(f"a chunk needs at least one token; chunk {index} got none")
        if not all(isinstance(token, int) for token in chunk.token_ids):
            raise ValueError(f"token ids are whole numbers; chunk {index} got others")
        if min(chunk.token_ids) < 0 or max(chunk.token_ids) >= self.model.vocab_size:
            raise ValueError(
                f"token ids must be from 0 to {self.model.vocab_size - 1}; chunk {index} got "
                f"{min(chunk.token_ids)} to {max(chunk.token_ids)}"
            )

    def _check_room(self, index: int, chunk: PlacedChunk) -> None:
        if not isinstance(chunk.cached_tokens, int) or chunk.cached_tokens < 0:
            raise ValueError(f"cached_tokens is a count; chunk {index} got {chunk.cached_tokens!r}")
        room = len(chunk.blocks) * self.cache.block_tokens
        if chunk.total_tokens > room:
            raise ValueError(
                f"blocks must hold the cached tokens and the new ones; chunk {index} got "
                f"{chunk.total_tokens} tokens and {len(chunk.blocks)} blocks of "
                f"{self.cache.block_tokens}: give it more blocks"
            )
        if chunk.total_tokens > self.capacity_tokens:
            raise ValueError(
                f"a sequence has room for {self.capacity_tokens} tokens; chunk {index} got "
                f"{chunk.total_tokens}: build the engine with a larger capacity_tokens"
            )

    def _check_blocks(self, chunks: Sequence[PlacedChunk], tables: Sequence[list[int]]) -> None:
        num_blocks = self.cache.num_blocks
        try:
            seen = np.frombuffer(array("q", chain.from_iterable(tables)), dtype=np.int64)
        except (TypeError, OverflowError):
            raise ValueError(f"blocks are whole numbers from 0 to {num_blocks - 1}") from None
        if seen.min() < 0 or seen.max() >= num_blocks:
            raise ValueError(
                f"blocks are from 0 to {num_blocks - 1}; got {seen.min()} to {seen.max()}"
            )
        size = self.cache.block_tokens
        written = [
            block
            for chunk, table in zip(chunks, tables, strict=True)
            for block in table[chunk.cached_tokens // size :]
        ]
        shared = np.bincount(seen, minlength=num_blocks)[written] > 1
        if shared.any():
            raise ValueError(
                "a block that a chunk writes is in no other place of the step's tables; got block "
                f"{written[int(shared.argmax())]} twice: copy it first, see copy_blocks"
            )


@dataclass(frozen=True)
class _Run:
    """Chunks that stand next to each other and are one span: a prefill, or decodes."""

    first: int  # row
    last: int
    decodes: bool
    tables: list[list[int]]
    totals: list[int]  # tokens that each sequence then has

    @property
    def unlike_totals(self) -> Indices:
        """Empty when all are alike, or when one sequence is all there is."""
        return _array(self.totals if min(self.totals) < max(self.totals) else [])

    def padded_tables(self) -> Indices:  # [B, most_blocks]
        """Padded with a block of the same sequence: masked, but NaN of another would show."""
        most = max(map(len, self.tables))
        return _array(
            list(chain.from_iterable(t + t[:1] * (most - len(t)) for t in self.tables))
        ).reshape(len(self.tables), most)


def _runs(chunks: Sequence[PlacedChunk], tables: Sequence[list[int]]) -> Iterator[_Run]:
    """In the order of the chunks. A chunk of one token is a decode, cached tokens or not."""

    def decodes_or_index(index: int) -> int:
        return -1 if len(chunks[index].token_ids) == 1 else index

    row = 0
    for key, group in groupby(range(len(chunks)), decodes_or_index):
        indices = list(group)
        totals = [chunks[index].total_tokens for index in indices]
        last = row + sum(len(chunks[index].token_ids) for index in indices)
        yield _Run(row, last, key == -1, [tables[index] for index in indices], totals)
        row = last


def _array(values: list[int]) -> Indices:
    return np.array(values, dtype=np.int64)


def _check_sizes(
    model: ModelSpec, num_blocks: int, block_tokens: int, capacity_tokens: int
) -> None:
    if num_blocks < 1 or block_tokens < 1 or capacity_tokens < 1:
        raise ValueError(
            "an engine needs at least one block, one token in it and one in a sequence; got "
            f"num_blocks={num_blocks}, block_tokens={block_tokens} and "
            f"capacity_tokens={capacity_tokens}"
        )
    if capacity_tokens > num_blocks * block_tokens:
        raise ValueError(
            f"a sequence lies in blocks: {num_blocks} of {block_tokens} tokens hold no more than "
            f"{num_blocks * block_tokens}; got capacity_tokens={capacity_tokens}"
        )
    rows = model.vectors.position_rows
    if model.positions == "learned" and capacity_tokens > rows:
        raise ValueError(
            f"{model.name} has learned {rows} positions, and a sequence cannot hold more tokens; "
            f"got capacity_tokens={capacity_tokens}"
        )
