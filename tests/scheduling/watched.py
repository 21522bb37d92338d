"""A scheduler that is watched: after every call, all that must hold is checked from outside."""

from collections import Counter
from dataclasses import dataclass
from itertools import count

import pytest

from prefill_decode.scheduling import (
    BlockPool,
    OutOfBlocks,
    QueueFull,
    ScheduledStep,
    Scheduler,
    SchedulerSettings,
    SequenceState,
)
from tests.scheduling.shadow import (
    ShadowCache,
    alone,
    check_pool,
    fewest_preempted,
    next_token,
    reusable_blocks,
    written_blocks,
)

MIXES = ("chunked", "decode_first")


@dataclass(frozen=True)
class Answer:
    """What was asked for."""

    prompt: tuple[int, ...]
    salt: int
    most_output_tokens: int


class Before:
    """What the scheduler had when it was asked for a step."""

    def __init__(
        self, scheduler: Scheduler, pool: BlockPool, ids: dict[SequenceState, list[int]]
    ) -> None:
        self.running, self.waiting = list(scheduler.running), list(scheduler.waiting)
        self.tables = {sequence: list(sequence.blocks) for sequence in self.running}
        self.references = list(pool.references)
        self.cached = [sequence.cached_tokens for sequence in self.running]
        self.to_run = [len(ids[s]) - s.cached_tokens for s in self.running]
        if self.waiting:
            self.reusable = len(reusable_blocks(pool, ids[self.waiting[0]]))


