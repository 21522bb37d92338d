"""Whatever is sent, the answer is a clear one, and the server goes on."""

import json

import pytest

from prefill_decode.endpoint.doors import Limits
from tests.endpoint.conftest import MODEL, RunningServer, wait_until
from tests.endpoint.fake_engine import FakeEngine
from tests.endpoint.raw_http import ask, connect, read_all, read_reply, request

CHAT = "/v1/chat/completions"
SAY = [{"role": "user", "content": "say"}]
DEEP = '{"model": "tiny", "prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.fixture(scope="module")
def running():
    server = RunningServer(FakeEngine(), limits=Limits(most_body_bytes=1_000_000))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(running):
    """One for all tests: each must leave it as it was."""
    yield running
    assert running.post("/v1/completions", prompt="x").status_code == 200, "it does not go on"
    running.assert_idle()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "Expecting value at character 0"),
        (b"{", "Expecting property name"),
        (b'{"model": "tiny", "prompt": "x"} trailing', "Extra data"),
        (b'{"model": "tiny", "prompt": "\xff"}', "byte 29 is not UTF-8"),
        ('{"model": "tiny", "prompt": "x"}'.encode("utf-16"), "byte 0 is not UTF-8"),
        (b'\xef\xbb\xbf{"model": "tiny"}', "BOM"),
        (DEEP.encode(), "nested too deeply"),
        (b'{"model": "tiny", "prompt": "x", "temperature": NaN}', "NaN is no JSON number"),
        (b'{"model": "tiny", "prompt": "x", "temperature": -Infinity}', "-Infinity is no"),
        (b'{"model": "tiny", "prompt": "x", "seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"model": "tiny", "prompt": "x", "prompt": "y"}', "the key 'prompt' twice"),
        (b'{"model": "tiny", "prompt": "\\ud800"}', "half of a surrogate pair"),
        (b'{"model": "tiny", "prompt": ["ok", "\\u0000"]}', "the character NUL"),
        (b'{"model": "tiny", "prompt": "\x00"}', "Invalid control character"),
        (b"[]", "must be a JSON object; got a list"),
        (b"null", "must be a JSON object; got a null"),
    ],
)
def test_what_is_not_exactly_one_json_object_is_refused_with_the_reason(server, body, words):
    reply = ask(server.port, request(body))
    assert reply.status == 400
    assert words in reply.error["message"]


def test_a_whole_surrogate_pair_is_a_character(server):
    body = b'{"model": "tiny", "prompt": "\\ud83d\\ude00", "max_tokens": 1}'
    assert ask(server.port, request(body)).status == 200
    assert server.engine.submitted[-1][1] == list("😀".encode())


