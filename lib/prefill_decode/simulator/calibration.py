"""Calibration: what an engine reaches of the roofline, and what a step costs beside it.

    step time = products' floor / their shares + attention's floor / its shares
                + step_s + sequence_s x sequences in the step

Each part's floor is the longer of its arithmetic at `..._compute_share` of the peak and its bytes
at `..._bandwidth_share` of the bandwidth. With every share 1 and every time 0 it is the roofline
itself. No share is above 1 and no time below 0, so that no prediction lies below the floor.

Two shares cannot describe products that change their kernel with the rows of a step. With
`product_rows` the products' share is `product_shares` at so many rows instead, its inverse linear
between two of them and constant beyond the last: of the layers' floor by the rows of the step, of
the output matrix' floor by the rows that it reads. With `attention_by_chunk` the floor of attention
is a sum over chunks, as in an engine that runs one after another; each chunk of several tokens then
takes `chunk_s` more, its operations' starts.

An engine may run rows of zeros beside a step's own: where it has more than `exact_rows`, up to the
next multiple of `rows_together`. The layers' products are then priced at that many rows.

After an idle time of `idle_s` a step begins `wake_s` late, in proportion between these points and
from none, and no later beyond the last: caches, clocks and threads have to come back.

`fits` are calibrations from parts of the same measurement. What they predict differently is what
the measurement leaves open.

On disk it is one JSON object with these names, a version, and who measured it; a file of version 2
has no filled-up rows, one of version 1 the six numbers alone. `Measured` adds what was measured:
the machine, the model, the cache.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import Any

VERSION = 3
SHARES = (
    "product_compute_share",
    "product_bandwidth_share",
    "attention_compute_share",
    "attention_bandwidth_share",
)
TIMES = ("step_s", "sequence_s", "chunk_s")
LISTS = ("product_rows", "product_shares", "idle_s", "wake_s", "fits")
FILLING = ("exact_rows", "rows_together")
OF_VERSION_1 = (*SHARES, "step_s", "sequence_s", "source")


@dataclass(frozen=True)
class Calibration:
    product_compute_share: float = 1.0
    product_bandwidth_share: float = 1.0
    attention_compute_share: float = 1.0
    attention_bandwidth_share: float = 1.0
    step_s: float = 0.0  # of the host, in every step
    sequence_s: float = 0.0  # and for every sequence in it
    source: str = "the roofline"
    product_rows: tuple[int, ...] = ()  # rising from 1
    product_shares: tuple[float, ...] = ()
    attention_by_chunk: bool = False
    chunk_s: float = 0.0  # for every chunk of several tokens
    idle_s: tuple[float, ...] = ()  # rising
    wake_s: tuple[float, ...] = ()
    fits: tuple["Calibration", ...] = ()
    exact_rows: int = 0
    rows_together: int = 1  # 1: no step is filled up

    def __post_init__(self) -> None:
        for name in SHARES:
            _check_share(name, getattr(self, name))
        for name in TIMES:
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                raise ValueError(f"{name} is a time in seconds, 0 or more; got {value!r}")
        rows, shares = self.product_rows, self.product_shares
        whole = all(isinstance(n, int) and not isinstance(n, bool) for n in rows)
        rising = whole and list(rows) == sorted(set(rows)) and (not rows or rows[0] == 1)
        if not rising or len(rows) != len(shares):
            raise ValueError(
                "product_rows are whole numbers that rise from 1, each with one of "
                f"product_shares; got {list(rows)} and {len(shares)} shares"
            )
        for share in shares:
            _check_share("each of product_shares", share)
        if not isinstance(self.attention_by_chunk, bool):
            raise ValueError(
                f"attention_by_chunk is true or false; got {self.attention_by_chunk!r}"
            )
        self._check_filling()
        self._check_waking()

    def _check_filling(self) -> None:
        for name, least in zip(FILLING, (0, 1), strict=True):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} is a whole number from {least}; got {value!r}")

    def _check_waking(self) -> None:
        idle, wake = self.idle_s, self.wake_s
        numbers = all(_is_number(value) and value >= 0 for value in (*idle, *wake))
        if not numbers or len(idle) != len(wake) or list(idle) != sorted({*idle} - {0}):
            raise ValueError(
                "idle_s are times above 0 that rise, each with one of wake_s, 0 or more; got "
                f"{list(idle)} and {list(wake)}"
            )

    def waking_s(self, idle_s: float) -> float:
        """How much later a step begins after so long without one."""
        before_s, before_wake_s = 0.0, 0.0
        for known_s, wake_s in zip(self.idle_s, self.wake_s, strict=True):
            if idle_s <= known_s:
                part = (idle_s - before_s) / (known_s - before_s)
                return before_wake_s + part * (wake_s - before_wake_s)
            before_s, before_wake_s = known_s, wake_s
        return before_wake_s

    def filled(self, rows: int) -> int:
        """How many rows the layers' products of a step of so many have."""
        if rows <= self.exact_rows:
            return rows
        return rows + -rows % self.rows_together

    def product_stretch(self, rows: float) -> float:
        """How many times its floor a product of so many rows takes; needs `product_rows`."""
        known, shares = self.product_rows, self.product_shares
        if rows >= known[-1]:
            return 1 / shares[-1]
        after = next(i for i, each in enumerate(known) if each > rows)
        if after == 0:
            return 1 / shares[0]
        part = (rows - known[after - 1]) / (known[after] - known[after - 1])
        return (1 - part) / shares[after - 1] + part / shares[after]


