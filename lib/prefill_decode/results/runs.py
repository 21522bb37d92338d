"""Runs: the condensed form of records, one JSON line each: a machine's history, its baseline.

RESULTS/history/CLAIM/MACHINE.jsonl holds every run that was saved, RESULTS/baseline/CLAIM/
MACHINE.jsonl those that later ones are held against. A line is about 3 kB. Files are only ever
rewritten whole, with every earlier line as it was, so that a killed writer tears none.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from prefill_decode.change import Quantity
from prefill_decode.results.checks import REACHED, TIME, check_run, interval_of
from prefill_decode.results.files import (
    canonical,
    only_writer,
    parse,
    read_text,
    write_all_atomically,
    write_bytes_atomically,
)
from prefill_decode.results.record import (
    Record,
    check_place,
    files_below,
    load,
    stored_interval,
)
from prefill_decode.results.upgrade import as_first_written

RUN_SCHEMA_VERSION = 1
MOST_PINNED = 5
LARGEST_HISTORY_BYTES = 100_000_000  # some 30,000 runs


@dataclass(frozen=True)
class Run:
    """What history and baseline hold of a record."""

    run_id: str  # 16 hex digits of the record's canonical JSON
    claim: str
    date: str
    commit: str | None
    library_version: str
    outcome: str  # the verdict's
    reason: str
    failed_control: bool  # some control's own outcome is "refuted" or "void"
    machine: dict[str, Any]  # as in the record
    setting: dict[
        str, Any
    ]  # must be equal to compare: model, dtype, simulated, parameters but budget_s
    quantities: dict[str, Quantity]  # by metric; "reached, STEP" and "time, STEP"
    expected: dict[str, tuple[float, float]]  # prediction: (expected, rival)

    @property
    def is_simulated(self) -> bool:
        """Whether its figures depend on no machine: they follow from the code and the setting."""
        return self.setting.get("simulated") is not None


def run_of(record: Record) -> Run:
    """The run that a valid record condenses to."""
    text = canonical(as_first_written(record))
    record = json.loads(text)  # tuples become lists, as on the disk
    return Run(
        run_id=sha256(text.encode()).hexdigest()[:16],
        claim=record["claim"],
        date=record["date"],
        commit=record["commit"],
        library_version=record["library_version"],
        outcome=record["verdict"]["outcome"],
        reason=record["verdict"]["reason"],
        failed_control=any(
            metric["role"] == "control" and metric["outcome"] in ("refuted", "void")
            for metric in record["metrics"]
        ),
        machine=record["machine"],
        setting=_setting(record),
        quantities={name: _quantity(stored) for name, stored in _measured(record)},
        expected={
            metric["name"]: (metric["expected"], metric["rival"])
            for metric in record["metrics"]
            if metric["role"] == "prediction"
        },
    )


def same_kind(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether two machines, as records describe them, should be equally fast."""
    return bool(a["kind"] == b["kind"])


def same_host(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both are one and the same machine; one that is not known is never the same."""
    return a["host"] is not None and a["host"] == b["host"]


def append(results: Path, run: Run) -> None:
    """Adds a run to its machine's history, unless it is there already."""
    with only_writer(results):
        append_alone(results, run)


def append_alone(results: Path, run: Run) -> None:
    """`append` for who is the only writer already. Earlier lines stay as they are, bad ones too."""
    line = line_of(run)
    path = history_path(results, run.claim, run.machine["slug"])
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path) and not path.is_file():
        raise ValueError(f"{path}: a history is a regular file; this is none")
    earlier = path.read_bytes() if path.exists() else b""
    if f'"run_id":"{run.run_id}"'.encode() in earlier:
        return
    if earlier and not earlier.endswith(b"\n"):
        earlier += b"\n"
    write_bytes_atomically(path, earlier + line.encode())


def history_path(results: Path, claim: str, slug: str) -> Path:
    return results / "history" / claim / f"{slug}.jsonl"


def read_runs(path: Path) -> list[Run]:
    """The runs of a file, oldest first, each once. ValueError names file, line and reason."""
    found: dict[str, Run] = {}
    text = read_text(path, LARGEST_HISTORY_BYTES, "a file of runs")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        stored = parse(line, where, "a run")
        check_run(stored, where)
        run = _run_from(stored)
        if found.setdefault(run.run_id, run) != run:
            raise ValueError(f"{where}: not a run: run_id {run.run_id} stands for another run")
    return sorted(found.values(), key=lambda run: run.date)


def history(results: Path) -> tuple[list[Run], list[str]]:
    """Every run that was saved, by claim and machine, and a sentence for each unusable file."""
    return _read_all(results / "history")


def baselines(results: Path) -> tuple[list[Run], list[str]]:
    """Every pinned run, by claim and machine, and a sentence for each unusable file."""
    return _read_all(results / "baseline")


