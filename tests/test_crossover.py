"""The crossover batch, against sweeps whose two costs are known."""

import pytest

from prefill_decode.crossover import crossover_sequences
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk


def test_the_crossover_is_the_shared_cost_over_the_own_cost() -> None:
    shared_s, own_s = 24e-3, 3e-3
    sweep = {batch: max(shared_s, batch * own_s) for batch in (1, 2, 4, 16, 32)}
    assert crossover_sequences(sweep) == pytest.approx(8.0)


def test_without_a_cache_the_crossover_is_half_the_ridge_times_the_bytes_of_a_weight(
    tiny_model: ModelSpec,
) -> None:
    hardware = Hardware("test", tiny_model.dtype, 1e9, 1e8, "made up")
    batches = (1, 512, 1024)
    least_s = {
        batch: step_work(tiny_model, [Chunk(1)] * batch).weights.least_time_s(hardware)
        for batch in batches
    }
    expected = hardware.ridge_flops_per_byte * tiny_model.bytes_per_weight / 2
    assert crossover_sequences(least_s) == pytest.approx(expected)


def test_twice_the_time_everywhere_leaves_the_crossover_where_it_is() -> None:
    sweep = {1: 1.0, 8: 3.0, 16: 5.0}
    slower = {batch: 2 * time_s for batch, time_s in sweep.items()}
    assert crossover_sequences(slower) == pytest.approx(crossover_sequences(sweep))


@pytest.mark.parametrize("sweep", [{}, {1: 1.0, 2: 2.0}])
def test_two_batch_sizes_are_not_a_sweep(sweep: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="three batch sizes"):
        crossover_sequences(sweep)


@pytest.mark.parametrize("last_s", [2.0, 1.9, float("nan")])
def test_a_sweep_that_does_not_climb_has_no_crossover(last_s: float) -> None:
    with pytest.raises(ValueError, match="sweep further"):
        crossover_sequences({1: 1.0, 2: 2.0, 4: last_s})
