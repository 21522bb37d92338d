"""Kernel rows: up to how many rows the compiled product is faster here than torch's.

A product of few rows waits for memory, and the compiled kernel wins everywhere. With many rows it
is arithmetic, and which of the two is faster depends on the processor and on what torch's libraries
make of it: on some a kernel compiled for the machine wins at every length, on others torch does
from some tens of rows on. So it is found out once, in about a second, and kept beside the compiled
kernels.

Ignores: the sizes of a model's own matrices; one of a middle size stands for all. The least of
         several times counts, so a neighbour that takes the cores for a moment changes nothing.
"""

import json
import os
import tempfile
import time
from functools import cache
from pathlib import Path

import torch

from prefill_decode.kernels import DTYPES, Kernels, compiled_path, kernels

LEAST_ROWS = 32  # below, products wait for memory and the kernel wins everywhere
TRIED_ROWS = (48, 64, 128, 256, 512)
ALL_ROWS = 2**31
MATRIX = (2048, 1024)  # weights, [out, in]
ROUNDS = 5


@cache
def most_kernel_rows(dtype: torch.dtype, threads: int) -> int:
    """Rows up to which the compiled product is to be used, with so many threads."""
    found, name = kernels(), DTYPES[dtype]
    assert found is not None, "there are no compiled kernels to compare"
    kept = _kept()
    key = f"{name}, {threads} threads"
    if key not in kept:
        kept[key] = find_most_rows(found, dtype)
        _keep(kept)
    return kept[key]


def find_most_rows(compiled: Kernels, dtype: torch.dtype) -> int:
    """Measure it: the last of `TRIED_ROWS` before torch wins, or `ALL_ROWS` if it never does."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(MATRIX, generator=generator).to(dtype)
    most = LEAST_ROWS
    for num_rows in TRIED_ROWS:
        rows = torch.randn(num_rows, MATRIX[1], generator=generator).to(dtype)
        if _kernel_loses(compiled, weight, rows):
            return most
        most = num_rows
    return ALL_ROWS


def _kernel_loses(compiled: Kernels, weight: torch.Tensor, rows: torch.Tensor) -> bool:
    times_s: dict[str, list[float]] = {"kernel": [], "torch": []}
    for _ in range(ROUNDS):
        started_s = time.perf_counter()
        compiled.product(weight, rows)
        between_s = time.perf_counter()
        torch.nn.functional.linear(rows, weight)
        times_s["kernel"].append(between_s - started_s)
        times_s["torch"].append(time.perf_counter() - between_s)
    return min(times_s["kernel"]) > min(times_s["torch"])


def _kept() -> dict[str, int]:
    """What was found before; nothing if the file is not there or is not what was written."""
    try:
        found = json.loads(_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(found, dict) and all(type(rows) is int for rows in found.values())
    return found if whole else {}


def _keep(found: dict[str, int]) -> None:
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=_file().parent, delete=False, encoding="utf-8"
        ) as written:
            json.dump(found, written)
        os.replace(written.name, _file())
    except OSError:  # found again next time
        return


def _file() -> Path:
    path = compiled_path()
    return path.with_name(f"{path.stem}-torch-{torch.__version__}.json")
