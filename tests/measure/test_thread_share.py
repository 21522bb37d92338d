from dataclasses import replace

import pytest
import torch

from prefill_decode.measure import Kernel, ceilings_on_threads, torch_threads


def test_kernels_run_on_so_many_threads_and_on_all_again(machine, ceilings):
    seen = []
    matrix, read = (
        Kernel(name, amount, lambda: seen.append(torch.get_num_threads()))
        for name, amount in (("matrix", 4e3), ("read", 2e3))
    )
    before = torch.get_num_threads()
    with torch_threads(2):
        found = ceilings_on_threads(
            replace(ceilings, matrix=matrix, read=read), machine, threads=1, budget_s=0.01
        )
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    assert set(seen) == {1}
    assert found.name == "1 of 2 threads of Test CPU @ 2.0, 2 cores"
    assert found.peak_flops_per_s > 0
    assert found.dtype == ceilings.hardware.dtype


def test_threads_come_back_whatever_happens():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads", "device"), [(0, "cpu"), (3, "cpu"), (1, "cuda")])
def test_threads_that_are_not_there_are_refused(machine, ceilings, threads, device):
    with pytest.raises(ValueError, match=f"got {threads} of {device}"):
        ceilings_on_threads(ceilings, replace(machine, device=device), threads)
