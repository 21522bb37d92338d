"""DecodeWorker: reads caches that prefill workers offer, and goes on with their answers.

A request waits in the order of its arrival until there are blocks for it; then its cache is read
into them while steps run for others. The token that the prefill sampled may come before the cache
or after it; with both it decodes. Blocks that are being read into return when the read has ended,
never before, and nobody else is touched by a read that fails."""

import time
from collections import deque
from dataclasses import dataclass
from typing import Literal

from prefill_decode.disaggregated.duty import Say, told
from prefill_decode.disaggregated.mailbox import Mailbox
from prefill_decode.disaggregated.messages import (
    Asked,
    Cancel,
    Continue,
    Failed,
    Message,
    Pulled,
    Start,
    State,
    Token,
    Tokens,
)
from prefill_decode.disaggregated.reads import Outcome, Reads
from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.kv_transfer import Lane, Moved, Offer, Pool, Refused
from prefill_decode.scheduling import OutOfBlocks, QueueFull


@dataclass(eq=False)
class _Job:
    """One answer. The engine knows it by the id of its transfer, of which there is only one."""

    asked: Asked
    offer: Offer
    due_s: float  # on the monotonic clock
    stage: Literal["waiting", "reading", "read", "decoding"] = "waiting"
    seen: bool = False  # by the engine, which would have said if it could never fit
    token_id: int | None = None
    called_off: bool = False
    failure: Failed | None = None

    @property
    def job_id(self) -> str:
        return self.offer.transfer_id


class DecodeWorker:
    """Its methods are called from the loop's thread."""

    address: str | None = None

    def __init__(
        self,
        engine: ServingEngine,
        pool: Pool,
        mailbox: Mailbox,
        say: Say,
        key: bytes | None = None,
        lane: Lane = "auto",
    ) -> None:
        self.engine = engine
        self._mailbox, self._say = mailbox, say
        self._jobs: dict[str, _Job] = {}
        self._by_request: dict[str, _Job] = {}  # those that are not called off
        self._line: deque[_Job] = deque()
        self._reads = Reads(
            pool,
            lambda job_id, outcome: mailbox.post(lambda: self._on_read(job_id, outcome)),
            key=key,
            lane=lane,
            most=engine.scheduler.settings.most_sequences,
        )

    def obey(self, message: Message) -> None:
        match message:
            case Continue():
                self._begin(message)
            case Start() if message.request_id in self._by_request:
                job = self._by_request[message.request_id]
                job.token_id = message.token_id
                self._start(job)
            case Cancel() if message.request_id in self._by_request:
                self._call_off(self._by_request[message.request_id])

    def expire(self, now_s: float) -> float | None:
        """Give up what is not started in time; when the next is due."""
        open_jobs = [job for job in self._by_request.values() if job.stage != "decoding"]
        for job in open_jobs:
            if job.due_s <= now_s:
                self._call_off(job, f"its deadline passed while it was {job.stage}")
        return min((job.due_s for job in open_jobs if job.due_s > now_s), default=None)

    def step(self) -> bool:
        """Whether there was one to run."""
        self._admit()
        steps = self.engine.state().steps
        tokens = [self._told(token) for token in self.engine.step()]
        sampled = tuple(token for token in tokens if token is not None)
        if sampled:
            self._say(Tokens(sampled))
        return self.engine.state().steps > steps

    def state(self) -> State:
        reserved = len(self.engine.scheduler.reserved)
        return told(self.engine.state(), leases=reserved, waiting=len(self._line))

    def close(self) -> None:
        self._reads.close()

    def _begin(self, message: Continue) -> None:
        job = _Job(message.asked, message.offer, time.monotonic() + message.deadline_s)
        earlier = self._by_request.get(job.asked.request_id)
        if earlier is not None:
            self._call_off(earlier)
        if job.job_id in self._jobs:
            reason = f"a transfer is read once; {job.job_id!r} is known here"
            self._say(Failed(job.asked.request_id, reason, again=False))
            return
        self._jobs[job.job_id] = self._by_request[job.asked.request_id] = job
        self._line.append(job)

    def _admit(self) -> None:
        """Blocks for those that wait, as far as they reach; nobody overtakes."""
        while self._line and self._may_fit(self._line[0]) and self._reserve(self._line[0]):
            self._line.popleft()

    def _may_fit(self, job: _Job) -> bool:
        """A cheap look, for one who has been looked at."""
        return not job.seen or self.engine.scheduler.pool.num_free >= len(job.offer.blocks)

    def _reserve(self, job: _Job) -> bool:
        """Whether its waiting is over, because it has its blocks or because it cannot have any."""
        asked, job.seen = job.asked, True
        try:
            blocks = self.engine.reserve(
                job.job_id,
                asked.prompt_ids,
                asked.most_output_tokens,
                asked.sampling,
                asked.stop_ids,
                known_ids=asked.known_ids,
                first_answer=asked.answer,
            )
        except (OutOfBlocks, QueueFull):
            return False
        except ValueError as error:
            self._fail(job, str(error), again=False)
            return True
        if len(blocks) != len(job.offer.blocks):
            reason = f"{len(blocks)} blocks are to be read; {len(job.offer.blocks)} are offered"
            self._fail(job, reason, again=False)
            return True
        job.stage = "reading"
        self._reads.begin(job.offer, blocks, job.due_s)
        return True

    def _on_read(self, job_id: str, outcome: Outcome) -> None:
        job = self._jobs[job_id]
        if job.called_off:
            self._forget(job)
        elif isinstance(outcome, Moved):
            job.stage = "read"
            asked = job.asked.request_id
            self._say(Pulled(asked, job_id, outcome.moved_bytes, outcome.seconds, outcome.lane))
            self._start(job)
        else:
            reason = f"its cache could not be read: {outcome}"
            self._fail(job, reason, again=not isinstance(outcome, Refused))

    def _start(self, job: _Job) -> None:
        """Decode, if both the cache and the token are there."""
        if job.stage != "read" or job.token_id is None:
            return
        try:
            self.engine.start(job.job_id, job.token_id)
        except ValueError as error:
            self._fail(job, str(error), again=False)
        else:
            job.stage = "decoding"

    def _told(self, token: SampledToken | FailedAnswer) -> Token | None:
        job = self._jobs[token.request_id]
        if isinstance(token, FailedAnswer):
            self._fail(job, token.reason, again=False)
            return None
        if token.finish_reason:
            self._forget(job)
        return Token(
            job.asked.request_id,
            token.token_id,
            token.finish_reason,
            token.logprob,
            token.top_logprobs,
        )

    def _call_off(self, job: _Job, reason: str = "") -> None:
        """End it; while its cache is being read, when that has ended."""
        job.called_off = True
        del self._by_request[job.asked.request_id]
        if reason:
            job.failure = Failed(job.asked.request_id, reason, again=True)
        if job.stage == "reading":
            self._reads.abort(job.job_id)
            return
        if job.stage == "waiting":
            self._line.remove(job)
        self._forget(job)

    def _fail(self, job: _Job, reason: str, again: bool) -> None:
        job.failure = Failed(job.asked.request_id, reason, again)
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        """Its blocks are free, and whoever asked is told if it failed."""
        self.engine.cancel(job.job_id)
        del self._jobs[job.job_id]
        if self._by_request.get(job.asked.request_id) is job:
            del self._by_request[job.asked.request_id]
        if job.failure is not None:
            self._say(job.failure)
