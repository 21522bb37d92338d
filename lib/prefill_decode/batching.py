"""Batching: what becomes of a line of requests, under two policies of the scheduler.

Requests come in a fixed order, all present from the start, and each asks for a number of output
tokens. A step has so many slots. Static batching fills them and takes nobody else in until the
longest answer is done; a slot whose answer is done earlier stays empty. Continuous batching gives
the slot of a finished sequence to the next request at the next step.

Counts:  every step that the scheduler chooses, prompts and decodes, as lists of chunks.
Ignores: arrivals, which hurt static batching; cache blocks, of which there are always enough;
         padding, with which engines that cannot let a sequence go make static batching dearer.
Source:  Yu et al., "Orca" (2022), whose iteration-level scheduling is the continuous policy.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log1p
from typing import Literal

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork, in_series, step_work
from prefill_decode.scheduling import (
    BlockPool,
    Policy,
    Scheduler,
    SchedulerSettings,
    SequenceState,
    rehearse,
)
from prefill_decode.step import Chunk

Schedule = list[list[Chunk]]
ROUNDING = 1e-9
POLICY_OF: dict[str, Policy] = {"static": "static", "continuous": "chunked"}


@dataclass(frozen=True)
class Line:
    """Requests that all wait from the start, each with a prompt of `prompt_tokens`, and how they
    are batched."""

    batching: Literal["static", "continuous"]
    output_tokens: tuple[int, ...]
    slots: int
    prompt_tokens: int = 1

    def __post_init__(self) -> None:
        lengths = self.output_tokens
        if not lengths or min(lengths) < 1 or self.slots < 1 or self.prompt_tokens < 1:
            raise ValueError(
                "a line needs a slot and requests of at least one prompt token and one output "
                f"token each; got {self.slots} slots, {self.prompt_tokens} prompt tokens and "
                f"{list(lengths)[:10]}"
            )
        if self.batching not in POLICY_OF:
            raise ValueError(f"batching is static or continuous; got {self.batching!r}")

    @property
    def most_tokens(self) -> int:
        """Of one sequence in the cache."""
        return self.prompt_tokens + max(self.output_tokens)

    @property
    def settings(self) -> SchedulerSettings:
        """A budget that holds the prompts of a whole batch: they never wait for one another."""
        budget = max(self.slots * self.prompt_tokens, self.most_tokens) + self.slots
        return SchedulerSettings(POLICY_OF[self.batching], budget, self.slots)

    def schedule(self) -> Schedule:
        """The steps that serve the line, as the scheduler chooses them."""
        pool = BlockPool(self.slots * self.most_tokens, 1, reuse=False)
        return rehearse(
            Scheduler(pool, self.settings),
            [
                SequenceState(str(index), self.prompt_tokens, tokens)
                for index, tokens in enumerate(self.output_tokens)
            ],
        )


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
    # A quotient that is whole may come out a rounding too large.
    lengths = [ceil(log1p(-rank) / log1p(-1 / mean_tokens) - ROUNDING) for rank in ranks]
    return random.Random(seed).sample(lengths, requests)


def schedule_work(model: ModelSpec, schedule: Sequence[Sequence[Chunk]]) -> StepWork:
    """FLOPs and bytes of all the steps of a schedule together."""
    if not schedule:
        raise ValueError("a schedule has at least one step; got none")
    return in_series([step_work(model, step) for step in schedule])


def least_time_s(
    model: ModelSpec, schedule: Sequence[Sequence[Chunk]], hardware: Hardware
) -> float:
    """The least that a schedule can take: the sum of its steps' least times."""
    return sum(step_work(model, step).least_time_s(hardware) for step in schedule)
