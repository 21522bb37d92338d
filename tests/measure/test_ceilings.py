"""Ceilings: what the kernels claim to do is what they do; the best of them sets the ceiling."""

import pytest
import torch

from prefill_decode.measure import Timings, ceilings, measure_ceilings


@pytest.fixture
def quick(monkeypatch):
    """Small kernels and invented times: 1, 2, 3, ... ms in the order of the kernels."""
    monkeypatch.setattr(ceilings, "MATRIX_SIZES", {"cpu": (8, 16)})
    monkeypatch.setattr(ceilings, "LEAST_WORKING_SET_BYTES", 2**20)
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
    assert found.hardware.bandwidth_bytes_per_s == pytest.approx(2**20 / 3e-3)
    assert found.hardware.dtype == "float32"
    assert set(found.steps()) == {found.matrix.name, found.read.name} < set(found.rates)


def test_every_kernel_runs_and_reads_what_it_says(quick, machine):
    found = measure_ceilings(machine, "float32")
    assert len(quick) == len(found.rates) >= 5
    for step in quick.values():
        step()
    total = found.read.run()
    assert total.numel() == 1
    assert found.read.amount == 2**20


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
    assert sizes == [8 * 100 * 2**20]


def test_float64_has_no_packed_kernel_and_still_a_ceiling(quick, machine):
    found = measure_ceilings(machine, "float64")
    assert "packed product with one row" not in found.rates
    assert found.read.run().dtype == torch.float64
