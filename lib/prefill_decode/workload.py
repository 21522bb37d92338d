"""Workload: arrivals x lengths -> requests; and the dice of synthetic workloads.

Counts:  seconds from the start of the run, in order. The gaps of Poisson arrivals are exponential;
         those of gamma arrivals have a coefficient of variation `cv` (1 is Poisson, 0 is constant):
         Azure's code trace has one of 13.
         Lengths are drawn evenly from a range, or so that their percentiles are those published of
         a real service. Conversations ask again and again, with all that was said before.
Ignores: dependence: of a burst on the hour, of an answer's length on its prompt's, of a next
         question on when the answer came.
Seeds:   each die has its own (arrivals, prompt lengths, output lengths), made of the seed and the
         die's name: to draw more of one changes no other.
"""

import random
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import exp, isfinite, log

from prefill_decode.request import Request

MOST_TOKENS = 2**31  # of a prompt or an answer

Percentiles = Mapping[float, float]  # tokens below which a share of requests lies; 0 and 1 included


@dataclass(frozen=True)
class Published:
    """What is known of a service: percentiles of its lengths, and how bursty its arrivals are."""

    prompt_tokens: Percentiles
    output_tokens: Percentiles
    cv: float  # of the gaps between arrivals
    source: str


# Computed from the traces by this project; the traces themselves are not part of it.
SERVICES = {
    "azure-conversation": Published(
        {0: 2, 0.01: 29, 0.1: 207, 0.25: 396, 0.5: 1020, 0.75: 1189, 0.9: 2734, 0.95: 4083,
         0.99: 4142, 1: 14050},
        {0: 7, 0.01: 16, 0.1: 54, 0.25: 85, 0.5: 129, 0.75: 395, 0.9: 424, 0.95: 451, 0.99: 601,
         1: 1000},
        1.09,
        "Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv (2023), CC-BY-4.0",
    ),
    "azure-code": Published(
        {0: 3, 0.01: 17, 0.1: 147, 0.25: 578, 0.5: 1469, 0.75: 2744, 0.9: 5188, 0.95: 7303,
         0.99: 7436, 1: 7437},
        {0: 6, 0.01: 6, 0.1: 7, 0.25: 9, 0.5: 13, 0.75: 24, 0.9: 55, 0.95: 90, 0.99: 251, 1: 1899},
        13.15,
        "Azure/AzurePublicDataset, AzureLLMInferenceTrace_code (2023), CC-BY-4.0",
    ),
    "mooncake-conversation": Published(
        {0: 891, 0.01: 894, 0.1: 964, 0.25: 2306, 0.5: 6909, 0.75: 15367, 0.9: 27367, 0.95: 39550,
         0.99: 85400, 1: 126195},
        {0: 1, 0.01: 3, 0.1: 24, 0.25: 156, 0.5: 350, 0.75: 472, 0.9: 597, 0.95: 698, 0.99: 1118,
         1: 2000},
        3.03,
        "kvcache-ai/Mooncake, conversation trace (FAST25 release), Apache-2.0; its clock ticks "
        "every 3 s, so the cv says little",
    ),
}  # fmt: skip


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


def percentile_lengths(
    percentiles: Percentiles, num_requests: int, seed: int, of: str
) -> list[int]:
    """Tokens of each request, so that their distribution passes through these percentiles, evenly
    in the logarithm between two of them; `of` names the die."""
    shares, values = list(percentiles), list(percentiles.values())
    whole = len(shares) >= 2 and shares[0] == 0 and shares[-1] == 1
    if not whole or shares != sorted(set(shares)) or values != sorted(values) or values[0] < 1:
        raise ValueError(
            "percentiles of lengths rise from share 0, with at least one token, to share 1; got "
            f"{dict(percentiles)} for {of}"
        )
    dice = _die(seed, of)
    logs = [log(value) for value in values]
    return [round(exp(_between(shares, logs, dice.random()))) for _ in range(num_requests)]


def _between(places: Sequence[float], values: Sequence[float], place: float) -> float:
    after = max(1, bisect_left(places, place))
    share = (place - places[after - 1]) / (places[after] - places[after - 1])
    return values[after - 1] + share * (values[after] - values[after - 1])


@dataclass(frozen=True)
class Conversations:
    """People who ask several times. Every prompt is a system prompt, which many share, all that
    was said before, and a new question; it comes a think time after the last was asked."""

    num_conversations: int
    rate_per_s: float  # at which conversations begin
    turns: int = 4
    think_s: float = 30.0  # mean; exponential
    system_prompts: int = 4
    system_tokens: int = 512
    question_tokens: tuple[int, int] = (20, 200)
    answer_tokens: tuple[int, int] = (50, 400)

    def requests(self, seed: int) -> list[Request]:
        """By arrival; what prompts have in common is in their pieces."""
        starts_s = poisson_arrivals(self.rate_per_s, self.num_conversations, seed)
        number = self.num_conversations * self.turns
        questions = uniform_lengths(*self.question_tokens, number, seed, "questions")
        answers = uniform_lengths(*self.answer_tokens, number, seed, "answers")
        systems = uniform_lengths(1, self.system_prompts, self.num_conversations, seed, "systems")
        thinking = _die(seed, "thinking")
        found = []
        for person, start_s in enumerate(starts_s):
            now_s = start_s
            pieces: tuple[tuple[int, int], ...] = ((-systems[person], self.system_tokens),)
            for turn in range(person * self.turns, (person + 1) * self.turns):
                pieces += ((2 * turn, questions[turn]),)
                prompt = sum(tokens for _, tokens in pieces)
                asked = Request(str(turn), now_s, prompt, answers[turn], pieces, 2 * turn + 1)
                found.append(asked)
                pieces += ((2 * turn + 1, answers[turn]),)
                now_s += thinking.expovariate(1 / self.think_s)
        return sorted(found, key=lambda request: request.arrival_s)


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
