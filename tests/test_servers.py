"""Starting other engines as servers: healthy or an error with the log's end, and nothing left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import servers
from servers import Launch, ServerError

# Answers /health on the port it is given, and has a child that only a kill ends.
HEALTHY = """
import http.server, subprocess, sys
stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); "
stubborn += "time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", stubborn], stdout=subprocess.PIPE)
child.stdout.readline()
open("child", "w").write(str(child.pid))
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Health).serve_forever()
"""
FAILING = "print('loading'); raise SystemExit('no such model')"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes `fake` an engine that runs that script."""

    def make(script: str) -> None:
        def launch(folder: Path, port: int, threads: int) -> Launch:
            return Launch((sys.executable, "-c", script, str(port)), {}, tmp_path)

        monkeypatch.setitem(servers.ENGINES, "fake", launch)

    return make


def has_ended(pid: int) -> bool:
    """A killed process may take a moment; its parent, gone too, can no longer wait for it."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.01)
    return False


def test_a_stopped_server_leaves_no_process_of_its_group(engine, tmp_path):
    engine(HEALTHY)
    server = servers.start("fake", tmp_path, 0, threads=1)
    child = int((tmp_path / "child").read_text())
    assert psutil.pid_exists(child)
    server.stop()
    assert server.process.returncode is not None
    assert has_ended(child)


def test_a_server_that_is_stopped_while_it_is_paused_ends_too(engine, tmp_path):
    engine(HEALTHY)
    server = servers.start("fake", tmp_path, 0, threads=1)
    server.signal(signal.SIGSTOP)
    server.stop()
    assert server.process.returncode == -signal.SIGTERM


def test_a_server_that_does_not_start_shows_the_log_s_end_and_exit_code_two(
    engine, tmp_path, capsys
):
    engine(FAILING)
    assert servers.main(["fake", "--folder", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "fake ended with code 1" in said
    assert "no such model" in said
    assert str(tmp_path / "logs") in said


def test_a_program_that_is_not_there_is_a_sentence_that_names_peers_sh(tmp_path):
    with pytest.raises(ServerError, match=r"vllm cannot be started: .* run peers\.sh"):
        servers.start("vllm", tmp_path, 0, threads=1)


def test_what_follows_two_dashes_goes_to_the_engine():
    options = servers._read_options(["vllm", "--port", "7", "--", "--port", "8", "--", "x"])
    assert options.port == 7
    assert options.to_engine == ["--port", "8", "--", "x"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_the_url_and_ends_in_peace_when_interrupted(number, tmp_path):
    fake = tmp_path / "vllm" / "bin" / "vllm"
    fake.parent.mkdir(parents=True)
    script = HEALTHY.replace("sys.argv[1]", "sys.argv[sys.argv.index('--port') + 1]")
    fake.write_text(f"#!{sys.executable}\n{script}")
    fake.chmod(0o755)
    command = subprocess.Popen(
        [sys.executable, ROOT / "benchmarks" / "servers.py", "vllm", "--folder", tmp_path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"},
    )
    assert command.stdout is not None
    assert command.stdout.readline().startswith("http://127.0.0.1:")
    command.send_signal(number)
    _, said = command.communicate(timeout=30)
    assert command.returncode == 0
    assert "Traceback" not in said
    assert has_ended(int((tmp_path / "child").read_text()))
