"""The engine's law across two engines: whoever read the prompt, wherever its blocks lie on each
side, an answer goes on exactly as in one."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_decode.engine.kv_cache import KVCache
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.sampling import Sampling
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.engine.weights import mark_of, random_weights
from prefill_decode.scheduling import OutOfBlocks, QueueFull, SchedulerSettings
from tests.conftest import TINY
from tests.engine.test_serving import SAMPLINGS, alone, engine, prompt_of, serve, serving, settled


def copy(source: ServingEngine, blocks: list[int], target: ServingEngine, places: list[int]):
    """All that a transfer does: the bytes of some blocks into others."""
    for theirs, mine in zip(source.kv_regions(), target.kv_regions(), strict=True):
        mine[places] = theirs[blocks]


def hand_over(prefill: ServingEngine, decode: ServingEngine, name: str, token_id: int, asked):
    prompt, most, sampling, known, answer = asked
    places = decode.reserve(name, prompt, most, sampling, known_ids=known, first_answer=answer)
    copy(prefill, prefill.held_blocks(name), decode, places)
    prefill.release_held(name)
    decode.start(name, token_id)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    requests=st.lists(
        st.tuples(
            st.integers(1, 24),
            st.integers(2, 9),
            SAMPLINGS,
            st.integers(0, 7),
            st.integers(0, 2),
            st.booleans(),
        ),
        min_size=1,
        max_size=6,
    ),
    block_tokens=st.sampled_from([1, 2, 3, 5, 16]),
    budget=st.integers(6, 40),
    spare_blocks=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_an_answer_is_the_same_when_its_prompt_is_read_by_another_engine(
    requests, block_tokens, budget, spare_blocks, seed
):
    dice = random.Random(seed)
    beginning = prompt_of(24, seed)
    asked, expected = {}, {}
    for index, (length, tokens, sampling, known, answer, shares) in enumerate(requests):
        own = prompt_of(length, 100 * seed + index)
        prompt = (beginning + own)[:length] if shares else own
        whole = alone(prompt, tokens, sampling, answer)
        asked[str(index)] = (prompt, tokens, sampling, whole[: min(known, tokens - 2)], answer)
        expected[str(index)] = whole
    longest = max(len(prompt) + most for prompt, most, *_ in asked.values())
    num_blocks = -(-longest // block_tokens) + spare_blocks
    limits = SchedulerSettings("chunked", budget, 6)
    prefill = serving(num_blocks, block_tokens, limits)
    decode = serving(num_blocks + 1, block_tokens, limits)
    for name, (prompt, _, sampling, known, answer) in asked.items():
        prefill.submit(
            name,
            prompt,
            len(known) + 1,
            sampling,
            known_ids=known,
            first_answer=answer,
            hold=True,
        )
    answers = {name: list(known) for name, (*_, known, _) in asked.items()}
    read: list[str] = []
    for _ in range(3000):
        for token in prefill.step():
            answers[token.request_id].append(token.token_id)
            read.append(token.request_id)
        if read and dice.random() < 0.5:
            name = read[0]
            try:
                hand_over(prefill, decode, name, answers[name][-1], asked[name])
                read.pop(0)
            except (OutOfBlocks, QueueFull):
                assert decode.has_work, "it will have room"
        for token in decode.step():
            assert token.answer == asked[token.request_id][-1]
            answers[token.request_id].append(token.token_id)
        if not (prefill.has_work or decode.has_work or read):
            break
    assert answers == expected
    assert settled(prefill)
    assert settled(decode)


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("chunks", [(21,), (5, 16), (7, 7, 7), (20, 1)])
def test_logits_are_those_of_one_engine_to_the_last_bit(kernels_or_not, chunks, block_tokens):
    """With the same chunks; with others as near as float64 adds up."""
    shared = random_weights(TINY, "cpu", 0)
    prompt, answer = list(prompt_of(21)), list(prompt_of(9, 1))
    num_blocks = -(-30 // block_tokens)

    def fed(target: PagedEngine, blocks, sizes, first=0) -> torch.Tensor:
        rows, ids = [], prompt + answer
        for size in sizes:
            rows.append(target.forward([PlacedChunk(ids[first : first + size], first, blocks)]))
            first += size
        return torch.cat(rows)

    here = range(num_blocks)
    one = engine(num_blocks, block_tokens, shared)
    expected = fed(one, list(here), (*chunks, *[1] * 9))
    first, second = (engine(num_blocks + 3, block_tokens, shared) for _ in range(2))
    theirs = random.Random(1).sample(range(num_blocks + 3), num_blocks)
    mine = random.Random(2).sample(range(num_blocks + 3), num_blocks)
    begun = fed(first, theirs, chunks)
    for source, target in zip(first.cache.regions(), second.cache.regions(), strict=True):
        target[mine] = source[theirs]
    continued = fed(second, mine, [1] * 9, first=21)
    assert torch.equal(torch.cat([begun, continued]), expected)
    whole = fed(engine(num_blocks, block_tokens, shared), list(here), (21, *[1] * 9))
    assert (continued - whole[1:]).abs().max() < 1e-9


def test_a_layer_is_told_of_when_its_keys_and_values_are_there():
    server = serving(8, 4, SchedulerSettings(most_tokens_per_step=6, most_sequences=2))
    server.submit("a", prompt_of(9), 1, hold=True)
    told, seen = [], []

    def on_layer(layer):
        keys, values = server.kv_regions()[2 * layer : 2 * layer + 2]
        last = server.held_blocks("a")[-1]
        seen.append((layer, bool(keys[last].any() and values[last].any())))

    server.step(on_layer, told.append)
    assert told == [[]], "its prompt is not read to the end yet"
    assert server.held_blocks("a"), "and yet it has its blocks"
    del seen[:]
    server.step(on_layer, told.append)
    assert told[1] == ["a"]
    assert seen == [(layer, True) for layer in range(TINY.num_layers)]


def test_what_a_layer_wrote_when_it_was_told_of_stays():
    server = serving(8, 4, SchedulerSettings())
    server.submit("a", prompt_of(9), 1, hold=True)
    early = {}

    def on_layer(layer):
        blocks = server.held_blocks("a")
        early[layer] = [region[blocks].copy() for region in server.kv_regions()[2 * layer :][:2]]

    server.step(on_layer)
    for layer, (keys, values) in early.items():
        late = [r[server.held_blocks("a")] for r in server.kv_regions()[2 * layer :][:2]]
        assert np.array_equal(keys, late[0])
        assert np.array_equal(values, late[1])


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_the_regions_are_the_memory_of_the_cache(dtype):
    model = replace(TINY, dtype=dtype)
    cache = KVCache(model, 3, 4, "cpu")
    regions = cache.regions()
    assert [region.shape for region in regions] == [
        (3, TINY.num_kv_heads * 4 * TINY.head_dim * cache.keys[0].element_size())
    ] * (2 * TINY.num_layers)
    assert sum(region.nbytes for region in regions) == model.kv_bytes_kept_by_engine(12)
    cache.values[1][2] = 1.0
    assert [bool(region[2].any()) for region in regions] == [False, False, False, True]
    regions[0][1] = 255
    assert cache.keys[0][1].isnan().all()


def test_the_cache_of_another_device_has_no_regions_here():
    with pytest.raises(ValueError, match="host's memory; got one on meta"):
        KVCache(TINY, 1, 1, "meta").regions()


def test_held_and_reserved_blocks_return_when_a_request_is_cancelled():
    server = serving(8, 4, SchedulerSettings())
    server.submit("held", prompt_of(9), 1, hold=True)
    assert server.held_blocks("held") == []
    serve(server)
    assert len(server.held_blocks("held")) == 3
    reserved = server.reserve("reserved", prompt_of(9), 5)
    assert not set(reserved) & set(server.held_blocks("held"))
    assert server.state().free_blocks == 2
    assert server.reused_tokens("held") == 0
    for name in ("held", "reserved"):
        server.cancel(name)
    assert settled(server)
    with pytest.raises(ValueError, match="'held' does not"):
        server.held_blocks("held")
    with pytest.raises(ValueError, match="'reserved' is not"):
        server.start("reserved", 1)


def test_hand_overs_that_cannot_be_are_refused_and_leave_nothing_behind():
    server = serving(4, 4, SchedulerSettings())
    server.submit("a", (1, 2), 1, hold=True)
    with pytest.raises(ValueError, match="'a' is in use"):
        server.reserve("a", (1, 2), 3)
    serve(server)
    with pytest.raises(ValueError, match="'a' is in use"):
        server.submit("a", (1, 2), 1)
    server.release_held("a")
    for options, words in [
        ({"known_ids": (1, 61)}, "from 0 to 60"),
        ({"known_ids": (1, 2, 3)}, "at least one token of its answer"),
        ({"known_ids": (1,), "answers": 2}, "submit them one by one"),
        ({"hold": True, "answers": 2}, "submit them one by one"),
    ]:
        with pytest.raises(ValueError, match=words):
            server.submit("a", (1, 2), 3, **options)
    server.submit("a", (1, 2), 3, hold=True)
    server.step()
    with pytest.raises(ValueError, match="'a' still runs"):
        server.release_held("a")
    server.cancel("a")
    server.reserve("b", (1, 2), 3)
    with pytest.raises(ValueError, match="from 0 to 60"):
        server.start("b", 61)
    with pytest.raises(OutOfBlocks):
        server.reserve("c", (1,) * 14, 2)
    server.start("b", 3)
    with pytest.raises(ValueError, match="'b' is not"):
        server.start("b", 3)
    assert len(serve(server)["b", 0]) == 2
    assert settled(server)


def test_a_request_taken_back_after_its_start_is_computed_here_and_answers_alike():
    server = serving(6, 4, SchedulerSettings(most_tokens_per_step=16, most_sequences=4))
    other = serving(6, 4, SchedulerSettings())
    asked = {str(i): (prompt_of(6, i), 14, Sampling(1.0, seed=i), (), 0) for i in range(3)}
    begun = {}
    for name, (prompt, _, sampling, *_) in asked.items():
        other.submit(name, prompt, 1, sampling, hold=True)
        begun[name] = serve(other)[name, 0]
        hand_over(other, server, name, begun[name][0], asked[name])
    answers = serve(server)
    assert server.state().preemptions > 0
    for name, (prompt, most, sampling, *_) in asked.items():
        assert begun[name] + answers[name, 0] == alone(prompt, most, sampling)
    assert settled(server)


def test_weights_are_marked_alike_by_seed_and_unlike_by_all_else():
    model = replace(TINY, qkv_bias=True, qk_norm=True)
    marks = {
        mark_of(changed, random_weights(changed, "cpu", seed))
        for changed in (model, replace(model, rope_theta=5e3), replace(model, dtype="float32"))
        for seed in (0, 1)
    }
    assert len(marks) == 6
    assert mark_of(model, random_weights(model, "cpu", 1)) in marks
    made = random_weights(model, "cpu", 0)
    before = mark_of(model, made)
    made.layers[1].down.weight[-1, -1] += 1.0
    assert mark_of(model, made) != before
