from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from prefill_decode.measure import (
    Kernel,
    ceilings_on_threads,
    matrix_on_threads,
    timer,
    times_slower,
    torch_threads,
)


def test_ceilings_are_scaled_by_what_so_many_threads_reach_in_the_same_rounds(
    machine, ceilings, monkeypatch
):
    """A clock that only kernels move: on one of two threads products take twice as long, reads
    a quarter longer."""
    now_s, seen = [0.0], []

    def kernel(name, amount, one_s):
        def run():
            seen.append(torch.get_num_threads())
            now_s[0] += one_s if seen[-1] == 1 else 1.0

        return Kernel(name, amount, run)

    monkeypatch.setattr(timer.time, "perf_counter", lambda: now_s[0])
    monkeypatch.setattr(timer, "OtherLoad", lambda own_s: SimpleNamespace(took_more_than=bool))
    made = replace(ceilings, matrix=kernel("matrix", 4e3, 2.0), read=kernel("read", 2e3, 1.25))
    before = torch.get_num_threads()
    with torch_threads(2):
        found = ceilings_on_threads(made, machine, threads=1, budget_s=0.01)
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == before
    assert seen.count(1) == seen.count(2) > 0
    whole = ceilings.hardware
    assert found.peak_flops_per_s == pytest.approx(whole.peak_flops_per_s / 2)
    assert found.bandwidth_bytes_per_s == pytest.approx(whole.bandwidth_bytes_per_s / 1.25)
    assert found.name == "1 of 2 threads of Test CPU @ 2.0, 2 cores"


def test_threads_come_back_whatever_happens():
    before = torch.get_num_threads()
    with pytest.raises(ZeroDivisionError), torch_threads(before + 1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads", "device"), [(0, "cpu"), (3, "cpu"), (1, "cuda")])
def test_threads_that_are_not_there_are_refused(machine, ceilings, threads, device):
    with pytest.raises(ValueError, match=f"got {threads} of {device}"):
        ceilings_on_threads(ceilings, replace(machine, device=device), threads)


def test_how_much_slower_products_are_is_told_round_by_round(timings, ceilings):
    (name,) = matrix_on_threads(ceilings, 1)
    raw_s = {**timings.raw_s, name: tuple(0.010 + 0.001 * i for i in range(10))}
    found = times_slower(replace(timings, raw_s=raw_s), ceilings, 1)
    assert found == pytest.approx([2.0 + 0.2 * i for i in range(10)])
