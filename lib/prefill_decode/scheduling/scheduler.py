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

Blocks may be promised to a sequence whose cache is computed elsewhere (`reserve`), which runs once
they are filled (`start`), behind those that run by then; and a sequence that has ended may hold its
blocks for others to read (`hold`, `release`). Neither gives them up to anyone: while they last,
even the first of all may have to wait.

The caller runs the step and says what was sampled; time does not exist here. The serving engine is
one such caller; a rehearsal, which runs nothing, is another. A caller that runs nothing either but
has many steps to get through asks for a run, all steps up to the next in which anything changes,
and may end it earlier: `next_run` and `complete_run` do what as many calls of `next_step` and
`complete` would.

Source:  Yu et al., "Orca" (2022), for scheduling step by step; Agrawal et al., "Sarathi-Serve"
         (2024), for chunks beside decodes; Kwon et al., "PagedAttention" (2023), section 4.5, for
         recomputation.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from prefill_decode.scheduling.checks import check_cached, check_sequence
from prefill_decode.scheduling.decoding import Decoders
from prefill_decode.scheduling.kv_blocks import BlockPool, OutOfBlocks
from prefill_decode.scheduling.roster import Roster
from prefill_decode.scheduling.scheduled import ScheduledRun, ScheduledStep
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import QueueFull, SchedulerSettings
from prefill_decode.step import Chunk


