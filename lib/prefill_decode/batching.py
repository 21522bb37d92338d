"""Batching: who is in the batch at each decode step, under two policies.

Requests come in a fixed order, all present from the start, and each asks for a number of output
tokens. A batch has B slots. Static batching fills them, runs until the longest answer is done and
fills them again; a finished sequence stays in the step till then, as padding: a chunk that runs
and samples no token. Continuous batching gives the slot of a finished sequence to the next
request at the next step.

Counts:  decode steps, as lists of chunks, one for each occupied slot, each with the context it
         reads.
Ignores: prefill and arrivals, which hurt both policies; cache blocks, of which there are always
         enough.
Source:  Yu et al., "Orca" (2022), whose iteration-level scheduling is the continuous policy.
"""

import random
from collections.abc import Sequence
from math import ceil, log1p

from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork, in_series, step_work
from prefill_decode.step import Chunk

Schedule = list[list[Chunk]]


def geometric_lengths(requests: int, mean_tokens: int, seed: int = 0) -> list[int]:
    """Output lengths when every token ends its answer with the same probability, 1 / mean.

    Evenly spaced quantiles of the geometric distribution in random order, so that few requests
    already have its shape: most are short and a few are long.
    """
    if requests < 1 or mean_tokens < 2:
        raise ValueError(
            f"lengths that differ need at least one request and a mean of at least two tokens; got "
            f"{requests} requests and a mean of {mean_tokens}"
        )
    ranks = [(i + 0.5) / requests for i in range(requests)]
    lengths = [ceil(log1p(-rank) / log1p(-1 / mean_tokens)) for rank in ranks]
    return random.Random(seed).sample(lengths, requests)


def static_schedule(output_tokens: Sequence[int], slots: int, prompt_tokens: int = 0) -> Schedule:
    """Batches of `slots` requests, one after another, each as long as its longest answer."""
    _check(output_tokens, slots)
    batches = [output_tokens[i : i + slots] for i in range(0, len(output_tokens), slots)]
    return [
        [Chunk(1, prompt_tokens + done, samples_token=done < asked) for asked in batch]
        for batch in batches
        for done in range(max(batch))
    ]


def continuous_schedule(
    output_tokens: Sequence[int], slots: int, prompt_tokens: int = 0
) -> Schedule:
    """At every step the free slots go to the next requests in line."""
    _check(output_tokens, slots)
    waiting = list(reversed(output_tokens))
    running: list[tuple[int, int]] = []  # tokens asked for, tokens done
    steps: Schedule = []
    while waiting or running:
        running += [(waiting.pop(), 0) for _ in range(min(slots - len(running), len(waiting)))]
        steps.append([Chunk(1, prompt_tokens + done) for _, done in running])
        running = [(asked, done + 1) for asked, done in running if done + 1 < asked]
    return steps


def schedule_work(model: ModelSpec, schedule: Sequence[Sequence[Chunk]]) -> StepWork:
    """FLOPs and bytes of all the steps of a schedule together."""
    if not schedule:
        raise ValueError("a schedule has at least one step; got none")
    return in_series([step_work(model, step) for step in schedule])


def _check(output_tokens: Sequence[int], slots: int) -> None:
    if not output_tokens or min(output_tokens) < 1 or slots < 1:
        raise ValueError(
            "a schedule needs a slot and requests of at least one output token each; got "
            f"{slots} slots and {list(output_tokens)[:10]}"
        )
