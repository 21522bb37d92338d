"""Clients that leave or read too slowly, and an engine that fails: nobody else is hurt, and every
block comes back."""

import asyncio
import json
import socket
import struct
import threading
from dataclasses import replace

import httpx
import pytest

from prefill_decode.endpoint.doors import Limits
from prefill_decode.endpoint.errors import ApiError
from prefill_decode.endpoint.server_metrics import ServerMetrics
from prefill_decode.endpoint.service import Cancel, Service, Submission, Submit
from prefill_decode.engine.answering import FailedAnswer, HandOvers
from prefill_decode.engine.sampling import Sampling
from tests.endpoint.conftest import MODEL, wait_until
from tests.endpoint.fake_engine import FakeEngine
from tests.endpoint.raw_http import ask, connect, read_all, read_reply, request

LONG = {"model": MODEL, "prompt": "x", "max_tokens": 900_000}
STREAM = {**LONG, "stream": True}


@pytest.fixture
def server(serve):
    return serve(FakeEngine(capacity_tokens=1_000_000))


def reset(opened):
    """Leave as a process that was killed does: with a reset, not a farewell."""
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    opened.close()


@pytest.mark.parametrize("body", [LONG, STREAM])
@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_leaves_gives_its_blocks_back(server, body, leave):
    opened = connect(server.port)
    opened.sendall(request(body))
    wait_until(lambda: server.engine.sampled > 10)
    assert server.metric("prefill_decode_free_blocks") == server.engine.num_blocks - 1
    leave(opened)
    server.assert_idle()
    assert server.engine.sampled < 900_000
    assert server.outcomes("cancelled") == 1


def test_a_client_that_leaves_within_its_body_is_forgotten(server):
    opened = connect(server.port)
    opened.sendall(request(b'{"model": "ti', content_length="1000"))
    reset(opened)
    wait_until(lambda: server.outcomes("cancelled") == 1)
    assert server.engine.submitted == []
    server.assert_idle()


def test_a_client_that_leaves_while_the_engine_is_busy_is_cancelled_after_the_step(server):
    server.engine.may_step.clear()
    first = connect(server.port)
    first.sendall(request(STREAM))
    wait_until(lambda: server.engine.submitted)
    second = connect(server.port)
    second.sendall(request(LONG))
    wait_until(lambda: len(server.service.streams) == 2)
    first.close()
    second.close()
    server.engine.may_step.set()
    server.assert_idle()


def test_half_of_many_leaving_leaves_the_other_half_its_text(serve):
    server = serve(FakeEngine(capacity_tokens=1_000_000, most_waiting=1000))
    stay = [connect(server.port) for _ in range(20)]
    go = [connect(server.port) for _ in range(20)]
    body = {"model": MODEL, "prompt": "x", "max_tokens": 300}
    for one in stay:
        one.sendall(request(body))
    for one in go:
        one.sendall(request(STREAM))
    for one in go:
        one.recv(100)
        one.close()
    for one in stay:
        assert json.loads(read_reply(one).body)["choices"][0]["text"] == "abcdefghij" * 30
        one.close()
    server.assert_idle()


def test_a_reader_too_far_behind_is_cut_and_others_are_not(serve):
    limits = Limits(most_tokens_behind=50)
    server = serve(FakeEngine(capacity_tokens=1_000_000), limits=limits)
    slow = connect(server.port, receive_buffer=4096)
    slow.sendall(request(STREAM))
    text = server.post("/v1/completions", prompt="x", max_tokens=500).json()["choices"][0]["text"]
    assert text == "abcdefghij" * 50
    wait_until(lambda: server.outcomes("cancelled") == 1)
    server.assert_idle()
    assert b"[DONE]" not in read_all(slow)
    slow.close()