@pytest.mark.parametrize(
    ("path", "change", "param", "words"),
    [
        ("/v1/completions", {"prompt": None}, "prompt", "a text, a list of texts"),
        ("/v1/completions", {"prompt": []}, "prompt", "from 1 to 128 entries; got 0"),
        ("/v1/completions", {"prompt": ["x"] * 129}, "prompt", "lists from 1 to 128; got ['x',"),
        ("/v1/completions", {"prompt": ""}, "prompt", "needs at least one token"),
        ("/v1/completions", {"prompt": [[]]}, "prompt", "needs at least one token"),
        ("/v1/completions", {"prompt": [1, "x"]}, "prompt", "a list of token ids"),
        ("/v1/completions", {"prompt": [512]}, "prompt", "token ids are from 0 to 511; got 512"),
        ("/v1/completions", {"prompt": [-1]}, "prompt", "a list of token ids"),
        ("/v1/completions", {"prompt": [True]}, "prompt", "a list of token ids"),
        ("/v1/completions", {"prompt": {"a": 1}}, "prompt", "a list of token ids"),
        ("/v1/completions", {"max_tokens": 0}, "max_tokens", "from 1 on; got 0"),
        ("/v1/completions", {"max_tokens": 1.5}, "max_tokens", "from 1 on; got 1.5"),
        ("/v1/completions", {"max_tokens": "5"}, "max_tokens", "from 1 on; got '5'"),
        ("/v1/completions", {"max_tokens": True}, "max_tokens", "from 1 on; got True"),
        ("/v1/completions", {"max_tokens": 1000}, "prompt", "1000 tokens together; got a prompt"),
        ("/v1/completions", {"max_tokens": 10**40}, "prompt", "an answer of up to 1000000000000"),
        ("/v1/completions", {"temperature": -1}, "temperature", "a number from 0"),
        ("/v1/completions", {"temperature": 2.1}, "temperature", "to 2"),
        ("/v1/completions", {"temperature": 10**400}, "temperature", "a number from 0"),
        ("/v1/completions", {"top_p": 0}, "top_p", "above 0 and at most 1"),
        ("/v1/completions", {"n": 17}, "n", "from 1 to 16; got 17"),
        ("/v1/completions", {"n": 0}, "n", "from 1 to 16"),
        ("/v1/completions", {"seed": 2**63}, "seed", "of 64 bits"),
        ("/v1/completions", {"stop": ""}, "stop", "up to 4"),
        ("/v1/completions", {"stop": ["a"] * 5}, "stop", "up to 4"),
        ("/v1/completions", {"stop": "a" * 1001}, "stop", "1 to 1000 characters"),
        ("/v1/completions", {"stream": "yes"}, "stream", "true or false"),
        ("/v1/completions", {"stream_options": {}}, "stream_options", "needs stream true"),
        ("/v1/completions", {"logprobs": 6}, "logprobs", "from 0 to 5"),
        ("/v1/completions", {"logprobs": True}, "logprobs", "from 0 to 5"),
        ("/v1/completions", {"echo": True}, "echo", "not supported here; got True"),
        ("/v1/completions", {"suffix": "z"}, "suffix", "not supported"),
        ("/v1/completions", {"best_of": 2}, "best_of", "must be 1"),
        ("/v1/completions", {"best_of": True}, "best_of", "must be 1"),
        ("/v1/completions", {"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ("/v1/completions", {"presence_penalty": 0.5}, "presence_penalty", "must be 0"),
        ("/v1/completions", {"min_tokens": 4}, "min_tokens", "needs ignore_eos"),
        ("/v1/completions", {"user": 5}, "user", "a text"),
        (CHAT, {"messages": []}, "messages", "at least one message"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages", "with content"),
        (CHAT, {"messages": [{"role": "robot", "content": "x"}]}, "messages", "the role system"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages",
         "text parts"),
        (CHAT, {"logprobs": 5}, "logprobs", "true or false"),
        (CHAT, {"top_logprobs": 5}, "top_logprobs", "needs logprobs true"),
        (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "from 0 to 20"),
        (CHAT, {"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens", "mean the same"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools", "not supported"),
        (CHAT, {"response_format": {"type": "json_object"}}, "response_format", "not supported"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 1000}]}, "messages",
         "1000 tokens together"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_is_named_with_its_rule(server, path, change, param, words):
    body = {"model": MODEL, **({"messages": SAY} if path == CHAT else {"prompt": "x"}), **change}
    reply = ask(server.port, request(json.dumps(body), path))
    assert reply.status == 400
    assert reply.error["param"] == param
    assert words in reply.error["message"]
    assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("left_out", ["model", "prompt"])
def test_a_parameter_that_is_left_out_is_named(server, left_out):
    body = {"model": MODEL, "prompt": "x"}
    del body[left_out]
    reply = ask(server.port, request(body))
    assert (reply.status, reply.error["param"]) == (400, left_out)
    assert f"{left_out} is required" in reply.error["message"]


def test_neutral_values_and_unknown_parameters_are_taken(server):
    neutral = {
        "best_of": 1, "echo": False, "suffix": None, "frequency_penalty": 0.0, "logit_bias": {},
        "presence_penalty": 0, "n": None, "stop": None, "user": "u", "store": True, "wish": [1],
        "min_tokens": 0, "temperature": None, "stream": None, "logprobs": None,
    }  # fmt: skip
    assert server.post("/v1/completions", prompt="x", **neutral).status_code == 200
    neutral = {
        "tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "max_tokens": 3,
        "max_completion_tokens": 3, "logprobs": False, "parallel_tool_calls": True,
    }  # fmt: skip
    assert server.post(CHAT, messages=SAY, **neutral).status_code == 200
    floor = {"min_tokens": 4, "max_tokens": 4, "ignore_eos": True}
    assert server.post("/v1/completions", prompt="x", **floor).status_code == 200


def test_routes_methods_and_types_of_content_that_are_not_are_told_so(server):
    assert server.http.get("/v1/nothing").json()["error"]["type"] == "invalid_request_error"
    assert server.http.get("/v1/nothing").status_code == 404
    refused = server.http.get("/v1/completions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert "Method Not Allowed" in refused.json()["error"]["message"]
    for content_type in ("text/plain", ""):
        reply = ask(server.port, request({"model": MODEL}, content_type=content_type))
        assert reply.status == 415
    body = {"model": MODEL, "prompt": "x"}
    reply = ask(server.port, request(body, content_type="Application/JSON; charset=utf-8"))
    assert reply.status == 200


def chunked(pieces):
    lines = [f"{len(piece):x}\r\n".encode() + piece + b"\r\n" for piece in pieces]
    return b"".join(lines) + b"0\r\n\r\n"


def test_a_body_may_come_in_chunks(server):
    body = json.dumps({"model": MODEL, "prompt": "x"}).encode()
    head = request(b"", content_length="", transfer_encoding="chunked")
    assert ask(server.port, head + chunked([body[:5], body[5:]])).status == 200


def test_a_body_that_is_too_large_is_refused_however_its_length_is_told(server):
    large = b'"' + b"x" * 1_100_000 + b'"'
    assert ask(server.port, request(large)).status == 413
    head = request(b"", content_length="", transfer_encoding="chunked")
    assert (
        ask(
            server.port,
            head + chunked([large[i : i + 60_000] for i in range(0, len(large), 60_000)]),
        ).status
        == 413
    )
    announced = request(b"", content_length="99999999999999999999")
    reply = ask(server.port, announced)
    assert reply.status == 413
    assert "1000000 bytes" in reply.error["message"]


def test_what_is_no_http_is_answered_in_the_same_shape(server):
    for sent in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"POST /v1/completions\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",  # no Host
        b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n",
        request(b"", content_length="-1"),
        request(b"{}", content_length="2, 3"),
        request(b"", content_length="", transfer_encoding="chunked") + b"zz\r\n",
    ):
        with connect(server.port) as opened:
            opened.sendall(sent)
            found = read_all(opened)
        assert found.startswith(b"HTTP/1.1 400"), found
        assert b'"error"' in found


def test_bytes_beyond_a_content_length_are_not_taken_for_the_body(server):
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 1})
    with connect(server.port) as opened:
        opened.sendall(request(body) + b"garbage\r\n\r\n")
        found = read_all(opened)
    assert found.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400" in found


def test_a_client_that_never_ends_its_headers_or_its_body_is_sent_away(serve):
    server = serve(limits=Limits(header_s=0.2, body_s=0.2))
    with connect(server.port) as silent, connect(server.port) as slow:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: loc")
        assert read_all(silent) == read_all(slow) == b""
    reply = ask(server.port, request(b"{", content_length="100"))
    assert reply.status == 408
    with connect(server.port) as second:  # slow in its second request
        second.sendall(request({"model": MODEL, "prompt": "x"}))
        assert read_reply(second).status == 200
        second.sendall(b"POST")
        assert read_all(second) == b""
    server.assert_idle()


def test_a_full_queue_is_told_with_the_time_to_come_back(serve):
    server = serve(FakeEngine(most_waiting=1))
    server.engine.may_step.clear()
    with connect(server.port) as first:
        first.sendall(request({"model": MODEL, "prompt": "x", "stream": True}))
        first.recv(100)
        with connect(server.port) as second:
            second.sendall(request({"model": MODEL, "prompt": "x"}))
            wait_until(lambda: len(server.service.streams) == 2)
            server.engine.may_step.set()
            reply = read_reply(second)
    if reply.status != 200:  # the first may have ended before the second was heard
        assert (reply.status, reply.headers["retry-after"]) == (429, "1")
        assert reply.error["type"] == "rate_limit_error"
    server.assert_idle()


def test_a_list_of_prompts_of_which_one_finds_the_queue_full_leaves_nothing_behind(serve):
    server = serve(FakeEngine(most_waiting=2))
    reply = server.post("/v1/completions", prompt=["a", "b", "c"])
    assert reply.status_code == 429
    server.assert_idle()
    assert server.outcomes("refused") == 1
    assert server.post("/v1/completions", prompt=["a", "b"]).status_code == 200


def test_a_foreign_host_name_is_refused_on_loopback(server):
    body = {"model": MODEL, "prompt": "x"}
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.1"):
        assert ask(server.port, request(body, host=host)).status == 403
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"):
        assert ask(server.port, request(body, host=host)).status == 200


def test_with_a_key_every_route_but_health_needs_it(serve):
    server = serve(api_key="secret")
    body = {"model": MODEL, "prompt": "x"}
    for given in ("", "Bearer wrong", "Bearer ", "Basic secret", "secret", "Bearer secretx"):
        reply = ask(server.port, request(body, authorization=given))
        assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
        assert "secret" not in reply.error["message"]
    for path in ("/metrics", "/v1/models", "/openapi.json", "/nothing"):
        assert server.http.get(path).status_code == 401
    assert server.http.get("/health").status_code == 200
    assert ask(server.port, request(body, authorization="Bearer secret")).status == 200


def test_a_thousand_connections_at_once_each_get_a_clear_answer(serve):
    server = serve(FakeEngine(most_waiting=100), limits=Limits(most_connections=900))
    opened = [connect(server.port, timeout_s=60) for _ in range(1000)]
    sent = request({"model": MODEL, "prompt": "x", "max_tokens": 20})
    for one in opened:
        one.sendall(sent)
    replies = [read_reply(one) for one in opened]
    for one in opened:
        one.close()
    counts = {status: sum(r.status == status for r in replies) for status in (200, 429, 503)}
    assert sum(counts.values()) == 1000
    assert counts[200] > 0
    assert counts[503] > 0
    assert all("try again later" in r.error["message"] for r in replies if r.status != 200)
    server.assert_idle()
