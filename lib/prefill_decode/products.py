"""Products: which way to multiply rows with weights is the fastest here, by the number of rows.

A product of few rows waits for memory, and the compiled kernel wins everywhere. With many rows it
is arithmetic, and what wins depends on the processor and on what the libraries make of it: torch's
own product uses one library, which on some processors leaves half of their vectors unused, oneDNN
is another, and the compiled kernel a third. So it is found out once, in about a second, and kept
in the user's cache folder, one file for each processor, compiled source and version of torch.

Ignores: the sizes of a model's own matrices; one stands for all. The least of several times
         counts, and what is kept was found twice, so a neighbour that takes the cores for a moment
         changes nothing. One that stays can make the choice wrong, and a wrong choice is kept:
         steps are slower until the file `products-*.json` is deleted. No record tells the choice.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.kernels import DTYPES, Kernels, cache_folder, cpu_mark, kernels

LEAST_ROWS = 2  # up to here products wait for memory, and the kernel wins everywhere
TRIED_ROWS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
SOME_ROWS, MANY_ROWS = (8, 16, 32), 256
WORTH_A_COPY = 0.9  # of the time of the fastest way that needs no second copy of the weights
PACKED_FOR_ROWS = 16  # the batch size oneDNN lays weights out for; as good as any up to 128
ALL_ROWS = 2**31
MATRIX = (4096, 2048)  # weights, [out, in]: three of them are more than most caches hold
COPIES = 3
ROUNDS = 9


@dataclass(frozen=True)
class FastestProducts:
    most_kernel_rows: int  # up to which the compiled kernel is the fastest; 0 without kernels
    by_onednn: bool  # whether oneDNN is faster than torch's own product beyond
    packed: bool  # whether oneDNN's layout is worth a second copy of the weights


def fastest_products(device_type: str, dtype: torch.dtype) -> FastestProducts:
    """What to use for a weight of this dtype, with the threads that torch has now."""
    if device_type != "cpu":
        return FastestProducts(0, by_onednn=False, packed=False)
    return _fastest_on_cpu(dtype, torch.get_num_threads(), kernels())


def onednn_has(dtype: torch.dtype) -> bool:
    return torch.backends.mkldnn.is_available() and dtype == torch.float32


def onednn_product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[N, in] -> [N, out] by oneDNN, with a weight as torch holds it or in oneDNN's blocks."""
    no_scalars: list[Any] = []
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", no_scalars, "")
    return product


def packed(weight: Tensor) -> Tensor:
    """A second copy of a weight, in the blocks that oneDNN multiplies fastest."""
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)
    return blocks


@cache
def _fastest_on_cpu(dtype: torch.dtype, threads: int, compiled: Kernels | None) -> FastestProducts:
    path = _file(compiled)
    key = f"{dtype}, {threads} threads"
    kept = _kept(path)
    if key not in kept:
        found, again = (find_fastest(dtype, compiled if dtype in DTYPES else None) for _ in "12")
        if found != again:  # a neighbour, or a close call: asked again next time
            return again
        _keep(path, {**kept, key: found})
        return found
    return kept[key]


@torch.inference_mode()
def find_fastest(dtype: torch.dtype, compiled: Kernels | None) -> FastestProducts:
    """Measure it here and now."""
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(MATRIX, generator=generator).to(dtype) for _ in range(COPIES)]
    rows = torch.randn(max(TRIED_ROWS), MATRIX[1], generator=generator).to(dtype)
    ways: dict[str, Callable[[Tensor, int], object]] = {
        "torch": lambda some, copy: functional.linear(some, weights[copy])
    }
    if onednn_has(dtype):
        blocks = [packed(weight) for weight in weights]
        ways["oneDNN"] = lambda some, copy: onednn_product(some, weights[copy])
        ways["packed"] = lambda some, copy: onednn_product(some, blocks[copy])
    if compiled is not None:
        ways["kernel"] = lambda some, copy: compiled.product(weights[copy], some)

    def times_s(count: int, *names: str) -> list[float]:
        """The least time of each of these ways."""
        some = rows[:count].contiguous()
        return _least_times_s([partial(ways[name], some) for name in names if name in ways])

    many_s = times_s(MANY_ROWS, "torch", "oneDNN")
    by_onednn = many_s[-1] < many_s[0]
    plain = "oneDNN" if by_onednn else "torch"
    worth_it = False
    if "packed" in ways:
        some_s = [times_s(count, plain, "kernel", "packed") for count in SOME_ROWS]
        without_copy_s = sum(min(others) for *others, _ in some_s)
        worth_it = sum(times[-1] for times in some_s) < WORTH_A_COPY * without_copy_s
    most = 0 if compiled is None else LEAST_ROWS
    for count in TRIED_ROWS if compiled is not None else ():
        kernel_s, other_s = times_s(count, "kernel", "packed" if worth_it else plain)
        if other_s < kernel_s:
            break
        most = count if count < TRIED_ROWS[-1] else ALL_ROWS
    return FastestProducts(most, by_onednn, worth_it)


def _least_times_s(ways: Sequence[Callable[[int], object]]) -> list[float]:
    """In turns, each time on another copy of the weights, so that none finds them in a cache."""
    times_s: list[list[float]] = [[] for _ in ways]
    for turn in range(ROUNDS):
        for way, times in zip(ways, times_s, strict=True):
            started_s = time.perf_counter()
            way(turn % COPIES)
            times.append(time.perf_counter() - started_s)
    return [min(times) for times in times_s]


def _file(compiled: Kernels | None) -> Path:
    source = "torch alone" if compiled is None else compiled.path.name
    marked = f"{source}, torch {torch.__version__}".encode() + cpu_mark()
    return cache_folder() / f"products-{sha256(marked).hexdigest()[:16]}.json"


def _kept(path: Path) -> dict[str, FastestProducts]:
    """What was found before; nothing if the file is not there or is not what was written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: _read(value) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _read(value: Any) -> FastestProducts:
    read = FastestProducts(**value)
    if [type(field) for field in vars(read).values()] != [int, bool, bool]:
        raise ValueError(f"not what was written: {value}")
    return read


def _keep(path: Path, found: dict[str, FastestProducts]) -> None:
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as written:
            json.dump({key: asdict(value) for key, value in found.items()}, written)
        os.replace(written.name, path)
    except OSError:  # found again next time
        return
