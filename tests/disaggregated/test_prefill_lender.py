import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from prefill_decode.disaggregated import prefill_lender
from prefill_decode.disaggregated.handover_exactness import handover_differences
from prefill_decode.disaggregated.prefill_lender import PrefillLender, Room, bytes_of, cache_pool
from prefill_decode.engine import PagedEngine, PlacedChunk
from prefill_decode.kv_transfer import Reader
from tests.conftest import TINY

ROOM = Room(num_blocks=12, block_tokens=4)
IDS = [random.Random(1).randrange(TINY.vocab_size) for _ in range(18)]
THERE, HERE = [7, 2, 9, 0, 5], [1, 8, 3, 11, 6]


@pytest.fixture(scope="module")
def lender():
    lender = PrefillLender(TINY, ROOM, threads=1, seed=4)
    yield lender
    lender.close()


@pytest.fixture(scope="module")
def reader(lender):
    reader = Reader(lender.listen("link", "unix"), cache_pool(TINY, ROOM), lane="stream")
    yield reader
    reader.close()


def own_bytes():
    """The cache of the same prompt in an engine here, in the blocks HERE, region by region."""
    engine = PagedEngine(TINY, num_blocks=12, block_tokens=4, capacity_tokens=48, seed=4)
    logits = engine.forward([PlacedChunk(IDS, 0, HERE)])
    pairs = zip(engine.cache.keys, engine.cache.values, strict=True)
    found = [bytes_of(cached[HERE]) for pair in pairs for cached in pair]
    return found, int(logits[-1].argmax())


def same(regions, expected):
    """Of float64, up to rounding, and only where tokens lie: the last block is half empty."""
    for region, wanted in zip(regions, expected, strict=True):
        values, target = (each.reshape(5, 2, 4, 8, 8).view(np.float64) for each in (region, wanted))
        assert np.allclose(values[:4], target[:4], rtol=0, atol=1e-12)
        assert np.allclose(values[4, :, :2], target[4, :, :2], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cut", [[18], [1, 7, 10]])
def test_its_cache_and_its_token_are_those_of_an_engine_here(lender, reader, cut):
    ends = np.cumsum(cut)
    pieces = [IDS[end - length : end] for end, length in zip(ends, cut, strict=True)]
    prefilled = lender.prefill(pieces, THERE)
    moved = reader.read(lender.offer("link", THERE), HERE, 10.0)
    expected, token_id = own_bytes()
    assert prefilled.token_id == token_id
    assert prefilled.ended_s > prefilled.started_s
    assert moved.moved_bytes == 5 * 4 * TINY.kv_bytes_per_token
    same([region[HERE] for region in reader.pool.regions], expected)


def test_layers_that_leave_during_the_prefill_are_the_same(lender, reader):
    for region in reader.pool.regions:
        region[:] = 0
    offer = lender.layered("link", IDS, THERE)
    reader.read(offer, HERE, 10.0)
    prefilled = lender.prefilled()
    expected, token_id = own_bytes()
    assert prefilled.token_id == token_id
    same([region[HERE] for region in reader.pool.regions], expected)


def test_what_lies_on_an_accelerator_is_staged_layer_by_layer(tmp_path):
    side = prefill_lender._Side(str(tmp_path), TINY, ROOM, 1, "cpu", 4)
    apart = cache_pool(TINY, ROOM)
    side.pool, side.device = apart, "elsewhere"  # as if the cache were not in the host's memory
    side.prefill([IDS], HERE)
    same([region[HERE] for region in apart.regions], own_bytes()[0])
    assert all((region[[0, 2, 4]] == 1).all() for region in apart.regions)  # untouched


def test_bytes_of_a_tensor_are_its_bytes():
    tensor = torch.arange(6, dtype=torch.float32).view(3, 2)
    assert bytes_of(tensor).shape == (3, 8)
    assert bytes_of(tensor)[1].tobytes() == np.array([2, 3], np.float32).tobytes()


def test_a_moved_cache_gives_the_same_tokens_and_logits():
    like = replace(TINY, name="like", windows=(None, 20))
    shares = handover_differences(like, ["unix", "tcp"], seed=2)
    assert len(shares) == 8
    assert max(shares) < 1e-9


def test_a_cache_of_other_weights_does_not(monkeypatch):
    """The ruler sees: an engine here whose weights have another seed."""
    built = PagedEngine

    def other(model, **given):
        return built(model, **given | {"seed": given["seed"] + 1})

    monkeypatch.setattr("prefill_decode.disaggregated.handover_exactness.PagedEngine", other)
    assert min(handover_differences(TINY, ["unix"], seed=2)) > 1e-3
