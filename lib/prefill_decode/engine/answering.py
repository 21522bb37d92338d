"""Answering: requests in, tokens out, step by step, whoever computes them.

One engine in this process answers so, and so do many in others; whoever serves need not know
which."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from prefill_decode.engine.sampling import Sampling


@dataclass(frozen=True)
class SampledToken:
    """A token of one answer. With its last one comes the reason; a stop token is itself the last.

    `top_logprobs`: the likeliest tokens, best first, as many as the request asked for."""

    request_id: str
    answer: int
    token_id: int
    finish_reason: Literal["stop", "length"] | None
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class FailedAnswer:
    """An answer that ends without its last token, and why; the others go on."""

    request_id: str
    answer: int
    reason: str


@dataclass(frozen=True)
class HandOvers:
    """Counts since the start, where prefill and decode run in processes of their own."""

    transfers: int  # caches that were read by another process
    moved_bytes: int
    moving_s: float
    lost_workers: int
    recomputed_answers: int  # each time that one was prefilled again
    num_prefill_workers: int  # now
    num_decode_workers: int


@dataclass(frozen=True)
class ServingState:
    """What runs and waits now, and counts since the start."""

    num_running: int
    num_waiting: int
    free_blocks: int  # that no sequence holds, whether or not their contents are kept for reuse
    num_blocks: int
    steps: int
    prompt_tokens: int  # of admitted and waiting requests, once for all answers
    reused_tokens: int  # of these, found in the cache
    sampled_tokens: int
    preemptions: int
    hand_overs: HandOvers | None = None
    ailment: str | None = None  # why requests that come now may have to wait for long


def check_asked(
    prompt_ids: Sequence[int],
    most_output_tokens: int,
    answers: int,
    vocab_size: int,
    capacity_tokens: int,
) -> None:
    """ValueError for a request that can never be answered."""
    if not len(prompt_ids):
        raise ValueError("a request has a prompt of at least one token; got none")
    if most_output_tokens < 1 or answers < 1:
        raise ValueError(
            "a request asks for at least one token of at least one answer; got "
            f"most_output_tokens={most_output_tokens} and answers={answers}"
        )
    check_ids(prompt_ids, vocab_size)
    if len(prompt_ids) + most_output_tokens - 1 > capacity_tokens:
        raise ValueError(
            f"a sequence may have {capacity_tokens} tokens in the cache; got a prompt of "
            f"{len(prompt_ids)} and {most_output_tokens} output tokens"
        )


def check_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    if not all(type(token) is int and 0 <= token < vocab_size for token in token_ids):
        raise ValueError(f"token ids are whole numbers from 0 to {vocab_size - 1}")


class Answering(Protocol):
    """Not safe for several threads, but for `wake`."""

    @property
    def capacity_tokens(self) -> int:
        """Of one prompt and its answer."""

    @property
    def has_work(self) -> bool:
        """Whether to call `step`."""

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answers: int = 1,
    ) -> None:
        """Let a request wait for its turn. ValueError, with nothing changed, for one that cannot
        be; QueueFull when too many wait."""

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        """Forget a request or one of its answers. Unknown ids are fine."""

    def step(self) -> Sequence[SampledToken | FailedAnswer]:
        """What the next step brings; nothing where it was woken."""

    def state(self) -> ServingState: ...

    def wake(self) -> None:
        """A step that only waits ends at once. For any thread."""
