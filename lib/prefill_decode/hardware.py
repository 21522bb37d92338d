"""Hardware: the two ceilings of the roofline; Accelerator: a data sheet that promises them.

`Hardware` is one device at one dtype. A data sheet promises its ceilings, `prefill_decode.measure`
measures them; `source` says which. `Accelerator` is a row of accelerators.json, what is printed
about one part; `Accelerator.at(dtype)` takes the two ceilings out of it.

Counts:  dense peaks. A figure that counts structured sparsity is twice what a dense product can
         reach and is never used. Links count one direction.
Ignores: clocks above or below the printed one, and everything that keeps software from a peak.
Source:  each row names its own; what no source prints is None, never a guess.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from math import isfinite, nan
from typing import Any

from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.units import format_bytes, format_si, format_significant

PEAK_FIELDS = {
    "bfloat16": "peak_bf16_flops_per_s",
    "float16": "peak_bf16_flops_per_s",  # accumulated in float32, float16 runs at the same rate
    "float8": "peak_fp8_flops_per_s",
    "float4": "peak_fp4_flops_per_s",
}
SHORT_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8", "fp4": "float4"}


@dataclass(frozen=True)
class Hardware:
    name: str
    dtype: str
    peak_flops_per_s: float  # dense matrix products
    bandwidth_bytes_per_s: float  # reading main memory (HBM, DDR)
    source: str

    def __post_init__(self) -> None:
        for field in ("peak_flops_per_s", "bandwidth_bytes_per_s"):
            value = getattr(self, field)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {field} must be a positive number; got {value}")

    @property
    def ridge_flops_per_byte(self) -> float:
        """The arithmetic intensity at which both ceilings take equally long."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s


@dataclass(frozen=True)
class Accelerator:
    """What is printed about one part; None is unknown."""

    name: str
    peak_bf16_flops_per_s: float | None  # dense, accumulated in float32
    peak_fp8_flops_per_s: float | None
    peak_fp4_flops_per_s: float | None
    bandwidth_bytes_per_s: float  # main memory
    capacity_bytes: int | None  # main memory, converted from capacity_printed
    capacity_printed: str | None  # figure and unit of the source: "80 GiB"
    link_bytes_per_s: float | None  # scale-up, one direction, all links of one part
    power_w: float | None  # TDP or board power
    on_chip_bytes: int | None  # registers, L1 and L2 together: an upper bound
    source: str
    note: str | None

    def peak_flops_per_s(self, dtype: str) -> float | None:
        """The dense peak at `dtype`; None when no source prints it. ValueError: no such dtype."""
        peak = getattr(self, PEAK_FIELDS[check_dtype(dtype)])
        return None if peak is None else float(peak)

    def at(self, dtype: str) -> Hardware:
        """The two ceilings at one dtype. ValueError when its peak is unknown."""
        peak = self.peak_flops_per_s(dtype)
        if peak is None:
            known = [name for name in PEAK_FIELDS if self.peak_flops_per_s(name) is not None]
            raise ValueError(
                f"{self.name}: no source prints a dense peak at {dtype}; "
                f"known are {', '.join(known) or 'none'}"
            )
        dtype = check_dtype(dtype)
        return Hardware(self.name, dtype, peak, self.bandwidth_bytes_per_s, self.source)

    def as_dict(self, dtype: str) -> dict[str, Any]:
        """Every field, with the peak and the ridge at `dtype`; unknown is None."""
        peak = self.peak_flops_per_s(dtype)
        ridge = None if peak is None else self.at(dtype).ridge_flops_per_byte
        chosen = {"dtype": check_dtype(dtype), "peak_flops_per_s": peak}
        return {**asdict(self), **chosen, "ridge_flops_per_byte": ridge}


def check_dtype(dtype: str) -> str:
    """The long name of a dtype that accelerators are listed at: "bf16" is "bfloat16"."""
    name = SHORT_DTYPES.get(dtype, dtype)
    if name not in PEAK_FIELDS:
        hint = did_you_mean(name, PEAK_FIELDS)
        raise ValueError(f"dtype must be one of {', '.join(PEAK_FIELDS)}; got {dtype!r}{hint}")
    return name


