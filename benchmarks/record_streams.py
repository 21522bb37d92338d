"""Record streams: what servers really send, read by read, for the tests of the stream's parser.

    python benchmarks/servers.py vllm                                       # prints the URL
    python benchmarks/record_streams.py vllm URL tests/endpoint/recordings

writes ENGINE-CASE.jsonl, one line a network read, {"t": seconds since the request, "base64": the
body's bytes}, and in ENGINE.json what was asked and the status and headers of each answer. Needs
aiohttp. The chunks of the transfer encoding are taken off; a read may hold several events or a part
of one, as it came.
"""

import asyncio
import base64
import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

MODEL = "laptop-254m"
PROMPT = "t5 t17 t256 t1024 t30 t31 t32 t33"
LONG = " ".join(f"t{i}" for i in range(3000))  # some seconds of prefill
TOO_LONG = " ".join(f"t{i}" for i in range(4200))  # the servers hold 4,096 tokens
KEPT_HEADERS = ("content-type", "transfer-encoding", "content-length", "connection", "keep-alive")
USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}
SHOWN_PROMPT_LETTERS = 60


@dataclass(frozen=True)
class Case:
    """A request, and after how many reads the client hangs up (None: it reads to the end)."""

    path: str
    asked: Mapping[str, Any]
    hang_up_after_reads: int | None = None


@dataclass(frozen=True)
class Recording:
    status: int
    headers: Mapping[str, str]
    reads: tuple[tuple[float, bytes], ...]


def completion(prompt: object = PROMPT, **asked: object) -> Case:
    fields = {"prompt": prompt, "max_tokens": 12, "temperature": 0, "stream": True}
    return Case("/v1/completions", {"model": MODEL, **fields, **asked})


def chat(text: str = PROMPT, **asked: object) -> Case:
    messages = [{"role": "user", "content": text}]
    fields = {"messages": messages, "max_tokens": 12, "temperature": 0, "stream": True}
    return Case("/v1/chat/completions", {"model": MODEL, **fields, **asked})


def cases(stop_word: str) -> dict[str, Case]:
    """Stop words only stop where they come up: `stop_word` is one of the plain answer's."""
    return {
        "chat": chat(),
        "chat-one-token": chat(max_tokens=1),
        "chat-two-answers": chat(n=2, max_tokens=8, temperature=1, seed=1),
        "chat-stop": chat(stop=[stop_word]),
        "chat-usage": chat(stream_options=USAGE),
        "chat-continuous-usage": chat(stream_options=CONTINUOUS),
        "chat-prompt-too-long": chat(TOO_LONG),
        "chat-unknown-model": chat(model="unknown"),
        "chat-aborted": replace(chat(max_tokens=64), hang_up_after_reads=4),
        "completion": completion(),
        "completion-one-token": completion(max_tokens=1),
        "completion-two-answers": completion(n=2, max_tokens=8, temperature=1, seed=1),
        "completion-stop": completion(stop=[stop_word]),
        "completion-usage": completion(stream_options=USAGE),
        "completion-continuous-usage": completion(stream_options=CONTINUOUS),
        "completion-ids": completion(
            [300, 301, 302, 303], ignore_eos=True, min_tokens=12, stream_options=USAGE
        ),
        "completion-prompt-too-long": completion(TOO_LONG),
        "completion-pings": completion(LONG, max_tokens=2, sse_ping_interval=1),
        "completion-aborted": replace(completion(max_tokens=64), hang_up_after_reads=4),
        "completion-not-streamed": completion(stream=False),
    }


async def record(client: aiohttp.ClientSession, url: str, case: Case) -> Recording:
    reads = []
    started_s = time.perf_counter()
    async with client.post(url + case.path, json=case.asked) as answer:
        async for data in answer.content.iter_any():
            reads.append((time.perf_counter() - started_s, data))
            if len(reads) == case.hang_up_after_reads:
                answer.close()
                break
        headers = {k: answer.headers[k] for k in KEPT_HEADERS if k in answer.headers}
        return Recording(answer.status, headers, tuple(reads))


async def record_all(engine: str, url: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    about = {}
    # a connection each: llama.cpp closes one after a stream, though it says keep-alive
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as client:
        for name, case in cases(await a_word_that_comes_up(client, url)).items():
            recording = await record(client, url, case)
            (folder / f"{engine}-{name}.jsonl").write_text(lines(recording))
            about[name] = description(case, recording)
            print(name, recording.status, len(recording.reads), "reads", file=sys.stderr)
    (folder / f"{engine}.json").write_text(json.dumps(about, indent=1) + "\n")


async def a_word_that_comes_up(client: aiohttp.ClientSession, url: str) -> str:
    """The fifth word of the plain answer; asking for it also warms the server up."""
    case = completion(stream=False)
    async with client.post(url + case.path, json=case.asked) as answer:
        text = (await answer.json())["choices"][0]["text"]
    return str(text.split()[4])


def lines(recording: Recording) -> str:
    rows = (
        {"t": round(t_s, 6), "base64": base64.b64encode(data).decode()}
        for t_s, data in recording.reads
    )
    return "".join(json.dumps(row) + "\n" for row in rows)


def description(case: Case, recording: Recording) -> dict[str, Any]:
    asked = json.loads(json.dumps(case.asked))
    for holder, key in ((asked, "prompt"), *((m, "content") for m in asked.get("messages", []))):
        if isinstance(text := holder.get(key), str) and len(text) > SHOWN_PROMPT_LETTERS:
            holder[key] = f"{text[:SHOWN_PROMPT_LETTERS]} ... ({len(text.split())} words)"
    return {
        **asdict(replace(case, asked=asked)),
        "status": recording.status,
        "headers": dict(recording.headers),
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", help="begins the files' names")
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    asyncio.run(record_all(options.engine, options.url.rstrip("/"), options.folder))


if __name__ == "__main__":
    main()
