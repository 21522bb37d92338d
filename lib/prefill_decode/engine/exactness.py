"""Exactness: does the way a sequence is run change its logits?

The same tokens run in two ways through a small engine in float64 on the CPU. A sample is the
largest difference of any logit, as a share of the difference that noise in one block of the cache
makes. Rounding leaves about 1e-14 of it; a wrong mask, position or block leaves a visible part.
Noise that moves no logit means that the ruler is blind, and counts as 1. The interval of so few
samples reaches from the smallest to the largest, so one bad sample is enough to be seen.

Counts:  heads, grouped queries, norms, biases and rotary positions as the given model has them.
Ignores: width, depth and vocabulary, which are small here: no rule of the cache depends on them.
"""

import random
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import rehearse_arrival

NUM_SAMPLES = 8  # enough for an interval, few enough for it to hold them all
NUM_SEQUENCES = 4
BLOCK_TOKENS = 16  # of the cache that is corrupted
CONTEXT_TOKENS, SCORED_TOKENS = 40, 12  # more than two blocks, and a chunk on top
WINDOW_TOKENS = 44
PAGE_TOKENS, PAGES = 16, 6  # of a block, and blocks of a sequence: room for all that runs here
CHUNK_TOKENS = (1, 1, 2, 5, 16)  # lengths that a prompt is cut into, drawn at random

Sample = Callable[[Engine, random.Random], float]


def chunking_differences(model: ModelSpec, seed: int = 0) -> list[float]:
    """A sequence cut at random, each piece on the cache of the last, against no cache at all."""
    return _samples(_chunking_difference, model, seed)


def scoring_differences(model: ModelSpec, seed: int = 0) -> list[float]:
    """Tokens run as one chunk, with the logits of each, against one step a token."""
    return _samples(_scoring_difference, model, seed)


def batching_differences(model: ModelSpec, seed: int = 0) -> list[float]:
    """Sequences of unlike lengths in one step against each of them alone."""
    return _samples(_batching_difference, model, seed)


def arrival_differences(model: ModelSpec, seed: int = 0) -> list[float]:
    """A prompt read in pieces beside sequences that decode, in scattered blocks and by the steps
    that the scheduler chooses, against the prompt alone in one piece."""
    return _samples(_arrival_difference, model, seed)


def small(model: ModelSpec) -> ModelSpec:
    """A model of the same rules, small enough for float64."""
    cut = model.with_layers(2)
    windows = None
    if cut.windows is not None:  # narrow enough to hide a token, wide enough to see every block
        windows = tuple(None if window is None else WINDOW_TOKENS for window in cut.windows)
    return replace(
        cut,
        windows=windows,
        hidden_size=64,
        intermediate_size=96,
        vocab_size=127,
        dtype="float64",
    )


def _samples(sample: Sample, model: ModelSpec, seed: int) -> list[float]:
    dice = random.Random(seed)
    capacity_tokens = CONTEXT_TOKENS + SCORED_TOKENS
    engines = (
        Engine(small(model), "cpu", NUM_SEQUENCES + 1, capacity_tokens, dice.randrange(2**31))
        for _ in range(NUM_SAMPLES)
    )
    return [sample(engine, dice) for engine in engines]


def _chunking_difference(engine: Engine, dice: random.Random) -> float:
    ids = _token_ids(engine, CONTEXT_TOKENS, dice)
    difference, done = 0.0, 0
    for length in _cuts(len(ids), dice):
        pieced = _run(engine, 0, ids[done : done + length])
        done += length
        engine.release(1)
        difference = max(difference, _largest(pieced, _run(engine, 1, ids[:done])))
    return _share(difference, _difference_of_a_corrupted_block(engine, 0, ids[-1], pieced, dice))


def _scoring_difference(engine: Engine, dice: random.Random) -> float:
    ids = _token_ids(engine, CONTEXT_TOKENS + SCORED_TOKENS, dice)
    context, scored = ids[:CONTEXT_TOKENS], ids[CONTEXT_TOKENS:]
    for slot in (0, 1):
        _run(engine, slot, context)
    plan = engine.plan([SequenceChunk(0, scored)])
    together = engine.run(replace(plan, sampled_rows=None))  # the logits of every row
    singly = torch.cat([_run(engine, 1, [token]) for token in scored])
    corrupted = _difference_of_a_corrupted_block(engine, 1, ids[-1], singly[-1:], dice)
    return _share(_largest(together, singly), corrupted)