def test_a_stream_of_many_answers_may_have_as_many_tokens_waiting_for_each(serve):
    engine = FakeEngine(tokens_per_step=20, pause_s=0.1)
    server = serve(engine, limits=Limits(most_tokens_behind=45))
    reply = server.post("/v1/completions", prompt="x", n=4, max_tokens=40, stream=True)
    assert reply.text.endswith("data: [DONE]\n\n")
    server.assert_idle()
    assert server.outcomes("completed") == 1


def test_a_reader_that_stands_still_is_cut(serve):
    limits = Limits(most_tokens_behind=10**9, stall_s=0.3)
    server = serve(FakeEngine(capacity_tokens=1_000_000, tokens_per_step=50), limits=limits)
    slow = connect(server.port, receive_buffer=4096)
    slow.sendall(request(STREAM))
    wait_until(lambda: server.outcomes("cancelled") == 1)
    server.assert_idle()
    slow.close()


def test_a_step_that_fails_is_told_to_everyone_and_to_health(server):
    found = {}

    def ask_one(name, body):
        with connect(server.port) as opened:
            opened.sendall(request(body))
            found[name] = read_all(opened) if body is STREAM else read_reply(opened)

    server.engine.may_step.clear()
    bodies = {"stream": STREAM, "whole": LONG}
    threads = [threading.Thread(target=ask_one, args=pair) for pair in bodies.items()]
    threads[0].start()
    wait_until(lambda: server.engine.submitted)  # else its stream does not begin
    threads[1].start()
    wait_until(lambda: len(server.service.streams) == 2)
    server.engine.step_error = RuntimeError("the device is gone")
    server.engine.may_step.set()
    wait_until(lambda: "whole" in found)
    assert found["whole"].status == 500
    assert "the device is gone" in found["whole"].error["message"]
    assert found["whole"].error["type"] == "server_error"
    wait_until(lambda: not server.service.streams)
    assert server.http.get("/health").status_code == 503
    late = server.post("/v1/completions", prompt="x")
    assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_failed")
    server.server.should_exit = True  # the open connection of the stream ends
    for thread in threads:
        thread.join(20)
    *_, error, done, _ = found["stream"].decode().split("\n\n")
    assert "the device is gone" in error
    assert "data: [DONE]" in done


def test_a_submission_that_fails_in_an_unknown_way_ends_the_engine_and_is_told(server):
    server.engine.submit_error = RuntimeError("lost")
    reply = server.post("/v1/completions", prompt="x")
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_failed")
    assert server.http.get("/health").status_code == 503
    assert (server.outcomes("failed"), server.outcomes("refused")) == (1, 0)
    assert server.post("/v1/completions", prompt="x").status_code == 503
    assert (server.outcomes("failed"), server.outcomes("refused")) == (1, 1)


def test_what_was_asked_before_the_end_is_settled_and_what_is_asked_after_is_refused():
    async def settle():
        service = Service(FakeEngine(), ServerMetrics())
        service._loop = asyncio.get_running_loop()
        before, after = (service._loop.create_future() for _ in range(2))
        asked = Submission("a", [1], 5, Sampling(), frozenset(), 1)
        for command in (Submit(asked, before), None, Cancel("a", None), Submit(asked, after)):
            service._commands.put(command)
        assert not service._obey([])
        assert await asyncio.wait_for(before, 5) is None
        assert not service.engine.has_work
        with pytest.raises(ApiError) as caught:
            await asyncio.wait_for(after, 5)
        return caught.value

    assert asyncio.run(settle()).code == "stopping"


def test_what_the_engine_refuses_is_told_as_it_says_it(server):
    server.engine.submit_error = ValueError("answers must fit the batch")
    reply = server.post("/v1/completions", prompt="x")
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "answers must fit the batch"
    server.engine.submit_error = None
    assert server.post("/v1/completions", prompt="x").status_code == 200


