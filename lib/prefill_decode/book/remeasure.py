"""Remeasure: chapters whose current runs look worse, run again before that is believed.

Only where it answers the question: on the machine that made the suspected run, with the code that
it measured, with its parameters. Where that is not so a note says why."""

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefill_decode.book.parameters import check_parameters, read_parameters
from prefill_decode.book.project import Project
from prefill_decode.book.run import ChapterFailure, measuring_alone, run_chapter
from prefill_decode.gate import same_machine
from prefill_decode.measure import Machine
from prefill_decode.results import Record, Run, load, run_of

WHAT_MEASURES = ("lib", "notebooks", "constraints.txt")


@dataclass
class Again:
    """What measuring again gave: runs, the claims and kinds of machine they are of, and notes."""

    runs: list[Run] = field(default_factory=list)
    measured: set[tuple[str, str]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


def measure_again(
    project: Project,
    machine: Machine,
    suspected: Sequence[Run],
    records: Mapping[str, Record],
    times: int,
    say: Callable[[str], None],
) -> Again:
    """Run the chapters of the suspected runs so many `times`, into BUILD/remeasured/I/results.

    `records` are the suspected runs', by run_id, as far as they are known.
    """
    again = Again()
    chosen = []
    for run in suspected:
        reason = _why_not(project, machine, run)
        if reason:
            again.notes.append(f"{run.claim} was not measured again: {reason}")
        else:
            chosen.append(run)
    if not chosen:
        return again
    project.prepare()
    with measuring_alone(project):
        shutil.rmtree(project.build / "remeasured", ignore_errors=True)
        for number in range(1, times + 1):
            place = project.build / "remeasured" / str(number)
            there = replace(project, results=place / "results", build=place / "build")
            for run in chosen:
                say(f"[{number}/{times}] {run.claim}: measured again, as it looks worse ...")
                _run_once(there, machine, run, records.get(run.run_id), again)
    return again


def _run_once(
    project: Project, machine: Machine, suspected: Run, record: Record | None, again: Again
) -> None:
    claim = suspected.claim
    project.prepare()
    try:
        parameters = _parameters(project, machine, suspected, record)
        run_chapter(project, claim, parameters, machine, again=True)
        found = run_of(load(project.results / claim / f"{machine.slug}.json"))
    except (ChapterFailure, ValueError) as error:
        if isinstance(error, ChapterFailure) and error.reason == "interrupted":
            raise KeyboardInterrupt from error
        again.notes.append(f"{claim} could not be measured again: {error}")
        return
    if found.setting != suspected.setting:
        again.notes.append(
            f"{claim} was measured again with other parameters: that run is left out"
        )
        return
    again.runs.append(found)
    again.measured.add((claim, suspected.machine["kind"]))


def _why_not(project: Project, machine: Machine, run: Run) -> str:
    """Why a run cannot be made again here; empty if it can."""
    if not same_machine(run.machine, machine.as_dict()):
        return (
            f"it was made on {run.machine['title']}, and this machine is not known to be that one"
        )
    if run.claim not in project.chapters():
        return "this checkout has no such chapter"
    if run.commit is not None and "+" in run.commit:
        return (
            f"it was made by code that no commit holds ({run.commit}), which may have changed since"
        )
    if not made_by_this_code(project.root, run.commit):
        return f"it was made by other code (commit {run.commit or 'unknown'}) than this checkout's"
    return ""


def made_by_this_code(root: Path, commit: str | None) -> bool:
    """Whether what measures in this checkout is as it was in a run's commit.

    Never of a run with changes: which they were, no one knows any more.
    """
    if commit is None or "+" in commit:
        return False
    return _git(root, "diff", "--quiet", commit, "--", *WHAT_MEASURES).returncode == 0


def _parameters(
    project: Project, machine: Machine, run: Run, record: Record | None
) -> dict[str, Any]:
    """The run's own, as far as the notebook has them. One that the notebook's reader could not have
    given was found by the notebook itself, and is again."""
    path = project.notebook(run.claim)
    known = read_parameters(path)
    held = {**record["parameters"], "seed": record["seed"]} if record else run.setting
    given = check_parameters(path, {"device": machine.device})
    for name in known.keys() & held.keys():
        try:
            given |= check_parameters(path, {name: held[name]})
        except ValueError:
            continue
    return given


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