class Scheduler:
    """Call `add` when a request arrives, then `next_step` and `complete` in turns, or `next_run`
    and `complete_run`; all else between two of these pairs, never while a step runs.

    After runs, `settle` before you read what a sequence has in the cache."""

    def __init__(self, pool: BlockPool, settings: SchedulerSettings | None = None) -> None:
        self.pool = pool
        self.settings = settings or SchedulerSettings()
        self.roster = Roster(pool, self.settings)
        self._batch_open = True  # of the static policy
        self._no_prompts = ScheduledStep()  # of all runs in which nobody waits or reads
        self._decoders: Decoders | None = None  # those that decode, while runs are asked for
        self._under_way: list[SequenceState] = []  # then: the others that run, in their order

    @property
    def waiting(self) -> deque[SequenceState]:
        return self.roster.waiting

    @property
    def running(self) -> list[SequenceState]:
        return self.roster.running

    @property
    def reserved(self) -> list[SequenceState]:
        """With blocks that are filled from elsewhere."""
        return self.roster.reserved

    @property
    def held(self) -> list[SequenceState]:
        """Ended, with blocks that are read from elsewhere."""
        return self.roster.held

    @property
    def num_preemptions(self) -> int:
        return self.roster.num_preemptions

    @property
    def num_reused_tokens(self) -> int:
        return self.roster.num_reused_tokens

    @property
    def has_work(self) -> bool:
        return bool(self.roster.waiting or self.roster.running)

    def add(self, sequence: SequenceState) -> None:
        """Let a sequence wait. ValueError if it could never run, QueueFull if too many wait."""
        check_sequence(sequence, self.pool, self.settings)
        waiting, limit = len(self.roster.waiting), self.settings.most_waiting
        if limit is not None and waiting >= limit:
            raise QueueFull(f"{waiting} sequences wait, and no more than {limit} may")
        self.roster.waiting.append(sequence)

    def accept(self, sequence: SequenceState, cached_tokens: int) -> None:
        """Run a sequence from the next step on whose first tokens were computed elsewhere.

        The caller fills its blocks. ValueError if it could never run or is to run nothing;
        OutOfBlocks or QueueFull, with nothing changed, if there is no room for it now."""
        check_cached(sequence, cached_tokens, self.settings)
        self.roster.give_blocks(sequence, cached_tokens)
        self.roster.append(sequence)
        if self._decoders is not None:
            self._sort_in(self._decoders, sequence)

    def reserve(self, sequence: SequenceState) -> None:
        """Give blocks to a sequence for all that it knows, which is computed elsewhere. The caller
        fills them, then calls `start`, or `cancel`.

        ValueError if it could never run; OutOfBlocks or QueueFull, with nothing changed, if there
        is no room for it now. Those that wait come first."""
        assert not sequence.forks, "answers whose prompt is read elsewhere have blocks of their own"
        if self.roster.waiting:
            check_sequence(sequence, self.pool, self.settings)
            raise OutOfBlocks(f"{len(self.roster.waiting)} sequences wait for blocks")
        self.roster.give_blocks(sequence, sequence.known_tokens)
        self.roster.reserved.append(sequence)

    def start(self, sequence: SequenceState, token_id: int | None = None) -> None:
        """Run a reserved sequence from the next step on: its blocks are filled, and this token
        follows those that it knows. ValueError for a token that ends its answer."""
        assert sequence in self.roster.reserved, "only a reserved sequence is started"
        if token_id in sequence.stop_ids or sequence.known_tokens >= sequence.most_cached_tokens:
            raise ValueError(
                "an answer that ends with a token has nothing to run after it; got token "
                f"{token_id} as number {sequence.output_tokens + 1} of at most "
                f"{sequence.most_output_tokens}"
            )
        sequence.append(token_id)
        self.roster.reserved.remove(sequence)
        self.roster.append(sequence)
        self.roster.publish(sequence)
        if self._decoders is not None:
            self._sort_in(self._decoders, sequence)

    def release(self, sequence: SequenceState) -> None:
        """Take back the blocks that a sequence holds beyond its end."""
        self.roster.release(sequence)

    def cancel(self, sequence: SequenceState) -> None:
        """Forget a sequence, whatever it does; its blocks return at once. Unknown ones are fine.

        The forks of a prompt that is cancelled before they were made go on in its place."""
        self.settle()
        self.roster.strike(sequence)

    def next_step(self) -> ScheduledStep | None:
        """What runs next. None when nothing waits or runs, or when the blocks that are needed are
        reserved or held."""
        self.settle()
        step = ScheduledStep()
        if not self.roster.running:
            self._batch_open, self.roster.batch_places = True, 0
        if self.settings.decodes_first:
            self._add_decodes(step)
            decoding = {id(sequence) for sequence, _ in step.chunks}
            under_way = [one for one in self.roster.running if id(one) not in decoding]
            self._add_prompts(step, under_way, len(decoding))
        else:
            self._add_prompts(step, (), 0)
            if not step.chunks:
                self._add_decodes(step)
                self._batch_open = not step.chunks
        if not step.chunks:
            self._check_idle()
            return None
        step.note_samples()
        return step

    def complete(
        self, step: ScheduledStep, token_ids: Sequence[int | None] | None = None
    ) -> list[SequenceState]:
        """The step has run, and these tokens were sampled, one for each of `step.samples`.

        None where tokens are not known. A None among them is a sequence that had no token to
        choose: it fails, and what it computed is not found again. Returns the sequences that
        ended, with their reason."""
        for sequence, chunk in step.chunks:
            sequence.cached_tokens += chunk.new_tokens
            self.roster.publish(sequence)
            if chunk.samples_token and sequence.forks:
                self.roster.start_forks(sequence)
        for index, (_, sequence) in enumerate(step.samples):
            token_id = None if token_ids is None else token_ids[index]
            if token_ids is not None and token_id is None:
                sequence.finish_reason, sequence.hold = "failed", False
                continue
            sequence.append(token_id)
            if token_id in sequence.stop_ids:
                sequence.finish_reason = "stop"
            elif sequence.output_tokens >= sequence.most_output_tokens:
                sequence.finish_reason = "length"
        ended = [sequence for _, sequence in step.samples if sequence.finish_reason]
        self.roster.held += [sequence for sequence in ended if sequence.hold]
        self.roster.end(ended)
        return ended

    def next_run(self, most_steps: int) -> ScheduledRun | None:
        """What runs next, for as many steps, up to `most_steps`, as it stays the same; None as in
        `next_step`. Of sequences without forks whose token ids are not known."""
        decoders = self._decoders or self._gathered()
        if not self.roster.running:
            self._batch_open, self.roster.batch_places = True, 0
        decodes, first = decoders.count, self.settings.decodes_first
        if decodes and not self.roster.waiting and not self._under_way:
            return self._run_of_decodes(decoders, most_steps)
        step = ScheduledStep()
        if decodes and first:
            if not decoders.take_until(decoders.turn + 1):
                return self._run_of_one_step()
            self._add_prompts(step, self._under_way, decodes)
        else:
            self._add_prompts(step, self._under_way, 0)
            if not first and step.chunks:
                decodes = 0
            elif not first and decodes:
                if not decoders.take_until(decoders.turn + 1):
                    return self._run_of_one_step()
                self._batch_open = False
        if not step.chunks and not decodes:
            self._check_idle()
            return None
        if step.chunks:
            step.note_samples()
            steps = 1
        else:
            steps = decoders.turns_alike(most_steps, bool(self.roster.waiting))
        return ScheduledRun(step, steps, decodes, decoders.context_tokens if decodes else 0)

    def _run_of_decodes(self, decoders: Decoders, most_steps: int) -> ScheduledRun | None:
        """No prompt waits or is under way, so nobody asks for blocks before the run is over: those
        of its first turn are taken with the others."""
        steps = decoders.turns_alike(most_steps, bool(self.roster.waiting))
        if not steps:
            return self._run_of_one_step()
        if not self.settings.decodes_first:
            self._batch_open = False
        return ScheduledRun(self._no_prompts, steps, decoders.count, decoders.context_tokens)

    def keeps_contents(self, run: ScheduledRun) -> bool:
        """Whether a run, as far as it has gone, publishes and forgets nothing before it is over. If
        not, the blocks of its first step are taken, as that step has begun."""
        decoders = self._decoders
        if decoders is None or not run.decodes or decoders.keeps_contents(run.steps):
            return True
        decoders.take_until(decoders.turn + 1)
        return run.steps == 1

    def pass_steps(self, run: ScheduledRun, steps: int) -> None:
        """So many steps of a run, but not its last one, are over and the next has begun: what was
        published and forgotten until then shows in the pool."""
        assert 0 < steps < run.steps
        assert self._decoders is not None, "such a run has a single step"
        self._decoders.advance(steps)
        self._decoders.take_until(self._decoders.turn + 1)
        run.steps -= steps

    def complete_run(self, run: ScheduledRun, steps: int) -> list[SequenceState]:
        """The first `steps` steps of a run, at least one, are over. Who ended, as `complete`."""
        assert 0 < steps <= run.steps
        decoders = self._decoders
        if decoders is None:
            return self.complete(run.step)
        ended = decoders.advance(steps) if run.decodes else []
        if run.step.chunks:
            ended += self._complete_prompts(decoders, run.step)
        for sequence in ended:
            sequence.finish_reason = "length"
            if sequence.hold:
                self.roster.held.append(sequence)
        self.roster.end(ended)
        return ended

    def _check_idle(self) -> None:
        outside = self.roster.reserved or self.roster.held
        assert outside or not self.has_work, "sequences wait or run and none of them can"

    def settle(self) -> None:
        """Write the counts of all sequences that decode to where they are read."""
        if self._decoders is not None:
            self._decoders.part()
            self._decoders = None
            self._under_way = []

    def _gathered(self) -> Decoders:
        if self._decoders is None:
            self._decoders = Decoders(self.pool)
            for sequence in self.roster.running:
                self._sort_in(self._decoders, sequence)
        return self._decoders

    def _sort_in(self, decoders: Decoders, sequence: SequenceState) -> None:
        assert sequence.token_ids is None, "runs are of lengths alone"
        assert not sequence.forks, "forks come one step after another"
        if sequence.tokens_to_run == 1:
            decoders.join(sequence, sequence.place)
        else:
            self._under_way.append(sequence)

    def _run_of_one_step(self) -> ScheduledRun | None:
        step = self.next_step()
        return None if step is None else ScheduledRun(step, by_sequence=True)

    def _complete_prompts(self, decoders: Decoders, step: ScheduledStep) -> list[SequenceState]:
        ended = []
        known = {id(sequence) for sequence in self._under_way}
        for sequence, chunk in step.chunks:
            sequence.cached_tokens += chunk.new_tokens
            self.roster.publish(sequence)
            if chunk.samples_token:
                sequence.output_tokens += 1
            if sequence.output_tokens >= sequence.most_output_tokens:
                ended.append(sequence)
            elif sequence.tokens_to_run == 1:
                decoders.join(sequence, sequence.place)
            elif id(sequence) not in known:
                self._under_way.append(sequence)
        if known:
            self._under_way = [
                sequence for sequence in self._under_way if sequence.tokens_to_run > 1
            ]
        return ended

    def _add_decodes(self, step: ScheduledStep) -> None:
        index = 0
        while index < len(self.roster.running):  # the list shrinks from its end
            sequence = self.roster.running[index]
            if sequence.tokens_to_run == 1 and self.roster.make_room(sequence, step):
                step.chunks.append((sequence, Chunk(1, sequence.cached_tokens)))
            index += 1

    def _add_prompts(
        self, step: ScheduledStep, under_way: Iterable[SequenceState], decodes: int
    ) -> None:
        """Prompts that are under way, then those that wait, as far as the budget reaches."""
        left = self.settings.most_tokens_per_step - decodes
        for sequence in under_way:
            if left and self.settings.cuts_prompts:
                left -= self._add_chunk(step, sequence, left)
        if step.preempted or (self.settings.policy == "static" and not self._batch_open):
            return  # who has just lost its blocks must not take them back in the same step
        while left and self.roster.waiting and self.roster.admit(self.roster.waiting[0], left):
            left -= self._add_chunk(step, self.roster.running[-1], left)

    def _add_chunk(self, step: ScheduledStep, sequence: SequenceState, most_tokens: int) -> int:
        left = sequence.tokens_to_run
        new_tokens = min(left, most_tokens)
        chunk = Chunk(new_tokens, sequence.cached_tokens, new_tokens == left)
        step.chunks.append((sequence, chunk))
        return new_tokens
