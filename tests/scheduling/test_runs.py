"""A run of steps is what as many single steps would be: who decodes, who ends, who loses blocks,
and what the cache then remembers."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode.scheduling import (
    POLICIES,
    BlockPool,
    CountedPool,
    OutOfBlocks,
    QueueFull,
    Scheduler,
    SchedulerSettings,
    SequenceState,
)

LONG = 10**6


class Twins:
    """The same requests in two schedulers: one goes step by step, the other in runs, over a pool
    that may only count its blocks."""

    def __init__(self, limits, num_blocks, block_tokens, reuse, pool=BlockPool):
        self.single = Scheduler(BlockPool(num_blocks, block_tokens, reuse), limits)
        self.runs = Scheduler(pool(num_blocks, block_tokens, reuse), limits)
        self.pairs, self.reserved = [], []
        self.steps = self.longest = self.by_sequence = self.started = 0
        self.kept = {True: 0, False: 0}

    def sequence(self, prompt_tokens, output_tokens, contents):
        name = str(len(self.pairs))
        pair = [
            SequenceState(name, prompt_tokens, output_tokens, block_hashes=list(contents))
            for _ in range(2)
        ]
        self.pairs.append(pair)
        return pair

    def add(self, prompt_tokens, output_tokens, contents):
        pair = self.sequence(prompt_tokens, output_tokens, contents)
        self.both(lambda scheduler, sequence: scheduler.add(sequence), pair)

    def accept(self, prompt_tokens, output_tokens, contents, to_run):
        pair = self.sequence(prompt_tokens, output_tokens, contents)
        cached = max(0, prompt_tokens - to_run)
        self.both(lambda scheduler, sequence: scheduler.accept(sequence, cached), pair)

    def reserve(self, prompt_tokens, output_tokens, contents):
        pair = self.sequence(prompt_tokens, output_tokens, contents)
        if self.both(lambda scheduler, sequence: scheduler.reserve(sequence), pair):
            self.reserved.append(pair)

    def start(self):
        """The one that was reserved first."""
        pair = self.reserved.pop(0)
        if self.both(lambda scheduler, sequence: scheduler.start(sequence), pair):
            self.started += 1
        else:  # its answer would end with the token that it is given
            self.both(lambda scheduler, sequence: scheduler.cancel(sequence), pair)

    def both(self, act, pair):
        """Both do it, or both refuse in the same words."""
        told = []
        for scheduler, sequence in zip((self.single, self.runs), pair, strict=True):
            try:
                act(scheduler, sequence)
                told.append("")
            except (ValueError, OutOfBlocks, QueueFull) as refusal:
                told.append(str(refusal))
        assert told[0] == told[1]
        if told[0] and pair in self.pairs:
            self.pairs.remove(pair)
        return not told[0]

    def cancel(self, dice):
        pair = dice.choice(self.pairs)
        if pair in self.reserved:
            self.reserved.remove(pair)
        self.both(lambda scheduler, sequence: scheduler.cancel(sequence), pair)

    def run(self, most_steps, dice):
        run = self.runs.next_run(most_steps)
        if run is None:
            assert self.single.next_step() is None
            return False
        assert 1 <= run.steps <= most_steps
        steps = dice.randint(1, run.steps) if dice.random() < 0.5 else run.steps
        self.by_sequence += run.by_sequence
        self.longest = max(self.longest, steps)
        ended = []
        left = steps
        context = run.context_tokens
        asked, kept = dice.random() < 0.3, False
        for index in range(steps):
            step = self.single.next_step()
            self.check_step(run, step, context + index * run.decodes)
            if asked and index == 0:
                kept = self.runs.keeps_contents(run)
                self.kept[kept] += 1
                self.check_contents()
            elif kept:
                self.check_contents()
            if left > 1 and dice.random() < 0.2:  # in the middle of a run, this step has begun
                passed = index + left - steps
                if 0 < passed < run.steps:
                    ahead = run.steps
                    self.runs.pass_steps(run, passed)
                    assert run.steps == ahead - passed
                    left -= passed
                    self.check_pools()
            assert not ended, "the run should have stopped when a sequence ended"
            ended = self.single.complete(step)
        assert names(ended) == names(self.runs.complete_run(run, left))
        self.steps += steps
        self.check_pools()
        return True

    def check_step(self, run, step, context_tokens):
        assert names(step.preempted) == names(run.step.preempted)
        if run.by_sequence:
            assert listed(step.chunks) == listed(run.step.chunks)
            return
        decodes, prompts = step.chunks[: run.decodes], step.chunks[run.decodes :]
        assert all(chunk.new_tokens == 1 and chunk.samples_token for _, chunk in decodes)
        assert sum(chunk.cached_tokens for _, chunk in decodes) == context_tokens
        assert listed(prompts) == listed(run.step.chunks)
        assert names(s for _, s in step.samples[run.decodes :]) == names(
            s for _, s in run.step.samples
        )

    def check_pools(self):
        one, many = self.single.pool, self.runs.pool
        assert (one.num_free, one.num_empty) == (many.num_free, many.num_empty)
        self.check_contents()
        for which in ("running", "waiting"):
            assert names(getattr(self.single, which)) == names(getattr(self.runs, which))

    def check_contents(self):
        """What can be found, who holds it, and in which order it will be forgotten."""
        one, many = self.single.pool, self.runs.pool
        assert [one._hash_of[b] for b in one._kept] == [many._hash_of[b] for b in many._kept]
        assert set(one._block_of) == set(many._block_of)
        for contents, block in one._block_of.items():
            assert one.references[block] == many.references[many._block_of[contents]]

    def check_sequences(self):
        self.runs.settle()
        for one, many in self.pairs:
            assert counts(one) == counts(many)
            assert [self.single.pool._hash_of.get(b) for b in one.blocks] == [
                self.runs.pool._hash_of.get(b) for b in many.blocks
            ]
        assert self.single.num_preemptions == self.runs.num_preemptions
        assert self.single.num_reused_tokens == self.runs.num_reused_tokens


def names(sequences):
    return [sequence.sequence_id for sequence in sequences]


def listed(chunks):
    return [(sequence.sequence_id, chunk) for sequence, chunk in chunks]


def counts(sequence):
    return (
        sequence.cached_tokens,
        sequence.output_tokens,
        sequence.published_blocks,
        sequence.reused_tokens,
        sequence.preemptions,
        sequence.finish_reason,
        len(sequence.blocks),
    )


def contents(dice, tokens, block_tokens):
    """Of the first blocks: families begin alike; some go on alike, some on their own."""
    family, own = dice.randrange(3), dice.random()
    blocks = tokens // block_tokens
    shared = dice.choice([0, blocks // 2, blocks])
    known = dice.randint(shared, blocks)
    return [("family", family, i) if i < shared else (own, i) for i in range(known)]


def play(twins, dice, policy, block_tokens, requests):
    budget = twins.single.settings.most_tokens_per_step
    room = twins.single.pool.num_blocks * block_tokens
    for _ in range(requests):
        for _ in range(dice.choice([1, 1, 3])):
            prompt = dice.randint(1, min(room, 60))
            output = dice.randint(1, min(room, 80))
            if policy != "chunked" and prompt + output > budget + 1:
                prompt = output = max(1, budget // 2)
            told = contents(dice, prompt + dice.choice([0, output]), block_tokens)
            if dice.random() < 0.25:
                twins.reserve(prompt, output, told)
            elif dice.random() < 0.2:
                to_run = 1 if policy != "chunked" else dice.choice([1, 1, 2, 9])
                twins.accept(prompt, output, told, to_run)
            else:
                twins.add(prompt, output, told)
        for _ in range(dice.randint(0, 8)):
            twins.run(dice.choice([1, 2, 7, LONG]), dice)
        if twins.reserved and dice.random() < 0.5:
            twins.start()
        if dice.random() < 0.1:
            twins.check_sequences()
        if dice.random() < 0.1 and twins.pairs:
            twins.cancel(dice)
    while twins.run(LONG, dice) or twins.reserved:
        if twins.reserved:
            twins.start()
    twins.check_sequences()
    assert twins.single.pool.num_free == twins.single.pool.num_blocks


def random_twins(dice, policy):
    block_tokens = dice.choice([1, 2, 3, 4, 8, 16])
    most_sequences = dice.randint(1, 8)
    budget = most_sequences + dice.choice([0, 3, 20, 100])
    limits = SchedulerSettings(policy, budget, most_sequences, dice.choice([None, None, 3]))
    num_blocks = -(-dice.randint(20, 200) // block_tokens)
    pool = dice.choice([BlockPool, CountedPool])
    return Twins(limits, num_blocks, block_tokens, dice.random() < 0.8, pool), block_tokens


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), policy=st.sampled_from(POLICIES), requests=st.integers(1, 20))
def test_a_run_is_what_as_many_single_steps_are(seed, policy, requests):
    dice = random.Random(seed)
    twins, block_tokens = random_twins(dice, policy)
    play(twins, dice, policy, block_tokens, requests)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_plays_reach_preemption_reuse_and_long_runs(policy):
    preemptions = reused = longest = by_sequence = started = 0
    kept = {True: 0, False: 0}
    for seed in range(60):
        dice = random.Random(seed)
        twins, block_tokens = random_twins(dice, policy)
        play(twins, dice, policy, block_tokens, 12)
        preemptions += twins.single.num_preemptions
        reused += twins.single.num_reused_tokens
        longest = max(longest, twins.longest)
        by_sequence += twins.by_sequence
        started += twins.started
        kept = {answer: kept[answer] + twins.kept[answer] for answer in kept}
    assert min(preemptions, reused, longest, by_sequence, started, *kept.values()) > 20


def test_a_long_answer_alone_is_one_run():
    scheduler = Scheduler(BlockPool(100, 16))
    scheduler.add(SequenceState("a", 100, 1000))
    prompt = scheduler.next_run(LONG)
    assert (prompt.steps, prompt.decodes, prompt.step.tokens) == (1, 0, 100)
    scheduler.complete_run(prompt, 1)
    decode = scheduler.next_run(LONG)
    assert (decode.steps, decode.decodes, decode.context_tokens) == (999, 1, 100)
    (ended,) = scheduler.complete_run(decode, 999)
    assert ended.finish_reason == "length"
    assert scheduler.next_run(LONG) is None
    assert scheduler.pool.num_free == 100


def test_a_run_ends_before_blocks_do():
    scheduler = Scheduler(BlockPool(4, 10), SchedulerSettings("chunked", 64, 2))
    for name in "ab":
        scheduler.add(SequenceState(name, 10, 21))
    scheduler.complete_run(scheduler.next_run(LONG), 1)
    first = scheduler.next_run(LONG)
    assert (first.decodes, first.steps) == (2, 10)
    scheduler.complete_run(first, 10)
    assert scheduler.pool.num_free == 0
    second = scheduler.next_run(LONG)
    assert second.by_sequence
    assert names(second.step.preempted) == ["b"]
