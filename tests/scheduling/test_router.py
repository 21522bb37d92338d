"""Who gets a request: by turn, by load, by what its cache holds."""

from math import inf

import pytest

from prefill_decode.scheduling import Router


def test_round_robin_gives_each_its_turn():
    router = Router("round_robin")
    assert [router.choose([9, 0, 0]) for _ in range(4)] == [0, 1, 2, 0]


def test_least_loaded_takes_the_least_and_turns_among_equals():
    router = Router("least_loaded")
    assert router.choose([3, 1, 2]) == 1
    assert [router.choose([0, 0, 0]) for _ in range(4)] == [2, 0, 1, 2]


def test_prefix_aware_takes_the_longest_hit_within_its_slack():
    hits, loads = [100, 500, 300], [0, 5, 2]
    assert Router("prefix_aware", slack=inf).choose(loads, hits) == 1
    assert Router("prefix_aware", slack=2).choose(loads, hits) == 2
    assert Router("prefix_aware", slack=0).choose(loads, hits) == 0
    assert Router("prefix_aware", slack=inf).choose([2, 1, 1], [7, 7, 0]) == 1
    assert Router("prefix_aware").choose([2, 1, 0], [0, 0, 0]) == 2
    assert Router("prefix_aware").choose([2, 1, 0]) == 2


def test_what_is_no_routing_is_refused():
    with pytest.raises(ValueError, match="routing is one of"):
        Router("random")
    for slack in (-1, float("nan")):
        with pytest.raises(ValueError, match="slack is 0"):
            Router("prefix_aware", slack)
