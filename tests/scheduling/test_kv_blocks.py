"""The pool of blocks: who holds what, what is found again, what is forgotten first."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefill_decode.scheduling import BlockPool, OutOfBlocks, hash_of_block
from tests.scheduling.shadow import chained_hash, check_pool


class PoolMachine(RuleBasedStateMachine):
    """Holders come and go at random; contents are small numbers, so that they meet again."""

    @initialize(num_blocks=st.integers(1, 8), reuse=st.booleans() | st.just(True))
    def start(self, num_blocks, reuse):
        self.pool = BlockPool(num_blocks, 4, reuse)
        self.tables = []
        self.published = {}  # contents of blocks, by our own account
        self.generations = [0] * num_blocks
        self.free_for = dict.fromkeys(range(num_blocks), 0)  # since when nobody holds a block
        self.now = 0

    def held(self):
        return {block for table in self.tables for block in table}

    @rule(count=st.integers(0, 9))
    def allocate(self, count):
        free = self.pool.num_blocks - len(self.held())
        remembered = sorted(set(self.published) - self.held(), key=self.free_for.__getitem__)
        if count > free:
            with pytest.raises(OutOfBlocks, match=f"^{count} blocks .* and {free} are free$"):
                self.pool.allocate(count)
            return
        blocks = self.pool.allocate(count)
        assert len(set(blocks)) == count
        assert not self.held() & set(blocks)
        forgotten = remembered[: max(0, count - (free - len(remembered)))]
        assert set(blocks) & set(self.published) == set(forgotten), "the longest unused goes first"
        for block in forgotten:
            del self.published[block]
        for block in blocks:
            self.generations[block] += 1
        self.tables.append(blocks)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def share(self, data):
        table = data.draw(st.sampled_from(self.tables))
        self.pool.share(table)
        self.tables.append(list(table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), keep=st.booleans() | st.just(True))
    def release(self, data, keep):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table, keep)
        for block in reversed(table):
            self.now += 1
            if block not in self.held():
                self.free_for[block] = self.now
                if not keep:
                    self.published.pop(block, None)

    @precondition(lambda self: self.held())
    @rule(data=st.data(), contents=st.integers(0, 5))
    def publish(self, data, contents):
        block = data.draw(st.sampled_from(sorted(self.held())))
        self.pool.publish(block, contents)
        new = block not in self.published and contents not in self.published.values()
        if self.pool.reuse and new:
            self.published[block] = contents

    @rule(contents=st.lists(st.integers(0, 5), max_size=4, unique=True))
    def match(self, contents):
        block_of = {known: block for block, known in self.published.items()}
        expected = []
        for wanted in contents:
            if wanted not in block_of:
                break
            expected.append(block_of[wanted])
        for block in set(expected) - self.held():
            self.generations[block] += 1
        assert self.pool.match(contents) == expected
        self.tables.append(expected)

    @invariant()
    def all_accounts_agree(self):
        if hasattr(self, "pool"):
            check_pool(self.pool, self.tables)
            assert self.pool._hash_of == self.published
            assert self.pool.generations.tolist() == self.generations

    def teardown(self):
        if hasattr(self, "pool"):
            for table in self.tables:
                self.pool.release(table)
            assert self.pool.num_free == self.pool.num_blocks


TestThePoolAgreesWithARecount = PoolMachine.TestCase
TestThePoolAgreesWithARecount.settings = settings(
    max_examples=150, stateful_step_count=30, derandomize=True, deadline=None
)


@pytest.mark.parametrize(("num_blocks", "block_tokens"), [(0, 4), (4, 0), (-1, 1)])
def test_a_pool_has_a_block_and_a_block_has_a_token(num_blocks, block_tokens):
    with pytest.raises(
        ValueError,
        match=f"^a pool needs at least one block of at least one token; got num_blocks={num_blocks}"
        f" and block_tokens={block_tokens}$",
    ):
        BlockPool(num_blocks, block_tokens)


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_a_begun_block_is_a_whole_block(tokens, blocks):
    assert BlockPool(8, 4).blocks_for(tokens) == blocks


def test_ends_are_forgotten_before_beginnings_and_the_longest_unused_before_others():
    pool = BlockPool(5, 4)
    old, young = pool.allocate(2), pool.allocate(3)
    for block, contents in zip(old + young, "abcde", strict=True):
        pool.publish(block, contents)
    pool.release(old)
    pool.release(young)
    assert [pool.allocate(1)[0] for _ in range(5)] == old[::-1] + young[::-1]
    assert len(pool._block_of) == 0


def test_what_is_matched_and_released_again_is_young():
    pool = BlockPool(2, 4)
    first, second = pool.allocate(2)
    pool.publish(first, "a")
    pool.publish(second, "b")
    pool.release([first, second])  # unused for longest: second, then first
    pool.release(pool.match(["b"]))
    assert pool.allocate(1) == [first]


def test_blocks_with_nothing_to_remember_are_taken_before_those_that_remember():
    pool = BlockPool(2, 4)
    first, second = pool.allocate(2)
    pool.publish(first, "a")
    pool.release([first])
    pool.release([second])
    assert pool.allocate(1) == [second]
    assert pool.match(["a"]) == [first]


def test_the_first_block_with_given_contents_stays_the_one():
    pool = BlockPool(3, 4)
    first, second = pool.allocate(2)
    pool.publish(first, "a")
    pool.publish(second, "a")
    pool.publish(first, "b")  # a block has one contents for as long as it is held
    assert pool.match(["a"]) == [first]
    assert pool.match(["b"]) == []
    pool.release([first, first, second])
    assert len(pool._block_of) == 1


def test_a_failed_allocation_changes_nothing():
    pool = BlockPool(3, 4)
    block = pool.allocate(1)
    with pytest.raises(OutOfBlocks, match="3 blocks were asked for and 2 are free"):
        pool.allocate(3)
    check_pool(pool, [block])


def test_with_reuse_off_nothing_is_found_again():
    pool = BlockPool(1, 4, reuse=False)
    block = pool.allocate(1)
    pool.publish(block[0], "a")
    pool.release(block)
    assert pool.match(["a"]) == []
    assert len(pool._block_of) == 0


def test_free_blocks_are_neither_shared_nor_released_nor_published():
    pool = BlockPool(2, 4)
    block = pool.allocate(1)
    pool.release(block)
    with pytest.raises(AssertionError, match="is released once too often"):
        pool.release(block)
    with pytest.raises(AssertionError, match="is free and cannot be shared"):
        pool.share(block)
    with pytest.raises(AssertionError, match="is free and holds nothing"):
        pool.publish(block[0], "a")


def test_a_block_is_known_by_its_tokens_and_by_all_before_it():
    first = hash_of_block([1, 2])
    assert hash_of_block([3, 4], first) == chained_hash((1, 2, 3, 4), 2)
    different = [
        first,
        hash_of_block([2, 1]),
        hash_of_block([1]),
        hash_of_block([1, 2], first),
        hash_of_block([1, 2], hash_of_block([1, 2], first)),
        hash_of_block([1, 2**40]),
    ]
    assert Counter(different).most_common(1)[0][1] == 1
    assert hash_of_block([1, 2]) == hash_of_block((1, 2))
