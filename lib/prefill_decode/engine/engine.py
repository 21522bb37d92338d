"""Engine: sequences in, logits out, one step at a time.

The engine keeps one cache slot for each sequence and knows how many tokens each holds: a paged
engine whose blocks are as long as a sequence may become. The caller brings new token ids for some
slots; prefill, decode and any mixture are the same call. How a prompt is cut into chunks, and what
else runs in the same step, never changes a sequence's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from prefill_decode.engine.kv_cache import KVCache
from prefill_decode.engine.model import StepPlan
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.weights import Weights
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk


@dataclass(frozen=True)
class SequenceChunk:
    """The chunk a step runs for one slot: new token ids on top of what the slot holds."""

    slot: int
    token_ids: Sequence[int]
    samples_token: bool = True


class SlotCache:
    """A cache with one block a slot, and `lengths`: the tokens that each slot holds."""

    def __init__(self, blocks: KVCache) -> None:
        self.blocks = blocks
        self.keys, self.values = blocks.keys, blocks.values  # [slots, K, capacity, D] a layer
        self.lengths = [0] * blocks.num_blocks
        self.capacity_tokens = blocks.block_tokens

    def fill_with_noise(self, seed: int) -> None:
        self.blocks.fill_with_noise(seed)


class Engine:
    """A decoder with room for `num_slots` sequences of `capacity_tokens`; without `weights` of the
    model on the device, random ones."""

    def __init__(
        self,
        model: ModelSpec,
        device: str = "cpu",
        num_slots: int = 8,
        capacity_tokens: int = 2048,
        seed: int = 0,
        weights: Weights | None = None,
    ) -> None:
        if num_slots < 1 or capacity_tokens < 1:
            raise ValueError(
                f"an engine needs at least one slot and one token in it; got num_slots={num_slots} "
                f"and capacity_tokens={capacity_tokens}"
            )
        self.paged = PagedEngine(
            model,
            device,
            num_blocks=num_slots,
            block_tokens=capacity_tokens,
            capacity_tokens=capacity_tokens,
            seed=seed,
            weights=weights,
        )
        self.model, self.device = model, device
        self.weights, self.rotary = self.paged.weights, self.paged.rotary
        self.cache = SlotCache(self.paged.cache)

    @torch.inference_mode()
    def forward(self, chunks: Sequence[SequenceChunk]) -> Tensor:
        """One step. Logits [S, vocab] of the chunks that sample, in their order.

        Raises ValueError, with nothing changed, for an unknown or repeated slot, an empty chunk,
        a token id outside the vocabulary or a sequence that outgrows its slot."""
        plan = self.plan(chunks)
        logits = self.run(plan)
        for chunk in chunks:
            self.cache.lengths[chunk.slot] += len(chunk.token_ids)
        return logits

    def run(self, plan: StepPlan) -> Tensor:
        return self.paged.run(plan)

    def release(self, slot: int) -> None:
        """Forget a sequence: its slot is free for the next."""
        self._check_slot(slot)
        self.cache.lengths[slot] = 0

    def priced(self, chunks: Sequence[SequenceChunk]) -> list[Chunk]:
        """The same step in the roofline's words."""
        lengths = self.cache.lengths
        return [Chunk(len(c.token_ids), lengths[c.slot], c.samples_token) for c in chunks]

    def plan(self, chunks: Sequence[SequenceChunk]) -> StepPlan:
        """What the host decides about a step: where each row goes and what it may see."""
        self._check(chunks)
        lengths = self.cache.lengths
        return self.paged.plan(
            [PlacedChunk(c.token_ids, lengths[c.slot], [c.slot], c.samples_token) for c in chunks]
        )

    def _check(self, chunks: Sequence[SequenceChunk]) -> None:
        seen: set[int] = set()
        for chunk in chunks:
            self._check_slot(chunk.slot)
            if chunk.slot in seen:
                raise ValueError(f"a step runs one chunk a slot; got slot {chunk.slot} twice")
            seen.add(chunk.slot)
            self._check_room(chunk)

    def _check_slot(self, slot: int) -> None:
        num_slots = len(self.cache.lengths)
        if not 0 <= slot < num_slots:
            raise ValueError(f"slot must be from 0 to {num_slots - 1}; got {slot}")

    def _check_room(self, chunk: SequenceChunk) -> None:
        total = self.cache.lengths[chunk.slot] + len(chunk.token_ids)
        if total > self.cache.capacity_tokens:
            raise ValueError(
                f"slot {chunk.slot} has room for {self.cache.capacity_tokens} tokens; got {total}: "
                "release it or build the engine with a larger capacity_tokens"
            )
