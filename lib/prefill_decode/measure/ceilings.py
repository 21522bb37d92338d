"""Ceilings: the matrix rate and the read bandwidth of this device, measured, for one dtype.

A ceiling is the best of several kernels, because each kernel has its own weakness: a sum reads
one stream, a product with one row reads a matrix as decode does; a small product fits the cache,
a large one does not. The working set of every read is far above the last-level cache.

Ignores: what no kernel here reaches. A ceiling that is measured low flatters every share taken of
         it, so each is remeasured in the same rounds as the steps it judges."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prefill_decode.claim import LIMIT_TOLERANCE
from prefill_decode.hardware import Hardware
from prefill_decode.measure.machine import Machine
from prefill_decode.measure.timer import Kernel, Step, Timings, interleave
from prefill_decode.roofline import StepWork
from prefill_decode.statistics import Interval, median_interval

# A read must dwarf the cache, and on an accelerator also the microseconds of a launch.
LEAST_WORKING_SET_BYTES = {"cpu": 256e6, "mps": 1e9, "cuda": 8e9}
WORKING_SET_TIMES_CACHE = 4  # of the cache that the system reports, be it a whole host's
NOISE_BLOCK_VALUES = 2**22  # random values are drawn once for so many and repeated
MOST_OF_MEMORY = 0.1
MATRIX_SIZES = {"cpu": (1024, 2048), "mps": (2048, 4096), "cuda": (4096, 8192)}
ROW_SIZE = 2048


@dataclass(frozen=True)
class Ceilings:
    matrix: Kernel  # the kernel that set the matrix rate; amount in FLOP
    read: Kernel  # the kernel that set the bandwidth; amount in bytes
    rates: dict[str, float]  # every kernel's median rate, FLOP/s or byte/s
    hardware: Hardware
    timings: Timings

    def steps(self) -> dict[str, Step]:
        """Both kernels, to be timed again beside what they judge."""
        return {self.matrix.name: self.matrix.run, self.read.name: self.read.run}

    def during(self, times: Timings) -> Hardware:
        """The ceilings as the same two kernels found them among the steps of `times`."""
        return replace(
            self.hardware,
            peak_flops_per_s=self.matrix.amount / times.time_s(self.matrix.name).median,
            bandwidth_bytes_per_s=self.read.amount / times.time_s(self.read.name).median,
        )

    def reached(self, work: StepWork, step: str, times: Timings) -> Interval:
        """Least time / time of a step, round by round, each with that round's own ceilings."""
        rounds = self._rounds(times)
        pairs = zip(rounds, times.times_s(step), strict=True)
        return median_interval([work.least_time_s(hardware) / t for hardware, t in pairs])

    def broken_ruler(self, works: Mapping[str, StepWork], times: Timings) -> list[str]:
        """Why nothing measured here counts, in words; empty when all is well.

        Either too few rounds were quiet, or a step was faster than the floor of its own round.
        """
        found = []
        if times.trusts_all_rounds and any(times.disturbed):
            found.append(
                f"other processes took the cores in {sum(times.disturbed)} of "
                f"{times.num_rounds} rounds"
            )
        for name, work in works.items():
            pairs = zip(self._rounds(times), times.times_s(name), strict=True)
            share = median_interval([work.total.least_time_s(hw) / t for hw, t in pairs])
            if share.low > 1 + LIMIT_TOLERANCE:
                found.append(f"{name} took {1 / share.median:.2f} of the least possible time")
        return found

    def _rounds(self, times: Timings) -> list[Hardware]:
        matrix_s, read_s = times.times_s(self.matrix.name), times.times_s(self.read.name)
        return [
            replace(
                self.hardware,
                peak_flops_per_s=self.matrix.amount / m,
                bandwidth_bytes_per_s=self.read.amount / r,
            )
            for m, r in zip(matrix_s, read_s, strict=True)
        ]


def measure_ceilings(
    machine: Machine, dtype: str, budget_s: float = 8.0, seed: int = 0
) -> Ceilings:
    """This machine's ceilings in `dtype`. Takes about `budget_s` seconds."""
    working_set_bytes = max(
        min(LEAST_WORKING_SET_BYTES[machine.device], MOST_OF_MEMORY * machine.memory_bytes),
        WORKING_SET_TIMES_CACHE * (machine.last_level_cache_bytes or machine.cache_bytes),
    )
    matrix = _matrix_kernels(machine.device, dtype, seed)
    read = _read_kernels(machine.device, dtype, working_set_bytes, seed)
    timings = interleave(
        {kernel.name: kernel.run for kernel in matrix + read}, machine, budget_s, seed
    )
    rates = {k.name: k.amount / timings.time_s(k.name).median for k in matrix + read}
    best_matrix = max(matrix, key=lambda kernel: rates[kernel.name])
    best_read = max(read, key=lambda kernel: rates[kernel.name])
    hardware = Hardware(
        name=machine.title,
        dtype=dtype,
        peak_flops_per_s=rates[best_matrix.name],
        bandwidth_bytes_per_s=rates[best_read.name],
        source=f"measured here: {best_matrix.name}; {best_read.name}",
    )
    return Ceilings(best_matrix, best_read, rates, hardware, timings)


