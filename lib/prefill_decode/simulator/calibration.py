"""Calibration: what an engine reaches of the roofline, and what a step costs beside it.

    step time = products' floor / their shares + attention's floor / its shares
                + step_s + sequence_s x sequences in the step

Each part's floor is the longer of its arithmetic at `..._compute_share` of the peak and its bytes
at `..._bandwidth_share` of the bandwidth. With every share 1 and every time 0 it is the roofline
itself. No share is above 1 and no time below 0, so that no prediction lies below the floor.

On disk it is one JSON object with these names, a version, and who measured it.
"""

import json
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

VERSION = 1
SHARES = (
    "product_compute_share",
    "product_bandwidth_share",
    "attention_compute_share",
    "attention_bandwidth_share",
)
TIMES = ("step_s", "sequence_s")


@dataclass(frozen=True)
class Calibration:
    product_compute_share: float = 1.0
    product_bandwidth_share: float = 1.0
    attention_compute_share: float = 1.0
    attention_bandwidth_share: float = 1.0
    step_s: float = 0.0  # of the host, in every step
    sequence_s: float = 0.0  # and for every sequence in it
    source: str = "the roofline"

    def __post_init__(self) -> None:
        for name in SHARES:
            value = getattr(self, name)
            if not (_is_number(value) and 0 < value <= 1):
                raise ValueError(
                    f"{name} is a share of a ceiling, above 0 and at most 1; got {value!r}: a "
                    "share above 1 means that the ceiling was measured too low"
                )
        for name in TIMES:
            value = getattr(self, name)
            if not (_is_number(value) and value >= 0):
                raise ValueError(f"{name} is a time in seconds, 0 or more; got {value!r}")


def read_calibration(path: Path) -> Calibration:
    """ValueError, naming the file, for anything that is not a whole calibration."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return _calibration(document)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error


def write_calibration(path: Path, calibration: Calibration) -> None:
    document = {"version": VERSION, **asdict(calibration)}
    path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def _calibration(document: Any) -> Calibration:
    names = {field.name for field in fields(Calibration)}
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"a calibration is a JSON object of version {VERSION}")
    given = {name: value for name, value in document.items() if name != "version"}
    if set(given) != names:
        raise ValueError(
            f"a calibration has {', '.join(sorted(names))}; missing are "
            f"{sorted(names - set(given))}, unknown {sorted(set(given) - names)}"
        )
    if not isinstance(given["source"], str):
        raise ValueError(f"source is a text; got {given['source']!r}")
    return Calibration(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
