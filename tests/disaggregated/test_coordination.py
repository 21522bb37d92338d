"""Whatever workers, clients and the order of messages do, every request ends once and right."""

from dataclasses import replace
from unittest.mock import ANY

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefill_decode.disaggregated.coordination import Coordination
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.messages import Withdraw
from prefill_decode.engine.answering import FailedAnswer
from prefill_decode.engine.sampling import Sampling
from prefill_decode.scheduling import QueueFull
from tests.disaggregated.scripted_workers import LAYOUT, ScriptedDecode, ScriptedPrefill, token_at

PATIENCE = Patience(waiting_s=100, prefill_s=40, hand_over_s=20, token_s=30, silence_s=10,
                    without_worker_s=50, most_tries=3)  # fmt: skip
MOST_SEQUENCES, MOST_WAITING = 4, 6


class Play:
    """A coordination and its workers, message by message."""

    def __init__(self, num_prefill=1, num_decode=1, patience=PATIENCE, **settings):
        settings = {"most_sequences": MOST_SEQUENCES, "most_waiting": MOST_WAITING} | settings
        self.coordination = Coordination(patience, **settings)
        self.now_s = 0.0
        self.leases, self.workers, self.gone = {}, [], []
        self.asked, self.heard, self.ends = {}, {}, {}
        for role in ["prefill"] * num_prefill + ["decode"] * num_decode:
            self.add(role)

    def add(self, role, **facts):
        kind = ScriptedPrefill if role == "prefill" else ScriptedDecode
        worker = kind(f"{role}-{len(self.workers)}", self.leases, **facts)
        self.workers.append(worker)
        self.coordination.join(worker.hello(), self.now_s)
        self.flush()
        return worker

    def flush(self):
        """Bring messages to workers, and news to clients."""
        there = {worker.incarnation: worker for worker in self.workers}
        for incarnation, message in self.coordination.outbox:
            there[incarnation].receive(message)
        self.coordination.outbox.clear()
        for item in self.coordination.news:
            key = (item.request_id, item.answer)
            assert key not in self.ends, "an answer that has ended hears no more"
            if isinstance(item, FailedAnswer):
                self.ends[key] = item.reason
                continue
            prompt, stop = self.asked[item.request_id][:2]
            heard = self.heard.setdefault(key, [])
            assert item.token_id == token_at(prompt, item.answer, len(heard))
            heard.append(item.token_id)
            assert (item.token_id in stop) == (item.finish_reason == "stop")
            if item.finish_reason:
                self.ends[key] = item.finish_reason
        self.coordination.news.clear()

    def submit(self, request_id, prompt, most, answers=1, stop=frozenset()):
        self.asked[request_id] = (prompt, stop, most, answers)
        try:
            self.coordination.submit(request_id, prompt, most, Sampling(), stop, answers,
                                     self.now_s)  # fmt: skip
        except QueueFull:
            del self.asked[request_id]
        self.flush()

    def cancel(self, request_id, answer=None):
        self.coordination.cancel(request_id, answer, self.now_s)
        for index in range(self.asked[request_id][3]) if answer is None else [answer]:
            self.ends.setdefault((request_id, index), "cancelled")
        self.flush()

    def hear(self, worker):
        """The coordinator gets the next message of a worker."""
        if worker.sent:
            self.coordination.receive(worker.incarnation, worker.sent.popleft(), self.now_s)
            self.flush()
            return True
        return False

    def kill(self, worker, reason="has died"):
        worker.alive = False
        self.workers.remove(worker)
        self.gone.append(worker)
        self.leases = {key: lease for key, lease in self.leases.items() if lease[0] is not worker}
        for other in (*self.workers, *self.gone):
            other.leases = self.leases
        self.coordination.lose(worker.incarnation, reason, self.now_s)
        self.flush()

    def settle(self):
        """Let everybody do all there is to do."""
        while any(self.hear(worker) or worker.act() for worker in self.workers):
            pass

    def assert_quiet(self):
        """Everything asked for has ended, and nobody holds anything."""
        wanted = {
            (name, answer) for name, asked in self.asked.items() for answer in range(asked[3])
        }
        assert set(self.ends) == wanted
        for worker in self.workers:
            assert (worker.tries, worker.held_blocks()) == ({}, 0)
        assert not [owner for owner, _ in self.leases.values() if owner.alive]
        assert self.coordination.requests == {}
        state = self.coordination.state(self.now_s)
        assert (state.num_running, state.num_waiting) == (0, 0)
        assert state.free_blocks == state.num_blocks
        assert not any(worker.journeys for worker in self.coordination.workers.values())


