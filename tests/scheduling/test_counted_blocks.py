"""A pool that only counts blocks is a pool: by hand here, beside the other one in `test_runs`."""

import pytest

from prefill_decode.scheduling import BlockPool, CountedPool, OutOfBlocks
from prefill_decode.scheduling.counted_blocks import NAMELESS


def test_blocks_without_contents_are_counted_and_have_no_number():
    pool = CountedPool(5, 16)
    table = pool.allocate(3)
    assert (table, pool.num_free, pool.num_empty) == ([NAMELESS] * 3, 2, 2)
    with pytest.raises(OutOfBlocks, match="3 blocks were asked for and 2 are free"):
        pool.allocate(3)
    pool.release(table)
    assert pool.num_free == 5


@pytest.mark.parametrize("kind", [BlockPool, CountedPool])
def test_what_is_published_is_found_until_its_block_is_needed(kind):
    pool = kind(4, 16)
    table = pool.allocate(3)
    pool.publish_blocks(table, 1, ["a", "b"])
    assert pool.count_matching(["a", "b"]) == 2
    assert pool.match(["a", "x"]) == [table[1]]
    assert pool.references[table[1]] == 2
    pool.release(table)
    assert (pool.num_free, pool.num_empty) == (3, 2), "one is still held, one is remembered"
    pool.release([table[1]])
    rest = pool.allocate(3)
    assert pool.count_matching(["b"]) == 0, "the end of a sequence is forgotten before its begin"
    assert pool.count_matching(["a"]) == 1
    pool.release(rest)


@pytest.mark.parametrize("kind", [BlockPool, CountedPool])
def test_the_first_block_with_given_contents_is_kept(kind):
    pool = kind(4, 16)
    first, second = pool.allocate(1), pool.allocate(1)
    pool.publish_blocks(first, 0, ["a"])
    pool.publish_blocks(second, 0, ["a"])
    pool.release(first)
    pool.release(second)
    assert (pool.num_free, pool.num_empty) == (4, 3)
    assert pool.match(["a"]) == first


def test_without_reuse_nothing_gets_a_number():
    pool = CountedPool(4, 16, reuse=False)
    table = pool.allocate(2)
    pool.publish_blocks(table, 0, ["a", "b"])
    assert table == [NAMELESS] * 2
    assert pool.count_matching(["a"]) == 0


def test_what_a_counted_pool_cannot_do_is_refused():
    pool = CountedPool(4, 16)
    (block,) = pool.allocate(1)
    with pytest.raises(TypeError, match="publish_blocks"):
        pool.publish(block, "a")
    with pytest.raises(AssertionError, match="one holder"):
        pool.share([block])
    pool.release([block])
    with pytest.raises(AssertionError, match="once too often"):
        pool.release([block])
