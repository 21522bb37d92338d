"""The command `prefill-decode`: arguments only; every verb is a few calls into the library.

Exit codes: 0 fine, 1 a finding (a chapter that failed, a machine that will lie, a regression), 2
unusable input.
"""

import argparse
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefill_decode import __version__

if TYPE_CHECKING:
    from prefill_decode.book import Project
    from prefill_decode.certify import Certificate
    from prefill_decode.gate import Report, Source
    from prefill_decode.measure import Machine
    from prefill_decode.results import Run

FINE, FINDING, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
# Parameters of every notebook that the command sets itself.
OPTIONS_FOR = {"device": "--device", "budget_s": "--budget", "results_dir": "--results"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. What a user did wrong is a sentence, never a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    _prepare_streams()
    options = _parser().parse_args(arguments)
    try:
        code = int(options.verb(options))
        sys.stdout.flush()
        return code
    except ValueError as error:
        print(f"prefill-decode: {error}", file=sys.stderr)
        return UNUSABLE
    except ModuleNotFoundError as error:
        print(
            f"prefill-decode: this command needs {error.name}, which is not installed; "
            "run make book, or pip install 'prefill-decode[book]'",
            file=sys.stderr,
        )
        return UNUSABLE
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except OSError as error:
        print(f"prefill-decode: {error}", file=sys.stderr)
        return UNUSABLE
    except KeyboardInterrupt:
        print("prefill-decode: interrupted; what had finished is kept", file=sys.stderr)
        return INTERRUPTED


def _prepare_streams() -> None:
    """A stream that was closed swallows what is printed, and one that lacks a letter escapes it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def list_claims(options: argparse.Namespace) -> int:
    """Claims, their notebooks, the last verdict on this machine."""
    from prefill_decode import measure, results

    project = _project(options)
    slug = measure.describe_machine(options.device).slug
    records, problems = results.load_all(project.results)
    _warn(problems)
    verdicts = {r["claim"]: r for r in records if r["machine"]["slug"] == slug}
    for chapter in project.chapters():
        record = verdicts.get(chapter)
        last = (
            f"{record['verdict']['outcome']}, {record['date'][:10]}" if record else "not run here"
        )
        print(f"{chapter}\n    {project.title(chapter)}\n    notebooks/{chapter}.ipynb\n    {last}")
    return FINDING if problems else FINE


def doctor(options: argparse.Namespace) -> int:
    """What on this machine will make numbers lie, and the mend."""
    from prefill_decode import measure

    machine = measure.describe_machine(options.device)
    findings, notes = measure.examine(machine), measure.notes(machine)
    if options.json:
        found = [{"problem": f.problem, "mend": f.mend} for f in findings]
        _print_json({"machine": machine.as_dict(), "findings": found, "notes": notes})
    else:
        print(f"{machine.title}: device {machine.device}, {machine.threads} threads")
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

    project = _project(options)
    chapters = project.chosen(options.claims)
    machine = measure.describe_machine(options.device)
    if options.parameter and options.results is None:  # a trial leaves the book's records alone
        trials = project.build / "trials"
        project = replace(project, results=trials / "results", build=trials / "build")
    _, failures = _run_chapters(project, chapters, options, machine)
    _print_verdicts(project, chapters, machine)
    print(f"records in {project.results}")
    return _exit_code(failures)


def book(options: argparse.Namespace) -> int:
    """Measure what is stale, refresh the pages, build the HTML."""
    from prefill_decode import book as publishing
    from prefill_decode import measure, results

    project = _project(options)
    machine = measure.describe_machine(options.device)
    project.repository_url()  # a fault there should stop the book before it measures
    runs, failures = _run_chapters(project, project.chapters(), options, machine)
    if INTERRUPTED in failures.values():
        return INTERRUPTED
    records, problems = results.load_all(project.results)
    _warn(problems)
    print("building the pages ...", file=sys.stderr)
    reasons = {chapter: str(reason) for chapter, reason in failures.items()}
    source = publishing.stage(project, runs, reasons, records, machine.slug, options.repository_url)
    cover = publishing.build_html(project, source)
    _print_verdicts(project, project.chapters(), machine)
    print(f"\nopen {cover}")
    return FINDING if failures or problems else FINE


def show_results(options: argparse.Namespace) -> int:
    """Every verdict on every machine; or pin this machine's runs as the baseline."""
    from prefill_decode import book as publishing
    from prefill_decode import results

    project = _project(options)
    if options.results and not project.results.is_dir():
        raise ValueError(f"no such folder: {options.results}; records lie in book/results")
    if options.accept is not None:
        return _accept(project, options)
    records, problems = results.load_all(project.results)
    _warn(problems)
    if options.write_readme:
        publishing.refresh_readme(project, records, project.root / "README.md")
    if options.json:
        _print_json({"records": records, "problems": problems})
    else:
        print(publishing.claims_table(project, records))
    return UNUSABLE if problems else FINE


def trust(options: argparse.Namespace) -> int:
    """How often this machine errs when codes are compared: equal ones, and one that was slowed."""
    from prefill_decode import paired
    from prefill_decode.book.run import measuring_alone

    project = _project(options)
    project.prepare()
    with measuring_alone(project):
        study = paired.run_study(
            project.root,
            project.build / "trust",
            sessions=options.sessions,
            budget_s=options.budget,
            device=options.device,
            chapter_runs=options.chapter_runs,
            run_chapter_once=_chapter_runner(project, options.device),
            again=options.again,
            say=lambda words: print(words, file=sys.stderr, flush=True),
        )
    path = options.out or project.results / "trust" / f"{study['machine']['slug']}.json"
    paired.save_study(study, path)
    print(f"{paired.summary(study)}\nthe study is in {path}")
    return FINE


def _accept(project: "Project", options: argparse.Namespace) -> int:
    """Pin the last runs on this machine, a refuted claim's too: that is a result, and is named."""
    from prefill_decode import measure, results

    machine = measure.describe_machine(options.device)
    claims = project.chosen(options.accept)
    if not options.accept:
        claims = [c for c in claims if (project.results / c / f"{machine.slug}.json").exists()]
    if not claims:
        raise ValueError(f"no claim has a record on {machine.title} to pin: run some first")
    paths = results.accept(project.results, claims, machine.slug)
    for claim, path in zip(claims, paths, strict=True):
        runs = results.read_runs(path)
        refuted = f"; refuted: {runs[-1].reason}" if runs[-1].outcome == "refuted" else ""
        print(f"{claim}: {len(runs)} run{'s' if len(runs) > 1 else ''} pinned{refuted}\n    {path}")
    print("\nThe baseline moves when these files are committed and the commit is reviewed.")
    return FINE


def compare(options: argparse.Namespace) -> int:
    """Hold runs against earlier ones, or code against earlier code: what became worse."""
    from prefill_decode import gate, results

    if options.code:
        return _compare_code(options)
    if options.budget is not None:
        raise ValueError("--budget is for --code; records were measured with budgets of their own")
    checkout = results.find_checkout(Path.cwd())
    base, current = gate.read_sources(options.base, options.current, checkout)
    problems = (*base.problems, *current.problems)
    _warn(problems)
    report = gate.compare(base.as_base, current.runs, base.pinned, options.tolerance)
    if report.failed and options.remeasure:
        report = _judge_again(options, base, current, report)
    report = replace(report, problems=problems)
    if options.json:
        _print_json(report.as_dict())
    else:
        print(report.markdown())
    if problems:
        return UNUSABLE
    return FINDING if report.failed else FINE


def _compare_code(options: argparse.Namespace) -> int:
    """Measure two states of the library in turns, on this machine, now."""
    from prefill_decode import gate, paired, results

    checkout = results.find_checkout(Path.cwd())
    with (
        gate.code_of(options.base, checkout) as base,
        gate.code_of(options.current, checkout) as current,
    ):
        if gate.digest_of_code(base) == gate.digest_of_code(current):
            note = "The library is the same on both sides: nothing to measure."
            if options.json:
                _print_json({"failed": False, "note": note})
            else:
                print(note)
            return FINE
        report = paired.compare_code(
            base,
            current,
            device=options.device,
            budget_s=paired.BUDGET_S if options.budget is None else options.budget,
            tolerance=options.tolerance,
            say=lambda words: print(words, file=sys.stderr, flush=True),
        )
    report = replace(report, base=options.base, current=options.current)
    if options.json:
        _print_json(report.as_dict())
    else:
        print(report.markdown())
    return FINDING if report.failed else FINE


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
    runs = [*current.runs, *again.runs]
    second = gate.compare(base.as_base, runs, base.pinned, options.tolerance)
    report = gate.confirm(first, second, again.measured)
    return replace(report, notes=(*report.notes, *again.notes))


def show_hardware(options: argparse.Namespace) -> int:
    """Accelerators: dense peaks, bandwidth, ridge, capacity, link, power, source."""
    from prefill_decode import hardware

    dtype = hardware.check_dtype(options.dtype)
    if options.name is not None:
        row = hardware.accelerator(options.name)
        if options.json:
            _print_json(row.as_dict(dtype))
        else:
            print(hardware.description(row, dtype))
        return FINE
    rows = hardware.accelerators()
    if options.json:
        _print_json({"accelerators": [row.as_dict(dtype) for row in rows]})
    else:
        print(hardware.table(rows, dtype))
    return FINE


def certify(options: argparse.Namespace) -> int:
    """Whether physics permits a claimed TPOT, TTFT or token rate, with the arithmetic."""
    from prefill_decode import certify as certifying

    certificate = _certificate(options)
    if options.json:
        _print_json(certificate.as_dict())
    else:
        print(certifying.report(certificate))
    return FINDING if certificate.finding else FINE


def _certificate(options: argparse.Namespace) -> "Certificate":
    from prefill_decode import certify as certifying
    from prefill_decode import hardware, hf_config

    model = hf_config.find(options.model, hardware.check_dtype(options.dtype))
    row = hardware.accelerator(options.accelerator)
    context, devices = options.context, options.devices
    if (options.ttft is None) != (options.prompt is None):
        raise ValueError("--ttft and --prompt go together: the time to read a prompt, its tokens")
    if options.ttft is not None:
        return certifying.certify_ttft(
            model,
            row,
            certifying.parse_duration(options.ttft),
            prompt_tokens=options.prompt,
            batch=1 if options.batch is None else options.batch,
            cached_tokens=context,
            devices=devices,
        )
    if options.tpot is not None:
        return certifying.certify_tpot(
            model,
            row,
            certifying.parse_duration(options.tpot),
            batch=1 if options.batch is None else options.batch,
            context_tokens=context,
            devices=devices,
        )
    return certifying.certify_tokens_per_s(
        model,
        row,
        options.tokens_per_s,
        batch=options.batch,
        context_tokens=context,
        devices=devices,
    )


def model(options: argparse.Namespace) -> int:
    """A model's arithmetic, from a shipped name, a config.json or the folder that holds one."""
    from prefill_decode import hf_config, model_spec

    found = model_spec.figures(hf_config.find(options.model, options.dtype), options.context)
    if options.json:
        _print_json(found)
    else:
        print(model_spec.figures_text(found))
    return FINE


def _run_chapters(
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


def _chapter_runner(project: "Project", device: str) -> "Callable[[], Run]":
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


def _exit_code(failures: dict[str, Any]) -> int:
    if INTERRUPTED in failures.values():
        return INTERRUPTED
    return FINDING if failures else FINE


def _print_verdicts(project: "Project", chapters: Sequence[str], machine: "Machine") -> None:
    from prefill_decode import results
    from prefill_decode.book.pages import verdict_lines

    records, _ = results.load_all(project.results)
    print(f"\nverdicts on {machine.title}:")
    print("\n".join(verdict_lines(chapters, records, machine.slug)))


def _project(options: argparse.Namespace) -> "Project":
    from prefill_decode.book import find_project

    return find_project(Path.cwd(), options.results, options.build)


def _warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"prefill-decode: {problem}", file=sys.stderr)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def _positive_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds; got {text!r}")
    return value


def _positive_whole_seconds(text: str) -> int:
    return max(1, round(_positive_seconds(text)))


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 3:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 999; got {text!r}")
    return int(text)


def _folder(text: str) -> Path:
    path = Path(text)
    try:
        is_something_else = path.exists() and not path.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a folder; {error.strerror}") from error
    if is_something_else:
        raise argparse.ArgumentTypeError(f"must be a folder, no such folder: {text!r} is a file")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefill-decode", description="The book on LLM inference that measures itself."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, function: Any, *, device: bool = True) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=function.__doc__, description=function.__doc__)
        added.set_defaults(verb=function)
        if device:
            added.add_argument(
                "--device",
                default="auto",
                choices=["auto", "cpu", "cuda", "mps"],
                help="what to measure on (default: the fastest there is)",
            )
        return added

    def folders(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--results", type=_folder, metavar="FOLDER", help="records (book/results)"
        )
        added.add_argument(
            "--build", type=_folder, metavar="FOLDER", help="generated files (_build)"
        )

    def measuring(added: argparse.ArgumentParser) -> None:
        folders(added)
        added.add_argument(
            "-p",
            "--parameter",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="set a parameter of the notebooks; may be repeated",
        )
        added.add_argument(
            "--budget",
            type=_positive_seconds,
            metavar="SECONDS",
            help="about how long each notebook measures, in six rounds at least (default: 35)",
        )
        added.add_argument(
            "--timeout",
            type=_positive_whole_seconds,
            default=1800,
            metavar="SECONDS",
            help="longest that one cell may run (default: 1800)",
        )
        added.add_argument("--again", action="store_true", help="measure again what is up to date")

    folders(verb("list", list_claims))
    verb("doctor", doctor).add_argument("--json", action="store_true")
    runs = verb("run", run)
    runs.add_argument(
        "claims", nargs="*", metavar="CLAIM", help="as `list` names them; all if none"
    )
    measuring(runs)
    building = verb("book", book)
    measuring(building)
    building.add_argument("--repository-url", metavar="URL", help="links point there (for forks)")
    showing = verb("results", show_results)
    folders(showing)
    showing.add_argument("--json", action="store_true")
    showing.add_argument(
        "--write-readme", action="store_true", help="refresh the README's table and figure"
    )
    showing.add_argument(
        "--accept",
        nargs="*",
        metavar="CLAIM",
        help="pin the last runs on this machine as the baseline, of these claims or of all",
    )
    studying = verb("trust", trust)
    folders(studying)
    _add_trust(studying)
    _add_compare(verb("compare", compare))
    _add_hardware(verb("hardware", show_hardware, device=False))
    _add_certify(verb("certify", certify, device=False))
    modelling = verb("model", model, device=False)
    modelling.add_argument("model", metavar="CONFIG|NAME", help="a config.json, or a model's name")
    modelling.add_argument("--dtype", help="of the weights (default: the config's, else bfloat16)")
    modelling.add_argument(
        "--context", type=int, metavar="TOKENS", help="also price attention over so many tokens"
    )
    modelling.add_argument("--json", action="store_true")
    return parser


def _add_trust(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--sessions", type=int, default=16, metavar="N", help="of fresh processes each (16)"
    )
    added.add_argument(
        "--budget",
        type=_positive_seconds,
        default=40.0,
        metavar="SECONDS",
        help="of a session, for each of three sorts of pairs (40)",
    )
    added.add_argument(
        "--chapter-runs", type=int, default=8, metavar="N", help="fresh runs of one chapter (8)"
    )
    added.add_argument("--out", type=Path, metavar="FILE", help="(book/results/trust/MACHINE.json)")
    added.add_argument("--again", action="store_true", help="measure again what is kept")


def _add_compare(added: argparse.ArgumentParser) -> None:
    where = "a folder of results, a record, a .jsonl file of runs, or a git revision"
    added.add_argument("base", metavar="BASE", help=f"{where}; with --code a checkout or revision")
    added.add_argument("current", metavar="CURRENT", help="likewise; . is this checkout")
    added.add_argument(
        "--tolerance", type=float, default=0.10, help="share by which it may get worse (0.10)"
    )
    added.add_argument(
        "--code", action="store_true", help="measure both codes in turns, instead of records"
    )
    added.add_argument(
        "--budget", type=_positive_seconds, metavar="SECONDS", help="of --code, in turns (40)"
    )
    added.add_argument(
        "--remeasure",
        type=_count,
        default=2,
        metavar="N",
        help="measure what got worse so many times more before believing it (2)",
    )
    added.add_argument("--json", action="store_true")


def _add_hardware(added: argparse.ArgumentParser) -> None:
    added.add_argument("name", nargs="?", metavar="NAME", help="one accelerator; all if none")
    added.add_argument("--dtype", default="bfloat16", help="of peak and ridge (bfloat16)")
    added.add_argument("--json", action="store_true")


def _add_certify(added: argparse.ArgumentParser) -> None:
    added.add_argument("--model", required=True, help="a name, or a path to a config.json")
    added.add_argument("--accelerator", required=True, help="as `hardware` names them")
    added.add_argument("--devices", type=int, default=1, help="how many share the model (1)")
    added.add_argument("--dtype", default="bfloat16", help="of weights and KV cache (bfloat16)")
    added.add_argument("--batch", type=int, help="sequences in a step (1; of a rate, any)")
    added.add_argument("--context", type=int, default=0, help="tokens cached before the step (0)")
    added.add_argument("--prompt", type=int, help="with --ttft: its new tokens")
    claim = added.add_mutually_exclusive_group(required=True)
    claim.add_argument("--tpot", metavar="TIME", help="time per output token: 0.0042, 4.2ms, 300us")
    claim.add_argument("--ttft", metavar="TIME", help="time to first token")
    claim.add_argument("--tokens-per-s", type=float, help="output tokens of all sequences")
    added.add_argument("--json", action="store_true")


if __name__ == "__main__":
    sys.exit(main())
