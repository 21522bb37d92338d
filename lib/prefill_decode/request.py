"""Request: what a client asks; RequestRecord: what then happened to it, token by token.

Times are seconds on one monotonic clock, whose zero is the start of the run. The engine, the
simulator and the HTTP client all fill in the same record, so that TTFT, TPOT and ITL are computed
in one place (serving_metrics)."""

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite


@dataclass(frozen=True, slots=True)  # a simulation holds a million
class Request:
    request_id: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    # What the prompt begins with, as (text, tokens): requests whose first texts are the same
    # numbers begin alike. The rest of the prompt is this request's alone.
    pieces: tuple[tuple[int, int], ...] = ()
    answer: int | None = None  # the number of its answer's text, where later prompts hold it

    def __post_init__(self) -> None:
        counts = (self.prompt_tokens, self.output_tokens)
        if not all(isinstance(count, int) and count >= 1 for count in counts):
            raise ValueError(
                f"a request needs at least one prompt token and one output token; got {self}"
            )
        if self.pieces or self.answer is not None:
            self._check_pieces()
        if not isfinite(self.arrival_s):
            raise ValueError(f"a request arrives at a finite time; got {self}")

    def _check_pieces(self) -> None:
        told = sum(tokens for _, tokens in self.pieces)
        if told > self.prompt_tokens or any(tokens < 1 for _, tokens in self.pieces):
            raise ValueError(
                "the pieces of a prompt have a token or more each and together no more than it; "
                f"got {self}"
            )
        if self.answer is not None and told < self.prompt_tokens:
            raise ValueError(
                f"an answer has a number where its whole prompt has pieces; got {told} of "
                f"{self.prompt_tokens} tokens of request {self.request_id!r}"
            )


@dataclass(frozen=True)
class RequestRecord:
    """`event_times_s[i]` is when the client received event i, which carried `event_tokens[i]`
    tokens.
    """

    request: Request
    event_times_s: tuple[float, ...] = ()
    event_tokens: tuple[int, ...] = ()
    failure: str | None = None  # why it failed; tokens received before that stay recorded
    tokens_counted: bool = True  # False: only events were seen, each standing for a token or more

    def __post_init__(self) -> None:
        if len(self.event_times_s) != len(self.event_tokens):
            raise ValueError(
                f"request {self.request.request_id!r}: every event needs one time and one token "
                f"count; "
                f"got {len(self.event_times_s)} times and {len(self.event_tokens)} counts"
            )
        if not all(isinstance(tokens, int) and tokens >= 1 for tokens in self.event_tokens):
            raise ValueError(
                f"request {self.request.request_id!r}: an event without tokens is not a token "
                f"event; "
                "leave role-only and empty events out"
            )
        times_s = (self.request.arrival_s, *self.event_times_s)
        if not all(earlier <= later for earlier, later in pairwise(times_s)):
            raise ValueError(
                f"request {self.request.request_id!r}: time runs backwards in {times_s}; "
                "record every time on one monotonic clock"
            )
