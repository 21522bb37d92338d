"""Engine: sequences in, logits out, one step at a time.

The engine keeps one cache slot for each sequence and knows how many tokens each holds. The caller
brings new token ids for some slots; prefill, decode and any mixture are the same call. How a
prompt is cut into chunks, and what else runs in the same step, never changes a sequence's tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from prefill_decode.engine.kv_cache import KVCache
from prefill_decode.engine.model import DecodeSpan, PrefillSpan, RotaryTable, StepPlan, forward
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk


@dataclass(frozen=True)
class SequenceChunk:
    """The chunk a step runs for one slot: new token ids on top of what the slot holds."""

    slot: int
    token_ids: Sequence[int]
    samples_token: bool = True


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
        rows = model.vectors.position_rows
        if model.positions == "learned" and capacity_tokens > rows:
            raise ValueError(
                f"{model.name} has learned {rows} positions, and a slot cannot hold more tokens; "
                f"got capacity_tokens={capacity_tokens}"
            )
        self.model = model
        self.device = device
        self.weights = random_weights(model, device, seed) if weights is None else weights
        self.cache = KVCache(model, num_slots, capacity_tokens, device)
        self.rotary = RotaryTable(model, capacity_tokens, device)

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

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> Tensor:
        return forward(self.model, self.weights, self.cache, self.rotary, plan)

    def release(self, slot: int) -> None:
        """Forget a sequence: its slot is free for the next."""
        self._check_slot(slot)
        self.cache.lengths[slot] = 0

    def priced(self, chunks: Sequence[SequenceChunk]) -> list[Chunk]:
        """The same step in the roofline's words."""
        lengths = self.cache.lengths
        return [Chunk(len(c.token_ids), lengths[c.slot], c.samples_token) for c in chunks]

    def plan(self, chunks: Sequence[SequenceChunk]) -> StepPlan:
        """What the host decides about a step: where each row comes from and what it may see."""
        self._check(chunks)
        lengths = self.cache.lengths
        ends = list(accumulate(len(chunk.token_ids) for chunk in chunks))
        ids = [token for chunk in chunks for token in chunk.token_ids]
        slots = [chunk.slot for chunk in chunks for _ in chunk.token_ids]
        positions = [lengths[c.slot] + i for c in chunks for i in range(len(c.token_ids))]
        sampled = [end - 1 for chunk, end in zip(chunks, ends, strict=True) if chunk.samples_token]
        return StepPlan(
            token_ids=self._indices(ids),
            slots=self._indices(slots),
            positions=self._indices(positions),
            spans=tuple(self._spans(chunks)),
            sampled_rows=None if sampled == list(range(len(ids))) else self._indices(sampled),
        )

    def _spans(self, chunks: Sequence[SequenceChunk]) -> list[PrefillSpan | DecodeSpan]:
        spans: list[PrefillSpan | DecodeSpan] = []
        row = 0
        index = 0
        while index < len(chunks):
            count = _decode_run_length(chunks[index:])
            if count:
                spans.append(self._decode_span(chunks[index : index + count], row))
            else:
                count = 1
                chunk = chunks[index]
                new_tokens = len(chunk.token_ids)
                total_tokens = self.cache.lengths[chunk.slot] + new_tokens
                spans.append(PrefillSpan(row, row + new_tokens, chunk.slot, total_tokens))
            row += sum(len(chunk.token_ids) for chunk in chunks[index : index + count])
            index += count
        return spans

    def _decode_span(self, chunks: Sequence[SequenceChunk], row: int) -> DecodeSpan:
        tokens = [self.cache.lengths[chunk.slot] + 1 for chunk in chunks]
        longest = max(tokens)
        unlike = self._indices(tokens) if min(tokens) < longest else None
        return DecodeSpan(row, row + len(chunks), chunks[0].slot, longest, unlike)

    def _indices(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _check(self, chunks: Sequence[SequenceChunk]) -> None:
        if not chunks:
            raise ValueError("a step needs at least one chunk; got an empty batch")
        seen: set[int] = set()
        for chunk in chunks:
            self._check_slot(chunk.slot)
            if chunk.slot in seen:
                raise ValueError(f"a step runs one chunk a slot; got slot {chunk.slot} twice")
            seen.add(chunk.slot)
            self._check_tokens(chunk)

    def _check_slot(self, slot: int) -> None:
        num_slots = len(self.cache.lengths)
        if not 0 <= slot < num_slots:
            raise ValueError(f"slot must be from 0 to {num_slots - 1}; got {slot}")

    def _check_tokens(self, chunk: SequenceChunk) -> None:
        if not len(chunk.token_ids):
            raise ValueError(f"a chunk needs at least one token; slot {chunk.slot} got none")
        if not all(isinstance(token, int) for token in chunk.token_ids):
            raise ValueError(f"token ids are whole numbers; slot {chunk.slot} got others")
        if min(chunk.token_ids) < 0 or max(chunk.token_ids) >= self.model.vocab_size:
            raise ValueError(
                f"token ids must be from 0 to {self.model.vocab_size - 1}; slot {chunk.slot} got "
                f"{min(chunk.token_ids)} to {max(chunk.token_ids)}"
            )
        total = self.cache.lengths[chunk.slot] + len(chunk.token_ids)
        if total > self.cache.capacity_tokens:
            raise ValueError(
                f"slot {chunk.slot} has room for {self.cache.capacity_tokens} tokens; got {total}: "
                "release it or build the engine with a larger capacity_tokens"
            )


def _decode_run_length(chunks: Sequence[SequenceChunk]) -> int:
    """How many chunks from the first on decode one token in slots that follow one another."""
    count = 0
    while (
        count < len(chunks)
        and len(chunks[count].token_ids) == 1
        and chunks[count].slot == chunks[0].slot + count
    ):
        count += 1
    return count
