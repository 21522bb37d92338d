"""Serve: the line protocol that every adapter speaks with the runner.

Once its engine is loaded, an adapter writes {"version": ...}. Then each line {"step": "prefill
512"} or {"step": "decode 4 at 512"} is answered with {"time_s": ...}, the time of one such step,
or with {"error": ...}. A decode step brings one further token for each of 4 sequences that hold
512 tokens each; a prefill step brings one prompt and wants the logits of its last token. "answer 16
of 128 plus 64" is no step but 16 requests at once, each with a prompt of 128 tokens and an answer
of 64, from the first token to the last."""

import json
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

DECODE_STEPS = 5  # timed in one answer, whose time is their median

# Engines print what they like: only answers may reach the runner's pipe.
_answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


@dataclass(frozen=True)
class Options:
    model: str  # name of a shipped model, and of its files in `peers`
    peers: Path  # what peers.sh made
    threads: int
    prefills: tuple[int, ...]  # tokens of each prompt that will be asked for
    decodes: tuple[tuple[int, int], ...]  # batch and context of each decode step, likewise

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, the decode steps of one answer included."""
        decodes = [context + DECODE_STEPS + 1 for _, context in self.decodes]
        return max([*self.prefills, *decodes])

    @property
    def widest(self) -> int:
        return max([1, *(batch for batch, _ in self.decodes)])


class Engine(Protocol):
    version: str

    def prefill(self, tokens: int) -> float: ...
    def decode(self, batch: int, context_tokens: int) -> float: ...


class Batcher(Protocol):
    version: str

    def answer(self, requests: int, prompt_tokens: int, output_tokens: int) -> float: ...


def serve(load: Callable[[Options], Engine | Batcher]) -> None:
    """Load the engine, then answer until the input ends."""
    engine = load(_read_options())
    _answer({"version": engine.version})
    for line in sys.stdin:
        try:
            kind, *counts = parse_step(json.loads(line)["step"])
            _answer({"time_s": getattr(engine, kind)(*counts)})
        except Exception as error:
            _answer({"error": f"{type(error).__name__}: {error}"})


def parse_step(text: str) -> tuple[str, *tuple[int, ...]]:
    match text.split():
        case ["prefill", tokens]:
            return "prefill", int(tokens)
        case ["decode", batch, "at", context_tokens]:
            return "decode", int(batch), int(context_tokens)
        case ["answer", requests, "of", prompt_tokens, "plus", output_tokens]:
            return "answer", int(requests), int(prompt_tokens), int(output_tokens)
    raise ValueError(
        f"a step is 'prefill N', 'decode B at N' or 'answer B of N plus N'; got {text!r}"
    )


def time_of(step: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    started_s = time.perf_counter()
    step()
    return time.perf_counter() - started_s


def median_time_of(step: Callable[[], object]) -> float:
    """Median over several calls, after one that finds the caches full of another engine's data."""
    step()
    return median(time_of(step) for _ in range(DECODE_STEPS))


def _read_options() -> Options:
    parser = ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--peers", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--steps", type=json.loads, required=True, help="a JSON list of texts")
    given = parser.parse_args()
    steps = [parse_step(text) for text in given.steps]
    return Options(
        given.model,
        given.peers,
        given.threads,
        prefills=tuple(step[1] for step in steps if step[0] == "prefill"),
        decodes=tuple((step[1], step[2]) for step in steps if step[0] == "decode"),
    )


def _answer(fields: dict[str, object]) -> None:
    print(json.dumps(fields), file=_answers, flush=True)
