"""Lines of requests: no token lost or made twice, no batch too large, and the gain that the lengths
say."""

from collections import Counter

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from prefill_decode.batching import Line, geometric_lengths, least_time_s, schedule_work
from prefill_decode.hardware import Hardware
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=30).map(tuple)
SLOTS = st.integers(1, 9)
PROMPT = st.integers(1, 50)


def static(lengths, slots, prompt=1):
    return Line("static", tuple(lengths), slots, prompt).schedule()


def continuous(lengths, slots, prompt=1):
    return Line("continuous", tuple(lengths), slots, prompt).schedule()


def asked(lengths, prompt):
    """Every chunk that must run, once: the prompt, then a token on top of the last."""
    return Counter(
        Chunk(prompt) if i == 0 else Chunk(1, prompt + i - 1)
        for length in lengths
        for i in range(length)
    )


def test_two_slots_and_three_answers_by_hand():
    assert static([1, 3, 2], 2, 10) == [
        [Chunk(10), Chunk(10)],  # the first is done with this step, and its slot stays empty
        [Chunk(1, 10)],
        [Chunk(1, 11)],
        [Chunk(10)],
        [Chunk(1, 10)],
    ]
    assert continuous([1, 3, 2], 2, 10) == [
        [Chunk(10), Chunk(10)],
        [Chunk(1, 10), Chunk(10)],  # the third took the slot of the first
        [Chunk(1, 11), Chunk(1, 10)],
    ]


@given(LENGTHS, SLOTS, PROMPT)
def test_both_make_every_token_exactly_once(lengths, slots, prompt):
    for schedule in (static(lengths, slots, prompt), continuous(lengths, slots, prompt)):
        assert Counter(chunk for step in schedule for chunk in step) == asked(lengths, prompt)


@given(LENGTHS, SLOTS, PROMPT)
def test_a_static_batch_lasts_as_long_as_its_longest_answer(lengths, slots, prompt):
    batches = [lengths[first : first + slots] for first in range(0, len(lengths), slots)]
    assert len(static(lengths, slots, prompt)) == sum(map(max, batches))


@given(LENGTHS, SLOTS)
def test_no_step_holds_more_sequences_than_slots_or_none(lengths, slots):
    for schedule in (static(lengths, slots), continuous(lengths, slots)):
        assert all(1 <= len(step) <= slots for step in schedule)


@given(LENGTHS, SLOTS)
def test_continuous_batching_never_takes_more_steps(lengths, slots):
    steps = len(continuous(lengths, slots))
    assert steps <= len(static(lengths, slots))
    assert steps >= max(max(lengths), sum(lengths) / slots)


@given(st.integers(1, 20), st.integers(1, 30), SLOTS, PROMPT)
def test_equal_lengths_give_equal_schedules(length, requests, slots, prompt):
    lengths = [length] * requests
    assert continuous(lengths, slots, prompt) == static(lengths, slots, prompt)


def test_a_schedule_reads_the_weights_at_each_step_and_every_cache_it_holds(tiny_model):
    work = schedule_work(tiny_model, continuous([1, 3, 2], 2, 1))
    matmul_params = 2 * (24 * (2 * 32 + 2 * 16) + 3 * 24 * 40) + 61 * 24
    kv_bytes = 2 * 2 * 2 * 8 * 8  # keys and values, layers, KV heads, head size, float64
    assert work.weights.bytes == 3 * matmul_params * 8
    assert work.weights.flops == 6 * 2 * matmul_params
    assert work.attention.bytes == kv_bytes * (1 + 1 + 2 + 1 + 3 + 2)


def test_a_schedule_takes_at_least_as_long_as_its_steps_one_by_one(tiny_model):
    hardware = Hardware("any", "float64", 1e9, 1e9, "made up")
    schedule = static([1, 3, 2], 2, 10)
    steps_s = [step_work(tiny_model, step).least_time_s(hardware) for step in schedule]
    assert least_time_s(tiny_model, schedule, hardware) == pytest.approx(sum(steps_s))
    together_s = schedule_work(tiny_model, schedule).least_time_s(hardware)
    assert together_s <= sum(steps_s) * (1 + 1e-12)


@given(st.integers(1, 300), st.integers(2, 40), st.integers(0, 5))
def test_the_lengths_are_geometric_by_scipy_whatever_their_order(requests, mean, seed):
    lengths = geometric_lengths(requests, mean, seed)
    ranks = (numpy.arange(requests) + 0.5) / requests
    assert sorted(lengths) == stats.geom.ppf(ranks - 1e-9, 1 / mean).tolist()
    assert geometric_lengths(requests, mean, seed) == lengths


def test_static_batches_wait_for_the_longest_of_b_as_the_harmonic_number_says():
    """The longest of B long geometric answers is about 1 + 1/2 + ... + 1/B times the mean."""
    lengths = geometric_lengths(800, 60, seed=1)
    steps = len(static(lengths, 8)), len(continuous(lengths, 8))
    assert steps[0] / steps[1] == pytest.approx(sum(1 / i for i in range(1, 9)), rel=0.07)


def test_what_has_no_schedule_is_refused(tiny_model):
    for lengths, slots, prompt in [((), 2, 1), ((1, 0), 2, 1), ((1,), 0, 1), ((1,), 1, 0)]:
        with pytest.raises(ValueError, match="a line needs a slot"):
            Line("static", lengths, slots, prompt)
    with pytest.raises(ValueError, match="static or continuous"):
        Line("whole", (1,), 1, 1)
    with pytest.raises(ValueError, match="mean of at least two"):
        geometric_lengths(4, 1)
    with pytest.raises(ValueError, match="at least one step"):
        schedule_work(tiny_model, [])
