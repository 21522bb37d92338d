"""The crossover batch, against sweeps whose two costs are known."""

from itertools import pairwise

import pytest

from prefill_decode.crossover import (
    crossover_in_rounds,
    crossover_sequences,
    least_times_s,
    predicted_crossover,
    swept_crossover,
    telling_batch_sizes,
    throughput_gain,
    throughput_gain_in_rounds,
)
from prefill_decode.crossover_atlas import crossovers
from prefill_decode.hardware import Hardware, accelerator
from prefill_decode.hf_config import get
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


def sweep_in_rounds(shared_s: float, own_s: list[float]) -> dict[int, list[float]]:
    return {batch: [max(shared_s, batch * own) for own in own_s] for batch in (1, 32, 64)}


def test_the_crossover_of_rounds_is_the_median_of_their_crossovers() -> None:
    measured = crossover_in_rounds(sweep_in_rounds(24e-3, [1e-3, 2e-3, 3e-3, 4e-3, 6e-3, 3e-3]))
    assert measured.median == pytest.approx(8.0)
    assert (measured.low, measured.high) == pytest.approx((4.0, 24.0))
    assert measured.n == 6


def test_a_round_sees_no_crossover_beyond_its_largest_batch() -> None:
    times_s = {1: [1.0] * 6, 32: [2.0, 2.0, 2.0, 2.0, 2.0, 2.0], 64: [2.1, 2.0, 1.5, 2.001, 34, 34]}
    measured = crossover_in_rounds(times_s)
    assert measured.high == 64
    assert measured.low == pytest.approx(1.0)


def test_rounds_of_unlike_number_are_refused() -> None:
    with pytest.raises(ValueError, match="one time a round"):
        crossover_in_rounds({1: [1.0], 2: [1.0, 2.0], 4: [3.0, 4.0]})


def test_throughput_gains_as_much_as_the_time_falls_behind_the_batch() -> None:
    assert throughput_gain({1: 10e-3, 8: 20e-3}) == pytest.approx(4.0)
    assert throughput_gain({2: 10e-3, 4: 20e-3, 8: 40e-3}) == pytest.approx(1.0)
    in_rounds = throughput_gain_in_rounds({1: [1.0, 1.0, 2.0], 8: [2.0, 4.0, 2.0]})
    assert in_rounds.median == pytest.approx(4.0)


@pytest.mark.parametrize("ridge", [2.0, 40.0, 300.0])
@pytest.mark.parametrize("context_tokens", [1, 64, 8192])
def test_the_largest_telling_batch_is_four_times_the_crossover(
    ridge: float, context_tokens: int
) -> None:
    model = get("llama-3.2-1b")
    hardware = Hardware("test", model.dtype, ridge * 1e12, 1e12, "made up")
    sizes = telling_batch_sizes(model, context_tokens, hardware)
    assert sizes[0] == 1
    assert all(b == 2 * a for a, b in pairwise(sizes[1:]))
    least_s = least_times_s(model, sizes, context_tokens, hardware)
    seen = crossover_sequences(least_s)
    assert seen == swept_crossover(model, sizes[-1], context_tokens, hardware)
    assert sizes[-1] == 64 or 4 * seen <= sizes[-1] < 16 * seen


MIXTURES = ["gpt-oss-20b", "mixtral-8x7b", "deepseek-v3"]


def awake_by_hand(num_experts: int, used: int, batch: int) -> float:
    """Expected distinct experts of so many even and independent choices."""
    return num_experts * (1 - (1 - used / num_experts) ** batch)


@pytest.mark.parametrize("ridge", [3.0, 300.0])
def test_a_mixtures_crossover_is_where_its_products_turn_compute_bound_for_good(
    ridge: float,
) -> None:
    """By hand for Mixtral at next to no context: 8 experts of 3 x 4096 x 14336 in 32 layers, of
    which a token uses two. 2 FLOP for each weight that it uses, 2 bytes for each that is read."""
    model = get("mixtral-8x7b").with_dtype("bfloat16")
    hardware = Hardware("test", "bfloat16", ridge * 1e12, 1e12, "made up")
    expert = 32 * 3 * 4096 * 14336
    beside = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 4096 * 8) + 32000 * 4096

    def pays_for_itself(batch: int) -> bool:
        read = beside + awake_by_hand(8, 2, batch) * expert
        return batch * 2 * (beside + 2 * expert) / ridge >= 2 * read

    by_hand = [pays_for_itself(batch) for batch in range(1, 4096)]
    turns = by_hand.index(True)  # the batch before it
    assert all(by_hand[turns:])
    crossover = predicted_crossover(model, 0, hardware)
    assert turns * 0.99 <= crossover <= (turns + 1) * 1.01


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize("context_tokens", [32, 2048, 8192])
def test_a_mixtures_crossover_lies_between_one_tokens_experts_and_all(
    name: str, context_tokens: int
) -> None:
    model = get(name).with_dtype("bfloat16")
    hardware = accelerator("H100 SXM").at("bfloat16")
    first, last = crossovers(model, context_tokens, hardware)
    crossover = predicted_crossover(model, context_tokens, hardware)
    assert first < 0.5 * last < crossover <= last
    low = Hardware("test", "bfloat16", 2e12, 1e12, "made up")  # it turns while experts still wake
    first, last = crossovers(model, 32, low)
    assert first < predicted_crossover(model, 32, low) < 0.99 * last


@pytest.mark.parametrize("name", MIXTURES)
def test_a_sweep_of_a_mixture_goes_on_until_its_experts_are_awake(name: str) -> None:
    """Else its last sequences seem to cost the experts that they wake: deepseek-v3's crossover
    would be 8 sequences at 2048 tokens, where the batch that wakes all has it at 3,418."""
    model = get(name).with_dtype("bfloat16")
    hardware = accelerator("H100 SXM").at("bfloat16")
    largest = telling_batch_sizes(model, 2048, hardware)[-1]
    first, last = crossovers(model, 2048, hardware)
    assert 4 * last <= largest < 8 * last
    assert swept_crossover(model, largest, 2048, hardware) == pytest.approx(first, rel=0.02)


def test_a_dense_model_has_one_crossover() -> None:
    model, hardware = get("llama-3.1-8b"), accelerator("H100 SXM").at("bfloat16")
    crossover = predicted_crossover(model, 2048, hardware)
    assert crossovers(model, 2048, hardware) == pytest.approx((crossover, crossover))


def test_at_long_context_the_crossover_is_the_weights_over_one_cache() -> None:
    """By hand: reading one sequence's cache costs what arithmetic of one token never does."""
    model = get("llama-3.2-1b")
    hardware = Hardware("test", model.dtype, 1e18, 1e12, "made up")
    tokens = 100_000
    by_hand = model.weight_bytes_read / (tokens * model.kv_bytes_per_token)
    assert predicted_crossover(model, tokens - 1, hardware) == pytest.approx(1 + by_hand, rel=1e-6)


def test_least_times_are_those_of_the_steps(tiny_model: ModelSpec) -> None:
    hardware = Hardware("test", tiny_model.dtype, 1e9, 1e8, "made up")
    step = step_work(tiny_model, [Chunk(1, 7)] * 3)
    assert least_times_s(tiny_model, [3], 7, hardware) == {3: step.least_time_s(hardware)}