class Watched:
    def __init__(
        self, settings: SchedulerSettings, num_blocks: int, block_tokens: int, reuse: bool = True
    ) -> None:
        self.settings = settings
        self.pool = BlockPool(num_blocks, block_tokens, reuse)
        self.scheduler = Scheduler(self.pool, settings)
        self.shadow = ShadowCache(num_blocks, block_tokens)
        self.answers: dict[SequenceState, Answer] = {}
        self.ids: dict[SequenceState, list[int]] = {}  # all that is known, by our own account
        self.done: dict[SequenceState, int] = {}  # tokens in the cache, by our own account
        self.reused: dict[SequenceState, int] = {}  # when first admitted
        self.preempted = Counter[SequenceState]()
        self.ended: list[SequenceState] = []
        self.order: list[SequenceState] = []  # of arrival; who is started arrives then
        self.reserved: dict[SequenceState, None] = {}
        self.held: dict[SequenceState, list[int]] = {}  # beyond their end, and in which blocks
        self.generations: dict[SequenceState, list[int]] = {}  # of the blocks of both
        self.batch_has_decoded = False
        self.batch_places = 0  # taken since the batch began, by whoever has left it, too
        self.steps = self.num_reused = self.num_preempted = 0
        self._numbers = count()

    @property
    def live(self) -> list[SequenceState]:
        first = [*self.scheduler.running, *self.scheduler.waiting]
        return [answer for sequence in first for answer in (sequence, *sequence.forks)]

    @property
    def outside_tables(self) -> list[list[int]]:
        """Of sequences that have blocks and do not run."""
        return [*(sequence.blocks for sequence in self.reserved), *self.held.values()]

    @property
    def steps_to_the_end(self) -> int:
        """No more steps than this, if nobody arrives.

        The first in the order of arrival is never preempted, so it moves at least one token
        whenever decodes run; between two such steps come no more prefills than there are places to
        take and sequences that end with their first token."""
        work = sum(self.most_cached(sequence) for sequence in self.live)
        if self.settings.policy in MIXES:
            return work
        return work * (1 + self.settings.most_sequences) + len(self.live)

    def most_cached(self, sequence: SequenceState) -> int:
        answer = self.answers[sequence]
        return len(answer.prompt) + answer.most_output_tokens - 1

    def fits(self, prompt_tokens: int, most_output_tokens: int) -> bool:
        most = prompt_tokens + most_output_tokens - 1
        room = most <= self.pool.num_blocks * self.pool.block_tokens
        return room and (
            self.settings.policy == "chunked" or most <= self.settings.most_tokens_per_step
        )

    def add(
        self,
        prompt: list[int],
        outputs: list[int],
        stop_ids: frozenset[int] = frozenset(),
        known: int = 0,
        hold: bool = False,
    ) -> SequenceState | None:
        """One request for as many answers as there are `outputs`; None if the line was full.

        Of a single answer some tokens may be `known`, as far as that leaves one to sample."""
        first, *forks = (self._sequence(prompt, most, stop_ids, known, hold) for most in outputs)
        first.forks = list(forks)
        limit, waiting = self.settings.most_waiting, len(self.scheduler.waiting)
        try:
            self.scheduler.add(first)
        except QueueFull:
            assert limit is not None
            assert waiting >= limit
            assert len(self.scheduler.waiting) == waiting
            return None
        assert limit is None or waiting < limit
        self.order += [first, *forks]
        return first

    def _sequence(
        self, prompt: list[int], most: int, stop_ids: frozenset[int], known: int, hold: bool
    ) -> SequenceState:
        salt = next(self._numbers)
        ids, _ = alone(prompt, salt, most, stop_ids)
        known = min(known, len(ids) - len(prompt) - 1)
        ids = ids[: len(prompt) + known]
        sequence = SequenceState(
            str(salt), len(prompt), most, list(ids), stop_ids, output_tokens=known, hold=hold
        )
        self.answers[sequence] = Answer(tuple(prompt), salt, most)
        self.ids[sequence] = ids
        return sequence

    def reserve(
        self,
        prompt: list[int],
        most: int,
        stop_ids: frozenset[int] = frozenset(),
        known: int = 0,
        hold: bool = False,
    ) -> SequenceState | None:
        """A request that is read elsewhere; None if there is no room."""
        sequence = self._sequence(prompt, most, stop_ids, known, hold)
        ids = self.ids[sequence]
        free, places = self.pool.num_free, self.scheduler.roster.places
        no_blocks = -(-len(ids) // self.pool.block_tokens) > free or bool(self.scheduler.waiting)
        try:
            self.scheduler.reserve(sequence)
        except QueueFull:
            assert places == self.settings.most_sequences
        except OutOfBlocks:
            assert no_blocks
        else:
            assert not no_blocks
            assert places < self.settings.most_sequences
            assert self.pool.num_free == free - len(sequence.blocks)
            self.reserved[sequence] = None
            return sequence
        assert self.pool.num_free == free
        assert not sequence.blocks
        return None

    def start(self, sequence: SequenceState) -> None:
        """What is read elsewhere comes into the blocks, and with it the next token."""
        answer, cached = self.answers[sequence], len(self.ids[sequence])
        assert all(self.pool.references[block] == 1 for block in sequence.blocks)
        self.shadow.write(sequence.blocks, self.ids[sequence], 0, cached)
        ids, _ = alone(answer.prompt, answer.salt, answer.most_output_tokens, sequence.stop_ids)
        token_id = ids[len(self.ids[sequence])]
        if len(self.ids[sequence]) + 1 == len(ids):
            with pytest.raises(ValueError, match="has nothing to run after it"):
                self.scheduler.start(sequence, token_id)
            self.cancel(sequence)
            return
        first_waiting = next(iter(self.scheduler.waiting), None)
        place = len(self.order) if first_waiting is None else self.order.index(first_waiting)
        self.order.insert(place, sequence)
        self.scheduler.start(sequence, token_id)
        self.ids[sequence].append(token_id)
        self.done[sequence] = cached
        del self.reserved[sequence]
        self.generations.pop(sequence, None)

    def release(self, sequence: SequenceState) -> None:
        """The blocks that an ended sequence holds still say what they said."""
        ids = self.ids[sequence]
        assert self.shadow.holds(self.held.pop(sequence), ids, len(ids) - 1)
        self.scheduler.release(sequence)
        assert not sequence.blocks

    def cancel(self, sequence: SequenceState) -> None:
        left = [other for other in self.live if other is not sequence]
        self.reserved.pop(sequence, None)
        self.held.pop(sequence, None)
        if sequence in self.live and sequence.forks:  # who may inherit
            self.preempted[sequence.forks[0]] = self.preempted[sequence]
            if sequence in self.reused:
                self.reused[sequence.forks[0]] = self.reused[sequence]
        self.scheduler.cancel(sequence)
        assert set(self.live) == set(left), "cancelling one touches no other"
        assert not sequence.blocks
        assert not sequence.forks
        for heir in self.scheduler.running:
            self.done.setdefault(heir, heir.cached_tokens)

    def step(self) -> ScheduledStep | None:
        before = Before(self.scheduler, self.pool, self.ids)
        head = self.live[0] if self.live else None
        if not before.running:
            self.batch_places = 0
        head_fits = self._head_fits(before.running, self.settings.most_tokens_per_step)
        step = self.scheduler.next_step()
        if step is None:
            self._check_standstill(before, head_fits)
            return None
        assert head is not None
        self.steps += 1
        new = self._check_order(before, step)
        self.batch_places += sum(1 + len(sequence.forks) for sequence in new)
        self._check_chunks(step)
        self._check_policy(before, step, new, head, head_fits)
        self._check_writes(before, step)
        self._run(step)
        self._complete(step)
        self.check()
        return step

    def check(self) -> None:
        """What holds between any two calls."""
        scheduler, running = self.scheduler, self.scheduler.running
        assert scheduler.reserved == list(self.reserved)
        assert {s: s.blocks for s in scheduler.held} == self.held, "held blocks stay as they are"
        for sequence in (*self.reserved, *self.held):
            now = [self.pool.generations[block] for block in sequence.blocks]
            assert self.generations.setdefault(sequence, now) == now, "blocks are in another use"
        check_pool(self.pool, [*(s.blocks for s in running), *self.outside_tables], self.shadow)
        live = set(self.live)
        in_order = [sequence for sequence in self.order if sequence in live]
        assert self.live == in_order, "somebody overtook, or stands in line twice"
        places = sum(1 + len(s.forks) for s in running) + len(self.reserved)
        assert scheduler.roster.places == places <= self.settings.most_sequences
        assert scheduler.has_work == bool(self.live)
        assert scheduler.num_preemptions == self.num_preempted
        assert scheduler.num_reused_tokens == self.num_reused
        for sequence in self.live:
            assert sequence.preemptions == self.preempted[sequence]
            assert sequence.reused_tokens == self.reused.get(sequence, 0)
        for sequence in running:
            assert self.shadow.holds(sequence.blocks, self.ids[sequence], sequence.cached_tokens)
            assert sequence.token_ids == self.ids[sequence]
            assert sequence.cached_tokens == self.done[sequence]
        for sequence in scheduler.waiting:
            assert not sequence.blocks
            assert sequence.cached_tokens == 0
            assert sequence.token_ids == self.ids[sequence], "preempted, it knows what it knew"

    def drain(self) -> None:
        """Until all have ended, which comes in time; then everything is back."""
        for sequence in list(self.reserved):
            self.start(sequence)
        self._release_all()
        most_steps = self.steps + self.steps_to_the_end
        while self.step() is not None:
            self._release_all()
            assert self.steps <= most_steps, "somebody waits longer than the bound"
        assert not self.live
        assert self.pool.num_free == self.pool.num_blocks

    def _release_all(self) -> None:
        for sequence in list(self.held):
            self.release(sequence)

    def _check_standstill(self, before: Before, head_fits: bool) -> None:
        """Nothing can run: there is nothing, or blocks and places are promised and held."""
        assert not self.scheduler.running
        preempted = before.running[::-1]
        assert not (self.live and not self.outside_tables), "there is work and no step"
        assert preempted or not head_fits
        assert list(self.scheduler.waiting) == before.running + before.waiting
        self._note_preempted(preempted)
        self.batch_has_decoded = False

    def _note_preempted(self, preempted: list[SequenceState]) -> None:
        for sequence in preempted:
            del self.done[sequence]
            self.preempted[sequence] += 1
            self.num_preempted += 1

    def _check_order(self, before: Before, step: ScheduledStep) -> list[SequenceState]:
        """The last give way and the first are admitted, who are returned."""
        gone = len(step.preempted)
        stayed = before.running[: len(before.running) - gone]
        assert step.preempted == before.running[len(stayed) :][::-1]
        new = self.scheduler.running[len(stayed) :]
        assert self.scheduler.running == stayed + before.waiting[: len(new)]
        assert not (gone and new), "nobody is admitted in a step that preempts"
        self._note_preempted(step.preempted)
        for sequence in new:
            self._check_admitted(before, sequence, first=sequence is new[0])
        return new

    def _check_admitted(self, before: Before, sequence: SequenceState, first: bool) -> None:
        reused, known = sequence.cached_tokens, len(self.ids[sequence])
        assert reused % self.pool.block_tokens == 0
        assert 0 <= reused < known, "the last token runs, or there is nothing to sample from"
        assert self.pool.reuse or reused == 0
        if first and all(s.blocks == table for s, table in before.tables.items()):
            assert reused == before.reusable * self.pool.block_tokens
        if self.preempted[sequence] == 0:
            self.reused[sequence] = reused
            self.num_reused += reused
        assert len(sequence.blocks) == -(-known // self.pool.block_tokens)
        self.done[sequence] = reused

    def _check_chunks(self, step: ScheduledStep) -> None:
        """Each carries on where the last one ended, and the one that reaches the end samples."""
        assert 0 < step.tokens == sum(chunk.new_tokens for _, chunk in step.chunks)
        assert step.tokens <= self.settings.most_tokens_per_step
        assert len({sequence for sequence, _ in step.chunks}) == len(step.chunks)
        expected, place = [], 0
        for sequence, chunk in step.chunks:
            assert sequence in self.scheduler.running
            assert chunk.cached_tokens == self.done[sequence]
            left = len(self.ids[sequence]) - self.done[sequence] - chunk.new_tokens
            assert left >= 0
            assert chunk.samples_token == (left == 0)
            assert left == 0 or self.settings.policy == "chunked", "only one policy cuts"
            if chunk.samples_token:
                expected += [(place, answer) for answer in (sequence, *sequence.forks)]
                place += 1
        assert step.samples == expected

    def _check_policy(
        self,
        before: Before,
        step: ScheduledStep,
        new: list[SequenceState],
        head: SequenceState,
        head_fits: bool,
    ) -> None:
        ran = [sequence for sequence, _ in step.chunks]
        kept = before.running[: len(before.running) - len(step.preempted)]
        decoding = [s for s in kept if len(self.ids[s]) - self.done[s] == 1]
        left = self.settings.most_tokens_per_step - step.tokens
        closed = self.settings.policy == "static" and self.batch_has_decoded and before.running
        if self.settings.policy in MIXES:
            assert ran[: len(decoding)] == decoding, "all decodes run, before any prompt"
            assert head in ran or self.outside_tables, "the oldest always moves"
            under_way = [s for s in kept if s not in decoding]
            ran_prompts = ran[len(decoding) :]
            assert ran_prompts == (under_way + new)[: len(ran_prompts)]
            assert ran_prompts[len(under_way) :] == new
            assert left == 0 or not (set(under_way) - set(ran)), "budget is left for a prompt"
        elif new:
            assert ran == new, "a prefill is alone"
            assert not closed, "nobody joins a batch that has decoded"
        else:
            assert ran == decoding == kept
            assert head in ran or self.outside_tables
            assert closed or not head_fits, "prompts go first"
        self.batch_has_decoded = not new
        if (new or self.settings.policy in MIXES) and not step.preempted:
            assert not self._head_fits(self.scheduler.running, left), "the first in line fits"
        if not new or self.settings.policy in MIXES:
            fewest = fewest_preempted(
                before.to_run,
                before.cached,
                list(before.tables.values()),
                self.pool,
                self.outside_tables,
            )
            assert len(step.preempted) == fewest

    def _head_fits(self, running: list[SequenceState], left: int) -> bool:
        """Whether the first in line could be admitted, from what is held now."""
        if not self.scheduler.waiting:
            return False
        head = self.scheduler.waiting[0]
        taken = sum(1 + len(sequence.forks) for sequence in running) + len(self.reserved)
        if self.settings.policy == "static":
            taken = max(taken, self.batch_places)
        places = taken + 1 + len(head.forks)
        reusable = reusable_blocks(self.pool, self.ids[head])
        tables = [*(sequence.blocks for sequence in running), *self.outside_tables, reusable]
        held = {block for table in tables for block in table}
        needed = -(-len(self.ids[head]) // self.pool.block_tokens) - len(reusable)
        to_run = len(self.ids[head]) - len(reusable) * self.pool.block_tokens
        return (
            places <= self.settings.most_sequences
            and needed <= self.pool.num_blocks - len(held)
            and left >= (1 if self.settings.policy == "chunked" else to_run)
        )

    def _check_writes(self, before: Before, step: ScheduledStep) -> None:
        """A step writes to blocks that one sequence holds, and copies go to fresh ones."""
        outside = {block for table in self.outside_tables for block in table}
        held = {block for table in before.tables.values() for block in table}
        targets = [target for _, target in step.copies]
        assert len(set(targets)) == len(targets)
        for source, target in step.copies:
            assert before.references[source] > 1, "nobody shares it, so nobody needs a copy"
            assert self.pool.references[target] == 1
            assert target not in self.pool._hash_of
            gone = {b for sequence in step.preempted for b in before.tables[sequence]}
            assert target not in held - gone
            assert target not in outside
        for sequence, chunk in step.chunks:
            end = chunk.cached_tokens + chunk.new_tokens
            assert len(sequence.blocks) * self.pool.block_tokens >= end
            for block in written_blocks(
                sequence.blocks, chunk.cached_tokens, end, self.pool.block_tokens
            ):
                assert self.pool.references[block] == 1, "two would write the same block"
                assert block not in self.pool._hash_of, "what is published is never written"

    def _run(self, step: ScheduledStep) -> None:
        self.shadow.copy(step.copies)
        for sequence, chunk in step.chunks:
            assert self.shadow.holds(sequence.blocks, self.ids[sequence], chunk.cached_tokens)
        for sequence, chunk in step.chunks:
            end = chunk.cached_tokens + chunk.new_tokens
            ids = self.ids[sequence]
            self.shadow.write(sequence.blocks, ids, chunk.cached_tokens, end)
            self.done[sequence] = end

    def _complete(self, step: ScheduledStep) -> None:
        """Sample from what the cache really holds, and see that the right ones end."""
        sampling = [sequence for sequence, chunk in step.chunks if chunk.samples_token]
        sampled = []
        for place, sequence in step.samples:
            parent = sampling[place]
            prefix = self.shadow.read(parent.blocks, self.done[parent])[-1]
            assert prefix is not None
            sampled.append(next_token(prefix, self.answers[sequence].salt))
            self.done[sequence] = self.done[parent]
        ended = self.scheduler.complete(step, sampled)
        for (_, sequence), token_id in zip(step.samples, sampled, strict=True):
            self.ids[sequence].append(token_id)
        over = []
        for _, sequence in step.samples:
            answer = self.answers[sequence]
            stop, most = sequence.stop_ids, answer.most_output_tokens
            ids, reason = alone(answer.prompt, answer.salt, most, stop)
            assert self.ids[sequence] == ids[: len(self.ids[sequence])], "alone it says otherwise"
            over += [sequence] if self.ids[sequence] == ids else []
            assert sequence.finish_reason == (reason if self.ids[sequence] == ids else None)
        assert ended == over
        self.held |= {sequence: list(sequence.blocks) for sequence in ended if sequence.hold}
        assert all(bool(sequence.blocks) == sequence.hold for sequence in ended)
        assert not any(sequence.forks for sequence in ended)
        self.ended += ended
