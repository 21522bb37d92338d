"""Thread share: what the processor's ceilings are for a few of its threads.

Ignores: what the other threads do meanwhile. While they read memory, a share of the threads has
         less bandwidth than this says."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from prefill_decode.hardware import Hardware
from prefill_decode.measure.ceilings import Ceilings
from prefill_decode.measure.machine import Machine
from prefill_decode.measure.timer import Step, interleave


def ceilings_on_threads(
    ceilings: Ceilings, machine: Machine, threads: int, budget_s: float = 2.0, seed: int = 0
) -> Hardware:
    """The two kernels that set the ceilings, once more on so many threads of the CPU. Takes about
    `budget_s` seconds."""
    if not 1 <= threads <= machine.threads or machine.device != "cpu":
        raise ValueError(
            f"threads are those of a CPU, from 1 to {machine.threads} here; got {threads} of "
            f"{machine.device}"
        )
    steps = {name: _on_threads(run, threads) for name, run in ceilings.steps().items()}
    times = interleave(steps, replace(machine, threads=threads), budget_s, seed)
    return replace(
        ceilings.during(times),
        name=f"{threads} of {machine.threads} threads of {machine.title}",
        source=f"measured here, on {threads} of {machine.threads} threads",
    )


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
