"""Measuring: the verbs that measure chapters, and those that show what was measured."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefill_decode.cli.shared import (
    FINDING,
    FINE,
    INTERRUPTED,
    UNUSABLE,
    print_json,
    printable,
    project_of,
    project_with_records,
    warn,
)

if TYPE_CHECKING:
    from prefill_decode.book import Project
    from prefill_decode.measure import Machine

# Parameters of every notebook that the command sets itself.
OPTIONS_FOR = {"device": "--device", "budget_s": "--budget", "results_dir": "--results"}


def list_claims(options: argparse.Namespace) -> int:
    """Claims, their notebooks, the last verdict on this machine."""
    from prefill_decode import measure, results

    project = project_with_records(options)
    slug = measure.describe_machine(options.device).slug
    records, problems = results.load_all(project.results)
    warn(problems)
    verdicts = {r["claim"]: r for r in records if r["machine"]["slug"] == slug}
    for chapter in project.chapters():
        record = verdicts.get(chapter)
        last = (
            f"{record['verdict']['outcome']}, {record['date'][:10]}" if record else "not run here"
        )
        print(f"{chapter}\n    {project.title(chapter)}\n    notebooks/{chapter}.ipynb\n    {last}")
    return UNUSABLE if problems else FINE


def doctor(options: argparse.Namespace) -> int:
    """What on this machine will make numbers lie, and the mend."""
    from prefill_decode import measure

    machine = measure.describe_machine(options.device)
    findings, notes = measure.examine(machine), measure.notes(machine)
    products = measure.products_of(machine.device, "float32")
    if options.json:
        found = [{"problem": f.problem, "mend": f.mend} for f in findings]
        described = {**machine.as_dict(), "products": products}
        print_json({"machine": described, "findings": found, "notes": notes})
    else:
        print(f"{machine.title}: device {machine.device}, {machine.threads} threads")
        print(f"  products in float32: {products}")
        for finding in findings:
            print(f"  {finding.problem}\n    -> {finding.mend}")
        for note in notes:
            print(f"  {note}\n    -> nothing to mend")
        if not findings and not notes:
            print("  nothing found that would make numbers lie")
    return FINDING if findings else FINE


def run(options: argparse.Namespace) -> int:
    """Measure the named claims, or all of them."""
    from prefill_decode import measure

    project = project_of(options)
    chapters = project.chosen(options.claims)
    machine = measure.describe_machine(options.device)
    if options.parameter and options.results is None:  # a trial leaves the book's records alone
        trials = project.build / "trials"
        project = replace(project, results=trials / "results", build=trials / "build")
    _, failures = run_chapters(project, chapters, options, machine)
    print_verdicts(project, chapters, machine)
    print(f"records in {project.results}")
    return exit_code(failures)


def book(options: argparse.Namespace) -> int:
    """Measure what is stale, refresh the pages, build the HTML."""
    from prefill_decode import book as publishing
    from prefill_decode import measure, results

    project = project_of(options)
    machine = measure.describe_machine(options.device)
    project.repository_url()  # a fault there should stop the book before it measures
    chapters = project.chosen(options.claims)
    runs, failures = run_chapters(project, chapters, options, machine)
    if INTERRUPTED in failures.values():
        return INTERRUPTED
    records, problems = results.load_all(project.results)
    warn(problems)
    print("building the pages ...", file=sys.stderr)
    reasons = {chapter: str(reason) for chapter, reason in failures.items()}
    source = publishing.stage(project, runs, reasons, records, machine.slug, options.repository_url)
    cover = publishing.build_html(project, source)
    print_verdicts(project, chapters, machine)
    print_surprises(project, chapters, records, machine)
    print(f"\nopen {cover}")
    return FINDING if failures or problems else FINE


def show_results(options: argparse.Namespace) -> int:
    """Every verdict on every machine; or pin this machine's runs as the baseline."""
    from prefill_decode import book as publishing
    from prefill_decode import results

    if options.json and options.accept is not None:
        raise ValueError("--json shows records and --accept pins runs: give one of them")
    project = project_with_records(options)
    if options.accept is not None:
        return _accept(project, options)
    records, problems = results.load_all(project.results)
    warn(problems)
    if options.write_readme:
        publishing.refresh_readme(project, records, project.root / "README.md")
    if options.json:
        print_json({"records": records, "problems": [printable(each) for each in problems]})
    else:
        print(publishing.claims_table(project, records))
    return UNUSABLE if problems else FINE


