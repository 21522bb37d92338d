"""Soak: `serve --prefill 1 --decode 2` under mixed load while its workers are killed and stopped.

    .venv/bin/python benchmarks/soak.py --minutes 10     # --help for the rest

Clients ask in a closed loop: short and long prompts, one answer or several, greedy and drawn,
streamed and whole, with and without words that stop them; some leave before the end. Meanwhile a
worker is killed, or stopped for a while, every few seconds. Every text is held against that of one
engine in this process, in float64; at the end nothing may be held by anybody.

Counts:  answers that are whole, failed with an error in words, or broken off without one; texts
         that are not the engine's; blocks that did not come back.
Ignores: time.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import torch

from prefill_decode import hf_config
from prefill_decode.endpoint.launch import COMMAND, READY
from prefill_decode.endpoint.tokenizer import ByteTokenizer
from prefill_decode.engine.sampling import Sampling
from prefill_decode.engine.serving import build_serving_engine

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
OPTIONS = ["--dtype", "float64", "--device", "cpu", "--port", "0", "--block-tokens", "16",
           "--blocks", "200", "--most-tokens-per-step", "128", "--most-sequences", "16",
           "--most-waiting", "24", "--worker-threads", "1"]  # fmt: skip
KINDS = 40  # of requests
STOPPED_S = (0.5, 25.0)  # some of these are longer than a worker may be silent
SETTLING_S = 180.0
TELL_S = 15.0


@dataclass(frozen=True)
class Kind:
    """A request, and the texts of its answers, up to what stops them."""

    body: dict[str, Any]
    texts: tuple[str, ...]


class Oracle:
    """One engine, nothing beside it."""

    def __init__(self, folder: Path) -> None:
        torch.set_num_threads(1)  # of a small model, on a machine with much else to do
        spec = hf_config.find(str(folder), "float64")
        self.engine = build_serving_engine(spec, cache_tokens=16_000)
        self.words = ByteTokenizer(spec.vocab_size)

    def kind(self, dice: random.Random) -> Kind:
        prompt = "".join(dice.choices("abcdefgh ", k=dice.choice((5, 40, 200, 900))))
        most, answers = dice.choice((1, 8, 60, 200)), dice.choice((1, 1, 2, 3))
        drawn = dice.random() < 0.5
        settings = {"temperature": 1.0, "top_p": 0.9, "seed": dice.randrange(99)} if drawn else {}
        texts = self._texts(prompt, most, Sampling(**settings), answers)
        stop = texts[0][most // 2 : most // 2 + 2] if dice.random() < 0.3 else ""
        body = {"model": "soak", "prompt": prompt, "max_tokens": most, "n": answers,
                "ignore_eos": True, "temperature": 0, **settings}  # fmt: skip
        if stop:
            body["stop"] = stop
            texts = [text.partition(stop)[0] for text in texts]
        return Kind(body, tuple(texts))

    def _texts(self, prompt: str, most: int, sampling: Sampling, answers: int) -> list[str]:
        self.engine.submit("r", self.words.encode(prompt), most, sampling, answers=answers)
        ids: dict[int, list[int]] = {answer: [] for answer in range(answers)}
        while self.engine.has_work:
            for token in self.engine.step():
                ids[token.answer].append(token.token_id)
        return [self.words.decode(ids[answer]) for answer in range(answers)]


class Soak:
    def __init__(self, url: str, pid: int, kinds: list[Kind], minutes: float, seed: int) -> None:
        self.url, self.server, self.kinds = url, psutil.Process(pid), kinds
        self.end_s = time.monotonic() + 60 * minutes
        self.dice = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.notes: list[str] = []

    async def run(self, clients: int) -> None:
        timeout = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            asking = [asyncio.create_task(self._ask_on(session)) for _ in range(clients)]
            hurting = asyncio.create_task(self._hurt())
            telling = asyncio.create_task(self._tell())
            await asyncio.gather(*asking)
            await hurting
            self.left = await self._settled(session)
            telling.cancel()

    async def _tell(self) -> None:
        while True:
            left_s = max(0.0, self.end_s - time.monotonic())
            print(f"{left_s:5.0f} s left  {dict(self.outcomes)}", file=sys.stderr, flush=True)
            await asyncio.sleep(TELL_S)

    async def _ask_on(self, session: aiohttp.ClientSession) -> None:
        while time.monotonic() < self.end_s:
            kind = self.dice.choice(self.kinds)
            try:
                outcome = await self._ask(session, kind)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                outcome = "broken"
                self.notes.append(f"broken: {error!r:.200}")
            self.outcomes[outcome] += 1
            if outcome == "refused":
                await asyncio.sleep(self.dice.random())

    async def _ask(self, session: aiohttp.ClientSession, kind: Kind) -> str:
        stream = self.dice.random() < 0.7
        leave_after = self.dice.randrange(1, 20) if self.dice.random() < 0.2 else None
        body = kind.body | {"stream": stream}
        async with session.post(f"{self.url}/v1/completions", json=body) as reply:
            if reply.status == 429:
                return "refused"
            if not stream:
                read = await reply.json()
                if "error" in read:
                    return self._failed(read)
                return self._held([choice["text"] for choice in read["choices"]], kind, True)
            texts = [""] * len(kind.texts)
            async for line in reply.content:
                if not line.startswith(b"data: "):
                    continue
                if line.startswith(b"data: [DONE]"):
                    return self._held(texts, kind, True)
                read = json.loads(line[6:])
                if "error" in read:
                    return self._failed(read)
                for choice in read["choices"]:
                    texts[choice["index"]] += choice["text"]
                if leave_after is not None and (leave_after := leave_after - 1) <= 0:
                    return self._held(texts, kind, False)
        raise ValueError("the stream ended without a word")

    def _failed(self, read: dict[str, Any]) -> str:
        self.notes.append(f"failed: {read['error']['message']:.200}")
        return "failed"

    def _held(self, texts: list[str], kind: Kind, whole: bool) -> str:
        pairs = list(zip(texts, kind.texts, strict=True))
        right = texts == list(kind.texts) if whole else all(w.startswith(t) for t, w in pairs)
        if not right:
            self.notes.append(f"wrong: {kind.body} gave {texts}, not {kind.texts}")
            return "wrong"
        return "whole" if whole else "left"

    async def _hurt(self) -> None:
        while time.monotonic() < self.end_s:
            await asyncio.sleep(self.dice.uniform(1.0, 12.0))
            workers = self.server.children()
            if not workers:
                continue
            victim = self.dice.choice(workers)
            if self.dice.random() < 0.5:
                self._signal(victim.pid, signal.SIGKILL)
                continue
            self._signal(victim.pid, signal.SIGSTOP)
            await asyncio.sleep(self.dice.uniform(*STOPPED_S))
            self._signal(victim.pid, signal.SIGCONT)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        self.faults[number.name] += 1

    async def _settled(self, session: aiohttp.ClientSession) -> dict[str, float]:
        """The server's counts, once nothing runs and all workers are there, or after a while."""
        end_s = time.monotonic() + SETTLING_S
        while True:
            async with session.get(f"{self.url}/metrics") as reply:
                text = await reply.text()
            found = dict(re.findall(r"^prefill_decode_(\w+) (\S+)$", text, re.MULTILINE))
            counts = {name: float(value) for name, value in found.items()}
            there = counts["prefill_workers"] == 1 and counts["decode_workers"] == 2
            idle = counts["running_sequences"] == counts["waiting_sequences"] == 0
            leaked = counts["blocks"] - counts["free_blocks"]
            if (there and idle and not leaked) or time.monotonic() > end_s:
                return counts | {"leaked": leaked, "missing": 0 if there else 1}
            await asyncio.sleep(0.5)

    def report(self) -> tuple[str, bool]:
        """In words, and whether all is well."""
        left, bad = self.left, self.outcomes["wrong"] + self.outcomes["broken"]
        lines = [
            f"requests             {sum(self.outcomes.values())}",
            *(f"  {name:18} {self.outcomes[name]}" for name in
              ("whole", "left", "refused", "failed", "broken", "wrong")),
            f"workers lost         {left['lost_workers_total']:.0f}  {dict(self.faults)}",
            f"answers recomputed   {left['recomputed_answers_total']:.0f}",
            f"caches moved         {left['kv_transfers_total']:.0f}",
            f"blocks leaked        {left['leaked']:.0f} of {left['blocks']:.0f}",
            f"left running         {left['running_sequences'] + left['waiting_sequences']:.0f}",
            *self.notes[-20:],
        ]  # fmt: skip
        stuck = left["running_sequences"] + left["waiting_sequences"] + left["missing"]
        return "\n".join(lines), not (bad or left["leaked"] or stuck)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument(
        "--transfer", default="auto", choices=("auto", "unix", "tcp", "cma", "nixl")
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "soak"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        oracle, dice = Oracle(folder), random.Random(options.seed)
        kinds = [oracle.kind(dice) for _ in range(KINDS)]
        words = ["serve", "--model", str(folder), "--prefill", "1", "--decode", "2",
                 "--transfer", options.transfer, *OPTIONS]  # fmt: skip
        server = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            found = READY.search(server.stdout.readline().decode())
            if found is None:
                return 1
            soak = Soak(found[1], server.pid, kinds, options.minutes, options.seed)
            asyncio.run(soak.run(options.clients))
        finally:
            server.terminate()
            code = server.wait(60)
    report, well = soak.report()
    print(report)
    return 0 if well and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
