"""A pool lets only its own blocks be named, and a walk passes each byte of a table once."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefill_decode.kv_transfer import Pool
from prefill_decode.kv_transfer.pool import Walk, runs
from tests.kv_transfer.pools import layout, make_pool

TABLES = st.lists(st.integers(0, 40), min_size=1, max_size=20, unique=True)


def test_adjacent_blocks_are_one_run():
    assert runs([3, 4, 5, 9, 8, 0], 10) == [(30, 60), (90, 100), (80, 90), (0, 10)]


@given(TABLES, st.integers(1, 9), st.lists(st.integers(1, 30), min_size=1), st.integers(1, 5))
def test_a_walk_passes_each_byte_once_in_the_order_of_the_table(table, block_bytes, steps, most):
    due = [
        byte for block in table for byte in range(block * block_bytes, (block + 1) * block_bytes)
    ]
    walk = Walk(table, block_bytes)
    passed = []
    while walk.offset < walk.total:
        step = steps[len(passed) % len(steps)]
        spans = walk.take(step, most)
        found = [byte for span in spans for byte in range(*span)]
        assert 0 < len(found) <= step
        assert len(spans) <= most
        passed += found
        assert walk.offset == len(passed)
    assert passed == due
    walk.restart()
    assert [byte for span in walk.take(walk.total) for byte in range(*span)] == due


@pytest.mark.parametrize("blocks", [[-1], [32], [1, 1], [], [True], [1.0], [2**40]])
def test_blocks_that_are_not_the_pools_are_refused(blocks):
    with pytest.raises(ValueError, match="blocks are"):
        make_pool(32).check(blocks)


def test_memory_of_another_shape_than_the_layout_says_is_refused():
    fine = make_pool(4)
    generations = np.zeros(4, np.int64)
    frozen = [region.copy() for region in fine.regions]
    frozen[2].flags.writeable = False
    for regions in (
        fine.regions[:-1],
        [region[:, :-1] for region in fine.regions],
        [region[:3] for region in fine.regions],
        [np.asfortranarray(region) for region in fine.regions],
        [region.view(np.int8) for region in fine.regions],
        frozen,
    ):
        with pytest.raises(ValueError, match="region"):
            Pool(layout(), regions, generations)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="generations"):
        Pool(layout(), fine.regions, generations.astype(np.int32))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="region"):
        Pool(replace(layout(), block_bytes=128), fine.regions, generations)


def test_a_view_is_the_memory_itself():
    pool = make_pool(4, 8)
    first, second = pool.views(5, [(8, 16), (30, 32)])
    first[:] = bytes(range(8))
    second[:] = b"ab"
    assert pool.regions[5][1].tolist() == list(range(8))
    assert pool.regions[5][3, 6:].tobytes() == b"ab"
