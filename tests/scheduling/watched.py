"""A scheduler that is watched: after every call, all that must hold is checked from outside."""

from collections import Counter
from dataclasses import dataclass
from itertools import count

from prefill_decode.scheduling import (
    BlockPool,
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
    """What was asked for, and the place in the order of arrival."""

    arrival: int
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
        self.batch_has_decoded = False
        self.batch_places = 0  # taken since the batch began, by whoever has left it, too
        self.steps = self.num_reused = self.num_preempted = 0
        self._numbers = count()

    @property
    def live(self) -> list[SequenceState]:
        first = [*self.scheduler.running, *self.scheduler.waiting]
        return [answer for sequence in first for answer in (sequence, *sequence.forks)]

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
        self, prompt: list[int], outputs: list[int], stop_ids: frozenset[int] = frozenset()
    ) -> SequenceState | None:
        """One request for as many answers as there are `outputs`; None if the line was full."""
        numbers = [next(self._numbers) for _ in outputs]
        first, *forks = (
            SequenceState(str(number), len(prompt), most, list(prompt), stop_ids)
            for number, most in zip(numbers, outputs, strict=True)
        )
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
        for number, sequence, most in zip(numbers, (first, *forks), outputs, strict=True):
            self.answers[sequence] = Answer(number, tuple(prompt), number, most)
            self.ids[sequence] = list(prompt)
        return first

    def cancel(self, sequence: SequenceState) -> None:
        left = [other for other in self.live if other is not sequence]
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
            assert head is None, "there is work and no step"
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
        check_pool(self.pool, [s.blocks for s in running], self.shadow)
        arrivals = [self.answers[sequence].arrival for sequence in self.live]
        assert arrivals == sorted(set(arrivals)), "somebody overtook, or stands in line twice"
        assert scheduler._places == sum(1 + len(s.forks) for s in running)
        assert scheduler._places <= self.settings.most_sequences
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
        most_steps = self.steps + self.steps_to_the_end
        while self.step() is not None:
            assert self.steps <= most_steps, "somebody waits longer than the bound"
        assert not self.live
        assert self.pool.num_free == self.pool.num_blocks

    def _check_order(self, before: Before, step: ScheduledStep) -> list[SequenceState]:
        """The last give way and the first are admitted, who are returned."""
        gone = len(step.preempted)
        stayed = before.running[: len(before.running) - gone]
        assert step.preempted == before.running[len(stayed) :][::-1]
        new = self.scheduler.running[len(stayed) :]
        assert self.scheduler.running == stayed + before.waiting[: len(new)]
        assert not (gone and new), "nobody is admitted in a step that preempts"
        for sequence in step.preempted:
            del self.done[sequence]
            self.preempted[sequence] += 1
            self.num_preempted += 1
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
            assert head in ran, "the oldest always moves"
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
            assert head in ran
            assert closed or not head_fits, "prompts go first"
        self.batch_has_decoded = not new
        if (new or self.settings.policy in MIXES) and not step.preempted:
            assert not self._head_fits(self.scheduler.running, left), "the first in line fits"
        if not new or self.settings.policy in MIXES:
            fewest = fewest_preempted(
                before.to_run, before.cached, list(before.tables.values()), self.pool
            )
            assert len(step.preempted) == fewest

    def _head_fits(self, running: list[SequenceState], left: int) -> bool:
        """Whether the first in line could be admitted, from what is held now."""
        if not self.scheduler.waiting:
            return False
        head = self.scheduler.waiting[0]
        taken = sum(1 + len(sequence.forks) for sequence in running)
        if self.settings.policy == "static":
            taken = self.batch_places
        places = taken + 1 + len(head.forks)
        reusable = reusable_blocks(self.pool, self.ids[head])
        held = {block for sequence in running for block in sequence.blocks} | set(reusable)
        needed = -(-len(self.ids[head]) // self.pool.block_tokens) - len(reusable)
        to_run = len(self.ids[head]) - len(reusable) * self.pool.block_tokens
        return (
            places <= self.settings.most_sequences
            and needed <= self.pool.num_blocks - len(held)
            and left >= (1 if self.settings.policy == "chunked" else to_run)
        )

    def _check_writes(self, before: Before, step: ScheduledStep) -> None:
        """A step writes to blocks that one sequence holds, and copies go to fresh ones."""
        held = {block for table in before.tables.values() for block in table}
        targets = [target for _, target in step.copies]
        assert len(set(targets)) == len(targets)
        for source, target in step.copies:
            assert before.references[source] > 1, "nobody shares it, so nobody needs a copy"
            assert self.pool.references[target] == 1
            assert target not in self.pool._hash_of
            gone = {b for sequence in step.preempted for b in before.tables[sequence]}
            assert target not in held - gone
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
        assert all(not sequence.blocks and not sequence.forks for sequence in ended)
        self.ended += ended
