"""Calibrated: a calibration with what it was measured on, so that a file of it is a whole machine.

On disk it is a calibration with one more object, `measured`: the ceilings, the model,
the blocks of cache that an engine of it has, and how far the fit lies from what was timed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import Experts, LatentAttention, ModelSpec, RopeScaling, Vectors
from prefill_decode.simulator.calibration import (
    Calibration,
    as_document,
    calibration_of,
    read_document,
    write_document,
)

MEASURED = "measured"
KINDS = {bool: "true or false", str: "a text", int: "a whole number", float: "a finite number"}
Made = TypeVar(
    "Made", Hardware, ModelSpec, Experts, LatentAttention, RopeScaling, Vectors, "Residual"
)


@dataclass(frozen=True)
class Residual:
    """Of one kind of step: |predicted / measured - 1|, over its episodes."""

    kind: str
    count: int
    median: float
    worst: float
    worst_step: str
    worst_signed: float  # above 0: predicted too long

    def __post_init__(self) -> None:
        numbers = (self.median, self.worst, self.worst_signed)
        if not all(isinstance(n, int | float) and isfinite(n) for n in numbers):
            raise ValueError(f"a residual has finite errors; got {self}")


@dataclass(frozen=True)
class Calibrated:
    calibration: Calibration
    hardware: Hardware  # the ceilings, measured in the same rounds
    model: ModelSpec
    num_blocks: int
    block_tokens: int
    residuals: tuple[Residual, ...] = ()
    num_rounds: int = 0
    advice: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("num_blocks", "block_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is a whole number from 1; got {value!r}")

    def blocks_for(self, model: ModelSpec) -> int:
        """Blocks of another model's cache in as many bytes. ValueError if not one fits."""
        room_bytes = self.num_blocks * self.model.kv_bytes(self.block_tokens)
        blocks = int(room_bytes // model.kv_bytes(self.block_tokens))
        if blocks < 1:
            raise ValueError(
                f"the cache that was measured has room for no block of {model.name}: give "
                "num_blocks"
            )
        return blocks


def write_calibrated(path: Path, calibrated: Calibrated) -> None:
    write_document(path, document_of(calibrated))


def document_of(calibrated: Calibrated) -> dict[str, Any]:
    told = asdict(calibrated)
    del told["calibration"]
    return {**as_document(calibrated.calibration), MEASURED: told}


def read_calibrated(path: Path) -> Calibrated | None:
    """None where the file is a calibration that names no machine. ValueError, naming the file, for
    what is neither."""
    document = read_document(path)
    calibration = calibration_of(document, path)
    told = document.get(MEASURED)
    if told is None:
        return None
    try:
        return _calibrated(calibration, told)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"{path}: {MEASURED}: {error}") from error


def _calibrated(calibration: Calibration, told: Mapping[str, Any]) -> Calibrated:
    names = {field.name for field in fields(Calibrated)} - {"calibration"}
    if not isinstance(told, dict) or set(told) != names:
        raise ValueError(f"it has {', '.join(sorted(names))}; got {sorted(told)}")
    return Calibrated(
        calibration,
        _made(Hardware, told["hardware"]),
        _model(told["model"]),
        told["num_blocks"],
        told["block_tokens"],
        tuple(_made(Residual, each) for each in told["residuals"]),
        told["num_rounds"],
        tuple(told["advice"]),
    )


def _made(kind: type[Made], told: Mapping[str, Any]) -> Made:
    """ValueError for a value that is not of its field's type; the class checks the rest."""
    if not isinstance(told, dict):
        raise ValueError(f"{kind.__name__} is an object; got {told!r:.60}")
    for name, asked in ((field.name, field.type) for field in fields(kind)):
        if name in told and asked in KINDS and not _is_of(asked, told[name]):
            raise ValueError(f"{kind.__name__}: {name} is {KINDS[asked]}; got {told[name]!r:.60}")
    return kind(**told)


def _is_of(asked: Any, value: object) -> bool:
    if asked in (int, float):
        kind = int if asked is int else (int, float)
        return isinstance(value, kind) and not isinstance(value, bool) and isfinite(value)
    return isinstance(value, asked)


def _model(told: Mapping[str, Any]) -> ModelSpec:
    if not isinstance(told, dict):
        raise ValueError(f"model is an object; got {told!r:.60}")
    given = dict(told)
    if given["windows"] is not None:
        given["windows"] = tuple(given["windows"])
    if given["experts"] is not None:
        layers = tuple(given["experts"]["dense_layers"])
        given["experts"] = _made(Experts, {**given["experts"], "dense_layers": layers})
    if given["latent"] is not None:
        given["latent"] = _made(LatentAttention, given["latent"])
    if given["rope_scaling"] is not None:
        given["rope_scaling"] = _made(RopeScaling, given["rope_scaling"])
    return _made(ModelSpec, {**given, "vectors": _made(Vectors, given["vectors"])})
