"""The coordinator over real channels, with scripted workers in threads: they die, hang, speak out
of turn and come back, and whoever asks gets every token once."""

import threading
import time

import pytest

from prefill_decode.disaggregated import coordinator
from prefill_decode.disaggregated.coordinator import Coordinator
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.messages import Cancel, Hello, decode, encode
from prefill_decode.engine.answering import FailedAnswer
from prefill_decode.kv_transfer import TransferError, dial
from tests.disaggregated.scripted_workers import ScriptedDecode, ScriptedPrefill, token_at

PATIENCE = Patience(silence_s=1.0, most_tries=3)
KEY = b"k" * 32


class InThread:
    """A scripted worker behind a channel; it acts whenever it hears nothing."""

    def __init__(self, worker, address, key=KEY, pace_s=0.001):
        self.worker, self.pace_s = worker, pace_s
        self.frozen = threading.Event()
        self.channel = dial(address, key)
        self.channel.send(encode(worker.hello()))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            while self.worker.alive:
                while self.frozen.is_set():
                    time.sleep(0.01)
                with LOCK:
                    while (data := self.channel.receive(0)) is not None:
                        self.worker.receive(decode(data))
                    self.worker.act()
                    self.worker.sent.append(self.worker.state())
                    sent, self.worker.sent = list(self.worker.sent), type(self.worker.sent)()
                for message in sent:
                    self.channel.send(encode(message))
                time.sleep(self.pace_s)
        except TransferError:
            pass
        finally:
            self.worker.alive = False
            self.channel.hang_up()

    def die(self):
        self.worker.alive = False
        self.channel.hang_up()
        self.thread.join()


LOCK = threading.Lock()  # scripted workers share their leases


class Company:
    def __init__(self, address, **settings):
        self.complaints = []
        facts = {"vocab_size": 65536, "capacity_tokens": 60, "key": KEY, "patience": PATIENCE}
        self.coordinator = Coordinator(
            address, complain=self.complaints.append, **(facts | settings)
        )
        self.leases, self.workers = {}, []
        self.heard, self.ends = {}, {}

    def add(self, role, name=None, **facts):
        kind = ScriptedPrefill if role == "prefill" else ScriptedDecode
        worker = kind(name or f"{role}-{len(self.workers)}", self.leases, **facts)
        self.workers.append(InThread(worker, self.coordinator.address))
        return self.workers[-1]

    def step(self):
        for item in self.coordinator.step():
            key = (item.request_id, item.answer)
            if isinstance(item, FailedAnswer):
                self.ends[key] = item.reason
            else:
                self.heard.setdefault(key, []).append(item.token_id)
                if item.finish_reason:
                    self.ends[key] = item.finish_reason

    def until(self, true, most_s=20.0):
        end_s = time.monotonic() + most_s
        while not true():
            assert time.monotonic() < end_s, "it did not come to pass"
            self.step()

    def close(self):
        self.coordinator.close()
        for worker in self.workers:
            worker.frozen.clear()
            worker.thread.join(10)
            assert not worker.thread.is_alive()


@pytest.fixture(params=["unix", "tcp"])
def company(request, tmp_path):
    address = f"unix:{tmp_path}/c" if request.param == "unix" else "tcp:127.0.0.1:0"
    company = Company(address)
    yield company
    company.close()


def wanted(prompt, most, answer=0):
    return [token_at(prompt, answer, place) for place in range(most)]


def test_requests_are_answered_token_by_token(company):
    for role in ("prefill", "decode", "decode"):
        company.add(role)
    company.coordinator.wait_for(1, 2, 10)
    for index in range(12):
        company.coordinator.submit(f"r{index}", [index], 20, answers=1 + index % 2)
    company.until(lambda: len(company.ends) == 18)
    for (name, answer), heard in company.heard.items():
        assert heard == wanted([int(name[1:])], 20, answer)
    state = company.coordinator.state
    company.until(lambda: state().free_blocks == state().num_blocks)
    assert (state().num_running, state().num_waiting, state().hand_overs.transfers) == (0, 0, 18)
    assert company.complaints == []


