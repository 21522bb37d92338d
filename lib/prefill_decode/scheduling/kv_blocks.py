"""KV blocks: who holds which block of the cache, and which blocks can be used again.

The cache is cut into blocks of equal size. A sequence's block table lists its blocks in order, so
its cache may lie anywhere; blocks are counted, handed out and taken back here, and nothing is
computed. A full block whose contents are known is published under a hash of all tokens up to its
end: a later sequence that begins with the same tokens shares it instead of computing it again. A
block that nobody holds keeps its contents until it is needed; the one unused for longest goes
first.

Counts:  references to every block, and its generation, which rises with each new first holder: who
         has noted it can tell whether the block is still in the use that it was in.
Ignores: what is in a block; equal hashes are taken for equal contents, which is why they are
         cryptographic.
Source:  Kwon et al., "PagedAttention" (2023), section 4, for blocks, reference counts and copying
         on write; Zheng et al., "SGLang" (2024), for keeping what was computed.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b

HASH_BYTES = 16


class OutOfBlocks(Exception):
    """More blocks were asked for than nobody holds."""


class BlockPool:
    """`num_blocks` blocks of `block_tokens` tokens; with `reuse` off, nothing is ever shared by
    content."""

    def __init__(self, num_blocks: int, block_tokens: int, reuse: bool = True) -> None:
        if num_blocks < 1 or block_tokens < 1:
            raise ValueError(
                "a pool needs at least one block of at least one token; got "
                f"num_blocks={num_blocks} and block_tokens={block_tokens}"
            )
        self.num_blocks, self.block_tokens, self.reuse = num_blocks, block_tokens, reuse
        self.references = [0] * num_blocks
        self.generations = array("q", [0]) * num_blocks  # in memory that others may look at
        self._empty = list(range(num_blocks - 1, -1, -1))  # free, with nothing to remember
        # Free, contents published; unused for longest first. Not a dict, in which the first is ever
        # harder to find the more have been taken before it.
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, Hashable] = {}
        self._block_of: dict[Hashable, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, whether or not their contents are remembered."""
        return len(self._empty) + len(self._kept)

    @property
    def num_empty(self) -> int:
        """Of these, the ones with nothing to remember: they are taken first."""
        return len(self._empty)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def allocate(self, count: int) -> list[int]:
        """So many blocks, each held once; OutOfBlocks, with nothing changed, if there are fewer."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} blocks were asked for and {self.num_free} are free")
        if count > len(self._empty):
            return [self._take() for _ in range(count)]
        taken = self._empty[: -count - 1 : -1]
        del self._empty[len(self._empty) - count :]
        references, generations = self.references, self.generations
        for block in taken:
            references[block] = 1
            generations[block] += 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more holder for each of these, all of which are held."""
        for block in blocks:
            assert self.references[block] > 0, f"block {block} is free and cannot be shared"
            self.references[block] += 1

    def release(self, blocks: Sequence[int], keep: bool = True) -> None:
        """One holder less for each; the ends of sequences are forgotten before their beginnings.

        `keep`: whether a block that nobody then holds may be found again by its contents."""
        references, hash_of = self.references, self._hash_of
        last = [block for block in reversed(blocks) if references[block] == 1]
        if len(last) < len(blocks):
            for block in blocks:
                assert references[block] > 0, f"block {block} is released once too often"
                references[block] -= 1
        else:
            for block in last:
                references[block] = 0
        if not hash_of:
            self._empty += last
            return
        for block in last:
            if not keep and block in hash_of:
                del self._block_of[hash_of.pop(block)]
            if block in hash_of:
                self._kept[block] = None
            else:
                self._empty.append(block)

    def publish_blocks(self, table: list[int], first: int, contents: Sequence[Hashable]) -> None:
        """The blocks of a table from its `first` on are full and hold these contents, in order."""
        for index, held in enumerate(contents, first):
            self.publish(table[index], held)

    def publish(self, block: int, contents: Hashable) -> None:
        """A held block is full and holds this. The first block with given contents is kept."""
        assert self.references[block] > 0, f"block {block} is free and holds nothing"
        if self.reuse and block not in self._hash_of and contents not in self._block_of:
            self._hash_of[block] = contents
            self._block_of[contents] = block

    def match(self, contents: Iterable[Hashable]) -> list[int]:
        """Blocks with these contents, up to the first that is not there; each held once more."""
        found = []
        for wanted in contents:
            block = self._block_of.get(wanted)
            if block is None:
                break
            if self.references[block] == 0:
                del self._kept[block]
                self.generations[block] += 1
            self.references[block] += 1
            found.append(block)
        return found

    def count_matching(self, contents: Iterable[Hashable]) -> int:
        """How many blocks `match` would find; nothing is held."""
        found = 0
        for wanted in contents:
            if wanted not in self._block_of:
                break
            found += 1
        return found

    def _take(self) -> int:
        if self._empty:
            block = self._empty.pop()
        else:
            self._forget_oldest()
            block = self._empty.pop()
        self.references[block] = 1
        self.generations[block] += 1
        return block

    def _forget_oldest(self) -> None:
        """The kept block that was unused for longest becomes an empty one."""
        block, _ = self._kept.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        self._empty.append(block)


def hash_of_block(token_ids: Sequence[int], before: bytes = b"") -> bytes:
    """Contents of a block: its tokens and, through the hash before it, all that came earlier."""
    return blake2b(before + array("q", token_ids).tobytes(), digest_size=HASH_BYTES).digest()
