"""Comparing: the gate on records and on code, and the study of how often it errs."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prefill_decode.cli.shared import (
    FINDING,
    FINE,
    UNUSABLE,
    check_out,
    print_json,
    print_last,
    printable,
    project_of,
    warn,
)

if TYPE_CHECKING:
    from prefill_decode.book import Project
    from prefill_decode.gate import Report, Source
    from prefill_decode.results import Run

REMEASURED = 2  # times, where the user does not say


def compare(options: argparse.Namespace) -> int:
    """Hold runs against earlier ones, or code against earlier code: what became worse."""
    from prefill_decode import gate, results

    if options.code:
        return _compare_code(options)
    if options.remeasure is None:
        options.remeasure = REMEASURED
    if options.budget is not None:
        raise ValueError("--budget is for --code; records were measured with budgets of their own")
    checkout = results.find_checkout(Path.cwd())
    base, current = gate.read_sources(options.base, options.current, checkout)
    problems = tuple(dict.fromkeys(map(printable, [*base.problems, *current.problems])))
    warn(problems)
    report = _judge(options, base, current)
    if report.failing and options.remeasure:
        report = _judge_again(options, base, current, report)
    report = replace(report, problems=problems)
    if options.json:
        print_json(report.as_dict())
    else:
        print_last(report.markdown())
    if problems:
        return UNUSABLE
    return FINDING if report.failed else FINE


def _judge(
    options: argparse.Namespace, base: "Source", current: "Source", again: Sequence["Run"] = ()
) -> "Report":
    from prefill_decode import gate

    pinned, moved = gate.pins_of(base, current)
    return gate.compare(
        base.as_base, current.runs, pinned, options.tolerance, moved=moved, again=again
    )


def _compare_code(options: argparse.Namespace) -> int:
    """Measure two states of the library in turns, on this machine, now."""
    from prefill_decode import gate, paired, results

    if options.remeasure is not None:
        raise ValueError("--remeasure is for records; --code measures both sides in turns anyway")
    checkout = results.find_checkout(Path.cwd())
    with (
        gate.code_of(options.base, checkout) as base,
        gate.code_of(options.current, checkout) as current,
    ):
        if base == current or options.base == options.current:
            raise ValueError(
                f"code is never compared with itself; both sides are {options.base!r}: name two "
                "states"
            )
        if paired.digest_of_code(base) == paired.digest_of_code(current):
            note = "The library is the same on both sides: nothing to measure."
            if options.json:
                print_json({"failed": False, "note": note})
            else:
                print_last(note)
            return FINE
        with _measuring_alone(checkout):
            report = paired.compare_code(
                base,
                current,
                device=options.device,
                budget_s=paired.BUDGET_S if options.budget is None else options.budget,
                tolerance=options.tolerance,
                say=lambda words: print(words, file=sys.stderr, flush=True),
            )
    report = replace(report, base=printable(options.base), current=printable(options.current))
    if options.json:
        print_json(report.as_dict())
    else:
        print_last(report.markdown())
    return FINDING if report.failed else FINE


def _measuring_alone(checkout: Path | None) -> AbstractContextManager[None]:
    """The lock that chapters are measured under, where there is a checkout and the book's parts
    are installed: elsewhere no chapter can be running."""
    if checkout is None:
        return nullcontext()
    try:
        from prefill_decode.book import find_project
        from prefill_decode.book.run import measuring_alone
    except ModuleNotFoundError:
        return nullcontext()
    project = find_project(checkout)
    project.prepare()
    return measuring_alone(project)


def _judge_again(
    options: argparse.Namespace, base: "Source", current: "Source", first: "Report"
) -> "Report":
    """The report once the chapters that look worse have been measured again, where they can be."""
    from prefill_decode import gate, measure

    failing = {(row.claim, row.kind) for row in first.failing}
    newest = {
        (run.claim, run.machine["kind"]): run
        for run in sorted(current.runs, key=lambda run: run.date)
    }
    suspected = [run for key, run in newest.items() if key in failing]
    if not suspected:
        return first
    try:
        from prefill_decode.book import find_project
        from prefill_decode.book.remeasure import measure_again

        again = measure_again(
            find_project(Path.cwd()),
            measure.describe_machine(options.device),
            suspected,
            current.records,
            options.remeasure,
            lambda words: print(words, file=sys.stderr, flush=True),
        )
    except (ValueError, ModuleNotFoundError) as error:
        return replace(first, notes=(*first.notes, f"nothing was measured again: {error}"))
    second = _judge(options, base, current, again.runs)
    report = gate.confirm(first, second, again.measured)
    return replace(report, notes=(*report.notes, *again.notes))


def trust(options: argparse.Namespace) -> int:
    """How often this machine errs when codes are compared: equal ones, and one that was slowed."""
    from prefill_decode import paired
    from prefill_decode.book.run import measuring_alone

    check_out("--out", options.out)
    project = project_of(options)
    project.prepare()
    with measuring_alone(project):
        study = paired.run_study(
            project.root,
            project.build / "trust",
            sessions=options.sessions,
            budget_s=options.budget,
            device=options.device,
            chapter_runs=options.chapter_runs,
            run_chapter_once=chapter_runner(project, options.device),
            again=options.again,
            say=lambda words: print(words, file=sys.stderr, flush=True),
        )
    path = options.out or project.results / "trust" / f"{study['machine']['slug']}.json"
    paired.save_study(study, path)
    print(f"{paired.summary(study)}\nthe study is in {path}")
    return FINE


def chapter_runner(project: "Project", device: str) -> "Callable[[], Run]":
    """A call that measures the study's chapter afresh; its record stays below the build folder."""

    def once() -> "Run":
        from prefill_decode import measure, paired, results
        from prefill_decode.book.parameters import check_parameters
        from prefill_decode.book.run import ChapterFailure, run_chapter

        machine = measure.describe_machine(device)
        trials = project.build / "trust" / "chapter"
        trial = replace(project, results=trials / "results", build=trials / "build")
        given = check_parameters(project.notebook(paired.CHAPTER), {"device": machine.device})
        trial.prepare()
        try:
            run_chapter(trial, paired.CHAPTER, given, machine, again=True)
        except ChapterFailure as failure:
            if failure.reason == "interrupted":
                raise KeyboardInterrupt from None
            raise ValueError(str(failure)) from failure
        path = trial.results / paired.CHAPTER / f"{machine.slug}.json"
        return results.run_of(results.load(path))

    return once
