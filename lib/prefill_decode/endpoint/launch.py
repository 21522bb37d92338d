"""Launch: engines behind OpenAI-compatible endpoints, to be measured: our own, and what is running.

Ours runs in a process of its own, as `prefill-decode serve` starts it, and ends with the one that
started it, however that ends. Other engines are found by their usual ports on loopback, or named.

Ignores: engines on other machines, whose processors these are not.
"""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

import psutil

from prefill_decode.endpoint.client import base_url
from prefill_decode.endpoint.doors import is_loopback

USUAL_PORTS = {8000: "vLLM", 8080: "llama.cpp", 30000: "SGLang"}
KNOCK_S = 0.3
MOST_LIST_BYTES = 64 * 2**10
LONGEST_START_S = 300.0  # large random weights take their time
LONGEST_STOP_S = 15.0
LAST_LINES = 5
NO_LIST = (OSError, HTTPException, ValueError, RecursionError, TypeError, LookupError)
OURS = "prefill-decode"  # owns the models that our server lists
READY = re.compile(r" at (http://\S+)/v1: ")
COMMAND = """\
import os, signal, sys, threading
from prefill_decode.cli import main
end = lambda: (sys.stdin.read(), os.kill(os.getpid(), signal.SIGTERM))
threading.Thread(target=end, daemon=True).start()
sys.exit(main(sys.argv[1:]))
"""  # the command, which a standard input that ends stops: it ends with the process that holds it


class ServedHere:
    """Our server in a process of its own, ready for requests; `stop` ends it.

    ValueError with its last words if it does not start."""

    def __init__(
        self, model: str, dtype: str, device: str, threads: int, options: Sequence[str] = ()
    ) -> None:
        words = ["serve", "--model", model, "--dtype", dtype, "--device", device, "--port", "0"]
        words += ["--no-prefix-reuse", "--grace", "0", *options]
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the server
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        atexit.register(self.stop)
        self.url = self._ready_url()

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Asks it to end, and ends it where it does not; a second time does nothing."""
        atexit.unregister(self.stop)
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(LONGEST_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for opened in (self.process.stdin, self.process.stdout, self._errors):
            if opened is not None:
                opened.close()

    def _ready_url(self) -> str:
        """Waits for the line that says where it serves."""
        assert self.process.stdout is not None
        said = ""
        if select.select([self.process.stdout], [], [], LONGEST_START_S)[0]:
            said = self.process.stdout.readline().decode("utf-8", "replace")
        found = READY.search(said)
        if found is None:
            self.process.kill()
            self.process.wait()
            words = self._last_words() or f"nothing within {LONGEST_START_S:g} s"
            self.stop()
            raise ValueError(f"our own server did not start; its last words: {words}")
        return found.group(1)

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").splitlines()
        return " ".join(lines[-LAST_LINES:]).strip()


def found_engines(named: Sequence[str] | None = None) -> dict[str, str]:
    """Engines by name, with their addresses: those of NAME=URL words, or where none are given
    whatever answers on the usual ports of loopback, our own server left out."""
    if named is None:
        return dict(_answering())
    found: dict[str, str] = {}
    for word in named:
        name, equals, url = word.partition("=")
        if not equals or not name or name in found:
            raise ValueError(
                f"an engine is given as NAME=URL, each name once; got {word!r}: write "
                "vllm=http://127.0.0.1:8000"
            )
        found[name] = base_url(url).removesuffix("/v1")
    return found


def _answering() -> Iterator[tuple[str, str]]:
    opener = build_opener(ProxyHandler({}))  # loopback needs no proxy
    for port in USUAL_PORTS:
        url = f"http://127.0.0.1:{port}"
        with suppress(*NO_LIST):
            with opener.open(f"{url}/v1/models", timeout=KNOCK_S) as answer:
                model = dict(json.loads(answer.read(MOST_LIST_BYTES))["data"][0])
            if model.get("owned_by") != OURS:
                yield f"{port}: {model['id']}", url


def serving_pids(urls: Iterable[str]) -> list[int]:
    """The processes of this machine that listen at these addresses.

    ValueError for an address of loopback whose process the system does not show: its work could
    not be told from other programs'."""
    ports = {}
    for url in urls:
        parts = urlsplit(url)
        if is_loopback(parts.hostname or ""):
            ports[parts.port or 80] = url
    listening = _listening(set(ports)) if ports else {}
    for port, url in ports.items():
        if port not in listening:
            raise ValueError(
                f"the process that serves {url} must be seen, to tell its work from other "
                "programs'; the system shows none: start the engine as the same user"
            )
    return sorted(set(listening.values()))


def _listening(ports: set[int]) -> dict[int, int]:
    """Which process listens on each of these ports, as far as the system shows it."""
    found: dict[int, int] = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            for connection in process.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports:
                    found.setdefault(connection.laddr.port, process.pid)
    return found
