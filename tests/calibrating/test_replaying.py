"""A replay answers every request, when it arrives, with the prompts that the requests name."""

import threading

import pytest

from prefill_decode.calibrating import replay
from prefill_decode.calibrating.replaying import prompt_ids
from prefill_decode.engine.answering import SampledToken
from prefill_decode.engine.serving import build_serving_engine
from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import is_answered


def engine_of(model, **options):
    return build_serving_engine(model, cache_tokens=512, block_tokens=8, **options)


def test_every_request_is_answered_after_it_arrived_and_in_time_order(tiny_model):
    requests = [Request(str(i), 0.02 * (i % 5), 5 + i, 3 + i % 4) for i in range(10)]
    records = replay(engine_of(tiny_model), requests, tiny_model.vocab_size)
    assert [record.request for record in records] == requests
    for record in records:
        assert is_answered(record)
        assert len(record.event_times_s) == record.request.output_tokens
        assert record.event_times_s[0] > record.request.arrival_s
    assert max(record.event_times_s[-1] for record in records) >= 0.08


def test_what_the_engine_refuses_is_a_failure_and_the_rest_is_served(tiny_model):
    settings = SchedulerSettings("chunked", 32, 4, most_waiting=2)
    requests = [Request("long", 0.0, 5000, 2), *(Request(str(i), 0.0, 5, 2) for i in range(6))]
    engine = engine_of(tiny_model, settings=settings)
    records = replay(engine, requests, tiny_model.vocab_size)
    assert "may have 512 tokens" in records[0].failure
    assert all("wait" in record.failure for record in records[3:])
    assert all(is_answered(record) for record in records[1:3])


class Waiting:
    """An engine elsewhere: its step only waits, until it is woken; two requests it answers."""

    def __init__(self):
        self.asked, self.woken = [], threading.Event()

    has_work = True  # always, as one to which workers come and go

    def submit(self, request_id, prompt_ids, most_output_tokens):
        self.asked.append(request_id)

    def wake(self):
        self.woken.set()

    def step(self):
        if len(self.asked) < 2:
            assert self.woken.wait(10)
            self.woken.clear()
            return []
        told = [SampledToken(name, 0, 1, "length", None, ()) for name in self.asked]
        self.asked.clear()
        return told


def test_an_engine_that_waits_elsewhere_is_woken_when_a_request_arrives():
    """The first request's answer waits for the second, which could not be submitted otherwise."""
    requests = [Request("a", 0.0, 5, 1), Request("b", 0.1, 5, 1)]
    records = replay(Waiting(), requests, 10)
    assert all(is_answered(record) and record.event_times_s[0] >= 0.1 for record in records)


def test_prompts_begin_alike_where_their_pieces_say_so(tiny_model):
    asked = [Request("a", 0.0, 30, 1, ((7, 20),)), Request("b", 0.5, 40, 1, ((7, 20), (8, 5)))]
    first, second = (prompt_ids(each, tiny_model.vocab_size) for each in asked)
    assert (len(first), len(second)) == (30, 40)
    assert first[:20] == second[:20]
    assert first[20:] != second[20:30]
    assert prompt_ids(asked[0], tiny_model.vocab_size, seed=1) != first
    engine = engine_of(tiny_model)
    replay(engine, [asked[0], Request("b", 0.1, 40, 1, asked[1].pieces)], tiny_model.vocab_size)
    assert engine.state().reused_tokens == 16  # two blocks of eight of the twenty


def test_what_cannot_be_replayed_is_refused(tiny_model):
    one = Request("a", 0.0, 5, 2)
    wrong = [
        ([], "at least one request"),
        ([one, one], "names of their own"),
        ([Request("a", 0.0, 5, 2, ((1, 5),), 3)], "before the answer is known"),
        ([Request("a", -1.0, 5, 2)], "at 0 s or later"),
    ]
    for requests, why in wrong:
        with pytest.raises(ValueError, match=why):
            replay(engine_of(tiny_model), requests, tiny_model.vocab_size)
