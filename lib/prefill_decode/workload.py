"""Workload: arrivals x lengths -> requests; and the arrivals of synthetic workloads.

Counts:  seconds from the start of the run, in order. The gaps of Poisson arrivals are exponential;
         those of gamma arrivals have a coefficient of variation `cv` (1 is Poisson, 0 is constant):
         Azure's code trace has one of 13.
Ignores: dependence: of a burst on the hour, of an answer's length on its prompt's.
Seeds:   each die has its own (arrivals, prompt lengths, output lengths), made of the seed and the
         die's name: to draw more of one changes no other.
"""

import random
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import isfinite

from prefill_decode.request import Request

MOST_TOKENS = 2**31  # of a prompt or an answer


def constant_arrivals(rate_per_s: float, num_requests: int) -> list[float]:
    """Arrival times, seconds: one every 1 / rate, the first at 0."""
    _check_arrivals(rate_per_s, num_requests)
    return [i / rate_per_s for i in range(num_requests)]


def poisson_arrivals(rate_per_s: float, num_requests: int, seed: int) -> list[float]:
    """Arrival times, seconds, with independent exponential gaps, before the first one too."""
    _check_arrivals(rate_per_s, num_requests)
    dice = _die(seed, "arrivals")
    return list(accumulate(dice.expovariate(rate_per_s) for _ in range(num_requests)))


def gamma_arrivals(rate_per_s: float, num_requests: int, cv: float, seed: int) -> list[float]:
    """Arrival times, seconds, whose gaps have the mean 1 / rate and the standard deviation
    cv / rate: bursts above 1. ValueError unless `cv` is positive."""
    _check_arrivals(rate_per_s, num_requests)
    if not (isfinite(cv) and cv > 0):
        raise ValueError(
            f"gaps need a positive coefficient of variation; got {cv}: for 0, constant_arrivals"
        )
    dice, shape = _die(seed, "arrivals"), cv**-2
    gaps = (dice.gammavariate(shape, 1 / (shape * rate_per_s)) for _ in range(num_requests))
    return list(accumulate(gaps))


def fixed_lengths(tokens: int, num_requests: int) -> list[int]:
    return uniform_lengths(tokens, tokens, num_requests, 0, "a fixed length")


def uniform_lengths(least: int, most: int, num_requests: int, seed: int, of: str) -> list[int]:
    """Tokens of each request, drawn evenly from `least` to `most`; `of` names the die."""
    if not 1 <= least <= most <= MOST_TOKENS:
        raise ValueError(
            f"lengths lie between 1 and {MOST_TOKENS} tokens, the least before the most; got "
            f"{least} to {most} for {of}"
        )
    dice = _die(seed, of)
    return [dice.randint(least, most) for _ in range(num_requests)]


def make_requests(
    arrivals_s: Sequence[float], prompt_tokens: Sequence[int], output_tokens: Sequence[int]
) -> list[Request]:
    """A request for each arrival. ValueError unless all three are as long."""
    sizes = (len(arrivals_s), len(prompt_tokens), len(output_tokens))
    if len(set(sizes)) > 1:
        raise ValueError(f"a request has an arrival, a prompt and an output; got {sizes} of them")
    asked: Iterable[tuple[float, int, int]] = zip(
        arrivals_s, prompt_tokens, output_tokens, strict=True
    )
    return [Request(str(i), arrival_s, p, o) for i, (arrival_s, p, o) in enumerate(asked)]


def _die(seed: int, name: str) -> random.Random:
    return random.Random(f"{name} {seed}")


def _check_arrivals(rate_per_s: float, num_requests: int) -> None:
    if not (isfinite(rate_per_s) and rate_per_s > 0):
        raise ValueError(f"requests arrive at a positive rate, per second; got {rate_per_s}")
    if num_requests < 1:
        raise ValueError(f"a workload has at least one request; got {num_requests}")
