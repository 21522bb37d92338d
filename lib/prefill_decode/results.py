"""Results: one JSON file for each claim and machine, under book/results/CLAIM/MACHINE.json.

A record holds everything the pages print and everything needed to judge it again: raw times,
ceilings, machine, parameters, seed, commit. It is strict JSON (unknown is null, never NaN),
checked against record.schema.json when written and when read, and written whole or not at all.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib.resources import files
from math import isfinite, nan
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from prefill_decode import __version__
from prefill_decode.change import Quantity
from prefill_decode.claim import Claim, Judgement, Verdict
from prefill_decode.measure import Ceilings, Machine, Timings
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import step_work
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk

Record = dict[str, Any]
LARGEST_FILE_BYTES = 20_000_000
LONGEST_TEXT = 500
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e30


def make_record(
    claim_name: str,
    claim: Claim,
    verdict: Verdict,
    *,
    chunks: Mapping[str, Sequence[Chunk]],
    times: Timings,
    ceilings: Ceilings,
    machine: Machine,
    model: ModelSpec,
    parameters: Mapping[str, Any],
    seed: int,
) -> Record:
    """The record of one run. `chunks` says what each timed step held; steps without an entry,
    such as the ceilings' kernels, appear only among the raw times."""
    during = ceilings.during(times)
    return {
        "schema_version": 1,
        "claim": claim_name,
        "statement": claim.statement,
        "verdict": {"outcome": verdict.outcome, "reason": verdict.reason},
        "metrics": [
            *(_metric(judgement, "prediction") for judgement in verdict.predictions),
            *(_metric(judgement, "control") for judgement in verdict.controls),
        ],
        "points": [_point(name, step, times, ceilings, model) for name, step in chunks.items()],
        "timings": {
            "raw_s": {name: list(values) for name, values in times.raw_s.items()},
            "warmup_s": {name: list(values) for name, values in times.warmup_s.items()},
            "disturbed": list(times.disturbed),
            "stopped_because": times.stopped_because,
            "duration_s": times.duration_s,
            "advice": times.advice,
        },
        "ceilings": {
            "dtype": ceilings.hardware.dtype,
            "peak_flops_per_s": ceilings.hardware.peak_flops_per_s,
            "bandwidth_bytes_per_s": ceilings.hardware.bandwidth_bytes_per_s,
            "source": ceilings.hardware.source,
            "rates": ceilings.rates,
            "during": {
                "peak_flops_per_s": during.peak_flops_per_s,
                "bandwidth_bytes_per_s": during.bandwidth_bytes_per_s,
            },
        },
        "model": asdict(model),
        "machine": machine.as_dict(),
        "parameters": dict(parameters),
        "seed": seed,
        "library_version": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "measuring_s": times.duration_s + ceilings.timings.duration_s,
    }


