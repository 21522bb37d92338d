"""The three ways with real workers, on a model so small that only its overheads take time."""

from dataclasses import replace
from math import inf

import psutil
import pytest

from prefill_decode import hf_config
from prefill_decode.disaggregated import stall_runner as stall
from prefill_decode.disaggregated.burst import QUIET_GAPS
from prefill_decode.disaggregated.launch import threads_each
from prefill_decode.disaggregated.stall_runner import StallRunner
from prefill_decode.engine import slice_of
from prefill_decode.measure import describe_machine, interleave
from prefill_decode.serving_metrics import Objectives
from prefill_decode.stall_cost import APART, CHUNKED, ONE_PIECE, WAYS, Burst, Foreseen, Latency
from prefill_decode.step import Chunk
from tests.disaggregated.scripted import tiny_config

BURST = Burst(prompt_tokens=90, chunk_tokens=40, streams=3, context_tokens=5, answer_tokens=4)
LEAST = Latency(quiet_gap_s=0.01, worst_gap_s=0.02, ttft_s=0.05, joining_s=0.02)
FORESEEN = Foreseen(
    BURST,
    {
        ONE_PIECE: replace(LEAST, worst_gap_s=0.2),
        CHUNKED: replace(LEAST, worst_gap_s=0.1),
        APART: replace(LEAST, ttft_s=0.1),
    },
)


@pytest.fixture(scope="module")
def machine():
    return replace(describe_machine("cpu"), threads=2)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, machine):
    config = tiny_config(tmp_path_factory.mktemp("tiny"))
    model = slice_of(hf_config.find(config, "float64"), 2)
    made = StallRunner(model, config, FORESEEN, machine, seed=5)
    yield made
    made.close()


@pytest.fixture(scope="module")
def timed(runner, machine):
    return runner.seen(interleave(runner.steps, machine, 0.001, 0, runner.own_s))


def test_every_quantity_that_the_claim_predicts_is_found(runner, timed):
    found = runner.found(timed)
    assert set(found) == {stall.WHOLE_GAP, stall.PIECE_GAP, stall.WAIT, stall.GOOD_APART,
                          stall.GOOD_WHOLE, stall.QUIET, stall.TOKENS}  # fmt: skip
    assert all(interval.n >= 6 for interval in found.values())
    assert found[stall.WAIT].low >= 1.0
    waits = zip(*(timed.times_s(stall.WAITS[way]) for way in (APART, ONE_PIECE)), strict=True)
    perfect = [apart_s / one_s for apart_s, one_s in waits]
    assert runner.found(timed, perfect)[stall.WAIT].high == 1.0


def test_all_three_ways_give_the_tokens_of_one_engine(runner, timed):
    assert runner.found(timed)[stall.TOKENS].low == 1.0
    for way in WAYS:
        answers = runner.lived[way].token_ids
        assert len(answers) == BURST.streams + 1
        assert len(answers["prompt"]) == BURST.answer_tokens
        assert all(len(set(ids)) > 1 for ids in answers.values())


def test_other_tokens_are_noticed(runner, timed):
    reference = dict(runner._reference)
    runner._reference["stream 1"] = [(token + 1) % 61 for token in reference["stream 1"]]
    try:
        runner.steps[f"all of {APART}"]()
    finally:
        runner._reference = reference
    assert runner.alike[APART].pop() == pytest.approx(3 / 4)


def test_notes_stand_in_the_place_of_the_bursts(runner, timed):
    noted = (stall.GAPS, stall.MEDIANS, stall.QUIETS, stall.JOINS, stall.WAITS)
    names = {each[way] for each in noted for way in WAYS}
    assert set(timed.raw_s) == names
    assert set(runner.works) == set(stall.GAPS.values())
    for way in WAYS:
        assert all(map(_at_most, timed.raw_s[stall.MEDIANS[way]], timed.raw_s[stall.GAPS[way]]))


def _at_most(one: float, other: float) -> bool:
    return one <= other


def test_the_share_within_objectives_is_of_all_requests_of_a_burst(runner, timed):
    before = runner.objectives
    runner.objectives = {"readers": Objectives(stall_s=1e-9), "askers": Objectives(stall_s=inf)}
    try:
        runner.steps[f"all of {CHUNKED}"]()
    finally:
        runner.objectives = before
    assert runner.good[CHUNKED, "readers"].pop() == 0.0
    assert runner.good[CHUNKED, "askers"].pop() == 1.0
    assert set(runner.goodput(timed)) == {"readers", "askers"}


def test_the_engine_reads_the_prompt_as_its_way_says(runner, monkeypatch):
    ran = []
    plan = runner._engine.plan
    monkeypatch.setattr(runner._engine, "plan", lambda chunks: ran.append(chunks) or plan(chunks))
    for way, longest, rows in [(ONE_PIECE, 90, 90), (CHUNKED, 40, 43)]:
        ran.clear()
        runner.steps[f"all of {way}"]()
        sizes = [[len(chunk.token_ids) for chunk in step] for step in ran]
        assert max(map(max, sizes)) == longest
        assert sum(next(step for step in sizes if max(step) == longest)) == rows
        runner.alike[way].pop()


def test_a_burst_leaves_quiet_gaps_before_the_prompt(runner, timed):
    for records in runner.timelines.values():
        *streams, prompt = records
        before = [t for t in streams[0].event_times_s if t <= prompt.request.arrival_s]
        assert len(before) >= 2 + QUIET_GAPS
        assert prompt.request.prompt_tokens == 90


def test_the_heaviest_steps_are_told_and_what_a_record_says(runner):
    assert runner.chunks[stall.GAPS[ONE_PIECE]] == [Chunk(90)]
    assert runner.chunks[stall.GAPS[CHUNKED]] == [*[Chunk(1, 5)] * 3, Chunk(40, 50)]
    assert runner.chunks[stall.GAPS[APART]] == [*[Chunk(1, 5)] * 3, Chunk(1, 90)]
    assert runner.parameters["threads_each"] == 1
    assert runner.parameters["objectives"]["askers"]["stall_s"] == pytest.approx(0.4)


def test_closing_ends_both_workers_and_their_time_is_ones_own(runner, machine, tmp_path):
    config = tiny_config(tmp_path)
    other = StallRunner(runner.model, config, FORESEEN, machine)
    pids = list(other.pids.values())
    assert len(pids) == 2
    assert all(map(psutil.pid_exists, pids))
    assert other.own_s() > 0
    other.close()
    assert not any(map(psutil.pid_exists, pids))


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"threads": 1}, "need a core each; this machine has one"),
     ({"device": "cuda"}, "compute on the CPU; got the device 'cuda'")],
)  # fmt: skip
def test_machines_that_have_no_two_cores_are_refused(machine, changes, message):
    with pytest.raises(ValueError, match=message):
        threads_each(replace(machine, **changes))
    assert threads_each(replace(machine, threads=5)) == 2
