"""PrefillWorker: reads prompts, samples their first token, and lends their cache to be read.

A prompt's blocks are offered when it gets them, and its layers are ready one by one while the step
that reads its end runs: the transfer goes on beside the prefill. The blocks stay as they are until
the lease has ended, however it ends; then they are free again, and only then is that said."""

import time
from dataclasses import dataclass

from prefill_decode.disaggregated.duty import Say, told
from prefill_decode.disaggregated.mailbox import Mailbox
from prefill_decode.disaggregated.messages import (
    Cancel,
    Ended,
    Failed,
    Message,
    Offered,
    Prefill,
    Prefilled,
    State,
    Token,
    Withdraw,
)
from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.kv_transfer import Exporter, How, Pool
from prefill_decode.scheduling import QueueFull


@dataclass(eq=False)
class _Job:
    """One prompt. The engine knows it by the id of its transfer, of which there is only one."""

    request_id: str
    transfer_id: str
    due_s: float  # on the monotonic clock
    hands_over: bool  # whether a token may come after the one that is sampled here
    offered: bool = False
    prefilled: bool = False
    called_off: bool = False
    failure: Failed | None = None


class PrefillWorker:
    """Its methods are called from the loop's thread."""

    def __init__(
        self,
        engine: ServingEngine,
        pool: Pool,
        mailbox: Mailbox,
        say: Say,
        address: str,
        incarnation: str,
        key: bytes | None = None,
        pace_bytes_per_s: float | None = None,
        nixl: bool = False,
    ) -> None:
        self.engine = engine
        self._mailbox, self._say = mailbox, say
        self._jobs: dict[str, _Job] = {}  # by transfer
        self._completing: list[str] = []
        self.exporter = Exporter(
            pool,
            address,
            incarnation,
            key=key,
            pace_bytes_per_s=pace_bytes_per_s,
            nixl=nixl,
            on_end=lambda transfer_id, how: mailbox.post(lambda: self._on_ended(transfer_id, how)),
        )
        self.address: str | None = self.exporter.address

    def obey(self, message: Message) -> None:
        match message:
            case Prefill():
                self._begin(message)
            case Cancel():
                for job in list(self._jobs.values()):
                    if job.request_id == message.request_id:
                        self._call_off(job)
            case Withdraw() if message.transfer_id in self._jobs:
                self._call_off(self._jobs[message.transfer_id])

    def expire(self, now_s: float) -> float | None:
        """Give up what has waited too long; when the next is due. Offers expire by themselves."""
        waiting = [job for job in self._jobs.values() if not job.offered]
        for job in waiting:
            if job.due_s <= now_s:
                self._call_off(job, "its deadline passed while it waited to be read")
        return min((job.due_s for job in waiting if job.due_s > now_s), default=None)

    def step(self) -> bool:
        """Whether there was one to run."""
        steps = self.engine.state().steps
        for token in self.engine.step(self._on_layer, self._on_scheduled):
            self._on_token(self._jobs[token.request_id], token)
        return self.engine.state().steps > steps

    def state(self) -> State:
        leases = sum(job.offered for job in self._jobs.values())
        return told(self.engine.state(), leases, waiting=0)

    def close(self) -> None:
        self.exporter.close()

    def _begin(self, message: Prefill) -> None:
        asked, transfer_id = message.asked, message.transfer_id
        known = len(asked.known_ids)
        if known >= asked.most_output_tokens:
            reason = f"{known} tokens are known, of an answer of {asked.most_output_tokens}"
            self._say(Failed(asked.request_id, reason, again=False))
            return
        try:
            self.engine.submit(
                transfer_id,
                asked.prompt_ids,
                known + 1,
                asked.sampling,
                asked.stop_ids,
                known_ids=asked.known_ids,
                first_answer=asked.answer,
                hold=True,
            )
        except (ValueError, QueueFull) as error:
            again = isinstance(error, QueueFull)
            self._say(Failed(asked.request_id, str(error), again))
            return
        due_s = time.monotonic() + message.deadline_s
        hands_over = known + 1 < asked.most_output_tokens
        self._jobs[transfer_id] = _Job(asked.request_id, transfer_id, due_s, hands_over)

    def _on_scheduled(self, completing: list[str]) -> None:
        """Offer what has just got its blocks."""
        self._completing = completing
        for job in list(self._jobs.values()):
            if not job.hands_over or job.offered:
                continue
            blocks = self.engine.held_blocks(job.transfer_id)
            if blocks:
                self._offer(job, blocks)

    def _offer(self, job: _Job, blocks: list[int]) -> None:
        lease_s = max(0.0, job.due_s - time.monotonic())
        try:
            offer = self.exporter.offer(job.transfer_id, blocks, lease_s=lease_s)
        except ValueError as error:  # no id, or one of before; not now, because a step is under way
            reason = str(error)
            self._mailbox.post(lambda: self._call_off(job, reason, again=False))
            return
        job.offered = True
        self._say(Offered(job.request_id, offer))

    def _on_layer(self, index: int) -> None:
        for transfer_id in self._completing:
            self.exporter.layers_ready(transfer_id, index + 1)

    def _on_token(self, job: _Job, token: SampledToken | FailedAnswer) -> None:
        if isinstance(token, FailedAnswer):
            self._call_off(job, token.reason, again=False)
            return
        job.prefilled = True
        if not job.called_off:
            reused_tokens = self.engine.reused_tokens(job.transfer_id)
            self._say(Prefilled(_first(job, token), reused_tokens))
        if not job.hands_over or token.finish_reason == "stop":
            self._call_off(job)

    def _call_off(self, job: _Job, reason: str = "", again: bool = True) -> None:
        """End it. What is offered may be read until the exporter says that its lease has ended."""
        if job.called_off:
            return
        job.called_off = True
        if reason:
            job.failure = Failed(job.request_id, reason, again)
        if not job.offered:
            self._forget(job)
        elif reason:
            self.exporter.fail(job.transfer_id, reason)
        else:
            self.exporter.withdraw(job.transfer_id)

    def _on_ended(self, transfer_id: str, how: How) -> None:
        job = self._jobs[transfer_id]
        if how == "expired" and not job.prefilled and not job.called_off:
            reason = "its deadline passed before it had been read to its end"
            job.failure = Failed(job.request_id, reason, again=True)
        job.offered = False
        self._say(Ended(transfer_id, how))
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        self.engine.cancel(job.transfer_id)
        del self._jobs[job.transfer_id]
        if job.failure is not None:
            self._say(job.failure)


def _first(job: _Job, token: SampledToken) -> Token:
    """The engine was asked for this token only; whether more may come is known here."""
    ends = token.finish_reason == "stop" or not job.hands_over
    reason = token.finish_reason if ends else None
    return Token(job.request_id, token.token_id, reason, token.logprob, token.top_logprobs)
