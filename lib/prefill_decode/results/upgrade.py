"""Upgrade: older records in the newest form; what they did not hold is null."""

from collections.abc import Mapping
from typing import Any

from prefill_decode.measure.machine import kind_of
from prefill_decode.results.checks import SCHEMA_VERSION, better_of, check_schema

UNKNOWN = (
    "host",
    "instruction_sets",
    "kernels",
    "products",
    "cpu_family_model_stepping",
    "accelerator_driver",
)


def upgraded(record: Any, where: object) -> Any:
    """The newest form of what a file holds: of version 1, or of version 2 before machines had
    `products` and records said whether they were `simulated` and what memory they took.

    ValueError for a version that this library does not read, and for a damaged version 1.
    """
    if not isinstance(record, dict):
        raise ValueError(f"{where}: not a record: it is an object; got {repr(record)[:60]}")
    version = record.get("schema_version")
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise ValueError(
            f"{where}: not a record: unknown schema version: this library reads 1 to "
            f"{SCHEMA_VERSION}; got {repr(version)[:60]}: if it is newer, update the library"
        )
    if version == SCHEMA_VERSION:
        return _with_newer_fields(record)
    check_schema(record, where, "record.schema.1.json")
    return {
        **record,
        "schema_version": SCHEMA_VERSION,
        "simulated": None,
        "peak_memory_bytes": None,
        "metrics": [_metric(metric) for metric in record["metrics"]],
        "points": [_point(point) for point in record["points"]],
        "machine": _machine(record["machine"]),
    }


def _with_newer_fields(record: dict[str, Any]) -> dict[str, Any]:
    machine = record.get("machine")
    if isinstance(machine, dict) and "products" not in machine:
        record = {**record, "machine": {**machine, "products": None}}
    return {"simulated": None, "peak_memory_bytes": None, **record}


def as_first_written(record: Mapping[str, Any]) -> dict[str, Any]:
    """Without the newer fields that are null: what an older record is known by stays the same."""
    machine = dict(record["machine"])
    if machine.get("products") is None:
        machine.pop("products", None)
    written = {**record, "machine": machine}
    for name in ("simulated", "peak_memory_bytes"):
        if written.get(name) is None:
            written.pop(name, None)
    return written


def _metric(metric: Mapping[str, Any]) -> dict[str, Any]:
    better = better_of(metric["expected"], metric["rival"])
    return {**metric, "measured": {**metric["measured"], "unit": "1", "better": better}}


def _point(point: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **point,
        "chunks": None,
        "time_s": {**point["time_s"], "unit": "s", "better": "lower"},
        "reached": {**point["reached"], "unit": "1", "better": "higher"},
    }


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    unknown = dict.fromkeys(UNKNOWN)
    return {**unknown, "kind": kind_of({**unknown, **machine}), **machine}
