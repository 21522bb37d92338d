"""The longest gap of a simulation, against the records of all its requests."""

from itertools import pairwise

import pytest

from prefill_decode.plots import timeline_of_gap
from prefill_decode.plots.gap_figure import MOST_ROWS
from prefill_decode.request import Request
from prefill_decode.simulator import LongestGap, fleet_of, longest_gap, simulate

WORKER = {"model": "llama-3.1-8b", "accelerator": "h100-sxm", "most_tokens_per_step": 8192}


def fleet(tmp_path, *pools, **more):
    return fleet_of({"pool": [{"name": str(n), **WORKER, **p} for n, p in enumerate(pools)],
                     **more}, tmp_path)  # fmt: skip


def streams_and_a_long_prompt(streams=3):
    asked = [Request(f"stream {n}", 0.01 * n, 50, 200) for n in range(streams)]
    return [*asked, Request("long", 0.5, 8000, 2), Request("later", 30.0, 50, 2)]


def longest_of_all(outcome):
    return max(
        (after - before, before)
        for record in outcome.records()
        for before, after in pairwise(record.event_times_s)
    )


def test_the_longest_gap_is_that_of_all_records_and_names_the_prompt_in_it(tmp_path):
    one = fleet(tmp_path, {"policy": "prefill_first"})
    outcome = simulate(one, streams_and_a_long_prompt())
    gap = longest_gap(outcome)
    length_s, start_s = longest_of_all(outcome)
    assert (gap.length_s, gap.start_s) == pytest.approx((length_s, start_s))
    assert gap.waiting.request.request_id.startswith("stream")
    assert [record.request.request_id for record in gap.served] == ["long"]
    beside = {record.request.request_id for record in gap.beside}
    assert "later" not in beside  # by then all was over
    assert len(beside) == 3


def test_only_requests_of_the_same_instance_stand_beside_a_gap(tmp_path):
    two = fleet(tmp_path, {"policy": "prefill_first", "instances": 2}, routing="round_robin")
    outcome = simulate(two, streams_and_a_long_prompt(streams=6))
    gap = longest_gap(outcome)
    told = {record.request.request_id for record in gap.beside} | {gap.waiting.request.request_id}
    assert told == {"stream 0", "stream 2", "stream 4", "long"}  # every second one


def test_apart_a_prompt_elsewhere_is_not_beside_the_gap_before_its_cache_comes(tmp_path):
    apart = fleet(
        tmp_path,
        {"role": "prefill"},
        {"role": "decode"},
        transfer={"bandwidth_bytes_per_s": 50e9, "latency_s": 1e-3},
    )
    outcome = simulate(apart, streams_and_a_long_prompt())
    gap = longest_gap(outcome)
    assert gap.length_s == pytest.approx(longest_of_all(outcome)[0])
    assert gap.length_s < 0.05  # no step holds the long prompt


def names(records):
    return {record.request.request_id for record in records}


def test_beside_are_those_as_near_as_the_gap_is_long_and_served_only_those_in_it(tmp_path):
    one = fleet(tmp_path, {"policy": "prefill_first"})
    asked = [Request("over", 0.0, 50, 2), *streams_and_a_long_prompt()]
    first = longest_gap(simulate(one, asked))
    near_s, far_s = (first.end_s + share * first.length_s for share in (0.9, 1.1))
    asked += [Request("near", near_s, 50, 2), Request("far", far_s, 50, 2)]
    gap = longest_gap(simulate(one, asked))
    assert (gap.start_s, gap.end_s) == (first.start_s, first.end_s)
    assert {"long", "near"} <= names(gap.beside)
    assert not {"over", "far"} & names(gap.beside)
    assert names(gap.served) == {"long"}


def test_apart_those_beside_decode_where_the_gap_ended(tmp_path):
    apart = fleet(
        tmp_path,
        {"role": "prefill"},
        {"role": "decode", "instances": 2},
        transfer={"bandwidth_bytes_per_s": 50e9, "latency_s": 1e-3},
        routing="round_robin",
    )
    outcome = simulate(apart, [Request(str(n), 0.01 * n, 50, 200) for n in range(6)])
    gap = longest_gap(outcome)
    told = names(gap.beside) | {gap.waiting.request.request_id}
    assert len(told) > 1
    assert told in ({"0", "2", "4"}, {"1", "3", "5"})


def test_without_two_tokens_there_is_no_gap(tmp_path):
    outcome = simulate(fleet(tmp_path, {}), [Request("one", 0.0, 10, 1)])
    with pytest.raises(ValueError, match="two tokens of an answer"):
        longest_gap(outcome)


def test_the_figure_says_how_long_who_was_read_and_what_is_left_out(tmp_path):
    one = fleet(tmp_path, {"policy": "prefill_first"})
    outcome = simulate(one, streams_and_a_long_prompt(streams=MOST_ROWS + 5))
    figure = timeline_of_gap(longest_gap(outcome))
    assert "the prompt of 1 other request, 8000 tokens, gets its first token" in figure.alt
    assert "of which 6 are not drawn" in figure.alt
    few = timeline_of_gap(longest_gap(simulate(one, streams_and_a_long_prompt())))
    assert "not drawn" not in few.alt


def test_a_crowd_beside_a_gap_is_looked_through_once(tmp_path, monkeypatch):
    one = fleet(tmp_path, {"policy": "prefill_first"})
    gap = longest_gap(simulate(one, [Request(str(n), n / 1000, 100, 5) for n in range(400)]))
    looked = []
    served = LongestGap.served.fget
    watched = property(lambda self: looked.append(self) or served(self))
    monkeypatch.setattr(LongestGap, "served", watched)
    timeline_of_gap(gap)
    assert len(gap.beside) > 10 > len(looked)
