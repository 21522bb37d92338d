import pytest
import torch

from prefill_decode.engine import (
    StepRunner,
    choose_dtypes,
    choose_model,
    one_after_another,
    step_runner,
)
from prefill_decode.engine.kv_cache import KVCache
from prefill_decode.step import Chunk

MIB, GB = 2**20, 10**9


def test_a_timed_step_can_run_again_and_again_with_the_same_result(tiny_model):
    chunks = {"a": [Chunk(5)], "b": [Chunk(1, 9)] * 3, "c": [Chunk(1, 4), Chunk(6, 2)]}
    runner = StepRunner(tiny_model, chunks, seed=0)
    assert runner.steps.keys() == chunks.keys()
    for name, step in runner.steps.items():
        first = step()
        assert first.shape == (len(chunks[name]), tiny_model.vocab_size)
    for name in ("b", "a", "c", "b"):  # whatever ran in between
        assert torch.equal(runner.steps[name](), runner.steps[name]())


def test_a_timed_step_holds_exactly_the_chunks_that_were_priced(tiny_model):
    runner = StepRunner(tiny_model, {"mixed": [Chunk(1, 9), Chunk(3, 4)]}, seed=0)
    before = runner.engine.cache.keys[0].clone()
    runner.steps["mixed"]()
    changed = (runner.engine.cache.keys[0] != before).any(dim=3).any(dim=1)  # [slots, capacity]
    assert changed[0].nonzero().flatten().tolist() == [9]
    assert changed[1].nonzero().flatten().tolist() == [4, 5, 6]


def test_the_engine_has_room_for_the_largest_step_and_no_more(tiny_model):
    cache = StepRunner(tiny_model, {"a": [Chunk(5, 90)], "b": [Chunk(1)] * 3}).engine.cache
    assert cache.block_tokens == 95
    assert cache.num_blocks == 3


@pytest.mark.parametrize("block_tokens", [1, 4, 100])
def test_blocks_of_a_step_are_scattered_and_no_two_sequences_share_one(tiny_model, block_tokens):
    chunks = {"a": [Chunk(1, 9), Chunk(3, 4)], "b": [Chunk(1, 30)]}
    runner = StepRunner(tiny_model, chunks, seed=0, block_tokens=block_tokens)
    cache = runner.engine.cache
    assert cache.keys[0].shape[2] == block_tokens
    least = {1: 31, 4: 8, 100: 2}[block_tokens]
    assert cache.num_blocks == least
    before = cache.keys[0].clone()
    runner.steps["a"]()
    changed = (cache.keys[0] != before).any(dim=3).any(dim=1)  # [num_blocks, block_tokens]
    assert changed.sum() == 4
    if block_tokens == 1:
        assert changed.flatten().nonzero().flatten().tolist() != [9, 14, 15, 16]
    for step in runner.steps.values():
        assert torch.equal(step(), step())


def test_scattered_blocks_hold_the_same_steps(tiny_model):
    """All tokens of a step are new, so its logits cannot depend on the noise under it."""
    chunks = {"a": [Chunk(13), Chunk(1), Chunk(4)]}
    whole = StepRunner(tiny_model, chunks, seed=0)
    paged = StepRunner(tiny_model, chunks, seed=0, block_tokens=3, weights=whole.engine.weights)
    torch.testing.assert_close(whole.steps["a"](), paged.steps["a"](), rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="at least one token; got block_tokens=0"):
        StepRunner(tiny_model, chunks, block_tokens=0)


def test_steps_run_one_after_another_in_their_order(tiny_model):
    ran = []
    steps = [lambda n=n: ran.append(n) or n for n in (3, 1, 2)]
    together = one_after_another(steps)
    assert together() == together() == 2  # the last one's output
    assert ran == [3, 1, 2, 3, 1, 2]
    chunks = {n: [Chunk(1, n)] for n in (4, 5)}
    runner = StepRunner(tiny_model, chunks, seed=0)
    before = runner.engine.cache.keys[0].clone()
    one_after_another([runner.steps[4], runner.steps[5]])()
    changed = (runner.engine.cache.keys[0] != before).any(dim=3).any(dim=1)
    assert changed[0].nonzero().flatten().tolist() == [4, 5]
    with pytest.raises(ValueError, match="nothing to run"):
        one_after_another([])


@pytest.mark.parametrize("chunks", [{}, {"a": []}])
def test_nothing_to_run_is_refused(tiny_model, chunks):
    with pytest.raises(ValueError, match="nothing to run"):
        StepRunner(tiny_model, chunks)


