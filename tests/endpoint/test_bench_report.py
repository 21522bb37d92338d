"""What a report counts of streams that failed inside: only what was answered."""

import json

import pytest

from prefill_decode.endpoint.bench import Bench, Plan
from prefill_decode.endpoint.bench_report import exchange_line, report, table
from prefill_decode.endpoint.client import Target
from prefill_decode.endpoint.load import Exchange
from prefill_decode.request import Request
from tests.streams import chat, completion, read_stream, total


def bench_of(streams, duration_s):
    """A closed run of {request: (events, tokens asked)} that lasted so long."""
    exchanges = tuple(
        Exchange(Request(name, 0.0, 9, asked), 0.0, duration_s, read_stream(events, asked))
        for name, (events, asked) in streams.items()
    )
    plan = Plan("http://h", (), len(exchanges), 9, concurrency=1)
    return Bench(plan, Target("http://h/v1", "m"), exchanges, 0, False, (), None, ())


STREAMS = {
    "good": ([(0.5, chat("a")), (0.6, chat("b", "length")), (0.6, total(2)), (0.6, "[DONE]")], 2),
    "failed": (
        [(0.5, chat("a")), (0.7, {"error": {"message": "out of memory"}}), (0.8, total(50))],
        100,
    ),
    "silent": ([], 100),
    "short": ([(0.4, completion("a", "length", 1)), (0.5, "[DONE]")], 100),
}


def test_a_run_counts_the_tokens_of_answered_requests_only():
    found = bench_of(STREAMS, 4.0)
    told = json.loads(json.dumps(report(found), allow_nan=False))
    assert (told["num_sent"], told["num_answered"], told["num_failed"]) == (4, 1, 3)
    assert (told["output_tokens"], told["output_tokens_per_s"]) == (2, 0.5)
    p50 = told["from_sent"]["ttft_s"]["p50"]
    assert (p50["value"], p50["n"]) == (0.5, 1)
    messages = {error["message"]: error["count"] for error in told["errors"]}
    assert sum(messages.values()) == 3
    assert messages["out of memory"] == 1
    assert any("fewer tokens came than asked (100): 1" in message for message in messages)
    assert "failed 1 times: out of memory" in table(found)


def test_a_run_whose_tokens_are_partly_unknown_has_no_rate():
    unknown = ([(0.5, chat("a", "stop")), (0.6, "[DONE]")], 9)
    told = report(bench_of({"good": STREAMS["good"], "unknown": unknown}, 4.0))
    assert told["num_answered"] == 2
    assert (told["output_tokens"], told["output_tokens_per_s"]) == (None, None)


def test_a_run_in_which_nothing_ended_has_no_report():
    with pytest.raises(ValueError, match="no request ended"):
        report(bench_of({}, 1.0))


def test_a_failure_inside_a_stream_of_status_200_is_a_failure():
    """One answer, one that breaks off, one that never began, one that says nothing: in 2 s."""
    stopped = {"error": {"message": "engine stopped", "type": "InternalServerError", "code": 500}}
    times_s = (0.1, 0.12, 0.14, 0.16)
    answered = [(t_s, chat(letter)) for t_s, letter in zip(times_s, "abcd", strict=True)]
    answered[-1] = (0.16, chat("d", "length"))
    found = bench_of(
        {
            "A": ([*answered, (0.161, total(4)), (0.162, "[DONE]")], 4),
            "B": ([*answered[:2], (0.13, stopped), (0.131, "[DONE]")], 100),
            "C": ([(0.02, stopped), (0.021, "[DONE]")], 100),
            "D": ([], 100),
        },
        2.0,
    )
    told = report(found)
    assert (told["num_answered"], told["num_failed"]) == (1, 3)
    assert told["num_failed"] / told["num_sent"] == 0.75
    assert (told["output_tokens"], told["output_tokens_per_s"]) == (4, 2.0)
    p50 = told["from_sent"]["ttft_s"]["p50"]
    assert (p50["value"], p50["n"]) == (0.1, 1)
    lines = [exchange_line(each) for each in found.exchanges]
    assert {line["request_id"]: line["success"] for line in lines} == {
        "A": True,
        "B": False,
        "C": False,
        "D": False,
    }
    assert {"message": "engine stopped", "count": 2} in told["errors"]
