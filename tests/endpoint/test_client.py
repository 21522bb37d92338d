"""One request to servers that behave and to servers that do not."""

import asyncio
import json
import socket
from math import isnan

import pytest

from prefill_decode.endpoint.client import (
    Target,
    base_url,
    open_session,
    parsed,
    send,
    served_models,
)
from prefill_decode.endpoint.prompts import Prompts, calibrated
from prefill_decode.endpoint.stub_server import MODES

ASKED = 6  # tokens


def exchange(port, mode, **options):
    """(answer, result) of one request."""
    target = Target(f"http://127.0.0.1:{port}/v1", mode, **options)

    async def work():
        async with open_session() as session:
            answer = await send(session, target, target.body("a b c d", ASKED))
            return answer, await parsed(answer, ASKED)

    return asyncio.run(work())


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_good_answer_has_the_times_that_the_server_kept(stub, api):
    answer, found = exchange(stub.port, "steady", api=api)
    assert (found.success, found.error, answer.status) == (True, None, 200)
    assert (found.output_tokens, found.prompt_tokens, found.short_output) == (ASKED, 14, False)
    assert len(found.event_times_s) == ASKED  # the role, the usage and the end are no tokens
    assert found.ttft_s >= 0.02  # what the server slept
    assert found.event_times_s[-1] >= 0.02 + (ASKED - 1) * 0.005
    assert answer.ended_s >= answer.sent_s + found.event_times_s[-1]


def test_a_request_says_all_that_makes_answers_alike(stub):
    exchange(stub.port, "steady", api_key="k")
    assert stub.bodies[0] == {
        "model": "steady",
        "messages": [{"role": "user", "content": "a b c d"}],
        "stream": True,
        "max_tokens": ASKED,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "ignore_eos": True,
        "min_tokens": ASKED,
    }
    assert "'k'" not in repr(Target("http://x/v1", "m", api_key="k"))


def test_several_tokens_an_event_are_counted_and_timed_as_one_event(stub):
    _, found = exchange(stub.port, "several")
    assert (found.tokens_per_event, found.output_tokens) == ((4, 2), ASKED)
    assert found.tpot_s == pytest.approx(found.event_gaps_s[0] / (ASKED - 1))


def test_comments_that_keep_a_connection_alive_are_no_events(stub):
    _, found = exchange(stub.port, "pings")
    assert (found.success, len(found.event_times_s)) == (True, ASKED)


def test_without_usage_tokens_are_unknown(stub):
    _, found = exchange(stub.port, "no_usage")
    assert (found.success, found.output_tokens) == (True, None)
    assert isnan(found.tpot_s)


def test_an_answer_that_its_model_ended_is_not_short_and_a_truncated_one_is(stub):
    assert exchange(stub.port, "stops")[1].short_output is False
    assert exchange(stub.port, "short")[1].short_output is True


FAILURES = {
    "error": ("engine stopped", 2),
    "cut": ("the connection was cut inside the answer", 2),
    "ends": ("the stream was cut", 2),
    "garbage": ("an event is no JSON", 2),
    "role_only": ("without a single token", 0),
    "empty": ("the stream was cut", 0),
    "closes": ("closed the connection before it answered", 0),
    "no_http": ("the answer is no HTTP", 0),
    "plain_json": ("application/json instead of text/event-stream", 0),
    "http_500": ("HTTP 500: out of memory", 0),
    "http_503": ("HTTP 503: <h1>try later</h1>", 0),
    "picky": ("HTTP 400: Unrecognized request argument: ignore_eos", 0),
}


@pytest.mark.parametrize("mode", FAILURES)
def test_a_failure_is_told_in_words_and_the_tokens_before_it_are_kept(stub, mode):
    message, tokens = FAILURES[mode]
    _, found = exchange(stub.port, mode)
    assert not found.success
    assert message in found.error
    assert len(found.event_times_s) == tokens


def test_an_answer_that_is_no_stream_is_read_to_its_end(stub):
    async def search():
        async with open_session() as session:
            return await served_models(session, Target(f"http://127.0.0.1:{stub.port}/v1", ""))

    # which the stub sends in two pieces
    assert asyncio.run(search()) == (list(MODES), None)


def test_a_request_whose_kept_connection_was_closed_is_sent_again_on_another(stub):
    target = Target(f"http://127.0.0.1:{stub.port}/v1", "drops")

    async def work():
        async with open_session() as session:
            body = target.body("a b", ASKED)
            answers = [await send(session, target, body) for _ in range(3)]
            return answers, [await parsed(answer, ASKED) for answer in answers]

    answers, results = asyncio.run(work())
    assert all(result.success for result in results)
    assert [answer.num_resent for answer in answers] == [0, 1, 1]
    assert len(stub.bodies) == 3


