"""Our server as another process starts it, and the engines that are found beside it."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.request import urlopen

import psutil
import pytest

from prefill_decode.endpoint import launch
from prefill_decode.endpoint.launch import ServedHere, found_engines, serving_pids
from tests.endpoint.conftest import wait_until
from tests.small_config import write_small_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_config(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def served(folder):
    served = ServedHere(str(folder), "float32", "cpu", 1, ("--blocks", "40"))
    yield served
    served.stop()


def listed(url: str) -> str:
    with urlopen(f"{url}/v1/models", timeout=10) as answer:
        return json.load(answer)["data"][0]["id"]


LIST = b'{"data": [{"id": "theirs", "owned_by": "vllm"}]}'


@contextmanager
def answering(body):
    """Answers every GET with this, and says on which port."""

    class Lists(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words):
            pass

    server = HTTPServer(("127.0.0.1", 0), Lists)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def other_engine():
    """Lists one model, as any engine does."""
    with answering(LIST) as port:
        yield port


def test_our_server_answers_where_it_says_and_has_the_threads_it_was_given(served):
    assert listed(served.url) == "small"
    assert psutil.Process(served.pid).environ()["OMP_NUM_THREADS"] == "1"


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(ValueError, match=r"did not start; its last words: .*no-such-model"):
        ServedHere("no-such-model", "float32", "cpu", 1)


def test_a_server_that_says_nothing_is_ended(folder, monkeypatch):
    monkeypatch.setattr(launch, "LONGEST_START_S", 0.0)
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(ValueError, match="nothing within 0 s"):
        ServedHere(str(folder), "float32", "cpu", 1)
    assert {child.pid for child in psutil.Process().children()} == before


def test_it_stops_once_and_a_second_time_does_nothing(folder):
    served = ServedHere(str(folder), "float32", "cpu", 1, ("--blocks", "40"))
    served.stop()
    assert served.process.returncode == 0
    served.stop()


def test_it_dies_with_the_process_that_started_it_however_that_ends(folder):
    code = (
        "from prefill_decode.endpoint.launch import ServedHere; import sys\n"
        f"print(ServedHere({str(folder)!r}, 'float32', 'cpu', 1, ('--blocks', '40')).pid, "
        "flush=True)\nsys.stdin.read()"
    )
    words = [sys.executable, "-c", code]
    parent = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        pid = int(parent.stdout.readline())
        server = psutil.Process(pid)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        wait_until(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
    finally:
        parent.kill()
        parent.communicate()


def test_engines_are_named_with_their_addresses():
    words = ["vllm=http://127.0.0.1:8000", "llama.cpp=http://localhost:8080/v1/"]
    assert found_engines(words) == {
        "vllm": "http://127.0.0.1:8000",
        "llama.cpp": "http://localhost:8080",
    }
    assert found_engines([]) == {}


@pytest.mark.parametrize("words", [["http://127.0.0.1:8000"], ["=x"], ["a=http://h", "a=http://h"]])
def test_an_engine_without_a_name_of_its_own_is_refused(words):
    with pytest.raises(ValueError, match="NAME=URL, each name once"):
        found_engines(words)


def test_an_address_that_is_none_is_refused():
    with pytest.raises(ValueError, match="a server's address is like"):
        found_engines(["vllm=127.0.0.1"])


def test_whatever_answers_on_the_usual_ports_is_found_but_never_our_own(
    served, other_engine, monkeypatch
):
    ours = int(served.url.rpartition(":")[2])
    ports = {ours: "ours", other_engine: "vLLM", 9: "nobody"}
    monkeypatch.setattr(launch, "USUAL_PORTS", ports)
    assert found_engines() == {f"{other_engine}: theirs": f"http://127.0.0.1:{other_engine}"}


@pytest.mark.parametrize("body", [b"hello", b"[]", b'{"data": []}', b'{"data": ["x"]}', b"\xff"])
def test_what_answers_but_lists_no_models_is_no_engine(body, monkeypatch):
    with answering(body) as port:
        monkeypatch.setattr(launch, "USUAL_PORTS", {port: "something"})
        assert found_engines() == {}


def test_what_speaks_no_http_is_no_engine(monkeypatch):
    def speak():
        opened, _ = listening.accept()
        opened.recv(1000)
        opened.sendall(b"220 mail\r\n")
        opened.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=speak, daemon=True).start()
        monkeypatch.setattr(launch, "USUAL_PORTS", {listening.getsockname()[1]: "mail"})
        assert found_engines() == {}


def test_the_process_that_serves_is_found_by_its_port(served, other_engine):
    urls = [served.url, f"http://127.0.0.1:{other_engine}"]
    assert serving_pids(urls) == sorted([served.pid, os.getpid()])
    assert serving_pids([]) == []


def test_a_process_that_cannot_be_seen_is_an_error_because_its_work_looks_like_others(monkeypatch):
    monkeypatch.setattr(launch, "_listening", lambda ports: {})
    with pytest.raises(ValueError, match="start the engine as the same user"):
        serving_pids(["http://127.0.0.1:8000"])
    assert serving_pids(["http://192.0.2.1:8000"]) == []  # no processor of this machine
