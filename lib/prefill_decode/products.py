"""Products: which way to multiply rows with weights is the fastest here, by the number of rows.

A product of few rows waits for memory, and the compiled kernel wins everywhere. With many rows it
is arithmetic, and what wins depends on the processor and on what the libraries make of it: torch's
own product uses one library, which on some processors leaves half of their vectors unused, oneDNN
is another, and the compiled kernel a third. So it is found out once, in about a second, and kept
in the user's cache folder, one file for each processor, compiled source and version of torch.

Ignores: the sizes of a model's own matrices; one stands for all. The least of
         several times counts, so a neighbour that takes the cores for a moment changes nothing.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.kernels import DTYPES, Kernels, cache_folder, cpu_mark, kernels

LEAST_ROWS = 8  # below, products wait for memory and the kernel wins everywhere
TRIED_ROWS = (12, 16, 24, 32, 48, 64, 128, 256, 512)
MANY_ROWS = 256
ALL_ROWS = 2**31
MATRIX = (4096, 2048)  # weights, [out, in]: larger than most caches
ROUNDS = 5

Product = Callable[[], object]


@dataclass(frozen=True)
class FastestProducts:
    most_kernel_rows: int  # up to which the compiled kernel is the fastest; 0 without kernels
    by_onednn: bool  # whether oneDNN is faster than torch's own product beyond


def fastest_products(device_type: str, dtype: torch.dtype) -> FastestProducts:
    """What to use for a weight of this dtype, with the threads that torch has now."""
    if device_type != "cpu":
        return FastestProducts(0, by_onednn=False)
    return _fastest_on_cpu(dtype, torch.get_num_threads(), kernels())


def onednn_has(dtype: torch.dtype) -> bool:
    return torch.backends.mkldnn.is_available() and dtype == torch.float32


def onednn_product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[N, in] -> [N, out] by oneDNN, with a weight as torch holds it or in oneDNN's blocks."""
    no_scalars: list[Any] = []
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", no_scalars, "")
    return product


@cache
def _fastest_on_cpu(dtype: torch.dtype, threads: int, compiled: Kernels | None) -> FastestProducts:
    path = _file(compiled)
    key = f"{dtype}, {threads} threads"
    kept = _kept(path)
    if key not in kept:
        kept[key] = find_fastest(dtype, compiled if dtype in DTYPES else None)
        _keep(path, kept)
    return kept[key]


@torch.inference_mode()
def find_fastest(dtype: torch.dtype, compiled: Kernels | None) -> FastestProducts:
    """Measure it here and now."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(MATRIX, generator=generator).to(dtype)
    rows = torch.randn(max(TRIED_ROWS), MATRIX[1], generator=generator).to(dtype)

    def others(count: int, by_onednn: bool) -> Product:
        some = rows[:count]
        if by_onednn:
            return lambda: onednn_product(some, weight)
        return lambda: functional.linear(some, weight)

    by_onednn = False
    if onednn_has(dtype):
        by_onednn = _first_is_fastest([others(MANY_ROWS, True), others(MANY_ROWS, False)])
    if compiled is None:
        return FastestProducts(0, by_onednn)
    most = LEAST_ROWS
    for count in TRIED_ROWS:
        some = rows[:count].contiguous()
        own = lambda some=some: compiled.product(weight, some)  # noqa: E731
        if not _first_is_fastest([own, others(count, by_onednn)]):
            return FastestProducts(most, by_onednn)
        most = count
    return FastestProducts(ALL_ROWS, by_onednn)


def _first_is_fastest(products: Sequence[Product]) -> bool:
    times_s: list[list[float]] = [[] for _ in products]
    for _ in range(ROUNDS):
        for product, times in zip(products, times_s, strict=True):
            started_s = time.perf_counter()
            product()
            times.append(time.perf_counter() - started_s)
    first, *rest = map(min, times_s)
    return first < min(rest)


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
    if type(read.most_kernel_rows) is not int or type(read.by_onednn) is not bool:
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
