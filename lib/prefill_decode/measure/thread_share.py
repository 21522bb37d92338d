"""Thread share: what the processor's ceilings are for a few of its threads.

Ignores: what the other threads do meanwhile. While they read memory, a share of the threads has
         less bandwidth than this says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from prefill_decode.hardware import Hardware
from prefill_decode.measure.ceilings import Ceilings
from prefill_decode.measure.machine import Machine
from prefill_decode.measure.timer import Step, Timings, interleave


def ceilings_on_threads(
    ceilings: Ceilings, machine: Machine, threads: int, budget_s: float = 2.0, seed: int = 0
) -> Hardware:
    """The ceilings times what so many threads of the CPU reach of them: the two kernels that set
    them run on all threads and on these in the same rounds. Takes about `budget_s` seconds."""
    if not 1 <= threads <= machine.threads or machine.device != "cpu":
        raise ValueError(
            f"threads are those of a CPU, from 1 to {machine.threads} here; got {threads} of "
            f"{machine.device}"
        )
    steps = ceilings.steps()
    few = {_on(name, threads): _on_threads(run, threads) for name, run in steps.items()}
    times = interleave(steps | few, machine, budget_s, seed)
    matrix, read = (
        times.ratio(kernel.name, over=_on(kernel.name, threads)).median
        for kernel in (ceilings.matrix, ceilings.read)
    )
    whole = ceilings.hardware
    return replace(
        whole,
        name=f"{threads} of {machine.threads} threads of {machine.title}",
        peak_flops_per_s=matrix * whole.peak_flops_per_s,
        bandwidth_bytes_per_s=read * whole.bandwidth_bytes_per_s,
        source=f"measured here, on {threads} of {machine.threads} threads",
    )


def matrix_on_threads(ceilings: Ceilings, threads: int) -> dict[str, Step]:
    """The kernel that set the matrix rate on so many threads, to be timed among what it judges."""
    kernel = ceilings.matrix
    return {_on(kernel.name, threads): _on_threads(kernel.run, threads)}


def times_slower(times: Timings, ceilings: Ceilings, threads: int) -> list[float]:
    """In every round, how many times as long that kernel took on them as on all threads."""
    name = ceilings.matrix.name
    few_s, all_s = times.times_s(_on(name, threads)), times.times_s(name)
    return [few / whole for few, whole in zip(few_s, all_s, strict=True)]


def _on(kernel: str, threads: int) -> str:
    return f"{kernel}, {threads} threads"


def _on_threads(run: Step, threads: int) -> Callable[[], None]:
    def on_few() -> None:
        with torch_threads(threads):
            run()

    return on_few


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """What runs within has so many threads for each step."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
