"""A burst, lived through with an answerer whose clock is the test's."""

from types import SimpleNamespace

import pytest

from prefill_decode.disaggregated import burst as module
from prefill_decode.disaggregated.burst import PROMPT, QUIET_GAPS, Lived, live_through
from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.request import Request, RequestRecord
from prefill_decode.stall_cost import Burst

BURST = Burst(prompt_tokens=8, chunk_tokens=4, streams=2, context_tokens=1, answer_tokens=3)
PROMPTS = {"a": [1], "b": [2], PROMPT: [3] * 8}
STEP_S, PREFILL_S = 0.01, 1.0


class Scripted:
    """One engine that reads a prompt in one piece: a step takes `STEP_S`, a prefill `PREFILL_S`.
    Blocks come back in the step after a cancellation."""

    def __init__(self):
        self.now_s = 0.0
        self.waiting, self.running, self.asked, self.had = [], [], {}, {}
        self.free = 3

    def submit(self, name, ids, most):
        self.asked[name] = most
        self.waiting.append(name)

    def cancel(self, name):
        self.running.remove(name)

    def step(self):
        self.free = 3 - len(self.running) - len(self.waiting)
        if self.waiting:
            self.now_s += PREFILL_S if PROMPT in self.waiting else STEP_S
            ran, self.waiting = self.waiting, []
            self.running += ran
        else:
            self.now_s += STEP_S
            ran = list(self.running)
        for name in ran:
            self.had[name] = self.had.get(name, 0) + 1
        self.running = [n for n in self.running if self.had[n] < self.asked[n]]
        return [SampledToken(name, 0, 7, None, None, ()) for name in ran]

    def state(self):
        return SimpleNamespace(free_blocks=self.free, num_blocks=3)


@pytest.fixture
def serving(monkeypatch):
    made = Scripted()
    monkeypatch.setattr(module.time, "perf_counter", lambda: made.now_s)
    return made


def test_streams_have_their_quiet_gaps_and_then_wait_for_the_prompt(serving):
    lived = live_through(serving, BURST, PROMPTS, stream_tokens=99)
    assert [record.request.request_id for record in lived.records] == ["a", "b", PROMPT]
    assert lived.settled_s == pytest.approx(2 * STEP_S)
    assert lived.prompt.request.arrival_s == pytest.approx((2 + QUIET_GAPS) * STEP_S)
    assert lived.quiet_gap_s == pytest.approx(STEP_S)
    assert lived.ttft_s == pytest.approx(PREFILL_S)
    assert lived.worst_gap_s == pytest.approx(PREFILL_S + STEP_S)
    assert lived.median_gap_s == pytest.approx((PREFILL_S + 2 * STEP_S) / 2)  # of two
    assert [len(ids) for ids in lived.token_ids.values()] == [QUIET_GAPS + 4, QUIET_GAPS + 4, 3]
    assert serving.asked == {"a": 99, "b": 99, PROMPT: 3}


def test_a_pause_before_the_streams_have_settled_is_no_quiet_gap(serving, monkeypatch):
    steps = serving.step
    late = iter([0.5])

    def step():
        serving.now_s += next(late, 0.0) if len(serving.running) == 2 else 0.0
        return steps()

    monkeypatch.setattr(serving, "step", step)
    lived = live_through(serving, BURST, PROMPTS, stream_tokens=99)
    assert lived.quiet_gap_s == pytest.approx(STEP_S)
    assert lived.settled_s == pytest.approx(0.5 + 2 * STEP_S)


def record(name, arrival_s, *times_s):
    request = Request(name, arrival_s, 1, len(times_s))
    return RequestRecord(request, times_s, (1,) * len(times_s))


def test_a_gap_is_quiet_if_all_of_it_is_and_counts_for_the_prompt_if_it_ends_in_its_time():
    """Settled at 1, asked at 4, answered at 9. Ends on a border: 4 is still quiet, 9 counts."""
    stream = record("a", 0.0, 0.5, 1.2, 2.0, 3.0, 4.0, 6.0, 9.0, 19.0)
    lived = Lived((stream, record(PROMPT, 4.0, 7.0, 9.0)), {}, settled_s=1.0)
    assert lived.quiet_gap_s == pytest.approx(1.0)
    assert lived.worst_gap_s == pytest.approx(3.0)
    assert lived.median_gap_s == pytest.approx(2.5)
    assert lived.joining_s == pytest.approx(2.0)  # of the prompt; of the stream it is 0.7
    early = record("a", 0.0, 0.1, 2.0, 2.5, 3.0, 8.0)
    lived = Lived((early, record(PROMPT, 4.0, 7.0, 9.0)), {}, settled_s=1.0)
    assert lived.quiet_gap_s == pytest.approx(0.5)  # not the one that began before all had


def test_it_goes_on_until_streams_have_as_many_tokens_as_asked_and_leaves_nothing(serving):
    lived = live_through(serving, BURST, PROMPTS, stream_tokens=99, least_tokens=40)
    assert len(lived.token_ids["a"]) == len(lived.token_ids["b"]) == 40
    assert serving.free == 3


def test_answers_are_alike_as_far_as_both_reach(serving):
    lived = live_through(serving, BURST, PROMPTS, stream_tokens=99)
    longer = {name: [7] * 99 for name in PROMPTS}
    assert lived.alike(longer) == 1.0
    assert lived.alike({**longer, "a": [7, 8]}) == pytest.approx(2 / 3)


def test_an_answer_that_fails_ends_the_burst(serving):
    serving.step = lambda: [FailedAnswer("a", 0, "no worker")]
    with pytest.raises(RuntimeError, match="a failed: no worker"):
        live_through(serving, BURST, PROMPTS, stream_tokens=99)


def test_a_burst_in_which_nothing_comes_ends(serving, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_S", 5.0)

    def step():
        serving.now_s += 1.0
        return []

    serving.step = step
    with pytest.raises(RuntimeError, match="less than 5 s"):
        live_through(serving, BURST, PROMPTS, stream_tokens=99)
