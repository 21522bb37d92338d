"""Tally: what is counted since the start, lost workers' shares included."""

from collections.abc import Collection
from dataclasses import dataclass

from prefill_decode.disaggregated.crew import Worker, of_role
from prefill_decode.engine.answering import HandOvers, ServingState


@dataclass(slots=True)
class Tally:
    prompt_tokens: int = 0  # of requests, once for all answers
    reused_tokens: int = 0
    sampled_tokens: int = 0
    transfers: int = 0
    moved_bytes: int = 0
    moving_s: float = 0.0
    recomputed_answers: int = 0
    lost_workers: int = 0
    lost_steps: int = 0
    lost_preemptions: int = 0

    def lose(self, worker: Worker) -> None:
        self.lost_workers += 1
        self.lost_steps += worker.state.steps
        self.lost_preemptions += worker.state.preemptions

    def state(
        self,
        workers: Collection[Worker],
        num_running: int,
        num_waiting: int,
        ailment: str | None,
    ) -> ServingState:
        return ServingState(
            num_running=num_running,
            num_waiting=num_waiting,
            free_blocks=sum(worker.state.free_blocks for worker in workers),
            num_blocks=sum(worker.hello.num_blocks for worker in workers),
            steps=self.lost_steps + sum(worker.state.steps for worker in workers),
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            sampled_tokens=self.sampled_tokens,
            preemptions=self.lost_preemptions + sum(w.state.preemptions for w in workers),
            hand_overs=self._hand_overs(workers),
            ailment=ailment,
        )

    def _hand_overs(self, workers: Collection[Worker]) -> HandOvers:
        return HandOvers(
            transfers=self.transfers,
            moved_bytes=self.moved_bytes,
            moving_s=self.moving_s,
            lost_workers=self.lost_workers,
            recomputed_answers=self.recomputed_answers,
            num_prefill_workers=len(of_role(workers, "prefill")),
            num_decode_workers=len(of_role(workers, "decode")),
        )