@pytest.mark.parametrize("how", ["dies", "hangs"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_a_worker_did_that_dies_or_hangs_is_done_by_others(company, role, how):
    victim = company.add(role)
    company.add("decode" if role == "prefill" else "prefill")
    company.coordinator.wait_for(1, 1, 10)
    for index in range(6):
        company.coordinator.submit(f"r{index}", [index] * 3, 50)
    company.until(lambda: company.heard)
    if how == "dies":
        victim.die()
    else:
        victim.frozen.set()
    company.until(lambda: company.complaints)
    company.add(role)
    victim.frozen.clear()  # what it says now is of no worker that is known
    company.until(lambda: len(company.ends) == 6)
    assert set(company.ends.values()) == {"length"}
    for (name, _), heard in company.heard.items():
        assert heard == wanted([int(name[1:])] * 3, 50)
    assert victim.worker.name in company.complaints[0]
    assert company.coordinator.state().hand_overs.lost_workers == 1


def test_a_worker_that_does_not_even_read_holds_up_nobody(company):
    """Its channel fills up: megabytes of prompts go to it before it counts as lost."""
    company.coordinator.capacity_tokens = 10**6
    victim = company.add("prefill", capacity_tokens=10**6)
    victim.frozen.set()
    company.add("decode", capacity_tokens=10**6, num_blocks=10**6)
    company.coordinator.wait_for(1, 1, 10)
    for index in range(20):
        company.coordinator.submit(f"long {index}", [index] * 30_000, 2)
    company.until(lambda: company.coordinator.state().hand_overs.lost_workers == 1)
    for index in range(20):
        company.coordinator.cancel(f"long {index}")
    company.add("prefill", capacity_tokens=10**6)
    company.coordinator.submit("short", [1], 5)
    company.until(lambda: ("short", 0) in company.ends)
    assert company.heard["short", 0] == wanted([1], 5)


def test_a_wake_ends_a_step_that_waits(company, monkeypatch):
    monkeypatch.setattr(coordinator, "TICK_S", 1000.0)
    threading.Timer(0.05, company.coordinator.wake).start()
    assert company.coordinator.step() == []


def test_cancelled_requests_leave_nothing_behind(company):
    prefill, decode_worker = company.add("prefill"), company.add("decode")
    company.coordinator.wait_for(1, 1, 10)
    for index in range(6):
        company.coordinator.submit(f"r{index}", [index] * 3, 50, answers=2)
    company.until(lambda: len(company.heard) > 2)
    for index in range(6):
        company.coordinator.cancel(f"r{index}", None if index % 2 else 0)
    company.coordinator.cancel("unknown")
    company.until(lambda: len(company.ends) == 3)
    state = company.coordinator.state
    company.until(lambda: state().free_blocks == state().num_blocks)
    assert (prefill.worker.tries, decode_worker.worker.tries, company.leases) == ({}, {}, {})


@pytest.mark.parametrize(
    ("ids", "most", "words"),
    [
        ([], 3, "a prompt of at least one token"),
        ([1], 0, "at least one token of at least one answer"),
        ([65536], 3, "whole numbers from 0 to 65535"),
        ([True], 3, "whole numbers"),
        ([1] * 50, 12, "a sequence may have 60 tokens"),
    ],
)
def test_what_cannot_be_is_refused_in_words(company, ids, most, words):
    with pytest.raises(ValueError, match=words):
        company.coordinator.submit("r", ids, most)
    assert company.coordinator.state().num_waiting == 0


@pytest.mark.parametrize(
    "first", [b"no message", encode(Cancel("r")), None], ids=["noise", "no hello", "nothing"]
)
def test_who_says_no_hello_is_nobody(company, first):
    with dial(company.coordinator.address, KEY) as stranger:
        if first is not None:
            stranger.send(first)
            with pytest.raises(TransferError):
                stranger.receive(5)
        assert company.coordinator.state().hand_overs.num_prefill_workers == 0


def test_noise_from_a_worker_loses_that_worker_alone(company):
    with dial(company.coordinator.address, KEY) as liar:
        liar.send(encode(ScriptedPrefill("liar", {}).hello()))
        company.coordinator.wait_for(1, 0, 10)
        liar.send(b'{"type": "state", "steps": -')
        company.until(lambda: company.complaints)
    assert "liar is gone: this is no message" in company.complaints[0]


def test_workers_that_are_not_alike_are_refused_and_told_of(company):
    company.add("prefill")
    company.coordinator.wait_for(1, 0, 10)
    small = ScriptedDecode("small", {}).hello()
    hello = Hello(**{**vars(small), "capacity_tokens": 59})
    with dial(company.coordinator.address, KEY) as other:
        other.send(encode(hello))
        company.until(lambda: company.complaints)
    assert "small holds 59" in company.complaints[0]


def test_a_name_that_comes_again_takes_the_place_of_its_former_self(company):
    old = company.add("prefill", "same")
    company.coordinator.wait_for(1, 0, 10)
    company.add("prefill", "same")
    company.until(lambda: company.complaints)
    assert "same was started once more" in company.complaints[0]
    old.thread.join(10)
    assert not old.thread.is_alive()
    assert company.coordinator.state().hand_overs.num_prefill_workers == 1


def test_workers_that_do_not_come_are_missed_in_words(company):
    company.add("decode")
    with pytest.raises(ValueError, match=r"1 prefill and 1 decode .* within 0.5 s; got 0 and 1"):
        company.coordinator.wait_for(1, 1, 0.5)
