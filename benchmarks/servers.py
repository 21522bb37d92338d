"""Servers: another engine behind an OpenAI-compatible endpoint on loopback, with random weights.

    python benchmarks/servers.py vllm|llamacpp|transformers [--port P] [--folder F] [-- ARGUMENT...]

prints the server's URL once it is healthy and stops it on Ctrl-C. What follows -- goes to the
engine: `-- --max-num-batched-tokens 128`. The model is laptop-254m in float32, served under that
name; peers.sh made it and the engines, in F (_build/peers unless given).

A server is a process group of its own, and no process of that group outlives this one's stop. Its
log is F/logs/ENGINE-PORT.log. The standard library alone is needed, so any Python will do.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

ROOT = Path(__file__).resolve().parents[1]
MODEL = "laptop-254m"
CONTEXT_TOKENS = 4096
LONGEST_START_S = 600
LONGEST_STOP_S = 15
POLL_S = 0.25
LAST_LINES = 15
FINE, FAILED = 0, 2


class ServerError(Exception):
    """A server did not become healthy; the message says why and shows the log's last lines."""


@dataclass(frozen=True)
class Launch:
    """What starts a server: its words, what its environment has beside this one's, and where."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path


def vllm(folder: Path, port: int, threads: int) -> Launch:
    home = folder / "vllm"
    return Launch(
        (
            *(str(home / "bin" / "vllm"), "serve", str(folder / "models" / MODEL)),
            *("--served-model-name", MODEL, "--dtype", "float32"),
            *("--max-model-len", str(CONTEXT_TOKENS), "--no-enable-prefix-caching"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ),
        {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
            "VLLM_HOST_IP": "127.0.0.1",
            "LD_PRELOAD": str(home / "lib" / "libiomp5.so"),  # as its manual asks for on a CPU
        },
        folder,
    )


def llamacpp(folder: Path, port: int, threads: int) -> Launch:
    """16 sequences at a time, each of up to 4,096 tokens, in a cache they share."""
    return Launch(
        (
            str(folder / "llamacpp" / "build" / "bin" / "llama-server"),
            *("--model", str(folder / "models" / f"{MODEL}.gguf"), "--alias", MODEL),
            *("--ctx-size", str(16 * CONTEXT_TOKENS), "--parallel", "16", "--kv-unified"),
            *("--cache-type-k", "f32", "--cache-type-v", "f32", "--threads", str(threads)),
            *("--host", "127.0.0.1", "--port", str(port), "--offline", "--no-cache-prompt"),
        ),
        {},
        folder,
    )


def transformers(folder: Path, port: int, threads: int) -> Launch:
    """Batched continuously, in blocks that hold as many tokens as the others' caches do.

    A model's path is its name there: started beside the model, the name is as the others have it.
    """
    return Launch(
        (
            *(str(folder / "python" / "bin" / "transformers"), "serve"),
            *(MODEL, "--continuous-batching", "--dtype", "float32"),
            *("--attn-implementation", "sdpa", "--device", "cpu"),
            *("--cb-block-size", "32", "--cb-num-blocks", str(16 * CONTEXT_TOKENS // 32)),
            *("--cb-max-batch-tokens", "2048"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ),
        {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)},
        folder / "models",
    )


ENGINES = {"vllm": vllm, "llamacpp": llamacpp, "transformers": transformers}


class Server:
    """A server that runs and is healthy; `stop` ends every process it started."""

    def __init__(self, name: str, launch: Launch, port: int, log: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.name = name
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            try:
                self.process = subprocess.Popen(
                    launch.words,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **launch.environment},
                    cwd=launch.folder,
                    start_new_session=True,  # a group of its own: its children stop with it
                )
            except OSError as error:
                raise ServerError(f"{name} cannot be started: {error}; run peers.sh") from None
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ask, wait, then end whatever is left of the group; a second Ctrl-C skips the wait."""
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            self.process.wait(LONGEST_STOP_S)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not stop when asked, so it was killed", file=sys.stderr)
        finally:
            self.signal(signal.SIGKILL)
            self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        """To every process of the group, also once its first has ended."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def _wait_until_healthy(self) -> None:
        end_s = time.monotonic() + LONGEST_START_S
        while not self._is_healthy():
            if self.process.poll() is not None:
                code = self.process.returncode
                raise ServerError(f"{self.name} ended with code {code}:\n{self._last_words()}")
            if time.monotonic() > end_s:
                raise ServerError(
                    f"{self.name} was not healthy after {LONGEST_START_S} s:\n{self._last_words()}"
                )
            time.sleep(POLL_S)

    def _is_healthy(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def _last_words(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join([*lines, f"(all of it: {self.log})"])


def start(
    name: str, folder: Path, port: int, threads: int, arguments: Sequence[str] = ()
) -> Server:
    """A healthy server of that engine. ServerError if it cannot be had."""
    port = port or free_port()
    launch = ENGINES[name](folder.resolve(), port, threads)
    launch = replace(launch, words=(*launch.words, *arguments))
    return Server(name, launch, port, folder.resolve() / "logs" / f"{name}-{port}.log")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(sys.argv[1:] if arguments is None else arguments)
    try:
        server = start(
            options.engine, options.folder, options.port, options.threads, options.to_engine
        )
    except ServerError as error:
        print(error, file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FINE
    try:
        print(server.url, flush=True)
        code = server.process.wait()
        print(f"{server.name} ended by itself with code {code}; see {server.log}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return FINE
    finally:
        server.stop()


def _read_options(arguments: Sequence[str]) -> Namespace:
    cut = list(arguments).index("--") if "--" in arguments else len(arguments)
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("--port", type=int, default=0, help="0, the default: any that is free")
    parser.add_argument("--folder", type=Path, default=ROOT / "_build" / "peers")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments[:cut])
    options.to_engine = arguments[cut + 1 :]
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    sys.exit(main())
