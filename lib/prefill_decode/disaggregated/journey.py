"""Journey: one answer's way through two processes, and how long each part of it may take."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from prefill_decode.disaggregated.messages import Asked
from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Offer

if TYPE_CHECKING:
    from prefill_decode.disaggregated.crew import Worker

Stage = Literal["waiting", "prefilling", "handing over", "decoding"]


@dataclass(frozen=True)
class Patience:
    """How long each part may take, in seconds, and how often an answer is tried."""

    waiting_s: float = 600.0  # for workers, and for room at them
    prefill_s: float = 300.0  # its line at the prefill worker included
    hand_over_s: float = 60.0  # from the first token to a cache that has been read
    token_s: float = 300.0  # for the next token of a decode, its preemption included
    silence_s: float = 10.0  # of a worker, until it counts as lost
    without_worker_s: float = 30.0  # of a phase, until that is an ailment
    most_tries: int = 8  # as often as a worker starts again in a row: losses are seldom its fault


@dataclass(eq=False, slots=True)
class Request:
    """What was asked; its answers make their journeys one by one."""

    request_id: str
    prompt_ids: tuple[int, ...]
    most_output_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    journeys: dict[int, "Journey"] = field(default_factory=dict)  # of answers that have not ended
    read_by: "Worker | None" = None  # the prefill worker that has read this prompt


@dataclass(eq=False, slots=True)
class Journey:
    request: Request
    answer: int
    number: int  # in the order of arrival
    due_s: float  # by when the present stage ends, or it is given up
    known_ids: list[int] = field(default_factory=list)
    tries: int = 0
    # Of the present try:
    try_id: str = ""
    num_known: int = 0  # tokens, when it began
    prefill: "Worker | None" = None
    decode: "Worker | None" = None  # promised, or at work
    offer: Offer | None = None
    continued: bool = False  # the decode worker knows of it
    prefilled: bool = False
    pulled: bool = False
    settled: bool = False  # the decode worker's count of free blocks shows it

    @property
    def stage(self) -> Stage:
        if self.prefill is None:
            return "waiting"
        if not self.prefilled:
            return "prefilling"
        return "decoding" if self.pulled else "handing over"

    @property
    def known_tokens(self) -> int:
        return len(self.request.prompt_ids) + len(self.known_ids)

    @property
    def hands_over(self) -> bool:
        """Whether another token may come after the one that this try's prefill samples."""
        known = len(self.known_ids) if self.prefill is None else self.num_known
        return known + 1 < self.request.most_output_tokens

    @property
    def token_id(self) -> int:
        """What this try's prefill sampled."""
        return self.known_ids[self.num_known]

    def asked(self) -> Asked:
        """As it was when this try began."""
        request = self.request
        return Asked(
            self.try_id,
            request.prompt_ids,
            request.most_output_tokens,
            request.sampling,
            request.stop_ids,
            self.answer,
            tuple(self.known_ids[: self.num_known]),
        )

    def begin(self, try_id: str, prefill: "Worker", decode: "Worker | None") -> None:
        self.tries += 1
        self.num_known = len(self.known_ids)
        self.try_id, self.prefill, self.decode = try_id, prefill, decode

    def forget_try(self) -> None:
        self.try_id, self.prefill, self.decode, self.offer = "", None, None, None
        self.continued = self.prefilled = self.pulled = self.settled = False
