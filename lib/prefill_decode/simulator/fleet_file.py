"""Fleet file: a fleet as a person writes it, in TOML.

    routing = "prefix_aware"            # or round_robin, least_loaded
    slack = 4

    [transfer]                          # between pools of the roles prefill and decode
    bandwidth_bytes_per_s = 50e9
    latency_s = 1e-3
    shared = false

    [[pool]]
    name = "prefill"
    role = "prefill"                    # or decode, or both
    instances = 2
    devices = 1                         # of an instance
    model = "llama-3.1-8b"              # a shipped name or a config.json beside this file
    accelerator = "h100-sxm"
    dtype = "bfloat16"
    num_blocks = 27000                  # as the engine says; without it, what memory leaves
    block_tokens = 16
    reuse = true                        # of prefixes
    policy = "chunked"
    most_tokens_per_step = 2048
    most_sequences = 256
    calibration = "h100.json"           # beside this file, or a table of its six numbers

Only model and accelerator must be there; where the calibration is a file that `calibrate` wrote,
not even these: it has the machine, the model and the blocks of its cache. An unknown name is an
error, never ignored.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from prefill_decode import hf_config
from prefill_decode.did_you_mean import did_you_mean
from prefill_decode.hardware import Accelerator, accelerator, check_dtype
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.simulator.calibrated import Calibrated, read_calibrated
from prefill_decode.simulator.calibration import OF_VERSION_1, Calibration, read_calibration
from prefill_decode.simulator.fleet import Fleet, Pool, Transfer, blocks_that_fit

SETTINGS = {field.name: field.type for field in fields(SchedulerSettings)}
POOL = ("name", "role", "instances", "devices", "num_blocks", "block_tokens", "reuse")
PARTS = ("model", "accelerator", "dtype", "calibration")
TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str,
    "role": str,
    "model": str,
    "accelerator": str,
    "dtype": str,
    "policy": str,
    "routing": str,
    "reuse": bool,
    "shared": bool,
    "slack": (int, float),
    "bandwidth_bytes_per_s": (int, float),
    "latency_s": (int, float),
    "calibration": (str, dict),
    "transfer": dict,
    "pool": list,
}


def read_fleet(path: Path) -> Fleet:
    """ValueError, naming the file, for what is no fleet; OSError for what cannot be read."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        return fleet_of(document, path.parent)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def fleet_of(document: Mapping[str, Any], folder: Path) -> Fleet:
    """From the tables of a file that lies in `folder`."""
    _check_names(document, ("routing", "slack", "transfer", "pool"), "a fleet")
    tables = document.get("pool", [])
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise ValueError("a fleet has a [[pool]] or more")
    pools = tuple(_pool(table, f"pool {i + 1}", folder) for i, table in enumerate(tables))
    chosen = {name: document[name] for name in ("routing", "slack") if name in document}
    link = document.get("transfer", {})
    _check_names(link, tuple(field.name for field in fields(Transfer)), "[transfer]")
    return Fleet(pools, transfer=Transfer(**link), **chosen)


def _pool(table: Mapping[str, Any], number: str, folder: Path) -> Pool:
    where = f"[[pool]] {table.get('name', number)}"
    _check_names(table, (*POOL, *PARTS, *SETTINGS), where)
    here = _calibrated(table, folder)
    if here is not None:
        return _pool_as_measured(here, table, number, folder)
    missing = [name for name in ("model", "accelerator") if name not in table]
    if missing:
        raise ValueError(f"{where} needs {' and '.join(missing)}")
    row = accelerator(table["accelerator"])
    dtype = check_dtype(table.get("dtype", "bfloat16"))
    model = _model(table["model"], dtype, folder)
    plain = {name: table[name] for name in POOL if name in table}
    if "num_blocks" not in plain:
        plain["num_blocks"] = _blocks(model, row, table)
    return Pool(
        **{"name": number, **plain},
        model=model,
        hardware=row.at(dtype),
        settings=_settings(table),
        calibration=_calibration(table.get("calibration"), folder, where),
    )


def _calibrated(table: Mapping[str, Any], folder: Path) -> Calibrated | None:
    """The machine that the pool's calibration was measured on, where no other is named."""
    if "accelerator" in table or not isinstance(table.get("calibration"), str):
        return None
    return read_calibrated(folder / table["calibration"])


def _pool_as_measured(
    here: Calibrated, table: Mapping[str, Any], number: str, folder: Path
) -> Pool:
    model = here.model
    if "model" in table:
        model = _model(table["model"], table.get("dtype", here.hardware.dtype), folder)
    if model.dtype != here.hardware.dtype:
        raise ValueError(
            f"the machine was measured in {here.hardware.dtype}; got {model.name} in "
            f"{model.dtype}: leave dtype out, or calibrate in it"
        )
    plain = {name: table[name] for name in POOL if name in table}
    block_tokens = plain.setdefault("block_tokens", here.block_tokens)
    if "num_blocks" not in plain:
        blocks = here.blocks_for(model) * here.block_tokens // block_tokens
        plain["num_blocks"] = max(1, blocks)
    return Pool(
        **{"name": number, **plain},
        model=model,
        hardware=here.hardware,
        settings=_settings(table),
        calibration=here.calibration,
    )


def _settings(table: Mapping[str, Any]) -> SchedulerSettings:
    return SchedulerSettings(**{name: table[name] for name in SETTINGS if name in table})


def _model(word: str, dtype: str, folder: Path) -> ModelSpec:
    beside = folder / word
    return hf_config.find(str(beside) if beside.exists() else word, dtype)


def _blocks(model: ModelSpec, row: Accelerator, table: Mapping[str, Any]) -> int:
    if row.capacity_bytes is None:
        raise ValueError(f"no source prints the memory of {row.name}: give num_blocks")
    memory_bytes = row.capacity_bytes * table.get("devices", 1)
    return blocks_that_fit(model, memory_bytes, table.get("block_tokens", 16))


def _calibration(given: str | dict[str, Any] | None, folder: Path, where: str) -> Calibration:
    if given is None:
        return Calibration()
    if isinstance(given, str):
        return read_calibration(folder / given)
    _check_names(given, OF_VERSION_1, f"{where}, calibration")
    return Calibration(**{"source": "the fleet file", **given})


def _check_names(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = list(known)
    for name, value in table.items():
        if name not in names:
            hint = did_you_mean(name, names)
            raise ValueError(f"{where} has {', '.join(names)}; got {name!r}{hint}")
        asked = TYPES.get(name, (int, float) if name.endswith(("_share", "_s")) else int)
        asked = str if name == "source" else asked
        wrong_bool = isinstance(value, bool) and asked is not bool
        if wrong_bool or not isinstance(value, asked):
            raise ValueError(f"{where}: {name} is {_told(asked)}; got {value!r:.60}")


def _told(asked: type | tuple[type, ...]) -> str:
    words = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
    words |= {dict: "a table", list: "a list of tables"}
    several = asked if isinstance(asked, tuple) else (asked,)
    return " or ".join(words[each] for each in several)