def _accept(project: "Project", options: argparse.Namespace) -> int:
    """Pin the last runs on this machine, a refuted claim's too: that is a result, and is named."""
    from prefill_decode import measure, results
    from prefill_decode.units import counted

    machine = measure.describe_machine(options.device)
    claims = project.chosen(options.accept)
    if not options.accept:  # a link that leads nowhere is there, too: it is refused, not left out
        places = {claim: project.results / claim / f"{machine.slug}.json" for claim in claims}
        claims = [claim for claim, path in places.items() if os.path.lexists(path)]
    if not claims:
        raise ValueError(f"no claim has a record on {machine.title} to pin: run some first")
    paths = results.accept(project.results, claims, machine.slug)
    for claim, path in zip(claims, paths, strict=True):
        runs = results.read_runs(path)
        refuted = f"; refuted: {runs[-1].reason}" if runs[-1].outcome == "refuted" else ""
        print(f"{claim}: {counted(len(runs), 'run')} pinned{refuted}\n    {path}")
    print("\nThe baseline moves when these files are committed and the commit is reviewed.")
    return FINE


def run_chapters(
    project: "Project",
    chapters: Sequence[str],
    options: argparse.Namespace,
    machine: "Machine",
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Executed notebooks and failures by chapter, one chapter at a time: two would disturb each
    other.
    """
    from prefill_decode.book.parameters import check_parameters, parse_assignments
    from prefill_decode.book.run import ChapterFailure, measuring_alone, run_chapter

    given = parse_assignments(options.parameter)
    for name, option in OPTIONS_FOR.items():
        if name in given:
            raise ValueError(f"{name} has an option of its own: give {option}, not -p {name}=...")
    given["device"] = machine.device
    if options.budget is not None:
        given["budget_s"] = options.budget
    checked = {name: check_parameters(project.notebook(name), given) for name in chapters}
    project.prepare()
    runs: dict[str, Path] = {}
    failures: dict[str, Any] = {}
    with measuring_alone(project):
        for number, name in enumerate(chapters, start=1):
            place = f"[{number}/{len(chapters)}] {name}"
            print(f"{place} ...", file=sys.stderr, flush=True)
            try:
                runs[name], ran = run_chapter(
                    project,
                    name,
                    checked[name],
                    machine,
                    cell_timeout_s=options.timeout,
                    progress=sys.stderr.isatty(),
                    again=options.again,
                )
                print(f"{place}: {'done' if ran else 'up to date'}", file=sys.stderr)
            except ChapterFailure as failure:
                print(f"prefill-decode: {failure}", file=sys.stderr)
                failures[name] = failure
                if failure.reason == "interrupted":
                    print("prefill-decode: run again to go on from here", file=sys.stderr)
                    failures[name] = INTERRUPTED
                    break
    return runs, failures


def exit_code(failures: dict[str, Any]) -> int:
    if INTERRUPTED in failures.values():
        return INTERRUPTED
    return FINDING if failures else FINE


def print_verdicts(project: "Project", chapters: Sequence[str], machine: "Machine") -> None:
    from prefill_decode import results
    from prefill_decode.book.pages import verdict_lines

    records, _ = results.load_all(project.results)
    print(f"\nverdicts on {machine.title}:")
    print("\n".join(verdict_lines(chapters, records, machine.slug)))


def print_surprises(
    project: "Project",
    chapters: Sequence[str],
    records: Sequence[dict[str, Any]],
    machine: "Machine",
) -> None:
    """Where these chapters differ here from all machines that came with the book."""
    from prefill_decode import results
    from prefill_decode.book.surprises import surprise_lines

    others, _ = results.load_all(project.root / "book" / "results")
    print(f"\nsurprising on {machine.title}, beside the book's other machines:")
    print("\n".join(surprise_lines(chapters, records, machine.slug, others)))
