"""The scheduler, driven at random and watched: what holds whatever comes, in whatever order."""

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefill_decode.scheduling import POLICIES, SchedulerSettings
from tests.scheduling.shadow import VOCABULARY
from tests.scheduling.watched import Watched

STOP = frozenset({0})


def stem(family: int, tokens: int) -> list[int]:
    """Prompts of a family begin alike."""
    return random.Random(family).choices(range(VOCABULARY), k=tokens)


class SchedulerMachine(RuleBasedStateMachine):
    """Anything may happen between two steps: new requests, cancellations, steps or none."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        block_tokens=st.integers(1, 16),
        num_blocks=st.integers(1, 16),
        most_sequences=st.integers(1, 6),
        spare_tokens=st.integers(0, 30),
        most_waiting=st.one_of(st.none(), st.integers(1, 4)),
        reuse=st.booleans() | st.just(True),
    )
    def start(
        self, policy, block_tokens, num_blocks, most_sequences, spare_tokens, most_waiting, reuse
    ):
        limits = SchedulerSettings(
            policy, most_sequences + spare_tokens, most_sequences, most_waiting
        )
        self.watched = Watched(limits, num_blocks, block_tokens, reuse)
        self.known = []

    @rule(
        family=st.integers(0, 2),
        common=st.integers(1, 40),
        own=st.lists(st.integers(0, VOCABULARY - 1), max_size=4),
        outputs=st.lists(st.integers(1, 12), min_size=1, max_size=3),
        stop=st.sampled_from([STOP, frozenset()]),
        known=st.sampled_from([0, 0, 1, 5]),
        hold=st.sampled_from([False, False, True]),
    )
    def add(self, family, common, own, outputs, stop, known, hold):
        watched = self.watched
        prompt, outputs = self.fitting(stem(family, common) + own, outputs)
        outputs = outputs[: 1 if known else watched.settings.most_sequences]
        first = watched.add(prompt, outputs, stop, known, hold)
        self.known += [first, *first.forks] if first else []

    @rule(
        family=st.integers(0, 2),
        common=st.integers(1, 40),
        most=st.integers(1, 12),
        stop=st.sampled_from([STOP, frozenset()]),
        known=st.sampled_from([0, 0, 1, 5]),
        hold=st.booleans(),
    )
    def reserve(self, family, common, most, stop, known, hold):
        prompt, (most,) = self.fitting(stem(family, common), [most])
        sequence = self.watched.reserve(prompt, most, stop, known, hold)
        self.known += [sequence] if sequence else []

    def fitting(self, prompt, outputs):
        while not self.watched.fits(len(prompt), max(outputs)):
            if len(prompt) > 1:
                prompt = prompt[: len(prompt) // 2]
            else:
                outputs = [max(1, most // 2) for most in outputs]
        return prompt, outputs

    @precondition(lambda self: hasattr(self, "watched") and self.watched.reserved)
    @rule(data=st.data())
    def start_reserved(self, data):
        self.watched.start(data.draw(st.sampled_from(list(self.watched.reserved))))

    @precondition(lambda self: hasattr(self, "watched") and self.watched.held)
    @rule(data=st.data())
    def release(self, data):
        self.watched.release(data.draw(st.sampled_from(list(self.watched.held))))

    @rule(steps=st.integers(1, 6))
    def run(self, steps):
        for _ in range(steps):
            self.watched.step()

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data):
        """Waiting, under way, a fork that is not yet made, decoding, preempted, reserved, held
        beyond its end, or long ended."""
        self.watched.cancel(data.draw(st.sampled_from(self.known)))

    @invariant()
    def all_accounts_agree(self):
        if hasattr(self, "watched"):
            self.watched.check()

    def teardown(self):
        if hasattr(self, "watched"):
            self.watched.drain()


TestWhateverHappensAllAccountsAgree = SchedulerMachine.TestCase
TestWhateverHappensAllAccountsAgree.settings = settings(
    max_examples=400,
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_crowd_in_a_small_cache_gets_what_each_would_get_alone(policy):
    """Long plays of many requests, where nearly every step preempts, evicts or copies."""
    preemptions = reused = copies = starts = holds = standstills = 0
    for seed in range(250):
        dice = random.Random(seed)
        most_sequences = dice.randint(2, 8)
        budget = most_sequences + dice.randint(*((0, 8) if policy == "chunked" else (19, 30)))
        block_tokens = dice.choice([1, 2, 3, 4, 8, 16])
        watched = Watched(
            SchedulerSettings(policy, budget, most_sequences),
            -(-dice.randint(30, 60) // block_tokens),
            block_tokens,
        )
        for _ in range(12):
            prompt = stem(dice.randrange(3), dice.randint(1, 12)) + dice.choices(range(6), k=2)
            outputs = [dice.randint(1, 8) for _ in range(dice.randint(1, min(3, most_sequences)))]
            if dice.random() < 0.5:
                watched.reserve(prompt, 8, STOP, dice.randint(0, 3))
            watched.add(prompt, outputs, dice.choice([STOP, frozenset()]), hold=dice.random() < 0.2)
            for _ in range(dice.randint(0, 3)):
                step = watched.step()
                copies += len(step.copies) if step else 0
                standstills += step is None and watched.scheduler.has_work
            for sequence in list(watched.reserved):
                if dice.random() < 0.3:
                    watched.start(sequence)
                    starts += sequence in watched.live
            for sequence in list(watched.held):
                if dice.random() < 0.3:
                    watched.release(sequence)
                    holds += 1
            if dice.random() < 0.2:
                watched.cancel(dice.choice(list(watched.answers)))
        watched.drain()
        preemptions += watched.scheduler.num_preemptions
        reused += watched.scheduler.num_reused_tokens
    reached = (preemptions, reused, copies, starts, holds, standstills)
    assert min(reached) > 20, "the plays no longer reach what they are for"
