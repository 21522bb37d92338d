"""A serving engine without a model: it writes a given text, and fails when it is told to."""

import threading
import time
from collections.abc import Sequence

from prefill_decode.engine.answering import FailedAnswer, SampledToken, ServingState
from prefill_decode.engine.sampling import Sampling
from prefill_decode.scheduling import QueueFull


class FakeEngine:
    """Every answer writes `text` byte by byte, again and again; each prompt holds one block."""

    def __init__(
        self,
        text: str = "abcdefghij",
        capacity_tokens: int = 1000,
        num_blocks: int = 64,
        most_waiting: int = 64,
        tokens_per_step: int = 1,
        pause_s: float = 0.0,  # within each step
    ) -> None:
        self.text = text.encode()
        self.capacity_tokens = capacity_tokens
        self.num_blocks = num_blocks
        self.most_waiting = most_waiting
        self.tokens_per_step = tokens_per_step
        self.pause_s = pause_s
        self.may_step = threading.Event()  # cleared: a step hangs until it is set
        self.may_step.set()
        self.step_error: Exception | None = None
        self.submit_error: Exception | None = None
        self.failing: list[FailedAnswer] = []  # told with the next step
        self.ailment: str | None = None
        self.submitted: list[tuple[str, list[int], int, Sampling, frozenset[int], int]] = []
        self.steps = self.sampled = 0
        self.threads: set[int] = set()
        self._left: dict[tuple[str, int], tuple[int, int]] = {}  # written, to write
        self._stop_ids: dict[str, frozenset[int]] = {}
        self._logprobs: dict[str, int | None] = {}

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answers: int = 1,
    ) -> None:
        self.threads.add(threading.get_ident())
        if self.submit_error is not None:
            raise self.submit_error
        if len(self._requests()) >= self.most_waiting:
            raise QueueFull(f"{self.most_waiting} requests are waiting")
        sampling = sampling or Sampling()
        self.submitted.append(
            (request_id, list(prompt_ids), most_output_tokens, sampling, stop_ids, answers)
        )
        self._stop_ids[request_id] = stop_ids
        self._logprobs[request_id] = sampling.top_logprobs
        for answer in range(answers):
            self._left[request_id, answer] = (0, most_output_tokens)

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        self.threads.add(threading.get_ident())
        for key in list(self._left):
            if key[0] == request_id and answer in (None, key[1]):
                del self._left[key]

    def step(self) -> list[SampledToken | FailedAnswer]:
        self.threads.add(threading.get_ident())
        self.may_step.wait(20)
        time.sleep(self.pause_s)
        if self.step_error is not None:
            raise self.step_error
        self.steps += 1
        found = []
        for _ in range(self.tokens_per_step):
            found += [self._next(*key) for key in list(self._left)]
        self.sampled += len(found)
        failed, self.failing = self.failing, []
        for failure in failed:
            self.cancel(failure.request_id, failure.answer)
        return [*failed, *found]

    def wake(self) -> None:
        pass

    def _next(self, request_id: str, answer: int) -> SampledToken:
        written, most = self._left[request_id, answer]
        token_id = self.text[written % len(self.text)]
        written += 1
        reason = "length" if written == most else None
        if token_id in self._stop_ids[request_id]:
            reason = "stop"
        if reason:
            del self._left[request_id, answer]
        else:
            self._left[request_id, answer] = (written, most)
        wanted = self._logprobs[request_id]
        top = tuple((token_id + i, -1.0 - i) for i in range(wanted or 0))
        return SampledToken(
            request_id, answer, token_id, reason, None if wanted is None else -1.0, top
        )

    def _requests(self) -> set[str]:
        return {request_id for request_id, _ in self._left}

    @property
    def has_work(self) -> bool:
        return bool(self._left)

    def state(self) -> ServingState:
        num = len(self._requests())
        return ServingState(
            num_running=len(self._left),
            num_waiting=0,
            free_blocks=self.num_blocks - num,
            num_blocks=self.num_blocks,
            steps=self.steps,
            preemptions=0,
            prompt_tokens=0,
            reused_tokens=0,
            sampled_tokens=self.sampled,
            ailment=self.ailment,
        )
