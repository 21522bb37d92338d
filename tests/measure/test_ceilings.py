"""Ceilings: what the kernels claim to do is what they do; the best of them sets the ceiling."""

from dataclasses import replace

import pytest
import torch

from prefill_decode.kernels import kernels
from prefill_decode.kernels import kernels as compiled
from prefill_decode.measure import (
    Timings,
    broken_ruler_in,
    ceilings,
    measure_ceilings,
    measure_ceilings_in,
)
from prefill_decode.products import onednn_has
from prefill_decode.roofline import StepWork, Work


@pytest.fixture
def ceilings_found(request):
    return request.getfixturevalue("ceilings")


@pytest.fixture
def quick(monkeypatch):
    """Small kernels and invented times: 1, 2, 3, ... ms in the order of the kernels."""
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", {"cpu": (8, 16)})
    monkeypatch.setattr(ceilings, "LEAST_WORKING_SET_BYTES", {"cpu": 2**20})
    monkeypatch.setattr(ceilings, "WORKING_SET_TIMES_CACHE", 0)
    kept = {}

    def invent(steps, machine, budget_s, seed):
        kept.update(steps)
        raw_s = {name: (1e-3 * (i + 1),) * 6 for i, name in enumerate(steps)}
        return Timings(raw_s, {}, (False,) * 6, "narrow", 0.1)

    monkeypatch.setattr(ceilings, "interleave", invent)
    return kept


def test_the_fastest_kernel_of_each_kind_sets_the_ceiling(quick, machine):
    found = measure_ceilings(machine, "float32")
    assert found.matrix.name == "product of 16 x 16 matrices"  # 8 times the work in twice the time
    assert found.read.name == "sum of a vector"  # the same bytes in the least time
    assert found.hardware.peak_flops_per_s == pytest.approx(2 * 16**3 / 2e-3)
    sum_s = 1e-3 * (1 + list(quick).index("sum of a vector"))
    assert found.hardware.bandwidth_bytes_per_s == pytest.approx(2**20 / sum_s)
    assert found.hardware.dtype == "float32"
    assert set(found.steps()) == {found.matrix.name, found.read.name} < set(found.rates)


def test_every_kernel_runs_and_reads_what_it_says(quick, machine):
    found = measure_ceilings(machine, "float32")
    assert len(quick) == len(found.rates) >= 5
    for step in quick.values():
        step()
    assert quick["product of 16 x 16 matrices"]().shape == (16, 16)
    rows = 2**20 // 4 // ceilings.ROW_SIZE
    assert quick["product with one row"]().shape == (rows,)
    if compiled() is not None:
        assert quick["own product with one row"]().shape == (1, rows)
        assert isinstance(quick["read of every byte"](), int)
    assert quick["sum of a vector"]().numel() == quick["largest of a vector"]().numel() == 1
    kernels = ceilings._read_kernels("cpu", "float32", 2**20, 0)
    assert {kernel.amount for kernel in kernels} == {2**20}  # every one reads the whole set


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_no_product_that_the_engine_may_use_is_left_out_of_the_ceilings(quick, machine, dtype):
    names = measure_ceilings(machine, dtype).rates
    assert ("oneDNN product of 16 x 16 matrices" in names) == onednn_has(getattr(torch, dtype))
    assert ("own product of 16 x 16 matrices" in names) == (kernels() is not None)


def test_the_working_set_is_far_above_the_last_level_cache(machine, monkeypatch):
    sizes = []
    real = ceilings._read_kernels

    def spy(device, dtype, working_set_bytes, seed):
        sizes.append(working_set_bytes)
        return real(device, dtype, 2**20, seed)

    monkeypatch.setattr(ceilings, "_read_kernels", spy)
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", {"cpu": (8,)})
    large = type(machine)(**{**machine.__dict__, "last_level_cache_bytes": 100 * 2**20})
    measure_ceilings(large, "float32", budget_s=0.01)
    assert sizes == [4 * 100 * 2**20]


def test_half_precision_has_no_compiled_kernel_and_still_a_ceiling(quick, machine):
    found = measure_ceilings(machine, "float16")
    assert "read of every byte" not in found.rates
    assert found.read.run().dtype == torch.float16


