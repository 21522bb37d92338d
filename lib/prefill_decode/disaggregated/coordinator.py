"""Coordinator: requests in, tokens out, computed by workers that dial in from other processes.

Serves as an engine does (`engine.answering.Answering`). What to do is decided elsewhere
(`coordination`); this is the thin part with threads, channels and the clock. A keeper, where there
is one, starts workers and starts them again. All is called by one thread, but for `wake`."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from prefill_decode.disaggregated.coordination import Coordination
from prefill_decode.disaggregated.crew import of_role
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.messages import Hello, Message, Stop
from prefill_decode.disaggregated.post import Post
from prefill_decode.engine.answering import (
    FailedAnswer,
    SampledToken,
    ServingState,
    check_asked,
)
from prefill_decode.engine.sampling import Sampling
from prefill_decode.kv_transfer import Listener

TICK_S = 0.25  # between two looks at deadlines, when nothing else happens
LAST_WORDS_S = 2.0  # for Stop to reach the workers
Event = Callable[[], None]  # what is to be done about it, in the coordinator's thread


class Keeper(Protocol):
    """Whoever has started the workers."""

    def tend(self, now_s: float) -> list[str]:
        """Start again what has died; what there is to complain of, in words."""

    def end(self, name: str) -> None:
        """Kill a worker that hangs, or was cut off."""

    def close(self) -> None:
        """End them all."""


class Coordinator:
    """Listens for workers at `address`: "unix:PATH", or "tcp:HOST:PORT", beyond loopback with a
    key. ValueError and OSError as the listener has them."""

    def __init__(
        self,
        address: str,
        *,
        vocab_size: int,
        capacity_tokens: int,
        key: bytes | None = None,
        patience: Patience | None = None,
        most_sequences: int = 64,
        most_waiting: int | None = None,
        complain: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.vocab_size, self.capacity_tokens = vocab_size, capacity_tokens
        self.keeper: Keeper | None = None
        self._complain = complain
        self._coordination = Coordination(patience, most_sequences, most_waiting, time.monotonic())
        self._inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._posts: dict[str, Post] = {}  # by incarnation
        self._listener = Listener(address, key)
        self.address = self._listener.address
        self._ticked_s = time.monotonic()
        self._open = True
        self._accepting = threading.Thread(target=self._accept, name="accept", daemon=True)
        self._accepting.start()

    @property
    def has_work(self) -> bool:
        """Always: workers come and go whether or not anything is asked."""
        return True

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answers: int = 1,
    ) -> None:
        """As an engine's; of the answers to one prompt the first is read, and then the others."""
        check_asked(prompt_ids, most_output_tokens, answers, self.vocab_size, self.capacity_tokens)
        self._coordination.submit(
            request_id,
            prompt_ids,
            most_output_tokens,
            sampling or Sampling(),
            stop_ids,
            answers,
            time.monotonic(),
        )
        self._send_all()

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        self._coordination.cancel(request_id, answer, time.monotonic())
        self._send_all()

    def step(self) -> list[SampledToken | FailedAnswer]:
        """Wait for news, a wake-up or the next look at deadlines."""
        if not self._coordination.news:
            self._take_in(TICK_S)
            self._look_round()
        news, self._coordination.news = self._coordination.news, []
        return news

    def state(self) -> ServingState:
        return self._coordination.state(time.monotonic())

    def wake(self) -> None:
        self._inbox.put(lambda: None)

    def wait_for(self, num_prefill: int, num_decode: int, timeout_s: float) -> None:
        """Until so many workers are there. ValueError where they are not in time, with all that
        there was to complain of."""
        end_s = time.monotonic() + timeout_s
        while (found := self._present())[0] < num_prefill or found[1] < num_decode:
            if time.monotonic() >= end_s:
                raise ValueError(
                    f"{num_prefill} prefill and {num_decode} decode workers were to be ready "
                    f"within {timeout_s:g} s; got {found[0]} and {found[1]}"
                )
            self._take_in(TICK_S)
            if complaints := self._tend():
                raise ValueError("the workers do not start: " + "; ".join(complaints))

    def close(self) -> None:
        """Tell all workers to stop, and end those that were started here."""
        self._open = False
        for post in self._posts.values():
            post.send(Stop())
            post.finish()
        self._listener.close()
        self._accepting.join()
        for post in self._posts.values():
            post.join(LAST_WORDS_S)
            post.hang_up()
        if self.keeper is not None:
            self.keeper.close()

    # What comes in.

    def _accept(self) -> None:
        while self._open:
            channel = self._listener.accept(None)
            if channel is not None:
                Post(
                    channel,
                    lambda post, message: self._inbox.put(partial(self._hear, post, message)),
                    lambda post, reason: self._inbox.put(partial(self._hang_up, post, reason)),
                )

    def _take_in(self, most_s: float) -> None:
        """All that is there, or what comes first."""
        with suppress(queue.Empty):
            self._inbox.get(timeout=most_s)()
            while True:
                self._inbox.get_nowait()()
        self._send_all()

    def _hear(self, post: Post, message: Message) -> None:
        if isinstance(message, Hello):
            self._welcome(post, message)
        elif post.hello is not None and self._posts.get(post.hello.incarnation) is post:
            self._coordination.receive(post.hello.incarnation, message, time.monotonic())

    def _welcome(self, post: Post, hello: Hello) -> None:
        for other in list(self._posts.values()):
            if other.hello is not None and other.hello.name == hello.name:
                self._lose(other.hello.incarnation, "was started once more")
        try:
            self._check_newcomer(hello)
            self._coordination.join(hello, time.monotonic())
        except ValueError as error:
            self._complain(f"a worker is refused: {error}")
            post.hang_up()
        else:
            self._posts[hello.incarnation] = post

    def _hang_up(self, post: Post, reason: str) -> None:
        if post.hello is not None and self._posts.get(post.hello.incarnation) is post:
            self._lose(post.hello.incarnation, reason)

    # What is done about it.

    def _look_round(self) -> None:
        now_s = time.monotonic()
        for worker_id in self._coordination.silent(now_s):
            most_s = self._coordination.patience.silence_s
            self._lose(worker_id, f"has said nothing for {most_s:g} s")
        if now_s >= self._ticked_s + TICK_S:
            self._ticked_s = now_s
            self._coordination.tick(now_s)
            for complaint in self._tend():
                self._complain(complaint)
        self._send_all()

    def _lose(self, worker_id: str, reason: str) -> None:
        post = self._posts.pop(worker_id)
        assert post.hello is not None
        post.hang_up()
        if self._open:
            self._complain(f"{post.hello.name} {reason}; what it did is done again")
        self._coordination.lose(worker_id, reason, time.monotonic())
        if self.keeper is not None:
            self.keeper.end(post.hello.name)

    def _present(self) -> tuple[int, int]:
        workers = self._coordination.workers.values()
        return len(of_role(workers, "prefill")), len(of_role(workers, "decode"))

    def _tend(self) -> list[str]:
        return [] if self.keeper is None else self.keeper.tend(time.monotonic())

    def _send_all(self) -> None:
        outbox, self._coordination.outbox = self._coordination.outbox, []
        for worker_id, message in outbox:
            if worker_id in self._posts:
                self._posts[worker_id].send(message)

    def _check_newcomer(self, hello: Hello) -> None:
        if hello.capacity_tokens < self.capacity_tokens:
            raise ValueError(
                f"every worker holds sequences of {self.capacity_tokens} tokens; "
                f"{hello.name} holds {hello.capacity_tokens}"
            )
