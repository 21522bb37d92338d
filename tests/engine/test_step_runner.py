import pytest
import torch

from prefill_decode.engine import StepRunner, choose_model, step_runner
from prefill_decode.step import Chunk

MIB, GB = 2**20, 10**9


def test_a_timed_step_can_run_again_and_again_with_the_same_result(tiny_model):
    runner = StepRunner(tiny_model, num_slots=3, capacity_tokens=32, seed=0)
    for chunks in ([Chunk(5)], [Chunk(1, 9)] * 3, [Chunk(1, 4), Chunk(6, 2)]):
        step = runner.step(chunks)
        first = step()
        assert torch.equal(first, step())
        assert first.shape == (len(chunks), tiny_model.vocab_size)


def test_a_timed_step_holds_exactly_the_chunks_that_were_priced(tiny_model):
    runner = StepRunner(tiny_model, num_slots=2, capacity_tokens=32, seed=0)
    engine = runner.engine
    keys = engine.cache.keys[0].clone()
    runner.step([Chunk(1, 9), Chunk(3, 4)])()
    changed = (engine.cache.keys[0] != keys).any(dim=3).any(dim=1)  # [slots, capacity]
    assert changed[0].nonzero().flatten().tolist() == [9]
    assert changed[1].nonzero().flatten().tolist() == [4, 5, 6]


def test_a_step_with_more_chunks_than_slots_is_refused(tiny_model):
    runner = StepRunner(tiny_model, num_slots=2, capacity_tokens=32, seed=0)
    with pytest.raises(ValueError, match="2 slots; got a step of 3"):
        runner.step([Chunk(1)] * 3)


def test_the_cache_is_filled_with_noise_before_timing(tiny_model):
    cache = StepRunner(tiny_model, num_slots=2, capacity_tokens=32, seed=0).engine.cache
    assert all(0.8 < tensor.std() < 1.2 for tensor in cache.keys + cache.values)
    assert cache.lengths == [0, 0]


def test_the_chosen_weights_dwarf_the_cache_and_fit_the_memory():
    laptop = choose_model("auto", "cpu", 32 * MIB, 16 * GB)
    assert laptop.name == "laptop-254m"
    assert laptop.dtype == "float32"
    assert laptop.weight_bytes_read > 16 * 32 * MIB
    big_gpu = choose_model("auto", "cuda", 50 * MIB, 80 * GB)
    assert big_gpu.name == "llama-3.1-8b"
    assert big_gpu.dtype == "bfloat16"


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
def test_a_captured_decode_step_replays_the_eager_one(tiny_model, monkeypatch):
    model = tiny_model.with_dtype("float32")
    chunks = [Chunk(1, 9)] * 4
    captured = StepRunner(model, "cuda", num_slots=4, capacity_tokens=32, seed=0).step(chunks)()
    monkeypatch.setattr(step_runner, "_captured", lambda engine, plan: lambda: engine.run(plan))
    eager = StepRunner(model, "cuda", num_slots=4, capacity_tokens=32, seed=0).step(chunks)()
    torch.testing.assert_close(captured, eager)
