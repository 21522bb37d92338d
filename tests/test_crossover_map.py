"""The crossover map, against counts by hand and constants found by search."""

from dataclasses import replace
from math import exp, log
from statistics import mean

import pytest

from prefill_decode.crossover_map import (
    Sweep,
    best_constant,
    error_ratio,
    error_ratio_in_rounds,
    extremes,
    mean_log_error,
    plan_sweeps,
    with_twice_the_layers,
    works_by_dtype,
)
from prefill_decode.hardware import Hardware
from prefill_decode.hf_config import get

LAPTOP = [
    Hardware("laptop", "float32", 150e9, 34e9, "made up"),
    Hardware("laptop", "float64", 75e9, 34e9, "made up"),
]
MATRIX_UNITS = [
    Hardware("server", "float32", 250e9, 25e9, "made up"),
    Hardware("server", "bfloat16", 700e9, 25e9, "made up"),
]
CONTEXTS = [32, 512, 2048]
WEIGHT_BYTES = 100e6


@pytest.fixture(params=[LAPTOP, MATRIX_UNITS], ids=["laptop", "matrix units"])
def sweeps(request) -> list[Sweep]:
    return plan_sweeps(get("laptop-254m"), CONTEXTS, WEIGHT_BYTES, request.param)


def test_four_shapes_come_in_every_dtype_each_with_its_own_ceilings(sweeps):
    assert len({sweep.name for sweep in sweeps}) == 8
    assert all(sweep.hardware.dtype == sweep.model.dtype for sweep in sweeps)
    shapes = {(s.model.num_kv_heads, s.model.intermediate_size, s.context_tokens) for s in sweeps}
    assert shapes == {(16, 2816, 32), (4, 2816, 512), (16, 2816, 512), (16, 1024, 2048)}


def test_the_shapes_differ_enough_to_tell_a_prediction_from_a_constant(sweeps):
    smallest, largest = extremes(sweeps)
    assert largest.predicted / smallest.predicted > 3
    predicted = [sweep.predicted for sweep in sweeps]
    constant = best_constant(predicted)
    assert mean_log_error(predicted, [constant] * 8) > log(1.4)


def test_a_shape_of_a_single_kv_head_is_named_so():
    few_heads = replace(get("laptop-254m"), num_heads=4, num_kv_heads=2)
    names = [sweep.name for sweep in plan_sweeps(few_heads, CONTEXTS, WEIGHT_BYTES, LAPTOP)]
    assert "1 KV head, 512 tokens, float32" in names
    assert "4 KV heads, 512 tokens, float32" in names


def test_every_shape_has_as_few_layers_as_make_its_weights_heavy(sweeps):
    for sweep in sweeps:
        model = sweep.model
        assert model.weight_bytes_read >= WEIGHT_BYTES
        thinner = model.with_layers(max(1, model.num_layers - 1))
        assert model.num_layers == 1 or thinner.weight_bytes_read < WEIGHT_BYTES


def test_half_of_the_largest_batch_lies_beyond_the_crossover(sweeps):
    for sweep in sweeps:
        one, half, largest = sweep.batch_sizes
        assert (one, largest) == (1, 2 * half)
        assert 4 * sweep.predicted <= largest < 6 * sweep.predicted or largest == 8


def test_at_short_context_the_crossover_is_near_half_the_ridge_times_the_bytes(sweeps):
    for sweep in sweeps[:2]:
        by_hand = sweep.hardware.ridge_flops_per_byte * sweep.model.bytes_per_weight / 2
        assert 0.85 * by_hand < sweep.predicted < by_hand


def test_at_long_context_the_crossover_is_near_the_weights_over_a_cache(sweeps):
    narrow = sweeps[-1]
    hidden, tokens = 1024, 2048
    weights = 4 * hidden * hidden + 3 * hidden * hidden  # queries, keys, values, output; MLP
    by_hand = 1 + weights / (2 * hidden * tokens)
    assert narrow.predicted == pytest.approx(by_hand, rel=0.15)


def test_twice_the_layers_leave_the_crossover_and_double_the_weights(sweeps):
    deeper = with_twice_the_layers(sweeps[0])
    assert deeper.predicted == pytest.approx(sweeps[0].predicted, rel=0.01)
    assert deeper.model.block_params == 2 * sweeps[0].model.block_params
    assert deeper.name not in {sweep.name for sweep in sweeps}


def test_least_times_measure_their_own_prediction(sweeps):
    for sweep in sweeps:
        least_s = {sweep.steps[batch]: [t] * 3 for batch, t in sweep.least_s.items()}
        found = sweep.measured(least_s.__getitem__)
        assert found == pytest.approx([sweep.predicted] * 3)


def test_a_round_that_does_not_climb_counts_as_the_largest_batch(sweeps):
    sweep = sweeps[0]
    assert sweep.measured(lambda name: [1.0, 1.0]) == [sweep.batch_sizes[-1]] * 2


def test_the_works_of_all_steps_go_by_dtype(sweeps):
    works = works_by_dtype(sweeps)
    assert list(works) == [sweep.model.dtype for sweep in sweeps[:2]]
    assert all(len(steps) == 4 * 3 for steps in works.values())


def test_no_constant_errs_less_than_the_best():
    crossovers = [2.0, 3.0, 7.0, 11.0, 23.0, 24.0]
    candidates = [exp(0.01 * i) for i in range(400)]
    errors = [mean(abs(log(x / c)) for x in crossovers) for c in candidates]
    best = best_constant(crossovers)
    assert mean_log_error(crossovers, [best] * 6) <= min(errors) + 1e-9


def test_a_prediction_off_by_a_factor_everywhere_errs_by_its_logarithm():
    assert mean_log_error([2.0, 6.0], [1.0, 3.0]) == pytest.approx(log(2))
    assert mean_log_error([1.0, 3.0], [2.0, 6.0]) == pytest.approx(log(2))


def test_predicting_the_best_constant_is_no_better_than_it():
    crossovers = [2.0, 4.0, 16.0]
    assert error_ratio(crossovers, [4.0] * 3) == pytest.approx(1.0)
    assert error_ratio(crossovers, crossovers) == 0.0


def test_errors_are_compared_inside_each_round():
    measured = {"a": [2.0, 3.0, 2.0], "b": [8.0, 12.0, 8.0]}
    assert error_ratio_in_rounds(measured, {"b": 8.0, "a": 2.0}).median == 0.0


def test_crossovers_that_are_all_alike_leave_nothing_to_explain():
    with pytest.raises(ValueError, match="shapes that differ more"):
        error_ratio([3.0, 3.0], [1.0, 2.0])


def test_every_sweep_needs_its_prediction():
    with pytest.raises(ValueError, match="other half: b"):
        error_ratio_in_rounds({"a": [1.0]}, {"a": 1.0, "b": 2.0})


@pytest.mark.parametrize("contexts", [[32, 512], [512, 32, 2048], [32, 32, 64]])
def test_contexts_are_three_and_rise(contexts):
    with pytest.raises(ValueError, match="three that rise"):
        plan_sweeps(get("laptop-254m"), contexts, WEIGHT_BYTES, LAPTOP)


def test_a_round_that_sees_no_difference_counts_as_the_rival_foresees():
    measured = {"a": [10.0, 64.0] * 6, "b": [20.0, 64.0] * 6}
    seen = error_ratio_in_rounds(measured, {"a": 10.0, "b": 20.0})
    assert (seen.low, seen.high) == (0.0, 1.0)
