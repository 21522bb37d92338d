"""Coordination: which answer is where, and what has to be said to whom next.

Takes requests, messages from workers and the time; leaves messages to be sent in `outbox` and what
requests shall hear in `news`. No sockets, no processes, no clock.

An answer waits; then it is tried: a prefill worker reads what is known of it and samples a token,
a decode worker reads the cache and goes on. A try that fails, because a worker was lost or said so
or because it took too long, is called off on both sides and made again with all tokens that there
are, as often as `Patience` allows; then the answer fails alone. Every try has an id of its own, so
what comes late from an earlier one means nothing any more. However a try ends, its lease ends: by
the reader, which has read it, or by a word from here.

Counts:  tries, caches and bytes moved, tokens, lost workers.
Ignores: that the decode worker may hold the beginning of a prompt already: all blocks are moved.
"""

from bisect import insort
from collections.abc import Sequence

from prefill_decode.disaggregated.crew import (
    Worker,
    newcomer,
    of_role,
    place_decode,
    place_prefill,
)
from prefill_decode.disaggregated.journey import Journey, Patience, Request
from prefill_decode.disaggregated.messages import (
    Cancel,
    Continue,
    Ended,
    Failed,
    Hello,
    Message,
    Offered,
    Prefill,
    Prefilled,
    Pulled,
    Role,
    Start,
    State,
    Token,
    Tokens,
    Withdraw,
)
from prefill_decode.disaggregated.tally import Tally
from prefill_decode.engine.answering import FailedAnswer, SampledToken, ServingState
from prefill_decode.engine.sampling import Sampling
from prefill_decode.scheduling import QueueFull

MOST_ID = 150  # characters of a request's id: that of its tries is longer


