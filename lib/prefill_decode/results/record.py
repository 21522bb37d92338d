"""Record: one claim's newest result on one machine, with everything needed to judge it again.

It holds what the pages print: raw times, ceilings, machine, parameters, seed, commit; where figures
were simulated, the hardware they stand for instead of times and ceilings. It is strict JSON
(unknown is null, never NaN), checked when written and when read.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from prefill_decode import __version__
from prefill_decode.claim import Claim, Judgement, Verdict
from prefill_decode.hardware import Hardware
from prefill_decode.measure import (
    Ceilings,
    Machine,
    Timings,
    peak_memory_bytes,
    products_of,
)
from prefill_decode.model_spec import ModelSpec
from prefill_decode.results.checks import (
    DATE_FORMAT,
    RESERVED,
    SCHEMA_VERSION,
    better_of,
    check_record,
)
from prefill_decode.results.files import parse, read_text
from prefill_decode.results.upgrade import upgraded
from prefill_decode.roofline import step_work
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk

Record = dict[str, Any]


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
    found = {
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
        "simulated": None,
        "machine": {**machine.as_dict(), "products": products_of(machine.device, model.dtype)},
        "measuring_s": times.duration_s + ceilings.timings.duration_s,
    }
    return _record(claim_name, claim, verdict, found, model, parameters, seed)


def make_simulated_record(
    claim_name: str,
    claim: Claim,
    verdict: Verdict,
    *,
    hardware: Sequence[Hardware],
    num_seeds: int,
    duration_s: float,
    machine: Machine,
    model: ModelSpec,
    parameters: Mapping[str, Any],
    seed: int,
) -> Record:
    """The record of a run whose figures were simulated on `hardware` with so many seeds: nothing
    was timed, and `machine` only computed it, in `duration_s`."""
    found: Record = {
        "points": [],
        "timings": None,
        "ceilings": None,
        "simulated": {"hardware": [asdict(each) for each in hardware], "num_seeds": num_seeds},
        "machine": {**machine.as_dict(), "products": None},
        "measuring_s": duration_s,
    }
    return _record(claim_name, claim, verdict, found, model, parameters, seed)


def _record(
    claim_name: str,
    claim: Claim,
    verdict: Verdict,
    found: Mapping[str, Any],
    model: ModelSpec,
    parameters: Mapping[str, Any],
    seed: int,
) -> Record:
    return {
        "schema_version": SCHEMA_VERSION,
        "claim": claim_name,
        "statement": claim.statement,
        "verdict": {"outcome": verdict.outcome, "reason": verdict.reason},
        "metrics": [
            *(_metric(judgement, "prediction") for judgement in verdict.predictions),
            *(_metric(judgement, "control") for judgement in verdict.controls),
        ],
        **found,
        "peak_memory_bytes": peak_memory_bytes(),
        "model": asdict(model),
        "parameters": dict(parameters),
        "seed": seed,
        "library_version": __version__,
        "commit": _commit(),
        "date": datetime.now(UTC).strftime(DATE_FORMAT),
    }


def load(path: Path) -> Record:
    """A record from its file, in the newest form. ValueError says in a sentence why it is none."""
    record: Record = upgraded(parse(read_text(path), path), path)
    check_record(record, path)
    return record


def load_all(folder: Path) -> tuple[list[Record], list[str]]:
    """Every record below `folder`, by claim and machine, and a sentence for each unusable file."""
    records, problems = [], []
    paths, unlisted = files_below(folder, ".json", leave_out=RESERVED)
    for path in paths:
        try:
            record = load(path)
            check_place(path, record["claim"], record["machine"]["slug"])
        except ValueError as error:
            problems.append(str(error))
        else:
            records.append(record)
    return records, unlisted + problems


def files_below(
    folder: Path, suffix: str, leave_out: Sequence[str] = ()
) -> tuple[list[Path], list[str]]:
    """FOLDER/CLAIM/*suffix in order, hidden ones aside, and a sentence for each that is no folder.

    With `leave_out`, other things than claims may lie there: plain files are passed over, too."""
    found, problems = [], []
    claims, unlisted = _listed(folder)
    for claim in claims:
        if claim.name not in leave_out and not (leave_out and claim.is_file()):
            paths, closed = _listed(claim)
            found += [path for path in paths if path.suffix == suffix]
            problems += closed
    return found, unlisted + problems


def _listed(folder: Path) -> tuple[list[Path], list[str]]:
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(folder):
            return [], []  # nothing was measured; a link that leads nowhere is something
        return [], [f"{folder}: the folder cannot be listed: {error}"]
    return [folder / name for name in names], []


def check_place(path: Path, claim: str, slug: str) -> None:
    if (claim, slug) != (path.parent.name, path.stem):
        raise ValueError(
            f"{path}: a record lies at CLAIM/MACHINE{path.suffix}; this one says "
            f"{claim}/{slug}{path.suffix}"
        )


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
        "measured": stored_interval(
            judgement.measured, "1", better_of(prediction.expected, prediction.rival)
        ),
    }


def _point(
    name: str, chunks: Sequence[Chunk], times: Timings, ceilings: Ceilings, model: ModelSpec
) -> Record:
    work = step_work(model, chunks)
    return {
        "step": name,
        "chunks": _stored_chunks(chunks),
        "new_tokens": sum(chunk.new_tokens for chunk in chunks),
        "sequences": len(chunks),
        "flops": work.total.flops,
        "bytes": work.total.bytes,
        "least_time_s": work.least_time_s(ceilings.during(times)),
        "reached": stored_interval(ceilings.reached(work, name, times), "1", "higher"),
        "time_s": stored_interval(times.time_s(name), "s", "lower"),
    }


def _stored_chunks(chunks: Sequence[Chunk]) -> list[list[int]]:
    """[new_tokens, cached_tokens, how many such chunks in a row]."""
    pairs = groupby((chunk.new_tokens, chunk.cached_tokens) for chunk in chunks)
    return [[new, cached, len(list(equal))] for (new, cached), equal in pairs]


def stored_interval(interval: Interval, unit: str, better: str) -> Record:
    """An interval as files hold it, NaN as null; `checks.interval_of` reads it."""
    return {
        "median": interval.median,
        "low": _finite_or_null(interval.low),
        "high": _finite_or_null(interval.high),
        "n": interval.n,
        "coverage": _finite_or_null(interval.coverage),
        "unit": unit,
        "better": better,
    }


def _finite_or_null(value: float) -> float | None:
    return value if isfinite(value) else None


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