def measure_ceilings_in(
    machine: Machine, dtypes: Sequence[str], budget_s: float = 8.0, seed: int = 0
) -> dict[str, Ceilings]:
    """Ceilings in each of several dtypes, kernels named after theirs, in `budget_s` all together.

    So that the kernels of all dtypes can run in the same rounds."""
    share_s = budget_s / len(dtypes)
    return {d: _named_after(d, measure_ceilings(machine, d, share_s, seed)) for d in dtypes}


def broken_ruler_in(
    ceilings: Mapping[str, Ceilings],
    works: Mapping[str, Mapping[str, StepWork]],
    times: Timings,
) -> list[str]:
    """`Ceilings.broken_ruler` of the steps of every dtype, each reason once. Both go by dtype."""
    found = [words for d in works for words in ceilings[d].broken_ruler(works[d], times)]
    return list(dict.fromkeys(found))


def _named_after(dtype: str, ceilings: Ceilings) -> Ceilings:
    matrix, read = (
        replace(kernel, name=f"{dtype} {kernel.name}")
        for kernel in (ceilings.matrix, ceilings.read)
    )
    rates = {f"{dtype} {name}": rate for name, rate in ceilings.rates.items()}
    return replace(ceilings, matrix=matrix, read=read, rates=rates)


def _matrix_kernels(device: str, dtype: str, seed: int) -> list[Kernel]:
    from prefill_decode.kernels import DTYPES
    from prefill_decode.kernels import kernels as compiled
    from prefill_decode.products import onednn_has, onednn_product

    noise = _noise(device, dtype, seed)

    def kernel(size: int) -> Kernel:
        left, right = noise(size, size), noise(size, size)
        return Kernel(f"product of {size} x {size} matrices", 2.0 * size**3, lambda: left @ right)

    found = [kernel(size) for size in MATRIX_SIZES[device]]
    if device == "cpu":
        size = MATRIX_SIZES[device][-1]
        weight, rows, flops = noise(size, size), noise(size, size), 2.0 * size**3
        if compiled() is not None and weight.dtype in DTYPES:
            own = _own(weight, rows)
            found.append(Kernel(f"own product of {size} x {size} matrices", flops, own))
        if onednn_has(weight.dtype):
            name = f"oneDNN product of {size} x {size} matrices"
            found.append(Kernel(name, flops, lambda: onednn_product(rows, weight)))
    return found


def _own(weight: Any, rows: Any) -> Step:
    from prefill_decode.kernels import kernels as compiled

    own = compiled()
    assert own is not None
    return lambda: own.product(weight, rows)


def _read_kernels(device: str, dtype: str, working_set_bytes: float, seed: int) -> list[Kernel]:
    import torch

    from prefill_decode.kernels import DTYPES
    from prefill_decode.kernels import kernels as compiled

    noise = _noise(device, dtype, seed)
    item_bytes = torch.empty(0, dtype=getattr(torch, dtype)).element_size()
    num_rows = int(working_set_bytes / item_bytes / ROW_SIZE)
    matrix = noise(num_rows, ROW_SIZE)
    row = noise(1, ROW_SIZE)
    num_bytes = float(matrix.numel() * item_bytes)
    kernels = [
        Kernel("sum of a vector", num_bytes, matrix.view(-1).sum),
        Kernel("largest of a vector", num_bytes, matrix.view(-1).max),
        Kernel("product with one row", num_bytes, lambda: torch.mv(matrix, row[0])),
    ]
    own = compiled() if device == "cpu" else None
    if own is not None and matrix.dtype in DTYPES:
        kernels += [
            Kernel("read of every byte", num_bytes, lambda: own.read(matrix)),
            Kernel("own product with one row", num_bytes, lambda: own.product(matrix, row)),
        ]
    return kernels


def _noise(device: str, dtype: str, seed: int) -> Callable[..., Any]:
    import torch

    generator = torch.Generator(device).manual_seed(seed)

    def make(*shape: int) -> torch.Tensor:
        values = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        flat = values.view(-1)
        drawn = flat[:NOISE_BLOCK_VALUES].normal_(generator=generator)
        for start in range(len(drawn), len(flat), len(drawn)):
            block = flat[start : start + len(drawn)]
            block.copy_(drawn[: len(block)])
        return values

    return make
