"""Crew: the workers that are there, and which of them gets the next answer.

A prefill goes to the worker with the fewest prompt tokens before it; of the answers to one prompt
the later ones go where the first was read, and find its cache. A decode goes to the worker with the
most free blocks, those left out that are promised to answers on their way. Nothing is sent where
there is no room: it waits where it can still go anywhere."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from prefill_decode.disaggregated.journey import Journey
from prefill_decode.disaggregated.messages import Hello, Role, State


@dataclass(eq=False, slots=True)
class Worker:
    """One start of one worker, and the journeys that it has a part in."""

    hello: Hello
    heard_s: float
    state: State
    journeys: dict[str, Journey] = field(default_factory=dict)  # by the id of their try

    @property
    def worker_id(self) -> str:
        return self.hello.incarnation

    @property
    def waiting_tokens(self) -> int:
        """Of prompts that it has still to read."""
        return sum(j.known_tokens for j in self.journeys.values() if not j.prefilled)

    @property
    def spare_blocks(self) -> int:
        """Free and promised to nobody. What is read and not yet in its count is left out twice."""
        promised = (self.blocks_for(j) for j in self.journeys.values() if not j.settled)
        return self.state.free_blocks - sum(promised)

    def blocks_for(self, journey: Journey) -> int:
        return -(-(journey.known_tokens + 1) // self.hello.layout.block_tokens)

    def has_room(self, journey: Journey, most_sequences: int) -> bool:
        """Whoever has nothing else to do takes what comes: all that is asked for fits a worker."""
        if not self.journeys:
            return True
        enough = self.spare_blocks >= self.blocks_for(journey)
        return enough and len(self.journeys) < most_sequences

    def settle(self, state: State) -> None:
        """Its count of free blocks, which shows every cache that it has read by now."""
        self.state = state
        for journey in self.journeys.values():
            journey.settled = journey.pulled


def newcomer(hello: Hello, now_s: float) -> Worker:
    blocks = hello.num_blocks
    return Worker(hello, now_s, State(0, 0, blocks, blocks, 0, 0, 0, 0, 0))


def of_role(workers: Iterable[Worker], role: Role) -> list[Worker]:
    return [worker for worker in workers if worker.hello.role == role]


def place_prefill(journey: Journey, workers: Iterable[Worker]) -> Worker | None:
    there = of_role(workers, "prefill")
    if journey.request.read_by in there:
        return journey.request.read_by
    return min(there, key=lambda worker: worker.waiting_tokens, default=None)


def place_decode(journey: Journey, workers: Iterable[Worker], most_sequences: int) -> Worker | None:
    """None where no worker has room."""
    roomy = [w for w in of_role(workers, "decode") if w.has_room(journey, most_sequences)]
    return max(roomy, key=lambda worker: worker.spare_blocks, default=None)