def accelerators() -> list[Accelerator]:
    """Every row of accelerators.json, in its order."""
    text = (files("prefill_decode") / "accelerators.json").read_text(encoding="utf-8")
    return [Accelerator(**row) for row in json.loads(text)["accelerators"]]


def accelerator(name: str) -> Accelerator:
    """One row by its name or by a beginning that only one has; case and spaces do not matter.

    ValueError lists the candidates, or names the nearest.
    """
    found = {_plain(row.name): row for row in accelerators()}
    asked = _plain(name)
    if asked in found:
        return found[asked]
    begun = [row for plain, row in found.items() if asked and plain.startswith(asked)]
    if len(begun) == 1:
        return begun[0]
    names = ", ".join(row.name for row in begun or found.values())
    if begun:
        raise ValueError(f"accelerator {name!r} could be {names}; give one of these in full")
    near = did_you_mean(asked, found)
    hint = f"; did you mean {_original(near, found.values())}?" if near else ""
    raise ValueError(f"accelerator must be one of {names}; got {name!r}{hint}")


def table(rows: Sequence[Accelerator], dtype: str) -> str:
    """The rows as aligned text, with peak and ridge at `dtype`."""
    header = ("accelerator", f"{check_dtype(dtype)} peak", "bandwidth", "FLOP/B", "capacity")
    lines = [(*header, "link", "power", "source")]
    for row in rows:
        values = row.as_dict(dtype)
        lines.append(
            (
                row.name,
                _show(values["peak_flops_per_s"], "FLOP/s"),
                _show(row.bandwidth_bytes_per_s, "B/s"),
                format_significant(_number(values["ridge_flops_per_byte"])),
                format_bytes(_number(row.capacity_bytes)),
                _show(row.link_bytes_per_s, "B/s"),
                _show(row.power_w, "W"),
                row.source,
            )
        )
    return "\n".join(_aligned(lines))


def description(row: Accelerator, dtype: str) -> str:
    """One row in full, a field a line."""
    ridge = format_significant(_number(row.as_dict(dtype)["ridge_flops_per_byte"]))
    lines = [
        ("dense peak, bf16", _show(row.peak_bf16_flops_per_s, "FLOP/s")),
        ("dense peak, fp8", _show(row.peak_fp8_flops_per_s, "FLOP/s")),
        ("dense peak, fp4", _show(row.peak_fp4_flops_per_s, "FLOP/s")),
        ("bandwidth", _show(row.bandwidth_bytes_per_s, "B/s")),
        (f"ridge, {check_dtype(dtype)}", f"{ridge} FLOP/B"),
        ("capacity", _with_print(row)),
        ("link, one direction", _show(row.link_bytes_per_s, "B/s")),
        ("power", _show(row.power_w, "W")),
        ("source", row.source),
        ("note", row.note or "none"),
    ]
    return "\n".join([row.name, *(f"  {name:<20} {value}" for name, value in lines)])


def _plain(name: object) -> str:
    return "".join(letter for letter in str(name).lower() if letter.isalnum())


def _original(hint: str, rows: Iterable[Accelerator]) -> str:
    """The printed name behind a hint that gives the plain one."""
    return next(row.name for row in rows if hint.endswith(f" {_plain(row.name)}?"))


def _number(value: float | None) -> float:
    return nan if value is None else value


def _show(value: float | None, unit: str) -> str:
    return format_si(_number(value), unit)


def _with_print(row: Accelerator) -> str:
    shown = format_bytes(_number(row.capacity_bytes))
    return f"{shown}, printed as {row.capacity_printed}" if row.capacity_printed else shown


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell: the first and the last to the left, others right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    shown = []
    for first, *middle, last in lines:
        numbers = (cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True))
        shown.append("  ".join([first.ljust(widths[0]), *numbers, last]))
    return shown