def save(record: Record, results_dir: str | Path | None = None) -> Path:
    """Write a record to RESULTS_DIR/CLAIM/MACHINE.json; by default into this checkout's
    book/results.

    The file appears whole or not at all. ValueError, with nothing written, if the record is not
    valid."""
    folder = Path(results_dir) if results_dir is not None else default_folder()
    _check(record, folder)
    path: Path = folder / record["claim"] / f"{record['machine']['slug']}.json"
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    if len(text) > LARGEST_FILE_BYTES:
        raise ValueError(
            f"{path}: a record has at most {LARGEST_FILE_BYTES} bytes; got {len(text)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path


def load(path: Path) -> Record:
    """A record from its file. ValueError says in one sentence why a file is not one."""
    if not path.is_file():
        raise ValueError(f"{path}: a record is a regular file; this is none")
    if path.stat().st_size > LARGEST_FILE_BYTES:
        raise ValueError(
            f"{path}: a record has at most {LARGEST_FILE_BYTES} bytes; got {path.stat().st_size}"
        )
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: a record is readable UTF-8 text; {error}") from error
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; restore it or run the notebook again")
    record: Record = _parse(text, path)
    _check(record, path)
    return record


def load_all(folder: Path) -> tuple[list[Record], list[str]]:
    """Every record below `folder`, by claim and machine, and a sentence for each unusable file."""
    records, problems = [], []
    for path in sorted(folder.glob("*/*.json")):
        try:
            record = load(path)
        except ValueError as error:
            problems.append(str(error))
            continue
        if (record["claim"], record["machine"]["slug"]) != (path.parent.name, path.stem):
            problems.append(
                f"{path}: a record lies at CLAIM/MACHINE.json; this one says "
                f"{record['claim']}/{record['machine']['slug']}.json"
            )
            continue
        records.append(record)
    return records, problems


def interval_of(stored: Mapping[str, Any]) -> Interval:
    """An Interval from its stored form, null becoming NaN."""
    values: dict[str, Any] = {key: nan if value is None else value for key, value in stored.items()}
    return Interval(**values)


@dataclass(frozen=True)
class Run:
    run_id: str
    claim: str
    date: str
    commit: str | None
    library_version: str
    outcome: str
    reason: str
    failed_control: bool
    machine: dict[str, Any]
    setting: dict[str, Any]
    quantities: dict[str, Quantity]
    expected: dict[str, tuple[float, float]]


def run_of(record: Record) -> Run:
    quantities = {}
    for metric in record["metrics"]:
        better: Any = "lower" if metric["expected"] < metric["rival"] else "higher"
        quantities[metric["name"]] = Quantity(interval_of(metric["measured"]), "1", better)
    for point in record["points"]:
        name = point["step"]
        quantities[f"reached, {name}"] = Quantity(interval_of(point["reached"]), "1", "higher")
        quantities[f"time, {name}"] = Quantity(interval_of(point["time_s"]), "s", "lower")
    return Run(
        sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()[:16],
        record["claim"],
        record["date"],
        record["commit"],
        record["library_version"],
        record["verdict"]["outcome"],
        record["verdict"]["reason"],
        any(
            metric["outcome"] in ("refuted", "void")
            for metric in record["metrics"]
            if metric["role"] == "control"
        ),
        record["machine"],
        {"parameters": record["parameters"]},
        quantities,
        {
            metric["name"]: (metric["expected"], metric["rival"])
            for metric in record["metrics"]
            if metric["role"] == "prediction"
        },
    )


def history(results: Path) -> tuple[list[Run], list[str]]:
    records, problems = load_all(results)
    return [run_of(record) for record in records], problems


def baselines(results: Path) -> tuple[list[Run], list[str]]:
    return [], []


def find_checkout(start: Path) -> Path | None:
    """The checkout of the book that holds `start`; None outside of one."""
    for folder in (start, *start.parents):
        if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    return None


def default_folder() -> Path:
    """book/results of the checkout that holds the current folder; ./results outside of one."""
    checkout = find_checkout(Path.cwd())
    return checkout / "book" / "results" if checkout else Path.cwd() / "results"


def _metric(judgement: Judgement, role: str) -> Record:
    prediction = judgement.prediction
    return {
        "name": prediction.name,
        "role": role,
        "expected": prediction.expected,
        "rival": prediction.rival,
        "physical_limit": _finite_or_null(prediction.physical_limit),
        "outcome": judgement.outcome,
        "reason": judgement.reason,
        "measured": _stored_interval(judgement.measured),
    }


def _point(
    name: str, chunks: Sequence[Chunk], times: Timings, ceilings: Ceilings, model: ModelSpec
) -> Record:
    work = step_work(model, chunks)
    return {
        "step": name,
        "new_tokens": sum(chunk.new_tokens for chunk in chunks),
        "sequences": len(chunks),
        "flops": work.total.flops,
        "bytes": work.total.bytes,
        "least_time_s": work.least_time_s(ceilings.during(times)),
        "reached": _stored_interval(ceilings.reached(work, name, times)),
        "time_s": _stored_interval(times.time_s(name)),
    }


def _stored_interval(interval: Interval) -> Record:
    return {
        "median": interval.median,
        "low": _finite_or_null(interval.low),
        "high": _finite_or_null(interval.high),
        "n": interval.n,
        "coverage": _finite_or_null(interval.coverage),
    }


def _finite_or_null(value: float) -> float | None:
    return value if isfinite(value) else None


def _parse(text: str, path: Path) -> Any:
    def refuse(token: str) -> None:
        raise ValueError(f"{token} is not a finite number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated = sorted({key for key in keys if keys.count(key) > 1})
        if repeated:
            raise ValueError(f"key {repeated[0]!r} appears twice in one object")
        return dict(pairs)

    try:
        return json.loads(text, parse_constant=refuse, object_pairs_hook=unique)
    except RecursionError as error:
        raise ValueError(f"{path}: not a record: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error


def _check(record: Any, path: Path) -> None:
    if isinstance(record, dict) and record.get("schema_version") not in (1, None):
        raise ValueError(
            f"{path}: this library reads schema version 1; got {record['schema_version']!r}: "
            "update the library"
        )
    _check_values(record, path, "the record")
    error = next(_validator().iter_errors(record), None)
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "the record"
        raise ValueError(f"{path}: not a record: {where}: {error.message[:200]}")
    names = [metric["name"] for metric in record["metrics"]]
    if len(set(names)) < len(names):
        raise ValueError(f"{path}: not a record: two metrics have the same name, among {names}")


def _check_values(value: Any, path: Path, where: str) -> None:
    """Nothing that JSON cannot hold, no number beyond all measure, no text that could be markup.

    Pages and tables show these values.
    """
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path}: not a record: {where}: keys are text; got {key!r}")
            _check_values(key, path, f"{where}: a key")
            _check_values(inner, path, f"{where}/{key}"[:200])
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _check_values(inner, path, f"{where}/{index}")
    elif isinstance(value, str):
        if len(value) > LONGEST_TEXT or any(c in "<>|`\\" or not c.isprintable() for c in value):
            raise ValueError(
                f"{path}: not a record: {where}: text is printable, has up to {LONGEST_TEXT} "
                f"characters and is without < > | ` and backslash; got {value[:60]!r}"
            )
    elif isinstance(value, float | int) and not isinstance(value, bool):
        if value != 0 and not SMALLEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
            raise ValueError(
                f"{path}: not a record: {where}: numbers lie between {SMALLEST_NUMBER} and "
                f"{LARGEST_NUMBER}; got {str(value)[:30]}"
            )
    elif value is not None and not isinstance(value, bool):
        raise ValueError(
            f"{path}: not a record: {where}: JSON holds no {type(value).__name__}; got {value!r}"
        )


@cache
def _validator() -> Draft202012Validator:
    text = (files("prefill_decode") / "record.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _commit() -> str | None:
    """The checkout's commit, "+changes" when what measures differs from it; None outside of one."""
    commit = _git("rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    changed = _git("status", "--porcelain", "--", ":/lib", ":/notebooks", ":/constraints.txt")
    return f"{commit}+changes" if changed else commit


def _git(*words: str) -> str | None:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