def test_noise_is_drawn_once_and_repeated_to_the_last_value(monkeypatch):
    monkeypatch.setattr(ceilings, "NOISE_BLOCK_VALUES", 8)
    values = ceilings._noise("cpu", "float64", 0)(3, 7).view(-1)
    assert torch.equal(values[8:16], values[:8])
    assert torch.equal(values[16:], values[:5])
    assert len(set(values[:8].tolist())) == 8


def test_an_accelerators_reads_also_dwarf_a_launch_and_leave_its_memory_alone(machine, monkeypatch):
    sizes = []

    def spy(device, dtype, working_set_bytes, seed):
        sizes.append(working_set_bytes)
        raise InterruptedError

    monkeypatch.setattr(ceilings, "_matrix_kernels", lambda *words: [])
    monkeypatch.setattr(ceilings, "_read_kernels", spy)
    for memory_bytes in (16e9, 141e9):
        gpu = replace(machine, device="cuda", memory_bytes=int(memory_bytes))
        with pytest.raises(InterruptedError):
            measure_ceilings(gpu, "bfloat16")
    assert sizes == [1.6e9, 8e9]


def test_shares_of_the_possible_are_taken_with_each_rounds_own_ceilings(ceilings_found, timings):
    """1e8 bytes at 2e10 bytes/s take 5 ms; the step took 10 to 10.9 ms."""
    work = StepWork(Work(1.0, 0.5e8), Work(1.0, 0.5e8))
    reached = ceilings_found.reached(work, "decode x1", timings)
    assert reached.median == pytest.approx(5 / 10.45, rel=1e-3)
    during = ceilings_found.during(timings)
    assert during.bandwidth_bytes_per_s == pytest.approx(2e10)
    assert during.peak_flops_per_s == pytest.approx(1e11)


def test_a_step_faster_than_physics_is_named(ceilings_found, timings):
    fair = StepWork(Work(1.0, 1e8), Work(1.0, 1e8))  # 10 ms
    assert ceilings_found.broken_ruler({"decode x1": fair}, timings) == []
    miscounted = StepWork(Work(1.0, 3e8), Work(1.0, 1e8))  # 20 ms
    (words,) = ceilings_found.broken_ruler({"decode x1": fair, "decode x8": miscounted}, timings)
    assert words == "decode x8 took 0.62 of the least possible time"


def test_a_run_without_quiet_rounds_is_a_broken_ruler(ceilings_found, timings):
    busy = replace(timings, disturbed=(True,) * 6 + (False,) * 4)
    (words,) = ceilings_found.broken_ruler({}, busy)
    assert words == "other processes took the cores in 6 of 10 rounds"
    mostly_quiet = replace(timings, disturbed=(True,) * 3 + (False,) * 7)
    assert ceilings_found.broken_ruler({}, mostly_quiet) == []


def test_ceilings_of_several_dtypes_can_be_timed_in_the_same_rounds(quick, machine):
    found = measure_ceilings_in(machine, ["float32", "float64"])
    steps = [name for each in found.values() for name in each.steps()]
    assert steps == [
        "float32 product of 16 x 16 matrices",
        "float32 sum of a vector",
        "float64 product of 16 x 16 matrices",
        "float64 sum of a vector",
    ]
    assert [each.hardware.dtype for each in found.values()] == ["float32", "float64"]
    raw_s = dict.fromkeys(steps, (0.002,) * 6)
    during = found["float64"].during(Timings(raw_s, {}, (False,) * 6, "narrow", 0.1))
    assert during.peak_flops_per_s == pytest.approx(2 * 16**3 / 2e-3)


def test_a_step_faster_than_physics_is_named_in_whichever_dtype(ceilings_found, timings):
    both = {"float32": ceilings_found, "float64": ceilings_found}
    fine, fast = StepWork(Work(1.0, 1.0), Work(1.0, 1.0)), StepWork(Work(5e9, 1.0), Work(1.0, 1.0))
    works = {"float32": {"decode x1": fine}, "float64": {"decode x8": fast}}
    assert len(broken_ruler_in(both, works, timings)) == 1
    assert "decode x8" in broken_ruler_in(both, works, timings)[0]
    assert broken_ruler_in(both, {"float32": {"decode x1": fine}}, timings) == []
