"""Work in series, against sums by hand and against the least times of the parts."""

import pytest

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork, Work, step_work
from prefill_decode.serial import in_series
from prefill_decode.step import Chunk


def test_steps_in_series_read_and_compute_what_each_does() -> None:
    steps = [StepWork(Work(1, 10), Work(100, 1000)), StepWork(Work(2, 20), Work(200, 2000))]
    assert in_series(steps) == StepWork(Work(3, 30), Work(300, 3000))


def test_the_least_time_of_a_series_is_the_sum_where_one_bound_rules(tiny_model: ModelSpec) -> None:
    hardware = Hardware("test", "float64", 1e12, 1e6, "made up")
    steps = [step_work(tiny_model, [Chunk(1, n)]) for n in range(5)]
    total_s = sum(step.least_time_s(hardware) for step in steps)
    assert in_series(steps).least_time_s(hardware) == pytest.approx(total_s)


def test_the_least_time_of_a_series_stays_a_floor_where_bounds_differ(
    tiny_model: ModelSpec,
) -> None:
    hardware = Hardware("test", "float64", 1e9, 1e9, "made up")
    steps = [step_work(tiny_model, [Chunk(n)]) for n in (1, 500)]
    assert {step.weights.limited_by(hardware) for step in steps} == {"compute", "bandwidth"}
    total_s = sum(step.least_time_s(hardware) for step in steps)
    assert in_series(steps).least_time_s(hardware) < total_s


def test_a_series_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no work to add up"):
        in_series([])