def accept(
    results: Path, claims: Sequence[str], slug: str, most_runs: int = MOST_PINNED
) -> list[Path]:
    """Pins a machine's last runs of each claim as what later ones are held against.

    Only runs of the newest one's commit and setting and on its host are pinned, and no void ones:
    a baseline is of one state of the code. Nothing is pinned unless all are: ValueError if a claim
    has no run here, its newest is void, or a file holds what belongs elsewhere."""
    if most_runs < 1:
        raise ValueError(f"a baseline holds one run or more; got most_runs {most_runs}")
    with only_writer(results):
        chosen = {claim: _to_pin(results, claim, slug, most_runs) for claim in claims}
        return _pin(results, slug, chosen)


def _to_pin(results: Path, claim: str, slug: str, most_runs: int) -> list[Run]:
    known = known_runs(results, claim, slug)
    if not known:
        raise ValueError(f"{claim} has no run on {slug} to pin: run it first")
    newest = known[-1]
    if newest.outcome == "void":
        raise ValueError(
            f"{claim}: a void run is no baseline ({newest.reason}): run it again and pin that"
        )
    return [run for run in known if run.outcome != "void" and _belongs_to(run, newest)][-most_runs:]


def known_runs(results: Path, claim: str, slug: str) -> list[Run]:
    """History and the record, should its run not have got there, oldest first. ValueError for a
    run of another claim or machine."""
    past, path = history_path(results, claim, slug), results / claim / f"{slug}.json"
    runs = _read_placed(past) if os.path.lexists(past) else []
    if os.path.lexists(path):
        last = run_of(load(path))
        check_place(path, last.claim, last.machine["slug"])
        runs += [last] if last.run_id not in {run.run_id for run in runs} else []
    return sorted(runs, key=lambda run: run.date)


def _belongs_to(run: Run, newest: Run) -> bool:
    """Whether both were made alike. A commit "+changes" is another one than that without."""

    def mark(each: Run) -> tuple[Any, ...]:
        return each.commit, each.setting, each.machine["host"]

    return mark(run) == mark(newest)


def _pin(results: Path, slug: str, chosen: Mapping[str, Sequence[Run]]) -> list[Path]:
    pins = {
        results / "baseline" / claim / f"{slug}.jsonl": "".join(line_of(run) for run in runs)
        for claim, runs in chosen.items()
    }
    for path in pins:
        path.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(path) and not path.is_file():
            raise ValueError(f"{path}: a baseline is a regular file; this is none: remove it")
    write_all_atomically({path: text.encode() for path, text in pins.items()})
    return list(pins)


def line_of(run: Run) -> str:
    """A run as its line. ValueError if it is none, so that none is written that no one can read."""
    stored = {
        "schema_version": RUN_SCHEMA_VERSION,
        **{name: value for name, value in vars(run).items() if name != "quantities"},
        "quantities": {
            name: stored_interval(quantity.measured, quantity.unit, quantity.better)
            for name, quantity in run.quantities.items()
        },
    }
    line = canonical(stored)
    check_run(json.loads(line), f"run {run.run_id} of {run.claim}")
    return line + "\n"


def _run_from(stored: Mapping[str, Any]) -> Run:
    values = {name: value for name, value in stored.items() if name != "schema_version"}
    quantities = {name: _quantity(held) for name, held in values.pop("quantities").items()}
    expected = {name: (pair[0], pair[1]) for name, pair in values.pop("expected").items()}
    return Run(**values, quantities=quantities, expected=expected)


def _read_all(folder: Path) -> tuple[list[Run], list[str]]:
    paths, problems = files_below(folder, ".jsonl")
    runs: list[Run] = []
    for path in paths:
        try:
            runs += _read_placed(path)
        except ValueError as error:
            problems.append(str(error))
    return runs, problems


def _read_placed(path: Path) -> list[Run]:
    """The runs of CLAIM/MACHINE.jsonl, all of that claim and machine."""
    runs = read_runs(path)
    for run in runs:
        check_place(path, run.claim, run.machine["slug"])
    return runs


def _setting(record: Record) -> dict[str, Any]:
    model, parameters = record["model"], record["parameters"]
    chosen = {name: value for name, value in parameters.items() if name != "budget_s"}
    setting = {**chosen, "model": model["name"], "dtype": model["dtype"]}
    simulated = record.get("simulated")
    return setting if simulated is None else {**setting, "simulated": simulated}


def _measured(record: Record) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for metric in record["metrics"]:
        yield metric["name"], metric["measured"]
    for point in record["points"]:
        yield REACHED + point["step"], point["reached"]
        yield TIME + point["step"], point["time_s"]


def _quantity(stored: Mapping[str, Any]) -> Quantity:
    return Quantity(interval_of(stored), stored["unit"], stored["better"])
