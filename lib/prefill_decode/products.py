"""Products: which way to multiply rows with weights is the fastest here, by the number of rows.

A product of few rows waits for memory, and the compiled kernel wins everywhere. With many rows it
is arithmetic, and what wins depends on the processor and on what the libraries make of it: torch's
own product uses one library, which on some processors leaves half of their vectors unused, oneDNN
is another, and the compiled kernel a third. So it is found out once, in seconds, and kept in the
user's cache folder, one file for each processor, compiled source and version of torch.

Ways are timed in turns and compared inside each turn. A comparison is clear where the interval of
its ratios says that the choice costs no more than `MARGIN`; one that is not yet gets more turns. A
choice is kept where all of its comparisons are clear and no other load took the cores meanwhile;
else it serves this process, and the next one asks again. On a busy machine that would take long:
after `ENOUGH_S` seconds the rest is guessed from one turn each.

Ignores: the sizes of a model's own matrices; one stands for all. Loads that a process cannot see,
         such as neighbours on other processors that use the same memory.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.kernels import DTYPES, Kernels, cache_folder, cpu_mark, kernels
from prefill_decode.other_load import OtherLoad, allowed_cpus
from prefill_decode.statistics import median_interval

LEAST_ROWS = 2  # up to here products wait for memory, and the kernel wins everywhere
TRIED_ROWS = (4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256, 512)
SOME_ROWS, MANY_ROWS = (8, 16, 32), 256
WORTH_A_COPY = 0.9  # of the time of the fastest way that needs no second copy of the weights
MARGIN = 0.1  # that a choice may cost, of a product's time, and still be clear
PACKED_FOR_ROWS = 16  # the batch size oneDNN lays weights out for; as good as any up to 128
ALL_ROWS = 2**31
MATRIX = (4096, 2048)  # weights, [out, in]: three of them are more than most caches hold
COPIES = 3
TURNS, MOST_TURNS = 6, 24  # of a comparison; fewer have no interval
ENOUGH_S = 4.0  # for all comparisons: on a busy machine those after it get a single turn
RULE = 2  # of choosing: what was kept by another is asked again


@dataclass(frozen=True)
class FastestProducts:
    most_kernel_rows: int  # up to which the compiled kernel is the fastest; 0 without kernels
    by_onednn: bool  # whether oneDNN is faster than torch's own product beyond
    packed: bool  # whether oneDNN's layout is worth a second copy of the weights

    @property
    def words(self) -> str:
        """For people and records."""
        beyond = "oneDNN" if self.by_onednn else "torch"
        if self.packed:
            beyond = f"{beyond}, packed oneDNN"
        if self.most_kernel_rows == 0:
            return beyond
        if self.most_kernel_rows == ALL_ROWS:
            return f"kernel, else {beyond}"
        return f"kernel to {self.most_kernel_rows} rows, {beyond}"


@dataclass(frozen=True)
class Choice:
    fastest: FastestProducts
    not_kept: str | None  # why the next process asks again; None where it need not


def fastest_products(device_type: str, dtype: torch.dtype) -> FastestProducts:
    """What to use for a weight of this dtype, with the threads that torch has now."""
    return choice_of_products(device_type, dtype).fastest


def choice_of_products(device_type: str, dtype: torch.dtype) -> Choice:
    """The same, and whether it is kept."""
    if device_type != "cpu":
        return Choice(FastestProducts(0, by_onednn=False, packed=False), None)
    return _choice_on_cpu(dtype, torch.get_num_threads(), kernels())


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
def _choice_on_cpu(dtype: torch.dtype, threads: int, compiled: Kernels | None) -> Choice:
    path = _file(compiled)
    key = f"{dtype}, {threads} threads"
    kept = _kept(path)
    if key in kept:
        return Choice(kept[key], None)
    load = OtherLoad()
    fastest, doubts = find_fastest(dtype, compiled if dtype in DTYPES else None)
    if load.took_more_than(len(allowed_cpus()) - threads):
        return Choice(fastest, "other programs took the cores while products were timed")
    if doubts:
        return Choice(fastest, f"times varied too much to tell {' and '.join(doubts)}")
    if not _keep(path, {**_kept(path), key: fastest}):
        return Choice(fastest, f"{path.parent} cannot be written")
    return Choice(fastest, None)


@torch.inference_mode()
def find_fastest(dtype: torch.dtype, compiled: Kernels | None) -> tuple[FastestProducts, list[str]]:
    """Measured here and now, and what of it is not clear, in words."""
    ways = _ways(dtype, compiled)
    doubts: list[str] = []
    end_s = time.perf_counter() + ENOUGH_S

    def least_s(turn_s: Mapping[str, float], *names: str) -> float:
        return min(turn_s[name] for name in names if name in turn_s)

    def wins(way: str, rivals: Sequence[str], rows: Sequence[int], limit: float = 1.0) -> bool:
        """Whether the way takes less than `limit` of the fastest rival's time, over all `rows`."""
        if way not in ways:
            return False

        def ratio() -> float:
            turns = [_turn_s(ways, (way, *rivals), each) for each in rows]
            rival_s = sum(least_s(turn_s, *rivals) for turn_s in turns)
            return sum(turn_s[way] for turn_s in turns) / rival_s

        below, clear = _compared(ratio, limit, end_s)
        if not clear:
            doubts.append(f"whether {way} wins at {', '.join(map(str, rows))} rows")
        return below

    by_onednn = wins("oneDNN", ["torch"], [MANY_ROWS])
    plain = "oneDNN" if by_onednn else "torch"
    packs = wins("packed oneDNN", [plain, "the kernel"], SOME_ROWS, WORTH_A_COPY)
    most = 0 if compiled is None else LEAST_ROWS
    for rows in TRIED_ROWS if compiled is not None else ():
        if not wins("the kernel", ["packed oneDNN" if packs else plain], [rows]):
            break
        most = rows if rows < TRIED_ROWS[-1] else ALL_ROWS
    return FastestProducts(most, by_onednn, packs), doubts


