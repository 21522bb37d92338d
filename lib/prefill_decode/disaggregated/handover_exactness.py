"""Handover exactness: does a cache that was moved give the same tokens and logits?

A prompt is read in pieces by an engine in another process, in float64; its blocks are moved over
one transport after the other into other blocks of an engine here, which decodes from them. A sample
is the largest difference of any logit from those of one engine that does all of it, as a share of
the difference that noise in one moved block makes; another token counts as 1."""

import random
from collections.abc import Sequence

import torch

from prefill_decode.disaggregated.link import LANES, Transport
from prefill_decode.disaggregated.prefill_lender import PrefillLender, Room, cache_pool
from prefill_decode.engine import PagedEngine, PlacedChunk
from prefill_decode.engine.exactness import NUM_SAMPLES, small
from prefill_decode.kv_transfer import Reader
from prefill_decode.model_spec import ModelSpec

PROMPT_TOKENS, DECODED_TOKENS, BLOCK_TOKENS = 45, 8, 8  # the last block of a prompt is not full
PIECES = (1, 3, 8, 16)  # lengths that a prompt is cut into, drawn at random
BLOCKS = -(-(PROMPT_TOKENS + DECODED_TOKENS) // BLOCK_TOKENS)  # of a sequence
ROOM = Room(3 * BLOCKS, BLOCK_TOKENS)
LONGEST_READ_S = 30.0


def handover_differences(
    model: ModelSpec, transports: Sequence[Transport], seed: int = 0
) -> list[float]:
    """A sample for each of several prompts, over the transports in turn."""
    dice, like = random.Random(seed), small(model)
    lender = PrefillLender(like, ROOM, threads=1, seed=seed)
    here = PagedEngine(
        like,
        num_blocks=ROOM.num_blocks,
        block_tokens=BLOCK_TOKENS,
        capacity_tokens=ROOM.num_blocks * BLOCK_TOKENS,
        seed=seed,
    )
    pool = cache_pool(like, ROOM, here.cache.regions())
    readers = []
    try:
        for one in transports:
            address = lender.listen(one, "tcp" if one == "tcp" else "unix")
            readers.append((one, Reader(address, pool, lane=LANES[one])))
        turns = (readers * NUM_SAMPLES)[:NUM_SAMPLES]
        return [_difference(lender, here, link, reader, dice) for link, reader in turns]
    finally:
        for _, reader in readers:
            reader.close()
        lender.close()


def _difference(
    lender: PrefillLender, here: PagedEngine, link: str, reader: Reader, dice: random.Random
) -> float:
    ids = [dice.randrange(here.model.vocab_size) for _ in range(PROMPT_TOKENS)]
    theirs = dice.sample(range(ROOM.num_blocks), ROOM.blocks_for(PROMPT_TOKENS))
    blocks = dice.sample(range(ROOM.num_blocks), 2 * BLOCKS)
    mine, alone = blocks[:BLOCKS], blocks[BLOCKS:]
    first = lender.prefill(_cut(ids, dice), theirs).token_id
    reader.read(lender.offer(link, theirs), mine[: len(theirs)], LONGEST_READ_S)
    single = here.forward([PlacedChunk(ids, 0, alone)])
    moved_ids, moved = _decoded(here, first, mine)
    alone_ids, expected = _decoded(here, int(single[-1].argmax()), alone)
    noisy = _after_noise(here, moved_ids, mine, dice)
    corrupted = float((noisy - moved[-1:]).abs().max())
    if moved_ids != alone_ids or not corrupted > 0:
        return 1.0
    return float((moved - expected).abs().max()) / corrupted


def _decoded(engine: PagedEngine, first: int, table: list[int]) -> tuple[list[int], torch.Tensor]:
    """The tokens that go in, greedy from the first on, and the logits [DECODED_TOKENS, vocab]."""
    token_ids, logits = [first], []
    for place in range(PROMPT_TOKENS, PROMPT_TOKENS + DECODED_TOKENS):
        logits.append(engine.forward([PlacedChunk(token_ids[-1:], place, table)]))
        token_ids.append(int(logits[-1].argmax()))
    return token_ids, torch.cat(logits)


def _after_noise(
    engine: PagedEngine, token_ids: list[int], table: list[int], dice: random.Random
) -> torch.Tensor:
    """The logits of the last step again, with one block of the prompt turned to noise."""
    layer, block = dice.randrange(engine.model.num_layers), dice.choice(table[:4])
    generator = torch.Generator().manual_seed(dice.randrange(2**31))
    for tensor in (engine.cache.keys[layer], engine.cache.values[layer]):
        tensor[block].normal_(std=float(tensor[block].std()), generator=generator)
    last = PROMPT_TOKENS + DECODED_TOKENS - 1
    return engine.forward([PlacedChunk(token_ids[-2:-1], last, table)])


def _cut(ids: Sequence[int], dice: random.Random) -> list[Sequence[int]]:
    pieces, done = [], 0
    while done < len(ids):
        length = dice.choice(PIECES)
        pieces.append(ids[done : done + length])
        done += length
    return pieces
