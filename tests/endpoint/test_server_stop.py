"""A server stops as it was asked to: running requests first finish, and nothing hangs."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

from tests.conftest import ROOT
from tests.endpoint.conftest import wait_until
from tests.endpoint.raw_http import ask, connect, read_all, request

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@contextmanager
def serving(grace_s=20, steps=10**9):
    words = [sys.executable, "-m", "tests.endpoint.serve_fake", str(grace_s), str(steps)]
    process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        process.port = int(process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.communicate()


def begin(port, **body):
    """A stream that has begun."""
    opened = connect(port)
    opened.sendall(request({"model": "tiny", "prompt": "x", "stream": True, **body}))
    assert b"200 OK" in opened.recv(300)
    return opened


def ended(process):
    _, errors = process.communicate(timeout=20)
    assert b"Traceback" not in errors
    return process.returncode


def test_a_signal_lets_running_requests_finish_and_refuses_new_ones():
    with serving() as process, begin(process.port, max_tokens=200) as opened:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: ask(process.port, HEALTH).status == 503)
        late = ask(process.port, request({"model": "tiny", "prompt": "x"}))
        assert (late.status, late.error["code"]) == (503, "stopping")
        found = read_all(opened).decode()
        assert '"finish_reason": "length"' in found
        assert "data: [DONE]" in found
        assert ended(process) == 0


def test_requests_that_take_longer_than_the_grace_end_with_an_error_event():
    with serving(grace_s=0.2) as process:
        opened = [begin(process.port, max_tokens=900_000) for _ in range(5)]
        process.send_signal(signal.SIGINT)
        for one in opened:
            *_, error, done, _ = read_all(one).decode().split("\n\n")
            assert "the server stopped before the end" in error
            assert "data: [DONE]" in done
            one.close()
        assert ended(process) == 0


def test_a_second_signal_ends_them_at_once():
    with serving(grace_s=10_000) as process, begin(process.port, max_tokens=900_000) as opened:
        process.send_signal(signal.SIGTERM)
        wait_until(lambda: ask(process.port, HEALTH).status == 503)
        process.send_signal(signal.SIGINT)
        assert "the server stopped before the end" in read_all(opened).decode()
        assert ended(process) == 0


def test_an_idle_server_stops_at_once_idle_connections_or_not():
    with serving(grace_s=10_000) as process, connect(process.port), connect(process.port) as used:
        used.sendall(HEALTH)
        used.recv(1000)
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0


def test_a_reader_that_stands_still_does_not_keep_a_server_from_stopping():
    with serving(grace_s=0.2) as process:
        slow = connect(process.port, receive_buffer=4096)
        slow.sendall(request({"model": "tiny", "prompt": "x", "n": 16, "stream": True,
                              "max_tokens": 900_000}))  # fmt: skip
        wait_until(lambda: slow.recv(1))
        process.send_signal(signal.SIGTERM)
        assert ended(process) == 0
        slow.close()


def test_an_engine_that_fails_ends_the_process_with_1_after_telling_its_clients():
    with serving(steps=20) as process, begin(process.port, max_tokens=900_000) as opened:
        *_, error, done, _ = read_all(opened).decode().split("\n\n")
        told = json.loads(error.partition("data: ")[2])["error"]
        assert (told["code"], told["type"]) == ("engine_failed", "server_error")
        assert "data: [DONE]" in done
        assert ended(process) == 1
