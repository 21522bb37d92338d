"""Schedules: no token lost or made twice, no batch too large, and the gain that the lengths say."""

from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prefill_decode.batching import (
    continuous_schedule,
    geometric_lengths,
    schedule_work,
    static_schedule,
)
from prefill_decode.step import Chunk

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=30)
SLOTS = st.integers(1, 9)
PROMPT = st.integers(0, 50)


def test_two_slots_and_three_answers_by_hand():
    assert static_schedule([1, 3, 2], 2, 10) == [
        [Chunk(1, 10), Chunk(1, 10)],
        [Chunk(1, 11, False), Chunk(1, 11)],  # the first is padding now
        [Chunk(1, 12, False), Chunk(1, 12)],
        [Chunk(1, 10)],
        [Chunk(1, 11)],
    ]
    assert continuous_schedule([1, 3, 2], 2, 10) == [
        [Chunk(1, 10), Chunk(1, 10)],
        [Chunk(1, 11), Chunk(1, 10)],  # the third took the slot of the first
        [Chunk(1, 12), Chunk(1, 11)],
    ]


@given(LENGTHS, SLOTS, PROMPT)
def test_continuous_batching_makes_every_token_exactly_once(lengths, slots, prompt):
    made = Counter(chunk for step in continuous_schedule(lengths, slots, prompt) for chunk in step)
    asked = Counter(Chunk(1, prompt + i) for length in lengths for i in range(length))
    assert made == asked


@given(LENGTHS, SLOTS, PROMPT)
def test_static_batching_makes_every_token_and_pads_to_the_longest_of_its_batch(
    lengths, slots, prompt
):
    steps = static_schedule(lengths, slots, prompt)
    made = Counter(chunk for step in steps for chunk in step)
    asked = Counter(Chunk(1, prompt + i) for length in lengths for i in range(length))
    assert Counter({c: n for c, n in made.items() if c.samples_token}) == asked
    padding, longest = 0, []
    for first in range(0, len(lengths), slots):
        batch = lengths[first : first + slots]
        longest.append(max(batch))
        padding += sum(max(batch) - length for length in batch)
    assert (made - asked).total() == padding
    assert len(steps) == sum(longest)


@given(LENGTHS, SLOTS)
def test_no_step_holds_more_sequences_than_slots_or_none(lengths, slots):
    for schedule in (static_schedule(lengths, slots), continuous_schedule(lengths, slots)):
        assert all(1 <= len(step) <= slots for step in schedule)


@given(LENGTHS, SLOTS)
def test_continuous_batching_never_takes_more_steps(lengths, slots):
    steps = len(continuous_schedule(lengths, slots))
    assert steps <= len(static_schedule(lengths, slots))
    assert steps >= max(max(lengths), sum(lengths) / slots)


@given(st.integers(1, 20), st.integers(1, 30), SLOTS, PROMPT)
def test_equal_lengths_give_equal_schedules(length, requests, slots, prompt):
    lengths = [length] * requests
    assert continuous_schedule(lengths, slots, prompt) == static_schedule(lengths, slots, prompt)


def test_a_schedule_reads_the_weights_at_each_step_and_every_cache_it_holds(tiny_model):
    work = schedule_work(tiny_model, continuous_schedule([1, 3, 2], 2, 10))
    matmul_params = 2 * (24 * (2 * 32 + 2 * 16) + 3 * 24 * 40) + 61 * 24
    kv_bytes = 2 * 2 * 2 * 8 * 8  # keys and values, layers, KV heads, head size, float64
    assert work.weights.bytes == 3 * matmul_params * 8
    assert work.weights.flops == 6 * 2 * matmul_params
    assert work.attention.bytes == kv_bytes * (11 + 11 + 12 + 11 + 13 + 12)


@given(st.integers(1, 300), st.integers(2, 40), st.integers(0, 5))
def test_the_lengths_are_geometric_by_scipy_whatever_their_order(requests, mean, seed):
    lengths = geometric_lengths(requests, mean, seed)
    ranks = (numpy.arange(requests) + 0.5) / requests
    assert sorted(lengths) == stats.geom.ppf(ranks - 1e-9, 1 / mean).tolist()
    assert geometric_lengths(requests, mean, seed) == lengths


def test_static_batches_wait_for_the_longest_of_b_as_the_harmonic_number_says():
    """The longest of B long geometric answers is about 1 + 1/2 + ... + 1/B times the mean."""
    lengths = geometric_lengths(8000, 200, seed=1)
    steps = len(static_schedule(lengths, 8)), len(continuous_schedule(lengths, 8))
    assert steps[0] / steps[1] == pytest.approx(sum(1 / i for i in range(1, 9)), rel=0.04)


def test_what_has_no_schedule_is_refused(tiny_model):
    for lengths, slots in [([], 2), ([1, 0], 2), ([1], 0)]:
        for schedule in (static_schedule, continuous_schedule):
            with pytest.raises(ValueError, match="at least one output token"):
                schedule(lengths, slots)
    with pytest.raises(ValueError, match="mean of at least two"):
        geometric_lengths(4, 1)
    with pytest.raises(ValueError, match="at least one step"):
        schedule_work(tiny_model, [])
