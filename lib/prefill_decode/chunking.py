"""Chunking: what a prompt costs when it is read in pieces beside streams that decode.

A step holds the decodes and one chunk of the prompt. The longest of these steps is the worst gap
of every stream; their sum is the prompt's TTFT. Small chunks shorten the gap, but each step reads
the weights again, and the prompt's cache up to there: once the chunk falls below the ridge, TTFT
grows with the number of steps.

Counts:  least times of the roofline, step by step.
Ignores: what a step costs whatever is in it, which makes small chunks dearer still.
Source:  Agrawal et al., "Sarathi-Serve" (2024), section 4.2, on choosing the chunk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import step_work
from prefill_decode.scheduling import rehearse_arrival

DEAR = 4.0  # TTFT of the smallest chunk over that of the whole prompt
WORTH = 1.25  # of the shortest TTFT: what a shorter gap may cost
STEP = 4  # between neighbouring chunk lengths


@dataclass(frozen=True)
class Price:
    """Of one chunk length, seconds."""

    worst_gap_s: float
    ttft_s: float


def least_price(
    model: ModelSpec,
    hardware: Hardware,
    prompt_tokens: int,
    chunk_tokens: int,
    streams: int,
    context_tokens: int,
) -> Price:
    """The least that reading a prompt in such chunks can cost, on the roofline."""
    steps = rehearse_arrival(prompt_tokens, chunk_tokens, streams, context_tokens)
    times_s = [step_work(model, step).least_time_s(hardware) for step in steps]
    return Price(max(times_s), sum(times_s))


def least_prices(
    model: ModelSpec,
    hardware: Hardware,
    prompt_tokens: int,
    lengths: Sequence[int],
    streams: int,
    context_tokens: int,
) -> dict[int, Price]:
    """`least_price` of every chunk length."""
    setting = (streams, context_tokens)
    return {n: least_price(model, hardware, prompt_tokens, n, *setting) for n in lengths}


def telling_chunk_lengths(
    model: ModelSpec, hardware: Hardware, prompt_tokens: int, streams: int, context_tokens: int
) -> list[int]:
    """The whole prompt and ever smaller parts of it, down to one that makes TTFT `DEAR` times as
    long, or to single tokens; in rising order."""
    lengths = [prompt_tokens]
    whole_s = least_price(
        model, hardware, prompt_tokens, prompt_tokens, streams, context_tokens
    ).ttft_s
    while lengths[-1] > 1:
        lengths.append(max(1, lengths[-1] // STEP))
        price = least_price(model, hardware, prompt_tokens, lengths[-1], streams, context_tokens)
        if price.ttft_s >= DEAR * whole_s:
            break
    return lengths[::-1]


def best_chunk(ttft_s: Mapping[int, float]) -> int:
    """The smallest chunk whose TTFT is at most `WORTH` times the shortest: of all that hardly delay
    the prompt, the one that stalls the streams least. `ttft_s` by chunk length."""
    if not ttft_s:
        raise ValueError("there is no chunk length to choose from")
    shortest_s = min(ttft_s.values())
    return min(length for length, time_s in ttft_s.items() if time_s <= WORTH * shortest_s)
