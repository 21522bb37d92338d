"""Policies by hand: small lines of requests whose steps can be written down."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_decode.scheduling import (
    POLICIES,
    BlockPool,
    Scheduler,
    SchedulerSettings,
    SequenceState,
    rehearse,
)
from prefill_decode.step import Chunk
from tests.scheduling.watched import Watched


def continuous_schedule(output_tokens, slots):
    """Slots filled at every step, in a loop that knows no scheduler."""
    waiting, running, steps = list(reversed(output_tokens)), [], []
    while waiting or running:
        running += [(waiting.pop(), 0) for _ in range(min(slots - len(running), len(waiting)))]
        steps.append([Chunk(1, done) for _, done in running])
        running = [(asked, done + 1) for asked, done in running if done + 1 < asked]
    return steps


def static_schedule(output_tokens, slots):
    """Batches of `slots`, one after another; who is done leaves an empty place."""
    batches = [output_tokens[i : i + slots] for i in range(0, len(output_tokens), slots)]
    return [
        [Chunk(1, done) for asked in batch if done < asked]
        for batch in batches
        for done in range(max(batch))
    ]


LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=20)


def steps_of(policy, requests, budget=8, places=4, num_blocks=1000, block_tokens=4):
    scheduler = Scheduler(
        BlockPool(num_blocks, block_tokens), SchedulerSettings(policy, budget, places)
    )
    sequences = [SequenceState(str(i), *request) for i, request in enumerate(requests)]
    return rehearse(scheduler, sequences)


def test_chunked_fills_the_step_with_what_fits_of_a_prompt():
    assert steps_of("chunked", [(3, 4), (10, 2), (1, 1)]) == [
        [Chunk(3), Chunk(5, 0, False)],
        [Chunk(1, 3), Chunk(5, 5), Chunk(1)],
        [Chunk(1, 4), Chunk(1, 10)],
        [Chunk(1, 5)],
    ]


def test_decode_first_waits_until_a_whole_prompt_fits_beside_the_decodes():
    assert steps_of("decode_first", [(3, 3), (7, 1), (6, 2), (1, 1)]) == [
        [Chunk(3)],
        [Chunk(1, 3), Chunk(7)],
        [Chunk(1, 4), Chunk(6), Chunk(1)],
        [Chunk(1, 6)],
    ]


def test_prefill_first_runs_prompts_alone_while_decodes_wait():
    assert steps_of("prefill_first", [(3, 3), (4, 1), (7, 2), (1, 1)]) == [
        [Chunk(3), Chunk(4)],
        [Chunk(7), Chunk(1)],
        [Chunk(1, 3), Chunk(1, 7)],
        [Chunk(1, 4)],
    ]


def test_static_takes_nobody_in_until_the_whole_batch_is_done():
    assert steps_of("static", [(2, 1), (2, 2), (2, 3), (2, 2)], places=3) == [
        [Chunk(2), Chunk(2), Chunk(2)],
        [Chunk(1, 2), Chunk(1, 2)],  # the first has ended with its first token: its place is empty
        [Chunk(1, 3)],
        [Chunk(2)],
        [Chunk(1, 2)],
    ]
    assert steps_of("static", [(2, 3), (2, 2), (2, 2)], places=2) == [
        [Chunk(2), Chunk(2)],
        [Chunk(1, 2), Chunk(1, 2)],
        [Chunk(1, 3)],
        [Chunk(2)],
        [Chunk(1, 2)],
    ]


@pytest.mark.parametrize("policy", ["chunked", "decode_first"])
@given(LENGTHS, st.integers(1, 6))
def test_prompts_of_one_token_make_the_continuous_schedule(policy, lengths, slots):
    steps = steps_of(policy, [(1, length) for length in lengths], 20, slots)
    expected = continuous_schedule(lengths, slots)
    assert [sorted(map(str, step)) for step in steps] == [sorted(map(str, s)) for s in expected]


@given(st.lists(st.integers(2, 12), min_size=1, max_size=20), st.integers(1, 6))
def test_prompts_of_one_token_make_the_static_schedule(lengths, slots):
    steps = steps_of("static", [(1, length) for length in lengths], 20, slots)
    assert steps == static_schedule(lengths, slots)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_lengths_rehearse_to_one_batch(policy):
    steps = steps_of(policy, [(5, 4)] * 3, budget=15, places=3)
    assert steps == [[Chunk(5)] * 3] + [[Chunk(1, 5 + i)] * 3 for i in range(3)]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(5, 12),
)
def test_a_rehearsal_is_the_run(policy, requests, block_tokens, places, num_tokens):
    """With no stop ids and nothing shared, lengths alone decide."""
    budget = places + 20
    num_blocks = max(-(-max(p + o for p, o in requests) // block_tokens), num_tokens)
    limits = SchedulerSettings(policy, budget, places)
    watched = Watched(limits, num_blocks, block_tokens, reuse=False)
    for index, (prompt, output) in enumerate(requests):
        watched.add([index % 6] * prompt, [output])
    run = []
    while (step := watched.step()) is not None:
        run.append([chunk for _, chunk in step.chunks])
    scheduler = Scheduler(BlockPool(num_blocks, block_tokens, reuse=False), limits)
    sequences = [SequenceState(str(i), *request) for i, request in enumerate(requests)]
    assert rehearse(scheduler, sequences) == run


@pytest.mark.parametrize("policy", ["chunked", "decode_first"])
@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10), st.integers(1, 6)), min_size=1, max_size=6))
def test_no_crowd_that_comes_later_delays_a_request_beyond_its_bound(policy, requests):
    """It and those before it need so many steps of one token, whoever arrives after them."""
    watched = Watched(SchedulerSettings(policy, 20, 3), 8, 2)
    for prompt, output in requests:
        watched.add([1] * prompt, [output])
    last, bound = watched.live[-1], watched.steps_to_the_end
    for _ in range(bound):
        watched.add([2], [1])
        watched.add([3] * 5, [6])
        watched.step()
        if last in watched.ended:
            return
    raise AssertionError(f"{bound} steps were not enough")


def test_simulated_sequences_share_the_blocks_whose_hashes_they_bring():
    scheduler = Scheduler(BlockPool(20, 4), SchedulerSettings(most_sequences=1))
    first = SequenceState("first", 10, 1, block_hashes=["a", "b"])
    second = SequenceState("second", 9, 1, block_hashes=["a", "b"])
    third = SequenceState("third", 8, 1, block_hashes=["a", "b"])
    assert rehearse(scheduler, [first, second, third]) == [
        [Chunk(10)],
        [Chunk(1, 8)],
        [Chunk(4, 4)],  # its last token must run, or there is nothing to sample from
    ]
    assert (first.reused_tokens, second.reused_tokens, third.reused_tokens) == (0, 8, 4)
    assert scheduler.num_reused_tokens == 12
