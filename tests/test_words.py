"""Chunk, Request, Hardware: what they hold and what they refuse."""

from math import inf, nan

import pytest

from prefill_decode.hardware import Hardware
from prefill_decode.request import Request, RequestRecord
from prefill_decode.step import Chunk


def test_attended_pairs_are_those_of_a_causal_mask():
    for new, cached in [(1, 0), (1, 7), (3, 2), (5, 0)]:
        by_hand = sum(1 for i in range(new) for j in range(new + cached) if j <= cached + i)
        assert Chunk(new, cached).attended_pairs == by_hand


@pytest.mark.parametrize(("new", "cached"), [(0, 4), (-1, 0), (1, -1), (1.5, 0), (nan, 0)])
def test_a_chunk_without_new_tokens_is_refused(new, cached):
    with pytest.raises(ValueError, match="new_tokens >= 1"):
        Chunk(new, cached)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (1.5, 1)])
def test_a_request_asks_for_and_brings_at_least_one_token(prompt, output):
    with pytest.raises(ValueError, match="at least one"):
        Request("r", 0.0, prompt, output)


@pytest.mark.parametrize(
    ("times", "tokens", "message"),
    [
        ((1.0, 2.0), (1,), "2 times and 1 counts"),
        ((1.0,), (0,), "without tokens"),
        ((2.0, 1.0), (1, 1), "backwards"),
        ((0.4,), (1,), "backwards"),  # before its own arrival
        ((nan,), (1,), "backwards"),
        ((1.0,), (1.5,), "without tokens"),
    ],
)
def test_an_impossible_record_of_a_request_is_refused(times, tokens, message):
    with pytest.raises(ValueError, match=message):
        RequestRecord(Request("r", 0.5, 1, 1), times, tokens)


def test_a_request_arrives_at_some_time():
    with pytest.raises(ValueError, match="finite time"):
        Request("r", nan, 1, 1)


@pytest.mark.parametrize("value", [0.0, -1.0, nan, inf])
def test_a_ceiling_is_a_positive_number(value):
    with pytest.raises(ValueError, match="peak_flops_per_s"):
        Hardware("x", "bfloat16", value, 1e12, "made up")
    with pytest.raises(ValueError, match="bandwidth_bytes_per_s"):
        Hardware("x", "bfloat16", 1e12, value, "made up")