class Coordination:
    """All that the coordinator decides."""

    def __init__(
        self,
        patience: Patience | None = None,
        most_sequences: int = 64,  # at one decode worker
        most_waiting: int | None = None,
        now_s: float = 0.0,
    ) -> None:
        self.patience = patience or Patience()
        self.most_sequences, self.most_waiting = most_sequences, most_waiting
        self.workers: dict[str, Worker] = {}  # by incarnation
        self.requests: dict[str, Request] = {}
        self.outbox: list[tuple[str, Message]] = []  # to the worker of this incarnation
        self.news: list[SampledToken | FailedAnswer] = []
        self._waiting: list[Journey] = []  # in the order of arrival
        self._by_try: dict[str, Journey] = {}
        self._without_since_s: dict[Role, float | None] = {"prefill": now_s, "decode": now_s}
        self._arrived = self._tried = 0
        self._tally = Tally()

    # What is asked.

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling,
        stop_ids: frozenset[int],
        answers: int,
        now_s: float,
    ) -> None:
        """ValueError for an id in use or no id, QueueFull when as many answers wait as may."""
        if request_id in self.requests or not 0 < len(request_id) <= MOST_ID:
            raise ValueError(
                f"every request has an id of its own, of 1 to {MOST_ID} characters; got "
                f"{request_id!r:.200}"
            )
        waiting = len(self._waiting)
        if self.most_waiting is not None and waiting >= self.most_waiting:
            raise QueueFull(f"{waiting} answers wait, and no more than {self.most_waiting} may")
        request = Request(request_id, tuple(prompt_ids), most_output_tokens, sampling, stop_ids)
        self.requests[request_id] = request
        self._tally.prompt_tokens += len(prompt_ids)
        for answer in range(answers):
            journey = Journey(request, answer, self._arrived, now_s + self.patience.waiting_s)
            self._arrived += 1
            request.journeys[answer] = journey
            self._waiting.append(journey)
        self._dispatch(now_s)

    def cancel(self, request_id: str, answer: int | None, now_s: float) -> None:
        """Forget a request or one of its answers. Unknown ones are fine."""
        request = self.requests.get(request_id)
        journeys = {} if request is None else request.journeys
        for index in list(journeys) if answer is None else [answer]:
            if index in journeys:
                self._leave(journeys[index])
        self._dispatch(now_s)

    # What happens to workers.

    def join(self, hello: Hello, now_s: float) -> None:
        """A worker that can be asked from now on. ValueError, in words, for one that cannot."""
        for other in self.workers.values():
            differences = other.hello.layout.differences(hello.layout)
            if differences:
                raise ValueError(
                    f"{hello.name} cannot exchange caches with {other.hello.name}, whose "
                    + "; its ".join(differences)
                )
        if hello.incarnation in self.workers:
            raise ValueError(f"{hello.name} is there already, as {hello.incarnation!r:.80}")
        self.workers[hello.incarnation] = newcomer(hello, now_s)
        self._without_since_s[hello.role] = None
        self._dispatch(now_s)

    def lose(self, worker_id: str, reason: str, now_s: float) -> None:
        """A worker is gone, and all that it did is done again elsewhere. Unknown ones are fine."""
        worker = self.workers.pop(worker_id, None)
        if worker is None:
            return
        self._tally.lose(worker)
        if not of_role(self.workers.values(), worker.hello.role):
            self._without_since_s[worker.hello.role] = now_s
        for journey in list(worker.journeys.values()):
            if journey.prefill is not worker and not journey.continued:
                journey.decode = None  # it was only promised
                del worker.journeys[journey.try_id]
            else:
                self._again(journey, f"{worker.hello.name} {reason}", now_s)
        self._dispatch(now_s)

    def silent(self, now_s: float) -> list[str]:
        """Workers that have said nothing for too long."""
        most_s = self.patience.silence_s
        return [w.worker_id for w in self.workers.values() if now_s - w.heard_s > most_s]

    def receive(self, worker_id: str, message: Message, now_s: float) -> None:
        """From a worker. Those of workers that are lost and of tries that are over are late."""
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        worker.heard_s = now_s
        match message:
            case State():
                worker.settle(message)
            case Offered():
                self._on_offered(worker, message, now_s)
            case Prefilled():
                self._on_prefilled(worker, message, now_s)
            case Ended():
                self._on_ended(worker, message, now_s)
            case Pulled():
                self._on_pulled(worker, message, now_s)
            case Tokens():
                for token in message.tokens:
                    self._on_decoded(worker, token, now_s)
            case Failed():
                self._on_failed(worker, message, now_s)
        self._dispatch(now_s)

    def tick(self, now_s: float) -> None:
        """Give up what has taken too long."""
        for request in list(self.requests.values()):
            for journey in list(request.journeys.values()):
                if now_s >= journey.due_s:
                    self._overdue(journey, now_s)
        self._dispatch(now_s)

    # What is to be known.

    def state(self, now_s: float) -> ServingState:
        return self._tally.state(
            self.workers.values(), len(self._by_try), len(self._waiting), self._ailment(now_s)
        )

    def _ailment(self, now_s: float) -> str | None:
        for role, since_s in self._without_since_s.items():
            if since_s is not None and now_s - since_s > self.patience.without_worker_s:
                return f"there has been no {role} worker for {now_s - since_s:.0f} s"
        return None

    # From one stage to the next.

    def _dispatch(self, now_s: float) -> None:
        """Begin what can begin. Nobody overtakes, but for those that only wait for the first
        answer to the same prompt, whose cache they will find."""
        for journey in list(self._by_try.values()):
            if journey.offer is not None and journey.hands_over and not journey.continued:
                self._continue(journey, now_s)
        for journey in list(self._waiting):
            if self._waits_for_sibling(journey):
                continue
            prefill = place_prefill(journey, self.workers.values())
            decode = place_decode(journey, self.workers.values(), self.most_sequences)
            if prefill is None or (decode is None and journey.hands_over):
                break
            self._try(journey, prefill, decode if journey.hands_over else None, now_s)

    def _waits_for_sibling(self, journey: Journey) -> bool:
        request = journey.request
        if request.read_by is not None and request.read_by.worker_id in self.workers:
            return False
        return any(other.stage == "prefilling" for other in request.journeys.values())

    def _try(self, journey: Journey, prefill: Worker, decode: Worker | None, now_s: float) -> None:
        self._waiting.remove(journey)
        request, patience = journey.request, self.patience
        self._tried += 1
        journey.begin(f"{request.request_id}/{journey.answer}/{self._tried}", prefill, decode)
        journey.due_s = now_s + patience.prefill_s
        self._by_try[journey.try_id] = journey
        for worker in (prefill, decode):
            if worker is not None:
                worker.journeys[journey.try_id] = journey
        lease_s = patience.prefill_s + patience.hand_over_s
        self._send(prefill, Prefill(journey.asked(), journey.try_id, lease_s))

    def _continue(self, journey: Journey, now_s: float) -> None:
        """Tell a decode worker of the offer, the one with the promise if it is there."""
        if journey.decode is None:
            workers = self.workers.values()
            journey.decode = place_decode(journey, workers, self.most_sequences)
        if journey.decode is None or journey.offer is None:
            return
        journey.decode.journeys[journey.try_id] = journey
        journey.continued = True
        left_s = max(0.0, journey.due_s - now_s)
        if not journey.prefilled:
            left_s += self.patience.hand_over_s
        self._send(journey.decode, Continue(journey.asked(), journey.offer, left_s))
        self._start(journey)

    def _start(self, journey: Journey) -> None:
        if journey.decode is not None and journey.continued and journey.prefilled:
            self._send(journey.decode, Start(journey.try_id, journey.token_id))

    def _on_offered(self, worker: Worker, offered: Offered, now_s: float) -> None:
        journey = self._by_try.get(offered.request_id)
        if journey is None or journey.prefill is not worker:
            self._send(worker, Withdraw(offered.offer.transfer_id))
        elif journey.offer is None:
            journey.offer = offered.offer

    def _on_prefilled(self, worker: Worker, prefilled: Prefilled, now_s: float) -> None:
        journey = self._by_try.get(prefilled.token.request_id)
        if journey is None or journey.prefill is not worker or journey.prefilled:
            return
        if journey.request.read_by is None:
            self._tally.reused_tokens += prefilled.reused_tokens
        journey.request.read_by = worker
        journey.prefilled = True
        self._tell(journey, prefilled.token)
        if prefilled.token.finish_reason:
            self._leave(journey)
        else:
            self._start(journey)
            self._handed_over(journey, now_s)

    def _on_pulled(self, worker: Worker, pulled: Pulled, now_s: float) -> None:
        journey = self._by_try.get(pulled.request_id)
        if journey is None or journey.decode is not worker or journey.pulled:
            return
        journey.pulled = True
        self._tally.transfers += 1
        self._tally.moved_bytes += pulled.moved_bytes
        self._tally.moving_s += pulled.seconds
        self._handed_over(journey, now_s)

    def _handed_over(self, journey: Journey, now_s: float) -> None:
        """The token is here, or the cache is there; with both, the prefill worker's part ends."""
        if journey.stage == "handing over":
            journey.due_s = now_s + self.patience.hand_over_s
        elif journey.stage == "decoding" and journey.prefill is not None:
            journey.due_s = now_s + self.patience.token_s
            journey.prefill.journeys.pop(journey.try_id, None)

    def _on_decoded(self, worker: Worker, token: Token, now_s: float) -> None:
        journey = self._by_try.get(token.request_id)
        if journey is None or journey.decode is not worker or journey.stage != "decoding":
            return
        journey.due_s = now_s + self.patience.token_s
        self._tell(journey, token)
        if token.finish_reason:
            self._forget_try(journey)
            self._end(journey)

    def _on_ended(self, worker: Worker, ended: Ended, now_s: float) -> None:
        journey = self._by_try.get(ended.transfer_id)
        if journey is None or journey.prefill is not worker or ended.how == "released":
            return
        if not journey.pulled:
            self._again(journey, f"its cache was {ended.how} before it was read", now_s)

    def _on_failed(self, worker: Worker, failed: Failed, now_s: float) -> None:
        journey = self._by_try.get(failed.request_id)
        if journey is None or worker.journeys.get(journey.try_id) is not journey:
            return
        reason = f"{worker.hello.name} says: {failed.reason}"
        if failed.again:
            self._again(journey, reason, now_s)
        else:
            self._fail(journey, reason)

    def _tell(self, journey: Journey, token: Token) -> None:
        journey.known_ids.append(token.token_id)
        self._tally.sampled_tokens += 1
        self.news.append(
            SampledToken(
                journey.request.request_id,
                journey.answer,
                token.token_id,
                token.finish_reason,
                token.logprob,
                token.top_logprobs,
            )
        )

    # Ways out.

    def _overdue(self, journey: Journey, now_s: float) -> None:
        patience = self.patience
        match journey.stage:
            case "waiting":
                why = self._ailment(now_s) or "no worker had room for it"
                self._fail(journey, f"it waited {patience.waiting_s:g} s: {why}")
            case "prefilling":
                self._again(journey, f"it was not read within {patience.prefill_s:g} s", now_s)
            case "handing over":
                most_s = patience.hand_over_s
                self._again(journey, f"its cache was not moved within {most_s:g} s", now_s)
            case "decoding":
                self._again(journey, f"no token came within {patience.token_s:g} s", now_s)

    def _again(self, journey: Journey, reason: str, now_s: float) -> None:
        if journey.tries >= self.patience.most_tries:
            self._fail(journey, f"it was tried {journey.tries} times; the last time: {reason}")
            return
        self._call_off(journey)
        journey.due_s = now_s + self.patience.waiting_s
        insort(self._waiting, journey, key=lambda waiting: waiting.number)
        self._tally.recomputed_answers += 1

    def _fail(self, journey: Journey, reason: str) -> None:
        self._leave(journey)
        told = f"the answer cannot be completed: {reason}"
        self.news.append(FailedAnswer(journey.request.request_id, journey.answer, told))

    def _leave(self, journey: Journey) -> None:
        if journey.stage == "waiting":
            self._waiting.remove(journey)
        else:
            self._call_off(journey)
        self._end(journey)

    def _end(self, journey: Journey) -> None:
        request = journey.request
        del request.journeys[journey.answer]
        if not request.journeys:
            del self.requests[request.request_id]

    def _call_off(self, journey: Journey) -> None:
        """Both sides forget the try, and its lease ends."""
        if journey.prefill is not None and journey.stage != "decoding":
            self._send(journey.prefill, Cancel(journey.try_id))
            self._send(journey.prefill, Withdraw(journey.try_id))
        if journey.decode is not None and journey.continued:
            self._send(journey.decode, Cancel(journey.try_id))
        self._forget_try(journey)

    def _forget_try(self, journey: Journey) -> None:
        del self._by_try[journey.try_id]
        for worker in (journey.prefill, journey.decode):
            if worker is not None:
                worker.journeys.pop(journey.try_id, None)
        journey.forget_try()

    def _send(self, worker: Worker, message: Message) -> None:
        if worker.worker_id in self.workers:
            self.outbox.append((worker.worker_id, message))
