"""Messages: what the coordinator and its workers say to each other.

    coordinator to a prefill worker   Prefill, Cancel, Withdraw, Stop
    prefill worker to coordinator     Hello, Offered, Prefilled, Ended, Failed, State
    coordinator to a decode worker    Continue, Start, Cancel, Stop
    decode worker to coordinator      Hello, Pulled, Tokens, Failed, State

One request goes: Prefill; Offered as soon as its blocks are given out; Continue to a decode worker,
which makes room and reads layer after layer as they are ready; Prefilled with the first token;
Start, with that token, to the decode worker; Pulled when the cache has been read, whereupon Ended
says that the lease is over; then Tokens until one has a finish reason. A request whose cache is
lost on either side is prefilled again with the tokens that it already has, `known_ids`, and goes on
as if nothing had happened: a token depends on its place, not on who samples it.

A message is one JSON object with its "type"; `encode` and `decode` turn it to bytes and back."""

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Layout, Offer

Role = Literal["prefill", "decode"]
FinishReason = Literal["stop", "length"]
MOST_BYTES = 2**26  # of one message


@dataclass(frozen=True)
class Asked:
    """One answer to one prompt. `answer` says which of several it is: its die differs by it."""

    request_id: str  # the same on all sides, and for good
    prompt_ids: tuple[int, ...]
    most_output_tokens: int  # in all, known ones among them
    sampling: Sampling
    stop_ids: frozenset[int] = frozenset()
    answer: int = 0
    known_ids: tuple[int, ...] = ()  # of its answer, sampled before


@dataclass(frozen=True)
class Prefill:
    """Read the prompt and what is known, sample one token, offer the blocks as `transfer_id`."""

    asked: Asked
    transfer_id: str
    deadline_s: float  # from receipt, for the prefill and for the lease that follows it
    type: Literal["prefill"] = "prefill"


@dataclass(frozen=True)
class Continue:
    """Make room and read the offer; decode when told to start."""

    asked: Asked
    offer: Offer
    deadline_s: float  # from receipt, for room and for the reading
    type: Literal["continue"] = "continue"


@dataclass(frozen=True)
class Start:
    """The token that the prefill sampled: the next step runs it, once the cache has been read."""

    request_id: str
    token_id: int
    type: Literal["start"] = "start"


@dataclass(frozen=True)
class Cancel:
    """Forget a request, whatever it does. Unknown ones are fine."""

    request_id: str
    type: Literal["cancel"] = "cancel"


@dataclass(frozen=True)
class Withdraw:
    """End a lease now. Unknown ones are fine."""

    transfer_id: str
    type: Literal["withdraw"] = "withdraw"


@dataclass(frozen=True)
class Stop:
    """End the process, with all that it does."""

    type: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Hello:
    """A worker's first message."""

    role: Role
    name: str
    incarnation: str  # new for every start
    pid: int
    layout: Layout
    num_blocks: int
    capacity_tokens: int  # of one sequence
    address: str | None  # where a prefill worker's offers are read
    type: Literal["hello"] = "hello"


@dataclass(frozen=True)
class Offered:
    request_id: str
    offer: Offer
    type: Literal["offered"] = "offered"


@dataclass(frozen=True)
class Token:
    """As `engine.serving.SampledToken`."""

    request_id: str
    token_id: int
    finish_reason: FinishReason | None
    logprob: float | None
    top_logprobs: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Prefilled:
    """The cache is complete. With a finish reason there is nothing to hand over."""

    token: Token
    reused_tokens: int
    type: Literal["prefilled"] = "prefilled"


@dataclass(frozen=True)
class Ended:
    """A lease is over, and its blocks are the worker's own again."""

    transfer_id: str
    how: Literal["released", "withdrawn", "expired"]
    type: Literal["ended"] = "ended"


@dataclass(frozen=True)
class Pulled:
    request_id: str
    transfer_id: str
    moved_bytes: int
    seconds: float
    lane: str
    type: Literal["pulled"] = "pulled"


@dataclass(frozen=True)
class Tokens:
    """What one step brought."""

    tokens: tuple[Token, ...]
    type: Literal["tokens"] = "tokens"


@dataclass(frozen=True)
class Failed:
    """This request cannot go on here; all that it held is free. `again`: whether to prefill it
    again may help, as after a lost cache, or not, as with one that does not fit."""

    request_id: str
    reason: str
    again: bool
    type: Literal["failed"] = "failed"


@dataclass(frozen=True)
class State:
    """Sent after every step, and every second even within one: who is silent for longer is lost."""

    num_running: int
    num_waiting: int
    free_blocks: int
    num_blocks: int
    steps: int
    sampled_tokens: int
    reused_tokens: int
    preemptions: int
    leases: int
    type: Literal["state"] = "state"


Message = (
    Prefill
    | Continue
    | Start
    | Cancel
    | Withdraw
    | Stop
    | Hello
    | Offered
    | Prefilled
    | Ended
    | Pulled
    | Tokens
    | Failed
    | State
)
READER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])


def encode(message: Message) -> bytes:
    return json.dumps(asdict(message), default=sorted, separators=(",", ":")).encode()


def decode(data: bytes) -> Message:
    """ValueError for what is no message, with the first thing that is wrong with it."""
    try:
        return READER.validate_json(data, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"this is no message: {where}: {first['msg']}") from None
