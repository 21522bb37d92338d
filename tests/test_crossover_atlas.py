"""The atlas, against sweeps of the roofline, by hand at its two ends, and a count of devices."""

import pytest

from prefill_decode.crossover import crossover_sequences, least_times_s
from prefill_decode.crossover_atlas import atlas, crossovers, entry
from prefill_decode.hardware import Hardware, accelerator, accelerators
from prefill_decode.hf_config import get, shipped

H100 = accelerator("H100 SXM")


@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-4b", "gemma-3-1b"])
@pytest.mark.parametrize("context_tokens", [32, 1024])
def test_a_dense_model_has_the_crossover_of_its_sweep(name, context_tokens):
    found = entry(get(name), H100, context_tokens)
    model = get(name).with_dtype("bfloat16")
    sizes = [1, 1024, 2048]  # both large ones beyond the bend of the weights, at 295
    swept = crossover_sequences(least_times_s(model, sizes, context_tokens, H100.at("bfloat16")))
    assert found.crossover == pytest.approx(swept)
    assert found.crossover_all_awake == pytest.approx(found.crossover)


def test_at_short_context_only_the_ridge_counts():
    """By hand: 2 FLOP and 2 bytes a weight, so B* is the ridge, less what the caches take."""
    found = entry(get("llama-3.1-8b"), H100, 0)
    assert found.crossover == pytest.approx(989e12 / 3.35e12, rel=0.01)


def test_at_endless_context_the_crossover_is_one_whatever_the_accelerator():
    for each in accelerators():
        if each.peak_bf16_flops_per_s is not None:
            assert entry(get("llama-2-7b"), each, 10**7).crossover == pytest.approx(1, abs=0.01)


def test_all_experts_awake_are_read_in_full():
    """By hand for Mixtral: 8 experts of 3 x 4096 x 14336 in each of 32 layers."""
    model = get("mixtral-8x7b").with_dtype("bfloat16")
    hardware = Hardware("test", "bfloat16", 1e15, 1e12, "made up")
    first, last = crossovers(model, 0, hardware)
    expert = 3 * 4096 * 14336
    beside = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 4096 * 8) + 32000 * 4096
    ratio = (beside + 32 * 8 * expert) / (beside + 32 * 2 * expert)
    assert last / first == pytest.approx(ratio, rel=1e-4)


def test_weights_that_do_not_fit_get_as_many_devices_as_hold_them():
    """By hand: 70.6e9 parameters of 2 bytes need two parts of 85.9 GB and one of 206 GB."""
    model = get("llama-3.1-70b")
    assert entry(model, H100, 32).devices == 2
    assert entry(model, accelerator("MI300X"), 32).devices == 1


def test_room_for_a_crossover_is_counted_at_its_context():
    model = get("llama-2-7b")  # 13.5 GB of weights, 512 kB a token
    l4 = entry(model, accelerator("L4"), 8192)
    assert l4.sequences_that_fit == int((24 * 2**30 - 2 * model.total_params) // (8193 * 2**19))
    assert l4.has_room is False
    assert entry(model, H100, 8192).has_room is True


def test_a_row_for_each_model_and_a_column_for_each_accelerator_with_a_known_peak():
    rows = atlas(shipped(), accelerators(), 32)
    known = [each for each in accelerators() if each.peak_bf16_flops_per_s is not None]
    assert len(rows) == len(shipped())
    assert all([e.accelerator for e in row] == known for row in rows)
    assert len(known) < len(accelerators())
