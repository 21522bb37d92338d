"""Roster: who waits, who runs, whose blocks are filled or read from elsewhere, and what each has.

Every sequence on it has at most one of four standings. Who runs takes a place, and one for each
fork that is still to be made, of as many as may run at a time; so does one whose blocks are
reserved. Blocks are taken from the pool when a sequence is admitted and when it decodes past the
end of its last one, and return when it ends, is cancelled or has to give them up.

Who is next, and how much of it, is the scheduler's business.
"""

from collections import deque
from collections.abc import Sequence

from prefill_decode.scheduling.checks import check_sequence
from prefill_decode.scheduling.kv_blocks import BlockPool
from prefill_decode.scheduling.scheduled import ScheduledStep
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import QueueFull, SchedulerSettings


class Roster:
    """`waiting` and `running` stand in the order of arrival."""

    def __init__(self, pool: BlockPool, settings: SchedulerSettings) -> None:
        self.pool = pool
        self.settings = settings
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.reserved: list[SequenceState] = []  # with blocks that are filled from elsewhere
        self.held: list[SequenceState] = []  # ended, with blocks that are read from elsewhere
        self.places = 0  # taken by running and reserved sequences and by forks that will be
        self.batch_places = 0  # taken since the batch of the static policy began
        self.num_preemptions = 0
        self.num_reused_tokens = 0
        self._admitted = 0

    def give_blocks(self, sequence: SequenceState, cached_tokens: int) -> None:
        """A place, and blocks for all that a sequence knows, which is computed elsewhere."""
        check_sequence(sequence, self.pool, self.settings)
        if self.places + 1 + len(sequence.forks) > self.settings.most_sequences:
            raise QueueFull(f"{self.places} sequences run, as many as may")
        sequence.blocks = self.pool.allocate(self.pool.blocks_for(sequence.known_tokens))
        sequence.cached_tokens = cached_tokens
        self.places += 1 + len(sequence.forks)

    def append(self, sequence: SequenceState) -> None:
        """It runs, behind all that do."""
        self._admitted += 1
        sequence.place = self._admitted
        self.running.append(sequence)

    def admit(self, sequence: SequenceState, most_tokens: int) -> bool:
        """Give the first in line its place and blocks for all its tokens, if there is room."""
        places = 1 + len(sequence.forks)
        of_batch = self.batch_places if self.settings.policy == "static" else 0
        taken = max(self.places, of_batch)
        if taken + places > self.settings.most_sequences:
            return False
        pool, known = self.pool, sequence.known_tokens
        reusable = (known - 1) // pool.block_tokens  # the last token must run
        hashes = sequence.hashes_up_to(reusable, pool.block_tokens) if pool.reuse else ()
        shared = pool.match(hashes) if hashes else []
        reused_tokens = len(shared) * pool.block_tokens
        fresh = pool.blocks_for(known) - len(shared)
        whole = known - reused_tokens
        if fresh > pool.num_free or (whole > most_tokens and not self.settings.cuts_prompts):
            pool.release(shared)
            return False
        self.waiting.popleft()
        self.append(sequence)
        self.places += places
        self.batch_places += places
        sequence.blocks = shared + pool.allocate(fresh)
        sequence.cached_tokens = reused_tokens
        sequence.published_blocks = len(shared)
        if not sequence.preemptions:
            sequence.reused_tokens = reused_tokens
            self.num_reused_tokens += reused_tokens
        return True

    def make_room(self, sequence: SequenceState, step: ScheduledStep) -> bool:
        """Give a decode the block that it writes to. False if it had to give up its own."""
        index, inside = divmod(sequence.cached_tokens, self.pool.block_tokens)
        shared = inside > 0 and self.pool.references[sequence.blocks[index]] > 1
        if index < len(sequence.blocks) and not shared:
            return True
        while self.pool.num_free == 0:
            last = self.running[-1]
            self._preempt(last, step)
            if last is sequence:
                return False
            if shared and self.pool.references[sequence.blocks[index]] == 1:
                return True  # the last one that shared it has gone
        (block,) = self.pool.allocate(1)
        if shared:
            step.copies.append((sequence.blocks[index], block))
            self.pool.release([sequence.blocks[index]])
            sequence.blocks[index] = block
        else:
            sequence.blocks.append(block)
        return True

    def _preempt(self, sequence: SequenceState, step: ScheduledStep) -> None:
        self.running.remove(sequence)
        self.places -= 1 + len(sequence.forks)
        self._give_back(sequence)
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)
        step.preempted.append(sequence)

    def publish(self, sequence: SequenceState) -> None:
        """Let the blocks that a sequence has filled be found by their contents."""
        if not self.pool.reuse:
            return
        full = sequence.cached_tokens // self.pool.block_tokens
        if full > sequence.published_blocks:
            hashes = sequence.hashes_up_to(full, self.pool.block_tokens)
            published = sequence.published_blocks
            self.pool.publish_blocks(sequence.blocks, published, hashes[published:])
            sequence.published_blocks = full

    def start_forks(self, parent: SequenceState) -> None:
        """Other answers to a prompt that has just been read: they share all of its blocks."""
        for fork in parent.forks:
            self.pool.share(parent.blocks)
            fork.blocks = list(parent.blocks)
            fork.block_hashes = list(parent.block_hashes)
            fork.cached_tokens = parent.cached_tokens
            fork.published_blocks = parent.published_blocks
        after = self.running.index(parent) + 1
        self.running[after:after] = parent.forks
        parent.forks = []

    def end(self, ended: Sequence[SequenceState]) -> None:
        """These run no more; whose blocks are held keeps them."""
        if not ended:
            return
        if len(ended) == 1:
            self.running.remove(ended[0])
        else:
            gone = {id(sequence) for sequence in ended}
            self.running = [sequence for sequence in self.running if id(sequence) not in gone]
        self.places -= len(ended)
        for sequence in ended:
            if not (sequence.hold and sequence.finish_reason):
                self._give_back(sequence)

    def release(self, sequence: SequenceState) -> None:
        """Take back the blocks that a sequence holds beyond its end."""
        self.held.remove(sequence)
        self._give_back(sequence)

    def strike(self, sequence: SequenceState) -> None:
        """Forget a sequence, whatever its standing; unknown ones are fine. The forks of a prompt
        go on in its place if they are not made yet."""
        for family in [*self.waiting, *self.running]:
            if sequence in family.forks:
                family.forks.remove(sequence)
                self.places -= family in self.running
                return
        if sequence.forks and (sequence in self.waiting or sequence in self.running):
            self._replace(sequence, sequence.forks.pop(0))
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self.end([sequence])
        elif sequence in self.reserved:
            self.reserved.remove(sequence)
            self.places -= 1
            self._give_back(sequence)
        elif sequence in self.held:
            self.release(sequence)

    def _replace(self, sequence: SequenceState, heir: SequenceState) -> None:
        """The heir takes over all that a prompt under way has."""
        heir.forks, sequence.forks = sequence.forks, []
        heir.blocks, sequence.blocks = sequence.blocks, []
        heir.block_hashes = sequence.block_hashes
        heir.cached_tokens, heir.published_blocks = (
            sequence.cached_tokens,
            sequence.published_blocks,
        )
        sequence.cached_tokens = 0
        heir.reused_tokens, heir.preemptions = sequence.reused_tokens, sequence.preemptions
        if sequence in self.running:
            self.running[self.running.index(sequence)] = heir
            self.places -= 1
        else:
            self.waiting[self.waiting.index(sequence)] = heir

    def _give_back(self, sequence: SequenceState) -> None:
        self.pool.release(sequence.blocks, keep=sequence.finish_reason != "failed")
        sequence.blocks = []
        sequence.cached_tokens = 0
