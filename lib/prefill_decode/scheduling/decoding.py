"""Decoding: sequences that decode together, kept as one while nothing happens to any of them.

When nobody comes, ends or loses blocks, a step does the same to every sequence that decodes: one
token more in the cache, one more known, and now and then a block. `Decoders` counts such steps
(turns) for all of them at once and writes a sequence's own counts when it leaves, so that a
thousand turns of a hundred sequences cost as much as one of one.

Counts:  blocks, taken from the pool in the turn that needs them; which of them a sequence gets is
         settled when it leaves, because no block is better than another. Contents that become
         known are published in the turn that fills their block.
Ignores: forks and token ids: for sequences of which lengths are known, and perhaps the contents
         of blocks.
"""

from bisect import bisect_right
from heapq import heappop, heappush

from prefill_decode.scheduling.kv_blocks import BlockPool
from prefill_decode.scheduling.sequence import SequenceState

Due = tuple[int, int, SequenceState]  # the turn, the place in line, who


class Decoders:
    """`turn` is how many turns have been."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.turn = 0
        self.count = 0
        self.context_tokens = 0  # in the cache, of all of them
        self._due = [0] * pool.block_tokens  # how many need a block in turns of this remainder
        self._ready = 0  # due in the turn after `_taken`, and has its block already
        self._taken = 0  # turns for which blocks were taken: `turn`, or one more during a turn
        self._blocks: list[int] = []  # taken, in nobody's table yet
        self._ends: list[Due] = []
        self._fills: list[Due] = []  # a block whose contents are known will be full
        self._members: dict[SequenceState, int] = {}  # the turn in which each joined

    def join(self, sequence: SequenceState, place: int) -> None:
        """From the next turn on; `sequence` has one token to run. Places order who does the same
        thing in the same turn."""
        size, turn = self.pool.block_tokens, self.turn
        before_block = len(sequence.blocks) * size - sequence.cached_tokens
        assert 0 <= before_block <= size, "a sequence that decodes has blocks for what it knows"
        self._members[sequence] = turn
        self.count += 1
        self.context_tokens += sequence.cached_tokens
        self._due[(turn + before_block) % size] += 1
        self._ready += before_block == size
        left = sequence.most_output_tokens - sequence.output_tokens
        heappush(self._ends, (turn + left, place, sequence))
        if self.pool.reuse and sequence.published_blocks < len(sequence.block_hashes):
            self._await_fill(sequence, turn, place, sequence.published_blocks + 1)

    def blocks_until(self, turn: int) -> int:
        """Blocks to be taken so that all turns before this one can run."""
        turns, size = turn - self._taken, self.pool.block_tokens
        if turns == 1:
            return self._due[self._taken % size] - self._ready
        if turns <= 0:
            return 0
        cycles, rest = divmod(turns, size)
        first = self._taken % size
        last = first + rest
        some = sum(self._due[first:last])
        if last > size:
            some += sum(self._due[: last - size])
        return cycles * self.count + some - self._ready

    def take_until(self, turn: int) -> bool:
        """Take these blocks. False, with none taken, if there are fewer."""
        if turn > self._taken:
            needed = self.blocks_until(turn)
            if needed:
                if needed > self.pool.num_free:
                    return False
                self._blocks += self.pool.allocate(needed)
            self._taken, self._ready = turn, 0
        return True

    def turns_to_end(self) -> int:
        return self._ends[0][0] - self.turn

    def turns_to_fill(self) -> int | None:
        """Until the next block with known contents is full; None if there is none."""
        return self._fills[0][0] - self.turn if self._fills else None

    def turns_alike(self, most: int, until_fill: bool) -> int:
        """Until a sequence ends or blocks run out; with `until_fill` also until a block with known
        contents is full, in which one that waits may find its first tokens."""
        turns = min(most, self.turns_to_end())
        fill = self.turns_to_fill() if until_fill else None
        if fill is not None:
            turns = min(turns, fill)
        free = self.pool.num_free
        at_most = (turns // self.pool.block_tokens + 1) * self.count
        if at_most > free and self.blocks_until(self.turn + turns) > free:
            coming = range(self.turn + 1, self.turn + turns + 1)
            turns = bisect_right(coming, free, key=self.blocks_until)
        return turns

    def keeps_contents(self, turns: int) -> bool:
        """Whether so many turns publish no block and take none whose contents are remembered."""
        return not self._fills and self.blocks_until(self.turn + turns) <= self.pool.num_empty

    def advance(self, turns: int) -> list[SequenceState]:
        """So many turns later. Who then has all its tokens leaves and is returned, by place."""
        target = self.turn + turns
        while self._fills and self._fills[0][0] <= target:
            self._publish(*heappop(self._fills))
        enough = self.take_until(target)
        assert enough, "a run was to end before blocks do"
        self.turn = target
        self.context_tokens += turns * self.count
        ended = []
        ends = self._ends
        assert not ends or ends[0][0] >= target, "a sequence has ended in between"
        while ends and ends[0][0] == target:
            sequence = heappop(ends)[2]
            self._leave(sequence, self._members.pop(sequence))
            ended.append(sequence)
        return ended

    def part(self) -> None:
        """Everybody leaves, with counts and tables of their own."""
        for sequence, since in self._members.items():
            self._leave(sequence, since)
        assert not self._blocks, "a block was taken for nobody"
        self._members.clear()
        self._ends.clear()
        self._fills.clear()
        self._ready = 0

    def _leave(self, sequence: SequenceState, since: int) -> None:
        size, turns = self.pool.block_tokens, self.turn - since
        sequence.cached_tokens += turns
        sequence.output_tokens += turns
        self.count -= 1
        self.context_tokens -= sequence.cached_tokens
        self._due[(self.turn - sequence.cached_tokens) % size] -= 1
        self._deal(sequence, sequence.cached_tokens)
        if self.pool.reuse and turns:
            sequence.published_blocks = sequence.cached_tokens // size

    def _deal(self, sequence: SequenceState, tokens: int) -> None:
        """Blocks for so many tokens, of those taken."""
        missing = self.pool.blocks_for(tokens) - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += self._blocks[-missing:]
            del self._blocks[-missing:]

    def _publish(self, turn: int, place: int, sequence: SequenceState) -> None:
        """Publish the blocks of a sequence that are full after this turn."""
        self.take_until(turn)
        hashes, size = sequence.block_hashes, self.pool.block_tokens
        tokens = sequence.cached_tokens + turn - self._members[sequence]
        self._deal(sequence, tokens)
        full = min(tokens // size, len(hashes))
        published = sequence.published_blocks
        self.pool.publish_blocks(sequence.blocks, published, hashes[published:full])
        sequence.published_blocks = full
        if full < len(hashes):
            self._await_fill(sequence, turn, place, full + 1)

    def _await_fill(self, sequence: SequenceState, turn: int, place: int, blocks: int) -> None:
        """Note when so many blocks of a sequence will be full, counted after `turn`."""
        tokens = blocks * self.pool.block_tokens
        if tokens <= sequence.most_cached_tokens:  # else it ends before
            cached = sequence.cached_tokens + turn - self._members[sequence]
            turns = max(1, tokens - cached)  # computed elsewhere: full already
            heappush(self._fills, (turn + turns, place, sequence))
