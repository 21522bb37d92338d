"""Accounts of one's own: what a cache holds, who shares what, and what a sequence says alone.

Nothing here calls the code under test; it only looks at its lists."""

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b

from prefill_decode.scheduling import BlockPool

VOCABULARY = 6
Prefix = tuple[int, ...]


def next_token(prefix: Prefix, salt: int) -> int:
    """A model: the next token is a function of all tokens before, and of the answer's dice."""
    return zlib.crc32(bytes((salt % 251, *prefix))) % VOCABULARY


def alone(
    prompt: Sequence[int], salt: int, most_output_tokens: int, stop_ids: frozenset[int]
) -> tuple[list[int], str]:
    """All ids and the reason of the end, of one sequence with nobody beside it and no cache."""
    ids = list(prompt)
    for _ in range(most_output_tokens):
        ids.append(next_token(tuple(ids), salt))
        if ids[-1] in stop_ids:
            return ids, "stop"
    return ids, "length"


@lru_cache(maxsize=100_000)
def chained_hash(prefix: Prefix, block_tokens: int) -> bytes:
    """The hash under which the block that ends this prefix must be published."""
    before = b""
    for first in range(0, len(prefix), block_tokens):
        ids = prefix[first : first + block_tokens]
        before = blake2b(before + struct.pack(f"{len(ids)}q", *ids), digest_size=16).digest()
    return before


class ShadowCache:
    """For every slot of every block the tokens that keys and values there would depend on."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.slots: list[list[Prefix | None]] = [[None] * block_tokens for _ in range(num_blocks)]

    def copy(self, pairs: Iterable[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.slots[target] = list(self.slots[source])

    def write(self, blocks: Sequence[int], ids: Sequence[int], first: int, end: int) -> None:
        for position in range(first, end):
            index, inside = divmod(position, self.block_tokens)
            self.slots[blocks[index]][inside] = tuple(ids[: position + 1])

    def read(self, blocks: Sequence[int], tokens: int) -> list[Prefix | None]:
        return [
            self.slots[blocks[position // self.block_tokens]][position % self.block_tokens]
            for position in range(tokens)
        ]

    def holds(self, blocks: Sequence[int], ids: Sequence[int], tokens: int) -> bool:
        """Whether a table spells exactly its sequence, as far as that is cached."""
        return self.read(blocks, tokens) == [tuple(ids[: end + 1]) for end in range(tokens)]


def written_blocks(blocks: Sequence[int], first: int, end: int, block_tokens: int) -> list[int]:
    return [blocks[i] for i in range(first // block_tokens, -(-end // block_tokens))]


def check_pool(
    pool: BlockPool, tables: Iterable[Sequence[int]], shadow: ShadowCache | None = None
) -> None:
    """Every block is held as often as tables list it, or free and then in one list only."""
    holders = Counter(block for table in tables for block in table)
    assert pool.references == [holders[block] for block in range(pool.num_blocks)]
    free = pool._empty + list(pool._kept)
    assert sorted(free + list(holders)) == list(range(pool.num_blocks)), "lost, or free and held"
    assert pool.num_free == pool.num_blocks - len(holders)
    assert {block: contents for contents, block in pool._block_of.items()} == pool._hash_of
    assert len(pool._block_of) == len(pool._hash_of)
    assert set(pool._kept) == set(pool._hash_of) - set(holders), "kept is what is published, free"
    for block, contents in pool._hash_of.items() if shadow else ():
        assert shadow is not None
        prefix = shadow.slots[block][-1]
        assert prefix is not None
        first = len(prefix) - pool.block_tokens
        assert shadow.slots[block] == [
            prefix[: first + inside + 1] for inside in range(pool.block_tokens)
        ]
        assert first % pool.block_tokens == 0
        assert chained_hash(prefix, pool.block_tokens) == contents


def reusable_blocks(pool: BlockPool, ids: Sequence[int]) -> list[int]:
    """The published blocks that a prompt begins with, but for its last token, found one by one."""
    found = []
    for end in range(pool.block_tokens, len(ids), pool.block_tokens):
        block = pool._block_of.get(chained_hash(tuple(ids[:end]), pool.block_tokens))
        if block is None:
            break
        found.append(block)
    return found


def fewest_preempted(
    to_run: Sequence[int],
    cached: Sequence[int],
    tables: Sequence[Sequence[int]],
    pool: BlockPool,
    outside: Sequence[Sequence[int]] = (),
) -> int:
    """How many of the last must go for the others to decode, tried from none upwards. What is in
    tables outside is held by those who give up nothing."""
    for gone in range(max(1, len(tables)) + bool(outside)):
        stay = range(len(tables) - gone)
        holders = Counter(block for table in outside for block in table)
        holders.update(block for i in stay for block in tables[i])
        needed, writers = 0, Counter[int]()
        for i in stay:
            index, inside = divmod(cached[i], pool.block_tokens)
            if to_run[i] == 1 and index == len(tables[i]):
                needed += 1
            elif to_run[i] == 1 and inside:
                writers[tables[i][index]] += 1
        copies = sum(min(count, holders[block] - 1) for block, count in writers.items())
        if needed + copies <= pool.num_blocks - len(holders):
            return gone
    raise AssertionError("the oldest sequence cannot decode even alone")
