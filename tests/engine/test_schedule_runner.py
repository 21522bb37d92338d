import pytest
import torch

from prefill_decode.batching import continuous_schedule, static_schedule
from prefill_decode.engine import ScheduleRunner
from prefill_decode.step import Chunk

LENGTHS = [1, 3, 2, 2, 4]


def test_a_timed_schedule_runs_its_steps_in_their_order(tiny_model):
    schedules = {
        "static": static_schedule(LENGTHS, 2, 5),
        "continuous": continuous_schedule(LENGTHS, 2, 5),
    }
    runner = ScheduleRunner(tiny_model, schedules, seed=0)
    for name, schedule in schedules.items():
        logits = runner.schedules[name]()
        sampled = [sum(chunk.samples_token for chunk in step) for step in schedule]
        assert [len(each) for each in logits] == sampled


def test_a_step_that_is_repeated_is_prepared_once(tiny_model):
    step, other = [Chunk(1, 5)] * 2, [Chunk(1, 6)] * 2
    runner = ScheduleRunner(tiny_model, {"a": [step, other, step], "b": [step]}, seed=0)
    assert len(runner.runner.steps) == 2
    first, between, again = runner.schedules["a"]()
    assert torch.equal(first, again)
    assert not torch.equal(first, between)
    assert torch.equal(runner.schedules["b"]()[0], first)


@pytest.mark.parametrize("schedules", [{}, {"a": []}])
def test_no_steps_to_run_are_refused(tiny_model, schedules):
    with pytest.raises(ValueError, match="nothing to run"):
        ScheduleRunner(tiny_model, schedules)