def test_the_cache_is_filled_with_noise_before_timing(tiny_model):
    cache = StepRunner(tiny_model, {"a": [Chunk(1, 60)] * 2}, seed=0).engine.cache
    assert all(0.8 < tensor.std() < 1.2 for tensor in cache.keys + cache.values)


def test_the_chosen_weights_dwarf_the_cache_and_fit_the_memory():
    laptop = choose_model("auto", "cpu", 32 * MIB, 16 * GB)
    assert laptop.name == "laptop-254m"
    assert laptop.dtype == "float32"
    assert laptop.weight_bytes_read > 16 * 32 * MIB


def test_models_that_the_engine_cannot_run_as_priced_are_never_chosen():
    for memory_bytes in (8 * GB, 10.5 * GB, 16 * GB, 64 * GB, 10_000 * GB):
        for device in ("cpu", "cuda"):
            model = choose_model("auto", device, 32 * MIB, memory_bytes)
            assert model.engine_runs
            assert model.windows is None
            assert model.total_params < 10e9


@pytest.mark.parametrize(
    ("memory_bytes", "name"),
    [
        (6 * GB, "llama-3.2-1b"),
        (16 * GB, "qwen3-4b"),
        (24 * GB, "llama-3.1-8b"),
        (80 * GB, "llama-3.1-8b"),
        (192 * GB, "llama-3.1-8b"),
    ],
)
def test_a_gpu_gets_the_largest_model_that_fits(memory_bytes, name):
    model = choose_model("auto", "cuda", 50 * MIB, memory_bytes)
    assert model.name == name
    assert model.dtype in ("bfloat16", "float16")


def test_a_gpu_before_ampere_gets_float16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for capability, dtype in [((7, 5), "float16"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16")]:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda c=capability: c)
        assert choose_model("smollm2-135m", "cuda", 0, 0).dtype == dtype


def test_a_named_model_is_taken_in_the_dtype_of_the_device():
    assert choose_model("smollm2-135m", "cpu", 1e12, 1).dtype == "float32"
    with pytest.raises(ValueError, match="did you mean smollm2-135m"):
        choose_model("smollm-135m", "cpu", 32 * MIB, 16 * GB)


def test_a_device_that_cannot_decide_says_why():
    with pytest.raises(ValueError, match=r"cannot decide.*laptop-254m.*2\.00 GB of memory"):
        choose_model("auto", "cpu", 32 * MIB, 2 * GB)
    with pytest.raises(ValueError, match="cannot decide: no shipped model"):
        choose_model("auto", "cpu", 4 * GB, 1000 * GB)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_decode_steps_replay_the_eager_ones_whatever_runs_in_between(
    tiny_model, monkeypatch
):
    model = tiny_model.with_dtype("float32")
    chunks = {"a": [Chunk(1, 9)] * 4, "b": [Chunk(1, 5)] * 2, "long": [Chunk(20)]}
    captured = StepRunner(model, chunks, "cuda", seed=0).steps
    monkeypatch.setattr(step_runner, "_captured", lambda engine, plan: lambda: engine.run(plan))
    eager = StepRunner(model, chunks, "cuda", seed=0).steps
    for name in ("a", "long", "b", "a", "b", "long", "a"):
        junk = [torch.full((n,), 61, device="cuda") for n in range(1, 40)]  # reuses freed memory
        torch.testing.assert_close(captured[name](), eager[name]())
        del junk


def test_a_cpu_compares_float32_with_a_dtype_that_it_multiplies(monkeypatch):
    able: dict[str, bool] = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    monkeypatch.setattr(step_runner, "kernels", lambda: "compiled")
    assert choose_dtypes("cpu") == ("float32", "float64")
    able["avx512_bf16"] = True
    assert choose_dtypes("cpu") == ("float32", "bfloat16")
    monkeypatch.setattr(step_runner, "kernels", lambda: None)
    assert choose_dtypes("cpu") == ("float32", "float64")
    assert choose_dtypes("mps") == ("float32", "float16")


def test_a_cache_is_full_of_noise_that_its_seed_repeats(tiny_model):
    caches = [KVCache(tiny_model, 2, 5, "cpu") for _ in range(3)]
    for cache, seed in zip(caches, (1, 1, 2), strict=True):
        cache.fill_with_noise(seed)
    for tensor in caches[0].keys + caches[0].values:
        assert tensor.abs().min() > 0
        assert 0.5 < float(tensor.std()) < 1.5
    assert torch.equal(caches[0].values[1], caches[1].values[1])
    assert not torch.equal(caches[0].keys[0], caches[2].keys[0])
