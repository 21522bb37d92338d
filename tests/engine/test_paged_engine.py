"""The law over blocks: where a sequence's cache lies never changes its logits.

The oracle is the same sequence alone, in one chunk, in a slot of the unpaged engine, which
test_engine.py holds to a decoder without any cache."""

import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode.engine import Engine, PagedEngine, PlacedChunk, SequenceChunk
from prefill_decode.engine.linear import Linear
from prefill_decode.model_spec import ModelSpec, Vectors

TOLERANCE = 1e-9
LONGEST_TOKENS = 48
BLOCK_SIZES = [1, 2, 3, 5, 16, 64]
VARIANTS = [
    {},
    {"num_kv_heads": 4, "qkv_bias": True},
    {"num_kv_heads": 1, "qk_norm": True},
    {"windows": (7, None)},
    {"windows": (1, 20), "num_kv_heads": 1},
    {"positions": "learned", "vectors": Vectors(position_rows=LONGEST_TOKENS)},
]


def varied(tiny_model: ModelSpec, **changes) -> ModelSpec:
    return ModelSpec(**{**tiny_model.__dict__, **changes})


def logits_alone(paged: PagedEngine, ids):
    """Logits [T, vocab] after each token, from one chunk in one slot."""
    engine = Engine(paged.model, num_slots=1, capacity_tokens=LONGEST_TOKENS)
    engine.paged.weights = paged.weights
    plan = engine.plan([SequenceChunk(0, ids)])
    return engine.run(replace(plan, sampled_rows=None))