def read_calibration(path: Path) -> Calibration:
    """ValueError, naming the file, for anything that is not a whole calibration."""
    return calibration_of(read_document(path), path)


def read_document(path: Path) -> Any:
    """What JSON the file has. ValueError, naming it, for none."""
    if path.exists() and not path.is_file():  # a device or a pipe may never end
        raise ValueError(f"{path}: a calibration is a regular file, as `calibrate` writes it")
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not a finite number")


def calibration_of(document: Any, path: Path) -> Calibration:
    """The calibration that such a document has, beside what it tells of the measurement."""
    try:
        return _calibration(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def write_calibration(path: Path, calibration: Calibration) -> None:
    write_document(path, as_document(calibration))


def as_document(calibration: Calibration) -> dict[str, Any]:
    return {"version": VERSION, **asdict(calibration)}


def write_document(path: Path, document: Mapping[str, Any]) -> None:
    path.write_text(text_of(document), encoding="utf-8")


def text_of(document: Mapping[str, Any]) -> str:
    """A calibration's file: strict JSON."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _calibration(document: Any) -> Calibration:
    version = document.get("version") if isinstance(document, dict) else None
    if isinstance(version, bool) or version not in (1, 2, VERSION):
        raise ValueError(
            f"a calibration is a JSON object of version 1 to {VERSION}; got "
            + (f"version {version!r:.60}" if isinstance(document, dict) else f"{document!r:.60}")
            + ": calibrate anew, or update this package if a later one wrote the file"
        )
    beside = ("version",) if version == 1 else ("version", "measured")
    given = {name: value for name, value in document.items() if name not in beside}
    if version == 1:
        return _from_names(given, OF_VERSION_1)
    names = tuple(
        field.name
        for field in fields(Calibration)
        if version == VERSION or field.name not in FILLING
    )
    fits = given.get("fits", [])
    if not isinstance(fits, list) or not all(isinstance(fit, dict) for fit in fits):
        raise ValueError("fits are a list of calibrations")
    nested = [fit for fit in fits if fit.get("fits")]
    if nested:
        raise ValueError("a fit has no fits of its own")
    read = tuple(_from_names(fit, names) for fit in fits)
    return replace(_from_names({**given, "fits": []}, names), fits=read)


def _from_names(given: Mapping[str, Any], names: tuple[str, ...]) -> Calibration:
    if set(given) != set(names):
        raise ValueError(
            f"a calibration has {', '.join(sorted(names))}; missing are "
            f"{sorted(set(names) - set(given))}, unknown {sorted(set(given) - set(names))}"
        )
    if not isinstance(given["source"], str):
        raise ValueError(f"source is a text; got {given['source']!r}")
    lists = {name: given[name] for name in LISTS if name in given}
    for name, value in lists.items():
        if not isinstance(value, list):
            raise ValueError(f"{name} is a list; got {value!r:.60}")
    return Calibration(**{**given, **{name: tuple(value) for name, value in lists.items()}})


def _check_share(name: str, value: object) -> None:
    if not (_is_number(value) and 0 < value <= 1):  # type: ignore[operator]
        raise ValueError(
            f"{name} is a share of a ceiling, above 0 and at most 1; got {value!r}: a "
            "share above 1 means that the ceiling was measured too low"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
