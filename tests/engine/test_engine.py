"""The engine's law: how a sequence is cut and what runs beside it never changes its tokens.

The oracle is a second decoder in the plainest form: no cache, no packing, one sequence, every token
recomputed, attention by explicit loops over heads.
"""

import random
from math import inf

import pytest
import torch

from prefill_decode.engine import Engine, SequenceChunk, linear
from prefill_decode.model_spec import ModelSpec, Vectors
from prefill_decode.products import ALL_ROWS, FastestProducts, onednn_has


def plain_norm(rows, epsilon):
    return rows / (rows.pow(2).mean(-1, keepdim=True) + epsilon).sqrt()


def plain_rotate(vector, position, theta):
    """Half-split rotary positions, one pair at a time."""
    half = len(vector) // 2
    turned = vector.clone()
    for i in range(half):
        angle = torch.tensor(position * theta ** (-i / half), dtype=torch.float64)
        a, b = vector[i], vector[i + half]
        turned[i] = a * angle.cos() - b * angle.sin()
        turned[i + half] = b * angle.cos() + a * angle.sin()
    return turned


def placed(model, vector, position):
    rotates = model.positions == "rotary"
    return plain_rotate(vector, position, model.rope_theta) if rotates else vector


def plain_logits(engine, ids):
    """Logits [T, vocab] of a whole sequence, in float64."""
    model, weights = engine.model, engine.weights
    size = model.head_dim
    groups = model.num_heads // model.num_kv_heads
    hidden = weights.embedding[ids].double()
    if weights.positions is not None:
        hidden = hidden + weights.positions[: len(ids)].double()
    windows = model.windows or (None,) * model.num_layers
    for layer, window in zip(weights.layers, windows, strict=True):
        qkv = plain_norm(hidden, model.norm_epsilon) @ layer.qkv.weight.double().T
        if layer.qkv.bias is not None:
            qkv = qkv + layer.qkv.bias.double()
        heads = qkv.view(len(ids), -1, size)
        queries, keys, values = heads.split(
            [model.num_heads, model.num_kv_heads, model.num_kv_heads], dim=1
        )
        if model.qk_norm:
            queries = plain_norm(queries, model.norm_epsilon)
            keys = plain_norm(keys, model.norm_epsilon)
        mixed = torch.zeros(len(ids), model.num_heads, size, dtype=torch.float64)
        for head in range(model.num_heads):
            turned = [placed(model, keys[t, head // groups], t) for t in range(len(ids))]
            for t in range(len(ids)):
                query = placed(model, queries[t, head], t)
                first = max(0, t + 1 - (window or t + 1))
                scores = torch.stack([query @ turned[j] for j in range(first, t + 1)]) / size**0.5
                mixed[t, head] = scores.softmax(0) @ values[first : t + 1, head // groups]
        hidden = hidden + mixed.view(len(ids), -1) @ layer.attention_out.weight.double().T
        normed = plain_norm(hidden, model.norm_epsilon)
        gate, up = (normed @ layer.gate_up.weight.double().T).chunk(2, dim=-1)
        hidden = hidden + (gate / (1 + (-gate).exp()) * up) @ layer.down.weight.double().T
    return plain_norm(hidden, model.norm_epsilon) @ weights.lm_head.weight.double().T


def varied(tiny_model: ModelSpec, **changes) -> ModelSpec:
    return ModelSpec(**{**tiny_model.__dict__, **changes})


VARIANTS = [
    {},
    {"num_kv_heads": 4},
    {"num_kv_heads": 1},
    {"tied_embeddings": True},
    {"qkv_bias": True},
    {"qk_norm": True},
    {"windows": (3, None)},
    {"windows": (1, 4), "num_kv_heads": 1},
    {"positions": "learned", "vectors": Vectors(position_rows=32)},
]


@pytest.mark.parametrize("changes", VARIANTS)
def test_a_prompt_has_the_logits_of_the_plain_decoder(tiny_model, changes, kernels_or_not):
    engine = Engine(varied(tiny_model, **changes), num_slots=1, capacity_tokens=32, seed=1)
    ids = [5, 60, 0, 17, 17, 3, 42]
    logits = engine.forward([SequenceChunk(0, ids)])
    assert logits.shape == (1, 61)
    torch.testing.assert_close(logits[0], plain_logits(engine, ids)[-1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("changes", VARIANTS)
@pytest.mark.parametrize("cuts", [[7], [1] * 7, [3, 4], [1, 5, 1], [6, 1]])
def test_any_chunking_gives_the_same_logits(tiny_model, changes, cuts, kernels_or_not):
    engine = Engine(varied(tiny_model, **changes), num_slots=2, capacity_tokens=32, seed=1)
    ids = [5, 60, 0, 17, 17, 3, 42]
    expected = plain_logits(engine, ids)
    first = 0
    for length in cuts:
        logits = engine.forward([SequenceChunk(1, ids[first : first + length])])
        first += length
        torch.testing.assert_close(logits[0], expected[first - 1], rtol=0, atol=1e-10)


def greedy_alone(engine, prompt, count):
    """Tokens of one sequence by itself, from the plain decoder."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(plain_logits(engine, ids)[-1].argmax()))
    return ids[len(prompt) :]


def test_mixed_steps_give_every_sequence_the_tokens_it_has_alone(tiny_model, kernels_or_not):
    """Prompts of unlike lengths, cut at random, decoding and prefilling in the same steps."""
    engine = Engine(tiny_model, num_slots=5, capacity_tokens=64, seed=2)
    dice = random.Random(4)
    prompts = {slot: [dice.randrange(61) for _ in range(dice.randint(1, 12))] for slot in range(5)}
    waiting = {slot: list(ids) for slot, ids in prompts.items()}
    made = {slot: [] for slot in prompts}
    while any(len(tokens) < 6 for tokens in made.values()):
        chunks = []
        for slot in dice.sample(range(5), 5):
            if waiting[slot]:
                length = dice.randint(1, len(waiting[slot]))
                ids, waiting[slot] = waiting[slot][:length], waiting[slot][length:]
                chunks.append(SequenceChunk(slot, ids, samples_token=not waiting[slot]))
            elif len(made[slot]) < 6 and dice.random() < 0.8:
                chunks.append(SequenceChunk(slot, [made[slot][-1]]))
        if not any(chunk.samples_token for chunk in chunks):
            if chunks:
                engine.forward(chunks)
            continue
        logits = engine.forward(chunks)
        sampled = [chunk for chunk in chunks if chunk.samples_token]
        for chunk, row in zip(sampled, logits, strict=True):
            made[chunk.slot].append(int(row.argmax()))
    for slot, prompt in prompts.items():
        assert made[slot] == greedy_alone(engine, prompt, 6)


def test_neighbouring_slots_of_unlike_length_decode_in_one_run(tiny_model, kernels_or_not):
    engine = Engine(tiny_model, num_slots=3, capacity_tokens=32, seed=3)
    prompts = [[1, 2, 3, 4, 5], [6], [7, 8]]
    engine.forward([SequenceChunk(slot, ids) for slot, ids in enumerate(prompts)])
    step = [SequenceChunk(slot, [9]) for slot in range(3)]
    assert len(engine.plan(step).spans) == 1
    for ids, row in zip(prompts, engine.forward(step), strict=True):
        torch.testing.assert_close(row, plain_logits(engine, [*ids, 9])[-1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_tokens", [3, 40, 300])
def test_float32_agrees_with_float64_in_every_way_to_multiply(num_tokens, kernels_or_not):
    """3 rows run in the kernels or packed, 40 plain or packed, 300 plain; the sizes are uneven."""
    model = ModelSpec("m", 2, 48, 80, 6, 2, 8, 97, False, qkv_bias=True, dtype="float32")
    small = Engine(model, num_slots=1, capacity_tokens=320, seed=5)
    exact = Engine(model.with_dtype("float64"), num_slots=1, capacity_tokens=320, seed=5)
    for mine, theirs in zip(small.weights.layers, exact.weights.layers, strict=True):
        for name in ("qkv", "attention_out", "gate_up", "down"):
            getattr(theirs, name).weight.copy_(getattr(mine, name).weight)
        theirs.qkv.bias.copy_(mine.qkv.bias)
    exact.weights.embedding.copy_(small.weights.embedding)
    exact.weights.lm_head.weight.copy_(small.weights.lm_head.weight)
    ids = [(7 * i) % 97 for i in range(num_tokens)]
    logits = small.forward([SequenceChunk(0, ids)]).double()
    expected = exact.forward([SequenceChunk(0, ids)])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(not onednn_has(torch.float32), reason="torch was built without oneDNN")
@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("most_rows", [0, 2, ALL_ROWS])
@pytest.mark.parametrize("by_onednn", [True, False])
def test_every_choice_of_product_gives_the_same_logits(
    monkeypatch, kernels_or_not, has_room, most_rows, by_onednn
):
    """Whatever this machine would choose: the kernel, torch, oneDNN, with and without a copy."""
    model = ModelSpec("m", 2, 48, 80, 6, 2, 8, 97, False, qkv_bias=True, dtype="float32")
    ids = [(7 * i) % 97 for i in range(20)]
    usual = Engine(model, num_slots=1, capacity_tokens=32, seed=5)
    expected = usual.forward([SequenceChunk(0, ids)])
    chosen = FastestProducts(most_rows, by_onednn, packed=True)
    monkeypatch.setattr(linear, "fastest_products", lambda device_type, dtype: chosen)
    monkeypatch.setattr(linear, "SPARE_BYTES", 0 if has_room else inf)
    engine = Engine(model, num_slots=1, capacity_tokens=32, seed=5)
    assert (engine.weights.lm_head.packed is not None) == has_room
    logits = engine.forward([SequenceChunk(0, ids)])
    torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_follows_float64_as_closely_as_its_digits_allow(
    tiny_model, dtype, kernels_or_not
):
    half = Engine(tiny_model.with_dtype(dtype), num_slots=1, capacity_tokens=32, seed=5)
    ids = [5, 60, 0, 17, 17, 3, 42]
    half.forward([SequenceChunk(0, ids[:4])])
    logits = half.forward([SequenceChunk(0, ids[4:])])
    assert logits.dtype == getattr(torch, dtype)
    expected = plain_logits(half, ids)[-1]
    assert torch.corrcoef(torch.stack([logits[0].double(), expected]))[0, 1] > 0.999


def test_a_damaged_cache_is_noticed(tiny_model):
    """The law's own control: if it held with a wrong key too, it would show nothing."""
    engine = Engine(tiny_model, num_slots=1, capacity_tokens=32, seed=1)
    engine.forward([SequenceChunk(0, [5, 60, 0, 17])])
    engine.cache.values[0][0, :, 1] += 1.0
    logits = engine.forward([SequenceChunk(0, [3])])
    assert (logits[0] - plain_logits(engine, [5, 60, 0, 17, 3])[-1]).abs().max() > 1e-6


def test_a_released_slot_forgets_its_sequence(tiny_model):
    engine = Engine(tiny_model, num_slots=1, capacity_tokens=8, seed=1)
    first = engine.forward([SequenceChunk(0, [1, 2, 3, 4, 5, 6])])
    engine.release(0)
    engine.forward([SequenceChunk(0, [9, 9])])
    engine.release(0)
    torch.testing.assert_close(engine.forward([SequenceChunk(0, [1, 2, 3, 4, 5, 6])]), first)


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tiny_model):
    logits = [
        Engine(tiny_model, num_slots=1, capacity_tokens=8, seed=seed).forward(
            [SequenceChunk(0, [1, 2])]
        )
        for seed in (0, 0, 1)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([], "at least one chunk"),
        ([SequenceChunk(2, [1])], "slot must be from 0 to 1; got 2"),
        ([SequenceChunk(-1, [1])], "got -1"),
        ([SequenceChunk(0, [1]), SequenceChunk(0, [2])], "slot 0 twice"),
        ([SequenceChunk(0, [])], "at least one token"),
        ([SequenceChunk(0, [61])], "from 0 to 60"),
        ([SequenceChunk(0, [3, -1])], "from 0 to 60"),
        ([SequenceChunk(0, [1.9])], "whole numbers"),
        ([SequenceChunk(0, [1] * 9)], "room for 8 tokens; got 9"),
    ],
)
def test_an_impossible_step_is_refused_and_changes_nothing(tiny_model, chunks, message):
    engine = Engine(tiny_model, num_slots=2, capacity_tokens=8, seed=0)
    with pytest.raises(ValueError, match=message):
        engine.forward(chunks)
    assert engine.cache.lengths == [0, 0]
    assert engine.cache.keys[0].abs().sum() == 0


def test_an_unknown_slot_is_never_released_and_an_empty_engine_never_built(tiny_model):
    engine = Engine(tiny_model, num_slots=2, capacity_tokens=8, seed=0)
    engine.forward([SequenceChunk(1, [1, 2])])
    for slot in (-1, 2):
        with pytest.raises(ValueError, match="slot must be from 0 to 1"):
            engine.release(slot)
    assert engine.cache.lengths == [0, 2]
    for sizes in ({"num_slots": 0}, {"capacity_tokens": 0}):
        with pytest.raises(ValueError, match="at least one slot"):
            Engine(tiny_model, **sizes)


def test_a_step_in_which_nothing_samples_gives_no_logits_and_fills_the_cache(
    tiny_model, kernels_or_not
):
    """Every piece of a prompt but its last."""
    engine = Engine(tiny_model, num_slots=2, capacity_tokens=16, seed=1)
    pieces = [SequenceChunk(0, [5, 60, 0], samples_token=False)]
    pieces.append(SequenceChunk(1, [7], samples_token=False))
    assert engine.forward(pieces).shape == (0, 61)
    logits = engine.forward([SequenceChunk(0, [17])])
    expected = plain_logits(engine, [5, 60, 0, 17])[-1]
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-10)


def test_a_model_with_learned_positions_has_no_room_beyond_them(tiny_model):
    model = varied(tiny_model, positions="learned", vectors=Vectors(position_rows=32))
    assert Engine(model, num_slots=1, capacity_tokens=32)
    with pytest.raises(ValueError, match="learned 32 positions"):
        Engine(model, num_slots=1, capacity_tokens=33)


def test_heads_too_large_for_the_kernels_run_on_torch(tiny_model):
    model = varied(tiny_model, head_dim=520, num_heads=1, num_kv_heads=1, num_layers=1)
    engine = Engine(model, num_slots=1, capacity_tokens=8, seed=1)
    engine.forward([SequenceChunk(0, [1, 2])])
    logits = engine.forward([SequenceChunk(0, [3])])
    expected = plain_logits(engine, [1, 2, 3])[-1]
    torch.testing.assert_close(logits[0], expected, rtol=0, atol=1e-9)


def test_the_roofline_prices_the_chunks_that_the_engine_runs(tiny_model):
    engine = Engine(tiny_model, num_slots=2, capacity_tokens=8, seed=0)
    engine.forward([SequenceChunk(0, [1, 2, 3])])
    priced = engine.priced([SequenceChunk(0, [4]), SequenceChunk(1, [5, 6], samples_token=False)])
    assert [(c.new_tokens, c.cached_tokens, c.samples_token) for c in priced] == [
        (1, 3, True),
        (2, 0, False),
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_gives_the_logits_of_the_plain_decoder(tiny_model):
    engine = Engine(tiny_model.with_dtype("float32"), "cuda", num_slots=2, capacity_tokens=32)
    ids = [5, 60, 0, 17, 17, 3, 42]
    engine.forward([SequenceChunk(1, ids[:4])])
    logits = engine.forward([SequenceChunk(1, ids[4:])]).cpu().double()
    host = Engine(tiny_model.with_dtype("float32"), num_slots=1, capacity_tokens=32)
    for mine, theirs in zip(host.weights.layers, engine.weights.layers, strict=True):
        for name in ("qkv", "attention_out", "gate_up", "down"):
            getattr(mine, name).weight.copy_(getattr(theirs, name).weight)
    host.weights.embedding.copy_(engine.weights.embedding)
    host.weights.lm_head.weight.copy_(engine.weights.lm_head.weight)
    torch.testing.assert_close(logits[0], plain_logits(host, ids)[-1], rtol=1e-3, atol=1e-4)