@dataclass(frozen=True)
class Ways:
    """Ways to multiply, by name: each takes rows and which copy of the weights to use."""

    by_name: Mapping[str, Callable[[Tensor, int], object]]
    rows: Tensor
    turns: Iterator[int]

    def __contains__(self, name: str) -> bool:
        return name in self.by_name


def _ways(dtype: torch.dtype, compiled: Kernels | None) -> Ways:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(MATRIX, generator=generator).to(dtype) for _ in range(COPIES)]
    rows = torch.randn(max(TRIED_ROWS), MATRIX[1], generator=generator).to(dtype)
    found: dict[str, Callable[[Tensor, int], object]] = {
        "torch": lambda some, copy: functional.linear(some, weights[copy])
    }
    if onednn_has(dtype):
        blocks = [packed(weight) for weight in weights]
        found["oneDNN"] = lambda some, copy: onednn_product(some, weights[copy])
        found["packed oneDNN"] = lambda some, copy: onednn_product(some, blocks[copy])
    if compiled is not None:
        found["the kernel"] = lambda some, copy: compiled.product(weights[copy], some)
    return Ways(found, rows, count())


def _turn_s(ways: Ways, names: Sequence[str], rows: int) -> dict[str, float]:
    """One time of each of these ways that there are, forwards and backwards by turns, all on a
    copy of the weights that none of the last turn's calls has left in a cache."""
    turn = next(ways.turns)
    some = ways.rows[:rows].contiguous()
    order = [name for name in names if name in ways]
    return {
        name: _time_s(partial(ways.by_name[name], some), (turn + place) % COPIES)
        for place, name in enumerate(order if turn % 2 else order[::-1])
    }


def _time_s(way: Callable[[int], object], copy: int) -> float:
    started_s = time.perf_counter()
    way(copy)
    return time.perf_counter() - started_s


def _compared(ratio: Callable[[], float], limit: float, end_s: float) -> tuple[bool, bool]:
    """Whether the ratio lies below the limit, and whether being wrong in that would cost no more
    than `MARGIN`. The first turn is a warm-up; after `end_s`, on the clock, it is the only one."""
    warm_up = ratio()
    ratios: list[float] = []
    while len(ratios) < MOST_TURNS and time.perf_counter() < end_s:
        ratios += [ratio() for _ in range(TURNS)]
        found = median_interval(ratios)
        below = found.median < limit
        if found.high < limit * (1 + MARGIN) if below else found.low > limit / (1 + MARGIN):
            return below, True
    return median(ratios or [warm_up]) < limit, False


def _file(compiled: Kernels | None) -> Path:
    source = "torch alone" if compiled is None else compiled.path.name
    marked = f"{source}, torch {torch.__version__}, rule {RULE}".encode() + cpu_mark()
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


def _keep(path: Path, found: dict[str, FastestProducts]) -> bool:
    """Whether it could be written."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, delete=False, encoding="utf-8"
        ) as written:
            json.dump({key: asdict(value) for key, value in found.items()}, written)
        os.replace(written.name, path)
    except OSError:
        return False
    return True