def paged_engine(model: ModelSpec, block_tokens: int, num_sequences: int = 4) -> PagedEngine:
    """Room for that many of the longest sequences, and noise in all of it."""
    num_blocks = num_sequences * -(-LONGEST_TOKENS // block_tokens) + 2
    engine = PagedEngine(
        model,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        capacity_tokens=LONGEST_TOKENS,
        seed=3,
    )
    engine.cache.fill_with_noise(1)
    return engine


class Sequences:
    """Sequences over scattered blocks, whose chunks are cut, batched and ordered by dice."""

    def __init__(self, engine: PagedEngine, dice: random.Random, num_sequences: int = 4):
        self.engine, self.dice = engine, dice
        size, vocab = engine.cache.block_tokens, engine.model.vocab_size
        free = list(range(engine.cache.num_blocks))
        dice.shuffle(free)
        self.ids, self.blocks, self.cached = [], [], []
        for _ in range(num_sequences):
            count = dice.randint(1, LONGEST_TOKENS)
            self.ids.append([dice.randrange(vocab) for _ in range(count)])
            self.blocks.append([free.pop() for _ in range(-(-count // size))])
            self.cached.append(0)

    def chunk(self, sequence: int, length: int, samples_token: bool = True) -> PlacedChunk:
        done = self.cached[sequence]
        ids = self.ids[sequence][done : done + length]
        return PlacedChunk(ids, done, self.blocks[sequence], samples_token)

    def run_all(self):
        """Every step's logits beside those of each sequence alone: the largest difference."""
        expected = [logits_alone(self.engine, ids) for ids in self.ids]
        largest, everyone = 0.0, range(len(self.ids))
        while left := [s for s in everyone if self.cached[s] < len(self.ids[s])]:
            chosen = self.dice.sample(left, self.dice.randint(1, len(left)))
            lengths = [self.dice.choice([1, 1, 1, 2, 7, 30]) for _ in chosen]
            samples = [self.dice.random() < 0.8 for _ in chosen]
            chunks = [self.chunk(*each) for each in zip(chosen, lengths, samples, strict=True)]
            logits = iter(self.engine.forward(chunks))
            for sequence, chunk in zip(chosen, chunks, strict=True):
                self.cached[sequence] = chunk.total_tokens
                if chunk.samples_token:
                    wanted = expected[sequence][chunk.total_tokens - 1]
                    largest = max(largest, float((next(logits) - wanted).abs().max()))
            assert next(logits, None) is None
        return largest


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("block_tokens", BLOCK_SIZES)
def test_scattered_blocks_and_any_chunking_give_the_logits_of_one_chunk_alone(
    tiny_model, changes, block_tokens, kernels_or_not
):
    engine = paged_engine(varied(tiny_model, **changes), block_tokens)
    assert Sequences(engine, random.Random(block_tokens)).run_all() < TOLERANCE


@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(block_tokens=st.integers(1, 70), changes=st.sampled_from(VARIANTS), seed=st.integers(0, 999))
def test_no_block_size_is_special(tiny_model, kernels_or_not, block_tokens, changes, seed):
    engine = paged_engine(varied(tiny_model, **changes), block_tokens)
    assert Sequences(engine, random.Random(seed)).run_all() < TOLERANCE


@pytest.mark.parametrize("windows", [None, (100, None), (130, 65)])
@pytest.mark.parametrize("block_tokens", [3, 16, 100])
def test_contexts_longer_than_a_kernel_looks_ahead_are_no_exception(
    tiny_model, windows, block_tokens, kernels_or_not
):
    model = varied(tiny_model, windows=windows)
    ids = [(7 * i + i // 9) % 61 for i in range(301)]
    alone = Engine(model, num_slots=1, capacity_tokens=301, seed=3)
    wanted = alone.forward([SequenceChunk(0, ids)])
    num_blocks = -(-301 // block_tokens)
    engine = PagedEngine(
        model, num_blocks=num_blocks, block_tokens=block_tokens, capacity_tokens=301, seed=3
    )
    blocks = list(range(num_blocks))
    random.Random(1).shuffle(blocks)
    engine.forward([PlacedChunk(ids[:200], 0, blocks)])
    engine.forward([PlacedChunk(ids[200:300], 200, blocks)])
    found = engine.forward([PlacedChunk(ids[300:], 300, blocks)])
    assert (found - wanted).abs().max() < TOLERANCE


def after_a_shared_prefix(engine, first, second, shared_tokens):
    """Two sequences on the same blocks of `shared_tokens`; one of them has cached them."""
    size = engine.cache.block_tokens
    shared = list(range(engine.cache.num_blocks))[::-1][: shared_tokens // size]
    needed = -(-LONGEST_TOKENS // size) - len(shared)
    tables = [shared + list(range(n * needed, (n + 1) * needed)) for n in range(2)]
    engine.forward([PlacedChunk(first[:shared_tokens], 0, shared)])
    return [
        PlacedChunk(ids[shared_tokens:], shared_tokens, table)
        for ids, table in zip((first, second), tables, strict=True)
    ]


@pytest.mark.parametrize("block_tokens", [1, 2, 5, 10])
@pytest.mark.parametrize("own_tokens", [1, 2, 13])
def test_sequences_that_begin_alike_may_share_those_blocks(
    tiny_model, block_tokens, own_tokens, kernels_or_not
):
    engine = paged_engine(tiny_model, block_tokens)
    prefix = [(5 * i) % 61 for i in range(20)]
    first, second = prefix + [7] * own_tokens, prefix + [9, 8] * 3
    chunks = after_a_shared_prefix(engine, first, second, 20)
    for ids, row in zip((first, second), engine.forward(chunks), strict=True):
        assert (row - logits_alone(engine, ids)[-1]).abs().max() < TOLERANCE


def test_a_copied_block_lets_two_sequences_part_inside_it(tiny_model, kernels_or_not):
    """Six tokens in blocks of four: the second block is half full when one sequence leaves."""
    engine = paged_engine(tiny_model, 4)
    prefix = [5, 60, 0, 17, 17, 3]
    engine.forward([PlacedChunk(prefix, 0, [9, 2])])
    engine.copy_blocks([(2, 7)])
    first, second = [*prefix, 11, 12], [*prefix, 44, 45, 46]
    parted = [PlacedChunk(first[6:], 6, [9, 2]), PlacedChunk(second[6:], 6, [9, 7, 0])]
    for ids, row in zip((first, second), engine.forward(parted), strict=True):
        assert (row - logits_alone(engine, ids)[-1]).abs().max() < TOLERANCE
    more = engine.forward([PlacedChunk([13], 8, [9, 2, 1]), PlacedChunk([47], 9, [9, 7, 0])])
    for ids, row in zip(([*first, 13], [*second, 47]), more, strict=True):
        assert (row - logits_alone(engine, ids)[-1]).abs().max() < TOLERANCE


def test_blocks_are_copied_in_every_layer_and_nothing_else_is(tiny_model):
    engine = paged_engine(tiny_model, 4)
    before = [cached.clone() for cached in engine.cache.keys + engine.cache.values]
    engine.copy_blocks([(3, 1), (5, 0), (3, 2)])
    engine.copy_blocks([])
    after = engine.cache.keys + engine.cache.values
    assert len(after) == 2 * tiny_model.num_layers
    for old, new in zip(before, after, strict=True):
        assert torch.equal(new[:3], old[[5, 3, 3]])
        assert torch.equal(new[3:], old[3:])


@pytest.mark.parametrize("tokens", [1, 6])
def test_a_wrong_block_in_a_table_is_noticed(tiny_model, tokens, kernels_or_not):
    """The law's own control: decode and prefill read the block that the table names."""
    engine = paged_engine(tiny_model, 4)
    ids = [5, 60, 0, 17, 17, 3, 42, 8, 9]
    engine.forward([PlacedChunk(ids, 0, [9, 2, 4])])
    for table, is_right in (([9, 2, 4, 6], True), ([9, 3, 4, 6], False)):
        row = engine.forward([PlacedChunk([1] * tokens, 9, table)])
        difference = (row - logits_alone(engine, [*ids, *[1] * tokens])[-1]).abs().max()
        assert (difference < TOLERANCE) == is_right
        assert difference < TOLERANCE or difference > 1e-4


def test_a_step_writes_only_the_places_of_its_own_tokens(tiny_model, kernels_or_not):
    engine = paged_engine(tiny_model, 4)
    before = [cached.clone() for cached in engine.cache.keys + engine.cache.values]
    engine.forward([PlacedChunk([1], 5, [8, 3]), PlacedChunk([4, 5, 6], 2, [1, 0])])
    for old, new in zip(before, engine.cache.keys + engine.cache.values, strict=True):
        changed = (old != new).any(dim=3).any(dim=1).nonzero().tolist()  # block, offset
        assert changed == [[0, 0], [1, 2], [1, 3], [3, 1]]


def test_decodes_that_stand_together_are_one_span_wherever_they_lie(tiny_model, kernels_or_not):
    engine = paged_engine(tiny_model, 4)
    decodes = [PlacedChunk([1], 5, [8, 3]), PlacedChunk([1], 0, [6]), PlacedChunk([2], 3, [2])]
    prefill = PlacedChunk([1, 2], 0, [9])
    rows = [(span.first, span.last) for span in engine.plan([*decodes, prefill]).spans]
    assert rows == [(0, 3), (3, 5)]
    rows = [(s.first, s.last) for s in engine.plan([decodes[0], prefill, *decodes[1:]]).spans]
    assert rows == [(0, 1), (1, 3), (3, 5)]


def test_single_blocks_in_a_row_are_read_where_they_lie(tiny_model, monkeypatch, kernels_or_not):
    """The unpaged case costs no copy: torch's attention gets a view of the cache."""
    engine = paged_engine(tiny_model, 16)
    neighbours = [PlacedChunk([1], n, [4 + n]) for n in range(3)]
    for chunk in (neighbours, [PlacedChunk([1, 2], 9, [5])]):
        for span in engine.plan(chunk).spans:
            assert isinstance(getattr(span, "seen", slice(0)), slice)
    gathers = [PlacedChunk([1, 2], 15, [5, 6])]
    assert isinstance(engine.plan(gathers).spans[0].seen, torch.Tensor)


@pytest.mark.parametrize(("dtype", "least"), [("float32", 1 - 1e-9), ("bfloat16", 0.999)])
def test_narrower_floats_agree_within_their_rounding(tiny_model, dtype, least, kernels_or_not):
    engine = paged_engine(tiny_model.with_dtype(dtype), 5)
    ids = [(11 * i) % 61 for i in range(40)]
    blocks = [3, 9, 1, 0, 8, 7, 4, 6]
    engine.forward([PlacedChunk(ids[:30], 0, blocks)])
    for token in range(30, 39):
        engine.forward([PlacedChunk(ids[token : token + 1], token, blocks)])
    row = engine.forward([PlacedChunk(ids[39:], 39, blocks)])[0]
    assert row.dtype == getattr(torch, dtype)
    both = torch.stack([row, logits_alone(engine, ids)[-1]]).double()
    assert torch.corrcoef(both)[0, 1] > least


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "at least one chunk"),
        ([PlacedChunk([1], 0, [0]), PlacedChunk([], 0, [1])], "chunk 1 got none"),
        ([PlacedChunk([61], 0, [0])], "from 0 to 60"),
        ([PlacedChunk([-1], 0, [0])], "from 0 to 60"),
        ([PlacedChunk([1.5], 0, [0])], "whole numbers"),
        ([PlacedChunk([1], -1, [0])], "cached_tokens is a count; chunk 0 got -1"),
        ([PlacedChunk([1], 4, [0])], "5 tokens and 1 blocks of 4"),
        ([PlacedChunk([1], 0, [])], "1 tokens and 0 blocks of 4"),
        ([PlacedChunk([1], 12, [0, 1, 2, 3])], "room for 12 tokens; chunk 0 got 13"),
        ([PlacedChunk([1], 0, [5])], "from 0 to 4; got 5 to 5"),
        ([PlacedChunk([1], 4, [-1, 0])], "from 0 to 4; got -1 to 0"),
        ([PlacedChunk([1], 0, [1.5])], "blocks are whole numbers"),
        ([PlacedChunk([1], 0, [2**80])], "blocks are whole numbers"),
        ([PlacedChunk([1], 0, [2]), PlacedChunk([1], 0, [2])], "got block 2 twice"),
        ([PlacedChunk([1], 4, [3, 2]), PlacedChunk([1], 4, [2, 1])], "got block 2 twice"),
        ([PlacedChunk([1], 5, [3, 2]), PlacedChunk([1], 6, [1, 2])], "got block 2 twice"),
        ([PlacedChunk([1, 2], 3, [1, 1])], "got block 1 twice"),
    ],
)
def test_an_impossible_step_is_refused_and_changes_nothing(tiny_model, chunks, message):
    engine = PagedEngine(tiny_model, num_blocks=5, block_tokens=4, capacity_tokens=12)
    with pytest.raises(ValueError, match=message):
        engine.forward(chunks)
    assert all((cached == 0).all() for cached in engine.cache.keys + engine.cache.values)


def test_blocks_beyond_the_tokens_of_a_step_are_nobodys(tiny_model):
    """A table may hold room for later: only what the step reaches is checked and written."""
    engine = PagedEngine(tiny_model, num_blocks=5, block_tokens=4, capacity_tokens=12)
    engine.forward([PlacedChunk([1], 0, [2, 3]), PlacedChunk([1], 0, [3, 99])])


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([(0, 5)], "from 0 to 4; got 5"), ([(-1, 0)], "got -1"), ([(0, 1), (2, 1)], "differ")],
)
def test_an_impossible_copy_is_refused_and_changes_nothing(tiny_model, pairs, message):
    engine = PagedEngine(tiny_model, num_blocks=5, block_tokens=4, capacity_tokens=12)
    engine.cache.fill_with_noise(1)
    before = [cached.clone() for cached in engine.cache.keys + engine.cache.values]
    with pytest.raises(ValueError, match=message):
        engine.copy_blocks(pairs)
    after = engine.cache.keys + engine.cache.values
    assert all(torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 4, 4), "at least one block"),
        ((4, 0, 4), "at least one block"),
        ((4, 4, 0), "at least one block"),
        ((4, 4, 17), "no more than 16; got capacity_tokens=17"),
    ],
)
def test_an_engine_without_room_is_never_built(tiny_model, sizes, message):
    num_blocks, block_tokens, capacity_tokens = sizes
    with pytest.raises(ValueError, match=message):
        PagedEngine(
            tiny_model,
            num_blocks=num_blocks,
            block_tokens=block_tokens,
            capacity_tokens=capacity_tokens,
        )


def test_engines_can_share_weights(tiny_model):
    one = paged_engine(tiny_model, 4)
    other = PagedEngine(
        tiny_model, num_blocks=2, block_tokens=8, capacity_tokens=16, weights=one.weights
    )
    assert other.weights is one.weights
    chunk = PlacedChunk([1, 2, 3], 0, [1])
    assert torch.allclose(one.forward([chunk]), other.forward([chunk]), rtol=0, atol=TOLERANCE)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_a_step_over_scattered_blocks_never_waits_for_the_device(tiny_model):
    model = tiny_model.with_dtype("float32")
    engine = PagedEngine(model, "cuda", num_blocks=12, block_tokens=4, capacity_tokens=12)
    alone = Engine(model, "cuda", num_slots=1, capacity_tokens=12)
    ids = [5, 60, 0, 17, 17, 3, 42]
    wanted = alone.forward([SequenceChunk(0, ids)])[0]
    engine.forward([PlacedChunk(ids[:5], 0, [9, 2]), PlacedChunk(ids[:6], 0, [3, 7])])
    torch.cuda.set_sync_debug_mode("error")
    try:
        engine.copy_blocks([(2, 5)])
        chunks = [PlacedChunk(ids[5:], 5, [9, 5]), PlacedChunk(ids[6:], 6, [3, 7])]
        found = engine.forward([*chunks, PlacedChunk([1], 0, [0])])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for row in found[:2]:
        torch.testing.assert_close(row, wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("block_tokens", [3, 16])
def test_no_number_in_the_blocks_of_others_changes_a_sequence(
    tiny_model, block_tokens, kernels_or_not
):
    """Block tables of unlike length are filled up; what fills them is masked, and 0 times NaN is
    NaN."""
    engine = paged_engine(tiny_model, block_tokens)
    needed = [-(-length // block_tokens) for length in (5, 31)]
    tables = [list(range(1, 1 + needed[0])), list(range(10, 10 + needed[1]))]
    dice = random.Random(0)
    ids = [[dice.randrange(61) for _ in range(length)] for length in (5, 31)]
    for tensor in engine.cache.keys + engine.cache.values:
        others = [b for b in range(engine.cache.num_blocks) if b not in tables[0] + tables[1]]
        tensor[others] = float("nan")
    prompts = [PlacedChunk(i[:-1], 0, t) for i, t in zip(ids, tables, strict=True)]
    engine.forward(prompts)
    last = [PlacedChunk(i[-1:], len(i) - 1, t) for i, t in zip(ids, tables, strict=True)]
    logits = engine.forward(last)
    for row, sequence in zip(logits, ids, strict=True):
        torch.testing.assert_close(row, logits_alone(engine, sequence)[-1])


def test_the_libraries_meet_few_numbers_of_rows_however_many_tokens_come(tiny_model, monkeypatch):
    engine = paged_engine(tiny_model, 16)
    met = set()
    multiply = Linear._by_torch

    def watched(self, rows):
        met.add(len(rows))
        return multiply(self, rows)

    monkeypatch.setattr(Linear, "_by_torch", watched)
    monkeypatch.setattr(Linear, "_few", lambda self, rows: False)
    for tokens in range(2, LONGEST_TOKENS + 1):
        engine.forward([PlacedChunk([1] * tokens, 0, [0, 1, 2])])
    assert met == {1, *range(2, 33), 48}
