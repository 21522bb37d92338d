"""Service: the thread that runs the engine, and the streams in which its tokens reach requests.

The engine knows nothing of threads: only the service's own calls it. What the event loop wants of
it waits in a queue that is emptied between steps; what a step brings goes to the event loop in one
call, however many tokens it has. Each request's stream turns its tokens into text and holds what
its reader has not taken.

Counts:  a step's time is that of `step` alone; a token's time is when its step ended.
Ignores: what the event loop and the network take after that.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from prefill_decode.endpoint.answers import Answer, Piece
from prefill_decode.endpoint.errors import ApiError
from prefill_decode.endpoint.server_metrics import ServerMetrics
from prefill_decode.engine.answering import Answering, FailedAnswer, SampledToken
from prefill_decode.engine.sampling import Sampling
from prefill_decode.scheduling import QueueFull

JOIN_S = 5.0  # how long a step may take to end when the service stops
MOST_STEPS_AHEAD = 16  # of the event loop: it hears of each before the engine goes further
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Submission:
    """One prompt, as the engine takes it."""

    request_id: str
    prompt_ids: Sequence[int]
    most_output_tokens: int
    sampling: Sampling
    stop_ids: frozenset[int]
    answers: int


@dataclass(frozen=True)
class Submit:
    submission: Submission
    accepted: asyncio.Future[None]


@dataclass(frozen=True)
class Cancel:
    request_id: str
    answer: int | None


class AnswerStream:
    """All answers of one HTTP request: what they have brought and the reader has not taken.

    Lives on the event loop. `behind` ends a reader that lets more than `most_behind` tokens wait;
    None lets all of them wait."""

    def __init__(
        self,
        service: "Service",
        submissions: Sequence[Submission],
        answers: Sequence[Answer],
        arrived_s: float,
        most_behind: int | None,
    ) -> None:
        self.submissions = submissions
        self.answers = answers
        self.arrived_s = arrived_s
        self.failure: ApiError | None = None
        self.behind = asyncio.Event()
        self._service = service
        self._most_behind = most_behind
        self._pieces: list[Piece] = []
        self._tokens_waiting = 0
        self._news = asyncio.Event()
        self._first = {s.request_id: i * s.answers for i, s in enumerate(submissions)}

    @property
    def ended(self) -> bool:
        return self.failure is not None or all(answer.ended for answer in self.answers)

    def on_token(self, token: SampledToken, time_s: float) -> None:
        answer = self.answers[self._first[token.request_id] + token.answer]
        if answer.ended or self.failure is not None:
            return  # sampled before the engine heard that it was over
        self._observe(answer, time_s)
        pieces = answer.push(token)
        if answer.ended and token.finish_reason is None:
            self._service.cancel(token.request_id, token.answer)
        self._pieces += pieces
        self._tokens_waiting += sum(piece.num_tokens for piece in pieces)
        if self._most_behind is not None and self._tokens_waiting > self._most_behind:
            self.behind.set()
        if pieces:
            self._news.set()

    def fail(self, error: ApiError) -> None:
        """The rest will not come. What came before can still be taken."""
        if not self.ended:
            self.failure = error
            self._news.set()

    async def take(self) -> list[Piece]:
        """The next pieces; none once every answer has ended. Raises the failure, if one came."""
        if not self._pieces and not self.ended:
            await self._news.wait()
        self._news.clear()
        pieces, self._pieces, self._tokens_waiting = self._pieces, [], 0
        if not pieces and self.failure is not None:
            raise self.failure
        return pieces

    def _observe(self, answer: Answer, time_s: float) -> None:
        metrics = self._service.metrics
        if answer.last_time_s is not None:
            metrics.inter_token.observe(time_s - answer.last_time_s)
        elif all(other.last_time_s is None for other in self.answers):
            metrics.first_token.observe(time_s - self.arrived_s)
        answer.last_time_s = time_s


def _stopping() -> ApiError:
    return ApiError(503, "the server is stopping and takes no new requests", code="stopping")


class Service:
    """The engine in its thread. All methods are called on the event loop, but those of the thread
    itself, which stand last."""

    def __init__(self, engine: Answering, metrics: ServerMetrics) -> None:
        self.engine = engine
        self.metrics = metrics
        self.capacity_tokens = engine.capacity_tokens
        self.state = engine.state()  # as of the last step
        self.streams: set[AnswerStream] = set()
        self.stopping = False
        self.failure: Exception | None = None
        self.died = asyncio.Event()
        self._by_request: dict[str, AnswerStream] = {}
        self._commands: queue.SimpleQueue[Submit | Cancel | None] = queue.SimpleQueue()
        self._steps_ahead = threading.Semaphore(MOST_STEPS_AHEAD)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        metrics.watch(lambda: self.state)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """End the thread after its step. A step that hangs is left behind."""
        self.stopping = True  # nothing is asked of the thread after this
        self._ask(None)
        await asyncio.to_thread(self._thread.join, JOIN_S)

    def check_open(self) -> None:
        """ApiError 503 where no new request can be taken."""
        if self.failure is not None:
            raise ApiError(503, "the engine has failed and takes no requests", code="engine_failed")
        if self.stopping:
            raise _stopping()

    def check_health(self) -> None:
        """ApiError 503 where a new request would not be answered, or not soon."""
        self.check_open()
        if self.state.ailment is not None:
            raise ApiError(503, self.state.ailment, code="unhealthy")

    async def open(
        self,
        submissions: Sequence[Submission],
        answers: Sequence[Answer],
        arrived_s: float,
        most_behind: int | None,
    ) -> AnswerStream:
        """Hand a request to the engine: its stream, to be closed, once the engine has taken it.

        ApiError 400 for what the engine refuses, 429 when its queue is full, 503 when closed."""
        self.check_open()
        stream = AnswerStream(self, submissions, answers, arrived_s, most_behind)
        self.streams.add(stream)
        futures = [self._submit(submission, stream) for submission in submissions]
        try:
            for result in await asyncio.gather(*futures, return_exceptions=True):
                if result is not None:
                    raise result
        except BaseException:
            self._forget(stream)
            raise
        return stream

    def _submit(self, submission: Submission, stream: AnswerStream) -> asyncio.Future[None]:
        accepted = self._loop.create_future()
        self._by_request[submission.request_id] = stream
        self._ask(Submit(submission, accepted))
        return accepted

    def close(self, stream: AnswerStream) -> None:
        """Count a stream and forget it; the engine drops what is left of it."""
        outcome = "failed" if stream.failure else "completed" if stream.ended else "cancelled"
        self.metrics.requests.labels(outcome).inc()
        self._forget(stream)

    def _forget(self, stream: AnswerStream) -> None:
        for submission in stream.submissions:
            del self._by_request[submission.request_id]
            if not all(answer.ended for answer in stream.answers):
                self.cancel(submission.request_id)
        self.streams.remove(stream)

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        self._ask(Cancel(request_id, answer))

    def _ask(self, command: Submit | Cancel | None) -> None:
        self._commands.put(command)
        self.engine.wake()

    def fail_all(self, error: ApiError) -> None:
        for stream in self.streams:
            stream.fail(error)

    def _settle(self, outcomes: list[tuple[asyncio.Future[None], ApiError | None]]) -> None:
        for accepted, error in outcomes:
            if accepted.done():
                continue  # who asked has gone
            if error is None:
                accepted.set_result(None)
            else:
                accepted.set_exception(error)

    def _deliver(
        self, news: Sequence[SampledToken | FailedAnswer], began_s: float, ended_s: float
    ) -> None:
        self._steps_ahead.release()
        if self.state.hand_overs is None:  # else others ran it, and here it was waited for
            self.metrics.step.observe(ended_s - began_s)
        for token in news:
            stream = self._by_request.get(token.request_id)
            if stream is None:
                continue
            if isinstance(token, FailedAnswer):
                self._fail_one(stream, ApiError(500, token.reason, code="answer_failed"))
                continue
            try:
                stream.on_token(token, ended_s)
            except Exception as error:  # of one request's text; the others go on
                self._fail_one(stream, ApiError(500, f"the tokens could not be read: {error!r}"))

    def _fail_one(self, stream: AnswerStream, error: ApiError) -> None:
        stream.fail(error)
        for submission in stream.submissions:
            self.cancel(submission.request_id)

    def _die(self, error: Exception, waiting: list[asyncio.Future[None]]) -> None:
        self.failure = error
        told = ApiError(500, f"the engine failed: {error!r:.300}", code="engine_failed")
        waiting += [c.accepted for c in self._drained() if isinstance(c, Submit)]
        self._settle([(accepted, told) for accepted in waiting])
        self.fail_all(told)
        self.died.set()

    # The engine's thread.

    def _run(self) -> None:
        pending: list[asyncio.Future[None]] = []
        try:
            while self._obey(pending):
                self._step()
        except Exception as error:
            self._tell(self._die, error, pending)

    def _obey(self, pending: list[asyncio.Future[None]]) -> bool:
        """Do what was asked since the last step; wait for it if there is nothing else to do.
        False to stop. `pending` holds the submission under way, should the engine fail in it."""
        outcomes = []
        stopped = False
        commands = [] if self.engine.has_work else [self._commands.get()]
        for command in [*commands, *self._drained()]:
            if command is None:
                stopped = True
            elif isinstance(command, Cancel):
                self.engine.cancel(command.request_id, command.answer)
            else:
                pending.append(command.accepted)
                refusal = _stopping() if stopped else self._refusal(command.submission)
                outcomes.append((command.accepted, refusal))
        if outcomes:
            self._tell(self._settle, outcomes)
        pending.clear()
        self.state = self.engine.state()
        return not stopped

    def _drained(self) -> list[Submit | Cancel | None]:
        commands = []
        with contextlib.suppress(queue.Empty):
            while True:
                commands.append(self._commands.get_nowait())
        return commands

    def _refusal(self, submission: Submission) -> ApiError | None:
        """Submit; why the engine would not have it."""
        try:
            self.engine.submit(
                submission.request_id,
                submission.prompt_ids,
                submission.most_output_tokens,
                submission.sampling,
                submission.stop_ids,
                submission.answers,
            )
        except QueueFull as error:
            return ApiError(
                429, f"{error}; try again later", code="queue_full", retry_after_s=RETRY_AFTER_S
            )
        except ValueError as error:
            return ApiError(400, str(error), code="invalid_value")
        return None

    def _step(self) -> None:
        if not self.engine.has_work:
            return
        self._steps_ahead.acquire()
        began_s = perf_counter()
        news = self.engine.step()
        ended_s = perf_counter()
        self.state = self.engine.state()
        self._tell(self._deliver, news, began_s, ended_s)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the event loop call a function. Once the loop is closed, nobody is left to hear."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)