def test_text_that_cannot_be_made_fails_one_request_alone(serve):
    server = serve(FakeEngine("abc"))
    server.tokenizer.token_bytes = lambda token_id: {97: b"a", 98: b"b"}[token_id]
    assert server.post("/v1/completions", prompt="x", max_tokens=9).status_code == 500
    assert server.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200
    server.assert_idle()
    assert (server.outcomes("failed"), server.outcomes("completed")) == (1, 1)


def test_a_server_that_stops_refuses_and_ends_streams_with_an_error_event(serve):
    server = serve(FakeEngine(capacity_tokens=1_000_000, pause_s=0.005))
    with httpx.stream("POST", f"{server.url}/v1/completions", json=STREAM, timeout=20) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.service.stopping = True
        late = server.post("/v1/completions", prompt="x")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "stopping")
        assert server.http.get("/health").status_code == 503
        stopped = ApiError(503, "the server stopped before the end", code="stopping")
        server.service._loop.call_soon_threadsafe(server.service.fail_all, stopped)
        *_, error, done = [line for line in lines if line]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == "stopping"
    assert done == "data: [DONE]"
    server.assert_idle()


def test_a_second_request_on_a_connection_waits_for_the_first(server):
    body = {"model": MODEL, "prompt": "x", "max_tokens": 3}
    with connect(server.port) as opened:
        opened.sendall(request(body) + request({**body, "max_tokens": 5}))
        found = b""
        while found.count(b"HTTP/1.1 200") < 2 or not found.endswith(b"}}"):
            found += opened.recv(65536)
    assert found.index(b'"text":"abc"') < found.index(b'"text":"abcde"')
    assert ask(server.port, request(body)).status == 200
    server.assert_idle()


def test_an_answer_that_fails_ends_its_request_alone(server):
    stay, fail = connect(server.port), connect(server.port)
    fail.sendall(request(STREAM, connection="close"))
    wait_until(lambda: server.engine.submitted)
    stay.sendall(request({**LONG, "max_tokens": 500}))
    (request_id, *_), *_ = server.engine.submitted
    server.engine.failing = [FailedAnswer(request_id, 0, "its cache was lost four times")]
    *_, error, done, _ = read_all(fail).decode().split("\n\n")
    told = json.loads(error.partition("data: ")[2])["error"]
    assert (told["message"], told["code"]) == ("its cache was lost four times", "answer_failed")
    assert "data: [DONE]" in done
    assert read_reply(stay).status == 200
    server.assert_idle()
    assert (server.outcomes("failed"), server.outcomes("completed")) == (1, 1)


def test_health_says_what_ails_the_engine_while_requests_are_still_taken(server):
    server.engine.ailment = "there is no decode worker"
    assert server.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200
    reply = server.http.get("/health")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "unhealthy")
    assert "no decode worker" in reply.json()["error"]["message"]


class WaitingEngine(FakeEngine):
    """Always has a step to run, which waits until there is something to do."""

    def __init__(self):
        super().__init__()
        self.woken = threading.Event()

    has_work = True

    def wake(self):
        self.woken.set()

    def step(self):
        if not self._requests():
            self.woken.wait()
            self.woken.clear()
            return []
        return super().step()


def test_a_step_that_only_waits_holds_up_no_request_and_no_stop(serve):
    server = serve(WaitingEngine())
    for _ in range(3):
        assert server.post("/v1/completions", prompt="x", max_tokens=5).status_code == 200


class HandingOver(FakeEngine):
    def state(self):
        return replace(super().state(), hand_overs=HandOvers(3, 4096, 0.5, 1, 2, 1, 2))


def test_metrics_tell_of_hand_overs_where_there_are_any(serve):
    assert "kv_transfer" not in serve().http.get("/metrics").text
    server = serve(HandingOver())
    names = ("kv_transfer_bytes_total", "kv_transfer_seconds_total", "lost_workers_total",
             "recomputed_answers_total", "decode_workers")  # fmt: skip
    assert [server.metric(f"prefill_decode_{name}") for name in names] == [4096, 0.5, 1, 2, 2]
