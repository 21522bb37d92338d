"""A plan's loads on real workers, of a model so small that only its overheads take time."""

from dataclasses import replace
from math import nan

import psutil
import pytest

from prefill_decode import hf_config
from prefill_decode.claim import Claim, Prediction
from prefill_decode.disaggregated.pace_runner import (
    PaceRunner,
    ask_at_once,
    calibrate_share,
)
from prefill_decode.engine import slice_of
from prefill_decode.engine.answering import FailedAnswer
from prefill_decode.fleet_claims.pace import (
    LOADS,
    PAIR,
    PHASES,
    REQUESTS,
    TOGETHER,
    TOKENS,
    WAYS,
    WHOLE,
    Plan,
    computing,
    timed,
)
from prefill_decode.fleet_claims.pools import OUTPUT_HEAVY, PROMPT_HEAVY
from prefill_decode.measure import describe_machine, interleave
from prefill_decode.request import Request
from prefill_decode.results import load as load_record
from prefill_decode.results import make_record, save
from tests.conftest import TINY
from tests.disaggregated.scripted import tiny_config


@pytest.fixture(scope="module")
def share():
    """Of so many cores that nobody disturbs."""
    return replace(describe_machine("cpu"), threads=1, cores=1000)


@pytest.fixture(scope="module")
def runner(tmp_path_factory, share):
    config = tiny_config(tmp_path_factory.mktemp("tiny"))
    model = slice_of(hf_config.find(config, "float32"), 2)
    calibrator = calibrate_share(model, replace(share, threads=2), 0.01, seed=5)
    plan = Plan(calibrator.calibrated(fits=0), output_heavy=(8, 5))
    made = PaceRunner(plan, calibrator, config)
    yield made
    made.close()


@pytest.fixture(scope="module")
def found(runner, share):
    times = interleave(runner.steps, share, 0.001, 0, runner.own_s)
    return runner.found(times)


def test_steps_are_calibrated_on_one_thread_and_nobody_pauses(runner):
    assert runner.calibrator.machine.threads == 1
    assert not any(one.idle_s for one in runner.calibrator.episodes)
    assert runner.ceilings is runner.calibrator.ceilings


def test_a_machine_of_one_core_is_refused_before_anything_is_timed(share):
    with pytest.raises(ValueError, match="need a core each; this machine has one"):
        calibrate_share(TINY, share, 1000.0)


def test_every_load_runs_either_way_beside_the_kernels_that_set_the_ceilings(runner, found):
    runs = {timed(way, load) for way in WAYS for load in LOADS}
    assert set(runner.steps) == runs | set(runner.ceilings.steps())
    computed = {computing(phase, load) for phase in PHASES for load in LOADS}
    assert set(found.times.raw_s) == set(runner.steps) | computed
    assert all(time_s > 0 for name in computed for time_s in found.times.raw_s[name])


def test_every_answer_of_the_pair_has_the_tokens_of_one_engine(found):
    assert len(found.alike) == found.times.num_rounds
    assert min(found.alike) == 1.0


def test_other_tokens_of_one_load_are_noticed_in_its_round(runner, found):
    times, before = found.times, runner._expected
    name = runner.plan.requests(TOGETHER)[0].request_id
    runner._expected = {**before, name: [60 - token for token in before[name]]}
    try:
        runner.steps[timed(PAIR, TOGETHER)]()
    finally:
        runner._expected = before
    assert runner._alike[TOGETHER][-1] == pytest.approx(1 - 1 / (2 * REQUESTS))
    for load in (PROMPT_HEAVY, OUTPUT_HEAVY):  # the others of that round
        runner.steps[timed(PAIR, load)]()
    bare = {name: times.raw_s[name] for name in runner.steps}
    again = runner.found(replace(times, raw_s=bare, warmup_s=dict.fromkeys(bare, ())))
    assert again.alike[-1] == pytest.approx(1 - 1 / (2 * REQUESTS))
    assert set(again.alike[:-1]) == {1.0}


def test_what_is_found_makes_a_record(runner, found, tmp_path):
    plan = runner.plan
    claim = Claim("any", plan.predictions, [*plan.on_one_worker, Prediction(TOKENS, 1.0, 0.5)])
    assert set(runner.works) == {timed(WHOLE, load) for load in LOADS}
    record = make_record(
        "any",
        claim,
        claim.judge(found.figures(), runner.ceilings.broken_ruler(runner.works, found.times)),
        chunks=runner.chunks,
        times=found.times,
        ceilings=runner.ceilings,
        machine=runner.calibrator.machine,
        model=runner.model,
        parameters=runner.parameters,
        seed=0,
    )
    assert load_record(save(record, tmp_path)) == record
    assert record["parameters"]["loads"]["output-heavy"] == [8, 5]
    assert isinstance(record["parameters"]["processors_of_their_own"], bool)


@pytest.mark.parametrize("after", [{("prefill-0", 2): 0.1}, {("prefill-0", 1): nan}, {}])
def test_a_worker_that_ends_during_a_run_leaves_no_time(runner, monkeypatch, after):
    told = iter([{("prefill-0", 1): 1.0}, after])
    monkeypatch.setattr(runner, "_processor_times_s", lambda: next(told))
    with pytest.raises(RuntimeError, match="a worker ended during a run"):
        runner.steps[timed(PAIR, OUTPUT_HEAVY)]()


def test_closing_ends_both_workers(runner, tmp_path):
    made = PaceRunner(runner.plan, runner.calibrator, tiny_config(tmp_path))
    children = psutil.Process().children()
    assert len(children) >= 2
    made.close()
    assert len(psutil.Process().children()) == len(children) - 2
    assert made.parameters["threads_each"] == 1  # a record is made then


def test_an_answer_that_fails_ends_the_run_in_words():
    class Failing:
        def submit(self, request_id, prompt_ids, most_output_tokens):
            self.asked = request_id

        def step(self):
            return [FailedAnswer(self.asked, 0, "no room")]

    with pytest.raises(RuntimeError, match="a failed: no room"):
        ask_at_once(Failing(), [(Request("a", 0.0, 2, 2), [1, 2])])