def test_a_request_that_a_new_connection_ended_is_not_sent_again(stub):
    answer, _ = exchange(stub.port, "closes")
    assert (answer.status, answer.num_resent, len(stub.bodies)) == (None, 0, 1)


def test_every_misbehaviour_of_the_stub_has_its_test():
    fine = {"steady", "several", "no_usage", "pings", "slow", "stops", "short", "flaky", "never"}
    fine |= {"drops", "late"}
    assert set(MODES) == set(FAILURES) | fine


def test_a_server_that_never_answers_is_given_up(stub):
    answer, found = exchange(stub.port, "never", timeout_s=0.2)
    assert found.error == "no end of the answer within 0.2 s"
    assert answer.ended_s - answer.sent_s >= 0.2
    _, slow = exchange(stub.port, "slow", timeout_s=0.1)
    assert "no end of the answer" in slow.error
    assert 1 <= len(slow.event_times_s) < ASKED


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def test_nobody_there_is_a_failure_of_a_request_and_the_end_of_a_search_for_models():
    port = free_port()
    assert f"no connection to 127.0.0.1:{port}" in exchange(port, "steady")[1].error

    async def search(url):
        async with open_session() as session:
            return await served_models(session, Target(url, ""))

    with pytest.raises(ValueError, match="is the server running"):
        asyncio.run(search(f"http://127.0.0.1:{port}/v1"))
    with pytest.raises(ValueError, match=r"no such host: nowhere\.invalid"):
        asyncio.run(search("http://nowhere.invalid/v1"))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("https://h/v1/", "https://h/v1"),
        ("http://h/v1/chat/completions", "http://h/v1"),
        ("http://h/v1/completions", "http://h/v1"),
        ("http://h/openai/v2", "http://h/openai/v2"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
    ],
)
def test_an_address_may_be_given_in_several_ways(url, base):
    assert base_url(url) == base


@pytest.mark.parametrize(
    "url", ["h:8000", "127.0.0.1", "ftp://h", "http://", "http://h:x", "http://h:99999", "", "x"]
)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(ValueError, match="a server's address is like"):
        base_url(url)


def test_an_address_with_a_password_is_refused_without_repeating_it():
    with pytest.raises(ValueError, match="--api-key") as refused:
        base_url("http://user:secret@h:8000")
    assert "secret" not in str(refused.value)


def test_a_closed_port_is_named_in_the_systems_words():
    port = free_port()
    assert exchange(port, "steady")[1].error.endswith(f"127.0.0.1:{port}: connection refused")


def test_a_refusal_that_names_an_option_leaves_that_option_out():
    target = Target("http://h/v1", "m")
    fewer = target.without("HTTP 400: unknown field min_tokens")
    assert fewer.optional == ("stream_options", "temperature", "ignore_eos")
    assert target.without("HTTP 400: no").optional == ("stream_options", "temperature")
    assert target.without("HTTP 400: no").without("HTTP 400: no") is None
    renamed = target.without("use 'max_completion_tokens' instead of 'max_tokens'")
    assert json.loads(renamed.body("x", 3))["max_completion_tokens"] == 3


def test_prompts_differ_between_requests_and_are_the_same_again_for_a_seed():
    prompts = Prompts(1)
    assert prompts.prompt("a", 30) == Prompts(1).prompt("a", 30)
    assert len({prompts.prompt("a", 30), prompts.prompt("b", 30), Prompts(2).prompt("a", 30)}) == 3
    assert len(Prompts(1, ids=True).prompt("a", 30)) == 30
    assert len(prompts.prompt("a", 30).split()) == 30


@pytest.mark.parametrize("tokens", [9, 40, 1000])
def test_two_probes_tell_how_many_words_make_a_prompt_of_so_many_tokens(tokens):
    def counted(words):
        return 5 + 2 * words

    prompts = calibrated(1, (100, counted(100)), (50, counted(50)))
    words = len(prompts.prompt("a", tokens).split())
    assert counted(words) == pytest.approx(tokens, abs=1)
    assert len(prompts.prompt("a", 1).split()) == 1
    assert calibrated(1, (100, 150)).tokens_per_word == 1.5
    assert calibrated(1, (1, 9), (1, 9)).tokens_per_word == 9
    assert calibrated(1, (100, 7), (50, 9)).tokens_per_word == 0.07  # no line: the first alone