def _batching_difference(engine: Engine, dice: random.Random) -> float:
    slots = range(NUM_SEQUENCES)
    sequences = [_token_ids(engine, dice.randint(20, CONTEXT_TOKENS), dice) for _ in slots]
    alone = []
    for ids in sequences:
        _run(engine, NUM_SEQUENCES, ids[:-1])
        alone.append(_run(engine, NUM_SEQUENCES, ids[-1:]))
        engine.release(NUM_SEQUENCES)
    engine.forward([SequenceChunk(slot, sequences[slot][:-1]) for slot in slots])
    batched = engine.forward([SequenceChunk(slot, sequences[slot][-1:]) for slot in slots])
    slot = dice.choice(slots)
    corrupted = _difference_of_a_corrupted_block(
        engine, slot, sequences[slot][-1], batched[slot : slot + 1], dice
    )
    return _share(_largest(batched, torch.cat(alone)), corrupted)


def _arrival_difference(engine: Engine, dice: random.Random) -> float:
    """The slots of `engine` lend their weights; the cache is one of blocks."""
    streams, context = 2, 10
    piece = dice.choice(CHUNK_TOKENS)
    prompt = _token_ids(engine, CONTEXT_TOKENS, dice)
    others = [_token_ids(engine, 2 * CONTEXT_TOKENS, dice) for _ in range(streams)]
    paged = PagedEngine(
        engine.model,
        num_blocks=(streams + 2) * PAGES,
        block_tokens=PAGE_TOKENS,
        capacity_tokens=PAGES * PAGE_TOKENS,
        weights=engine.weights,
    )
    blocks = dice.sample(range(paged.cache.num_blocks), paged.cache.num_blocks)
    tables = [blocks[i * PAGES : (i + 1) * PAGES] for i in range(streams + 2)]
    *theirs, mine, spare = tables
    for ids, table in zip(others, theirs, strict=True):
        paged.forward([PlacedChunk(ids[: context - 1], 0, table)])
    for step in rehearse_arrival(len(prompt), piece, streams, context):
        *decodes, chunk = step
        placed = [
            PlacedChunk(ids[one.cached_tokens :][:1], one.cached_tokens, table)
            for one, ids, table in zip(decodes, others, theirs, strict=True)
        ]
        new = prompt[chunk.cached_tokens :][: chunk.new_tokens]
        pieced = paged.forward([*placed, PlacedChunk(new, chunk.cached_tokens, mine)])[-1:]
    difference = _largest(pieced, paged.forward([PlacedChunk(prompt, 0, spare)]))
    layer, block = dice.randrange(paged.model.num_layers), mine[0]
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    for tensor in (paged.cache.keys[layer], paged.cache.values[layer]):
        tensor[block].normal_(std=float(tensor[block].std()), generator=generator)
    noisy = paged.forward([PlacedChunk(prompt[-1:], len(prompt) - 1, mine)])
    return _share(difference, _largest(noisy, pieced))


def _difference_of_a_corrupted_block(
    engine: Engine, slot: int, last_token: int, honest: Tensor, dice: random.Random
) -> float:
    """How far the logits of a slot's last token move when one cached block becomes noise."""
    cache = engine.cache
    cache.lengths[slot] -= 1
    first = BLOCK_TOKENS * dice.randrange(cache.lengths[slot] // BLOCK_TOKENS)
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    layer = dice.randrange(engine.model.num_layers)
    for tensor in (cache.keys[layer], cache.values[layer]):
        block = tensor[slot, :, first : first + BLOCK_TOKENS]
        block.normal_(std=float(block.std()), generator=generator)
    return _largest(_run(engine, slot, [last_token]), honest)


def _share(difference: float, corrupted: float) -> float:
    return difference / corrupted if corrupted > 0 else 1.0


def _cuts(total: int, dice: random.Random) -> list[int]:
    """Lengths that add up to `total`, the last of them 1: a decode step ends every sequence."""
    lengths = [1]
    while (left := total - sum(lengths)) > 0:
        lengths.append(min(left, dice.choice(CHUNK_TOKENS)))
    return lengths[::-1]


def _run(engine: Engine, slot: int, token_ids: list[int]) -> Tensor:
    return engine.forward([SequenceChunk(slot, token_ids)])


def _largest(logits: Tensor, others: Tensor) -> float:
    return float((logits - others).abs().max())


def _token_ids(engine: Engine, count: int, dice: random.Random) -> list[int]:
    return [dice.randrange(engine.model.vocab_size) for _ in range(count)]