class AnyOrder(RuleBasedStateMachine):
    @initialize(prefill=st.integers(1, 2), decode=st.integers(1, 2))
    def begin(self, prefill, decode):
        self.play = Play(prefill, decode)

    def worker(self, index):
        return self.play.workers[index % len(self.play.workers)]

    @rule(
        prompt=st.lists(st.integers(0, 3), min_size=1, max_size=40),
        most=st.integers(1, 8),
        answers=st.integers(1, 3),
        stop=st.frozensets(st.integers(0, 65535), max_size=1),
        likely_stop=st.booleans(),
    )
    def submit(self, prompt, most, answers, stop, likely_stop):
        if likely_stop:
            stop = {token_at(prompt, 0, most // 2)}
        name = f"r{len(self.play.asked)}"
        self.play.submit(name, prompt, most, answers, frozenset(stop))

    @rule(index=st.integers(0), answer=st.sampled_from([None, 0, 1]))
    def cancel(self, index, answer):
        if self.play.asked:
            name = sorted(self.play.asked)[index % len(self.play.asked)]
            if answer is None or answer < self.play.asked[name][3]:
                self.play.cancel(name, answer)

    @precondition(lambda self: self.play.workers)
    @rule(index=st.integers(0), which=st.integers(0))
    def act(self, index, which):
        self.worker(index).act(which)

    @precondition(lambda self: self.play.workers)
    @rule(index=st.integers(0), count=st.integers(1, 9))
    def hear(self, index, count):
        for _ in range(count):
            self.play.hear(self.worker(index))

    @precondition(lambda self: self.play.workers)
    @rule(index=st.integers(0), which=st.integers(0), again=st.booleans())
    def fail(self, index, which, again):
        self.worker(index).fail(which, again)

    @rule(index=st.integers(0))
    def expire(self, index):
        if self.play.leases:
            try_id = list(self.play.leases)[index % len(self.play.leases)]
            self.play.leases[try_id][0].end(try_id, "expired")

    @precondition(lambda self: self.play.workers)
    @rule(index=st.integers(0))
    def kill(self, index):
        self.play.kill(self.worker(index))

    @rule(role=st.sampled_from(["prefill", "decode"]))
    def start(self, role):
        if len(self.play.workers) < 4:
            self.play.add(role)

    @precondition(lambda self: self.play.gone)
    @rule(index=st.integers(0))
    def hear_late(self, index):
        """A worker that counts as lost goes on and speaks."""
        worker = self.play.gone[index % len(self.play.gone)]
        worker.act(index)
        self.play.hear(worker)

    @rule(later_s=st.floats(0, 30))
    def wait(self, later_s):
        self.play.now_s += later_s
        self.play.coordination.tick(self.play.now_s)
        self.play.flush()

    @invariant()
    def limits_hold(self):
        play = getattr(self, "play", None)
        for worker in play.workers if play else []:
            if worker.role == "decode":
                assert len(worker.tries) <= MOST_SEQUENCES

    def teardown(self):
        play = getattr(self, "play", None)
        if play is None:
            return
        play.add("prefill")
        play.add("decode")
        play.settle()
        play.assert_quiet()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_a_request_goes_through_both_workers_in_so_many_words():
    play = Play()
    words = []
    flush = play.flush
    play.flush = lambda: (words.extend(m.type for _, m in play.coordination.outbox), flush())
    play.submit("r", [1, 2, 3], 4)
    play.settle()
    assert words == ["prefill", "continue", "start"]
    assert len(play.heard["r", 0]) == 4
    play.assert_quiet()
    hand_overs = play.coordination.state(0.0).hand_overs
    assert (hand_overs.transfers, hand_overs.moved_bytes, hand_overs.moving_s) == (1, 256, 0.25)
    assert (hand_overs.recomputed_answers, hand_overs.lost_workers) == (0, 0)


def test_an_answer_of_one_token_is_never_handed_over():
    play = Play(num_decode=0)
    play.submit("r", [1, 2, 3], 1)
    play.settle()
    play.assert_quiet()
    assert play.ends == {("r", 0): "length"}


@pytest.mark.parametrize("lost", ["prefill", "decode"])
@pytest.mark.parametrize("after", range(12))
def test_a_lost_worker_costs_nobody_a_token(lost, after):
    play = Play(2, 2)
    play.submit("r", [1, 2, 3], 6, answers=2)
    for _ in range(after):
        any(play.hear(worker) or worker.act() for worker in play.workers)
    busy = [w for w in play.workers if w.role == lost and w.tries] or play.workers
    play.kill(busy[0])
    play.settle()
    play.assert_quiet()
    assert set(play.ends.values()) == {"length"}
    assert [len(heard) for heard in play.heard.values()] == [6, 6]


def test_what_kills_every_worker_fails_alone_after_so_many_tries():
    play = Play()
    play.submit("bad", [1], 5)
    for _ in range(PATIENCE.most_tries):
        play.kill(next(worker for worker in play.workers if worker.role == "prefill"))
        play.add("prefill")
    assert "tried 3 times; the last time: prefill-1 has died" in play.ends["bad", 0]
    play.submit("good", [2], 5)
    play.settle()
    play.assert_quiet()


def test_a_request_that_never_fits_is_tried_once():
    play = Play()
    play.submit("r", [1], 5)
    play.workers[0].fail(0, again=False)
    play.settle()
    assert "prefill-0 says: it was told to" in play.ends["r", 0]
    play.assert_quiet()


def test_the_other_answers_wait_for_the_first_and_follow_it():
    play = Play(2, 1)
    play.submit("r", [1] * 9, 3, answers=3)
    first, other = play.workers[:2]
    assert [len(worker.tries) for worker in (first, other)] == [1, 0]
    play.submit("s", [2], 3)
    assert list(other.tries) == ["s/0/2"]  # who waits for its own holds up nobody else
    first.act()
    first.act()
    while play.hear(first):
        pass
    assert [len(worker.tries) for worker in (first, other)] == [2, 1]
    play.settle()
    play.assert_quiet()


def test_prompts_go_where_the_fewest_tokens_wait_and_caches_where_most_blocks_are_free():
    play = Play(2, 2)
    for index, length in enumerate([20, 4, 4, 30]):
        play.submit(f"r{index}", [index] * length, 2)
    a, b = ({key.split("/")[0] for key in worker.tries} for worker in play.workers[:2])
    assert (a, b) == ({"r0"}, {"r1", "r2", "r3"})
    requests = play.coordination.requests.values()
    placed = [request.journeys[0].decode.hello.name for request in requests]
    assert placed == ["decode-2", "decode-3", "decode-3", "decode-3"]


def test_nothing_is_prefilled_for_which_no_decode_worker_has_room():
    play = Play()
    play.submit("a", [1] * 40, 9)  # 11 of 16 blocks
    play.submit("b", [2] * 20, 9)  # 6
    play.submit("c", [3], 9)  # 1, but it overtakes nobody
    assert {key[0] for key in play.workers[0].tries} == {"a"}
    assert play.coordination.state(0.0).num_waiting == 2
    play.settle()
    play.assert_quiet()


def test_as_many_wait_as_may_and_an_id_is_used_by_one():
    play = Play(0, 0, most_waiting=2)
    for name in "abc":
        play.submit(name, [1], 2)
    assert set(play.coordination.requests) == {"a", "b"}
    for name in ("a", "", "x" * 151):
        with pytest.raises(ValueError, match="an id of its own"):
            play.coordination.submit(name, [1], 2, Sampling(), frozenset(), 1, 0.0)


def late_offer(play):
    play.submit("r", [1, 2], 3)
    prefill = play.workers[0]
    prefill.act()
    play.coordination.cancel("r", None, 0.0)
    play.coordination.outbox.clear()  # its Withdraw is on its way while the offer comes
    play.coordination.receive(prefill.incarnation, prefill.sent.popleft(), 0.0)
    return play.coordination.outbox


def test_an_offer_that_comes_too_late_is_ended_at_once():
    assert late_offer(Play()) == [(ANY, Withdraw("r/0/1"))]


@pytest.mark.parametrize(
    ("steps", "limit_s", "words"),
    [
        (None, PATIENCE.waiting_s, "it waited 100 s: there has been no prefill worker for 100 s"),
        (0, PATIENCE.prefill_s, "it was not read within 40 s"),
        (1, PATIENCE.hand_over_s, "its cache was not moved within 20 s"),
        (2, PATIENCE.token_s, "no token came within 30 s"),
    ],
)
def test_every_stage_has_an_end(steps, limit_s, words):
    play = Play(0 if steps is None else 1)
    play.submit("r", [1], 9)
    for _ in range(1 if steps is None else PATIENCE.most_tries):
        prefill, decode = play.workers[0], play.workers[-1]
        acts = [prefill, prefill] + ([decode] if steps == 2 else []) if steps else []
        for worker in acts:
            worker.act()
            while play.hear(worker):
                pass
        play.now_s += limit_s - 0.1
        play.coordination.tick(play.now_s)
        assert play.ends == {}
        play.now_s += 0.2
        play.coordination.tick(play.now_s)
        play.flush()
    assert words in play.ends["r", 0]
    play.settle()
    play.assert_quiet()


def test_a_phase_without_a_worker_is_an_ailment_after_a_while():
    play = Play(1, 0)
    assert play.coordination.state(PATIENCE.without_worker_s).ailment is None
    ailment = play.coordination.state(PATIENCE.without_worker_s + 1).ailment
    assert ailment == "there has been no decode worker for 51 s"
    play.add("decode")
    assert play.coordination.state(1000.0).ailment is None


def test_who_says_nothing_is_silent_and_who_speaks_is_not():
    play = Play()
    prefill, decode = play.workers
    play.now_s = PATIENCE.silence_s + 1
    play.coordination.receive(decode.incarnation, decode.state(), play.now_s)
    assert play.coordination.silent(play.now_s) == [prefill.incarnation]


def test_caches_that_do_not_fit_each_other_are_refused_with_all_differences():
    play = Play(1, 0)
    unlike = replace(LAYOUT, dtype="bfloat16", block_tokens=8)
    with pytest.raises(ValueError, match=r"decode-1.*prefill-0.*float32.*bfloat16.*block_tokens"):
        play.add("decode", layout=unlike)
    assert len(play.coordination.workers) == 1


def test_what_a_lost_worker_had_counted_stays_counted():
    play = Play()
    play.submit("r", [1], 5)
    play.settle()
    before = play.coordination.state(0.0)
    play.kill(play.workers[1])
    after = play.coordination.state(0.0)
    assert before.steps == after.steps == 5
    assert (after.hand_overs.lost_workers, after.hand_overs.num_decode_workers) == (1, 0)
