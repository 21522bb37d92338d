"""Scheduler: who runs in the next step, and how much of each.

Sequences wait in the order of their arrival, are admitted when the cache has room for all they
know, and run until they end. A step has a budget of tokens. The policies differ in what they do
with a prompt while others decode:

    chunked        every decode runs in every step; what is left of the budget goes to prompts,
                   which are cut to fit
    decode_first   every decode runs; a whole prompt joins when it fits beside them
    prefill_first  whole prompts run at once and alone; the decodes wait
    static         prefill_first for a batch that takes nobody in until all its answers are done

When a decode needs a block and none is free, the last of those that run gives up its blocks and
waits, first in line, to be computed again: nothing else is lost. Who runs and then who waits stand
in the order of arrival, the answers to one prompt side by side. Nobody overtakes, so the first of
all is never preempted and moves whenever decodes run. With chunked and decode_first, where that is
every step, a sequence ends within as many steps as it and those before it have tokens to run. With
the other two, prompts that keep coming and end with their first token can hold decodes up for ever.

The caller runs the step and says what was sampled; time does not exist here. The serving engine is
one such caller; a rehearsal, which runs nothing, is another.

Source:  Yu et al., "Orca" (2022), for scheduling step by step; Agrawal et al., "Sarathi-Serve"
         (2024), for chunks beside decodes; Kwon et al., "PagedAttention" (2023), section 4.5, for
         recomputation.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from prefill_decode.scheduling.kv_blocks import BlockPool
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.step import Chunk

Policy = Literal["chunked", "decode_first", "prefill_first", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class QueueFull(Exception):
    """As many sequences wait as may wait."""


@dataclass(frozen=True)
class SchedulerSettings:
    policy: Policy = "chunked"
    most_tokens_per_step: int = 512
    most_sequences: int = 64  # that run at a time
    most_waiting: int | None = None  # None: no limit

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy is one of {', '.join(POLICIES)}; got {self.policy!r}")
        if not 1 <= self.most_sequences <= self.most_tokens_per_step:
            raise ValueError(
                "every running sequence must be able to decode in one step: most_sequences is "
                f"from 1 to most_tokens_per_step; got {self.most_sequences} and "
                f"{self.most_tokens_per_step}"
            )
        if self.most_waiting is not None and self.most_waiting < 1:
            raise ValueError(
                "every sequence waits until the next step: most_waiting is 1 or more, or None for "
                f"no limit; got {self.most_waiting}"
            )

    @property
    def cuts_prompts(self) -> bool:
        return self.policy == "chunked"


@dataclass(slots=True)
class ScheduledStep:
    """Chunks in the order in which they run: decodes before prompts.

    `copies` are blocks, from and to, to be copied in this order before the step runs. `samples`
    says who gets a token: the place of the chunk among those that sample, and the sequence; the
    forks of a prompt follow it with the same place.
    """

    chunks: list[tuple[SequenceState, Chunk]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[SequenceState] = field(default_factory=list)
    samples: list[tuple[int, SequenceState]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chunk.new_tokens for _, chunk in self.chunks)


class Scheduler:
    """Call `add` when a request arrives, then `next_step` and `complete` in turns; `cancel` after
    `complete` and before `next_step`, never while a step runs."""

    def __init__(self, pool: BlockPool, settings: SchedulerSettings | None = None) -> None:
        self.pool = pool
        self.settings = settings or SchedulerSettings()
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []  # in the order of arrival, as those that wait
        self.num_preemptions = 0
        self.num_reused_tokens = 0
        self._places = 0  # taken by running sequences and by forks that will be
        self._batch_open, self._batch_places = True, 0  # of the static policy

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, sequence: SequenceState) -> None:
        """Let a sequence wait. ValueError if it could never run, QueueFull if too many wait."""
        self._check(sequence)
        limit = self.settings.most_waiting
        if limit is not None and len(self.waiting) >= limit:
            raise QueueFull(f"{len(self.waiting)} sequences wait, and no more than {limit} may")
        self.waiting.append(sequence)

    def accept(self, sequence: SequenceState, cached_tokens: int) -> None:
        """Run a sequence from the next step on whose first tokens were computed elsewhere.

        The caller fills its blocks. ValueError if it could never run or is to run nothing;
        OutOfBlocks or QueueFull, with nothing changed, if there is no room for it now."""
        self._check(sequence)
        if not 0 <= cached_tokens < sequence.known_tokens:
            raise ValueError(
                "the last known token of a sequence is still to run: cached_tokens is below "
                f"{sequence.known_tokens}; got {cached_tokens}"
            )
        if not self.settings.cuts_prompts and cached_tokens < sequence.known_tokens - 1:
            raise ValueError(
                f"with policy {self.settings.policy!r} a sequence that was computed elsewhere has "
                f"one token left to run; got {sequence.known_tokens - cached_tokens}: use policy "
                "'chunked'"
            )
        if self._places + 1 + len(sequence.forks) > self.settings.most_sequences:
            raise QueueFull(f"{self._places} sequences run, as many as may")
        sequence.blocks = self.pool.allocate(self.pool.blocks_for(sequence.known_tokens))
        sequence.cached_tokens = cached_tokens
        self._places += 1 + len(sequence.forks)
        self.running.append(sequence)

    def cancel(self, sequence: SequenceState) -> None:
        """Forget a sequence, whatever it does; its blocks return at once. Unknown ones are fine.

        The forks of a prompt that is cancelled before they were made go on in its place."""
        for family in [*self.waiting, *self.running]:
            if sequence in family.forks:
                family.forks.remove(sequence)
                self._places -= family in self.running
                return
        if sequence.forks and (sequence in self.waiting or sequence in self.running):
            self._replace(sequence, sequence.forks.pop(0))
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence in self.running:
            self._end([sequence])

    def next_step(self) -> ScheduledStep | None:
        """What runs next; None when nothing waits or runs."""
        step = ScheduledStep()
        if not self.running:
            self._batch_open, self._batch_places = True, 0
        if self.settings.policy in ("chunked", "decode_first"):
            self._add_decodes(step)
            self._add_prompts(step)
        else:
            self._add_prompts(step)
            if not step.chunks:
                self._add_decodes(step)
                self._batch_open = False
        if not step.chunks:
            assert not self.has_work, "sequences wait or run and none of them can"
            return None
        for sequence, chunk in step.chunks:
            if chunk.samples_token:
                place = step.samples[-1][0] + 1 if step.samples else 0
                step.samples += [(place, sampled) for sampled in (sequence, *sequence.forks)]
        return step

    def complete(
        self, step: ScheduledStep, token_ids: Sequence[int] | None = None
    ) -> list[SequenceState]:
        """The step has run, and these tokens were sampled, one for each of `step.samples`.

        None where tokens are not known. Returns the sequences that ended, with their reason."""
        for sequence, chunk in step.chunks:
            sequence.cached_tokens += chunk.new_tokens
            self._publish(sequence)
            if chunk.samples_token and sequence.forks:
                self._start_forks(sequence)
        for index, (_, sequence) in enumerate(step.samples):
            sequence.output_tokens += 1
            token_id = None if token_ids is None else token_ids[index]
            if sequence.token_ids is not None:
                assert token_id is not None, "sequences with ids need the ids that were sampled"
                sequence.token_ids.append(token_id)
            if token_id in sequence.stop_ids:
                sequence.finish_reason = "stop"
            elif sequence.output_tokens >= sequence.most_output_tokens:
                sequence.finish_reason = "length"
        ended = [sequence for _, sequence in step.samples if sequence.finish_reason]
        self._end(ended)
        return ended

    def _add_decodes(self, step: ScheduledStep) -> None:
        index = 0
        while index < len(self.running):  # the list shrinks from its end
            sequence = self.running[index]
            if sequence.tokens_to_run == 1 and self._make_room(sequence, step):
                step.chunks.append((sequence, Chunk(1, sequence.cached_tokens)))
            index += 1

    def _make_room(self, sequence: SequenceState, step: ScheduledStep) -> bool:
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
        self._places -= 1 + len(sequence.forks)
        self._give_back(sequence)
        sequence.preemptions += 1
        self.num_preemptions += 1
        self.waiting.appendleft(sequence)
        step.preempted.append(sequence)

    def _add_prompts(self, step: ScheduledStep) -> None:
        """Prompts that are under way, then those that wait, as far as the budget reaches."""
        left = self.settings.most_tokens_per_step - len(step.chunks)
        decoding = {id(sequence) for sequence, _ in step.chunks}
        for sequence in self.running:
            if left and self.settings.cuts_prompts and id(sequence) not in decoding:
                left -= self._add_chunk(step, sequence, left)
        if step.preempted or (self.settings.policy == "static" and not self._batch_open):
            return  # who has just lost its blocks must not take them back in the same step
        while left and self.waiting and self._admit(self.waiting[0], left):
            left -= self._add_chunk(step, self.running[-1], left)

    def _add_chunk(self, step: ScheduledStep, sequence: SequenceState, most_tokens: int) -> int:
        new_tokens = min(sequence.tokens_to_run, most_tokens)
        samples = new_tokens == sequence.tokens_to_run
        step.chunks.append((sequence, Chunk(new_tokens, sequence.cached_tokens, samples)))
        return new_tokens

    def _admit(self, sequence: SequenceState, most_tokens: int) -> bool:
        """Give the first in line its place and blocks for all its tokens, if there is room."""
        places = 1 + len(sequence.forks)
        taken = self._batch_places if self.settings.policy == "static" else self._places
        if taken + places > self.settings.most_sequences:
            return False
        pool = self.pool
        reusable = (sequence.known_tokens - 1) // pool.block_tokens  # the last token must run
        hashes = sequence.hashes_up_to(reusable, pool.block_tokens) if pool.reuse else ()
        shared = pool.match(hashes)
        reused_tokens = len(shared) * pool.block_tokens
        fresh = pool.blocks_for(sequence.known_tokens) - len(shared)
        whole = sequence.known_tokens - reused_tokens
        if fresh > pool.num_free or (whole > most_tokens and not self.settings.cuts_prompts):
            pool.release(shared)
            return False
        self.waiting.popleft()
        self.running.append(sequence)
        self._places += places
        self._batch_places += places
        sequence.blocks = shared + pool.allocate(fresh)
        sequence.cached_tokens = reused_tokens
        sequence.published_blocks = len(shared)
        if not sequence.preemptions:
            sequence.reused_tokens = reused_tokens
            self.num_reused_tokens += reused_tokens
        return True

    def _publish(self, sequence: SequenceState) -> None:
        if not self.pool.reuse:
            return
        full = sequence.cached_tokens // self.pool.block_tokens
        if full > sequence.published_blocks:
            hashes = sequence.hashes_up_to(full, self.pool.block_tokens)
            for index in range(sequence.published_blocks, len(hashes)):
                self.pool.publish(sequence.blocks[index], hashes[index])
            sequence.published_blocks = full

    def _start_forks(self, parent: SequenceState) -> None:
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
            self._places -= 1
        else:
            self.waiting[self.waiting.index(sequence)] = heir

    def _end(self, ended: Sequence[SequenceState]) -> None:
        if not ended:
            return
        gone = {id(sequence) for sequence in ended}
        self.running = [sequence for sequence in self.running if id(sequence) not in gone]
        self._places -= len(ended)
        for sequence in ended:
            self._give_back(sequence)

    def _give_back(self, sequence: SequenceState) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        sequence.cached_tokens = 0

    def _check(self, sequence: SequenceState) -> None:
        self._check_family(sequence)
        for answer in (sequence, *sequence.forks):
            self._check_room(answer)

    def _check_family(self, sequence: SequenceState) -> None:
        """Forks must be answers to this prompt, and have places all at once."""
        for fork in sequence.forks:
            same = fork.prompt_tokens == sequence.prompt_tokens and not fork.forks
            own_ids = sequence.token_ids is None or fork.token_ids is not sequence.token_ids
            if not (same and own_ids and fork.token_ids == sequence.token_ids):
                raise ValueError(
                    "forks are other answers to the same prompt, each with a list of its ids and "
                    f"without forks; got {fork.sequence_id!r} in {sequence.sequence_id!r}"
                )
        if 1 + len(sequence.forks) > self.settings.most_sequences:
            raise ValueError(
                f"{1 + len(sequence.forks)} answers to one prompt run at a time, and no more than "
                f"{self.settings.most_sequences} sequences may: ask for fewer or raise "
                "most_sequences"
            )

    def _check_room(self, sequence: SequenceState) -> None:
        """A sequence that is computed again alone must fit, in the cache and in a step."""
        room = self.pool.num_blocks * self.pool.block_tokens
        if sequence.most_cached_tokens > room:
            raise ValueError(
                f"prompt and answer must fit in the cache of {room} tokens; got "
                f"{sequence.prompt_tokens} prompt tokens and {sequence.most_output_tokens} output "
                "tokens: shorten them or give the cache more blocks"
            )
        budget = self.settings.most_tokens_per_step
        if not self.settings.cuts_prompts and sequence.most_cached_tokens > budget:
            raise ValueError(
                f"with policy {self.settings.policy!r} a prompt, or prompt and answer read again, "
                f"runs whole in a step of {budget} tokens; got {sequence.most_cached_tokens}: "
                "raise most_tokens_per_step or use policy 'chunked'"
            )
