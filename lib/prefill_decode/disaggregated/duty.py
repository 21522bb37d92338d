"""Duty: what a worker's loop asks of it, whether it reads prompts or goes on with answers."""

from collections.abc import Callable
from typing import Protocol

from prefill_decode.disaggregated.messages import Message, State
from prefill_decode.engine.answering import ServingState

Say = Callable[[Message], None]


class Duty(Protocol):
    address: str | None  # where its offers are read

    def obey(self, message: Message) -> None:
        """Do what the coordinator asks."""

    def expire(self, now_s: float) -> float | None:
        """Give up what is overdue; when the next will be, on the monotonic clock."""

    def step(self) -> bool:
        """Run a step, if there is one to run; whether there was."""

    def state(self) -> State: ...

    def close(self) -> None:
        """End all that goes on in threads."""


def told(state: ServingState, leases: int, waiting: int) -> State:
    """`waiting`: those that the engine does not know yet."""
    return State(
        num_running=state.num_running,
        num_waiting=state.num_waiting + waiting,
        free_blocks=state.free_blocks,
        num_blocks=state.num_blocks,
        steps=state.steps,
        sampled_tokens=state.sampled_tokens,
        reused_tokens=state.reused_tokens,
        preemptions=state.preemptions,
        leases=leases,
    )
