"""Counted blocks: a block pool for sequences that nobody runs.

A block has a number so that somebody can find its keys and values. Where there are none, a block
whose contents nobody may ask for is like any other: it is counted, and stands as NAMELESS in its
sequence's table. A block gets a number when it is published. So a prompt of a thousand blocks costs
as much as one of ten, and the counts and what the cache remembers are those of a `BlockPool`.

Ignores: forks, which share blocks that are nameless; generations of nameless blocks.
"""

from collections.abc import Hashable, Iterable, Sequence

from prefill_decode.scheduling.kv_blocks import BlockPool, OutOfBlocks

NAMELESS = -1


class CountedPool(BlockPool):
    """`_empty` also has the numbers of the nameless blocks that are held: any that are left."""

    def __init__(self, num_blocks: int, block_tokens: int, reuse: bool = True) -> None:
        super().__init__(num_blocks, block_tokens, reuse)
        self.references.append(1)  # of what is NAMELESS, the last: it has one holder
        self._nameless = 0

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._kept) - self._nameless

    @property
    def num_empty(self) -> int:
        return len(self._empty) - self._nameless

    def allocate(self, count: int) -> list[int]:
        short = self._nameless + count - len(self._empty)
        if short > 0:
            if short > len(self._kept):
                raise OutOfBlocks(f"{count} blocks were asked for and {self.num_free} are free")
            for _ in range(short):
                self._forget_oldest()
        self._nameless += count
        return [NAMELESS] * count

    def share(self, blocks: Iterable[int]) -> None:
        listed = list(blocks)
        assert NAMELESS not in listed, "a nameless block has one holder"
        super().share(listed)

    def release(self, blocks: Sequence[int], keep: bool = True) -> None:
        nameless = blocks.count(NAMELESS)
        assert nameless <= self._nameless, "a nameless block is released once too often"
        self._nameless -= nameless
        if nameless < len(blocks):
            super().release([block for block in blocks if block != NAMELESS], keep)

    def publish_blocks(self, table: list[int], first: int, contents: Sequence[Hashable]) -> None:
        if not self.reuse:
            return
        empty, block_of, hash_of = self._empty, self._block_of, self._hash_of
        references, generations = self.references, self.generations
        for index, held in enumerate(contents, first):
            if table[index] == NAMELESS and held not in block_of:
                number = table[index] = empty.pop()
                references[number] = 1
                generations[number] += 1
                hash_of[number] = held
                block_of[held] = number
                self._nameless -= 1

    def publish(self, block: int, contents: Hashable) -> None:
        raise TypeError("a block gets its number in a table: use publish_blocks")
