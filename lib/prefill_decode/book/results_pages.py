"""Results pages: every claim on every machine side by side, and run after run.

Each chapter has a page for its machines and one for its history, so that a page does not grow with
the book; two pages above them have a row for each chapter.

A difference between machines is called surprising where their intervals do not overlap. That is a
screen and no proof: an interval covers the median of one run, and another hour's run moves further
than it says. The page on trust shows by how much."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from prefill_decode.book.project import Project
from prefill_decode.book.surprises import findings, findings_by_claim, no_findings
from prefill_decode.plots.history_figures import (
    LEAST_RUNS,
    MOST_RUNS,
    history_figure,
    history_finding,
    holding,
    shown_value,
)
from prefill_decode.plots.machine_figures import (
    MOST_MACHINES,
    done_of,
    in_order,
    labels,
    machines_figure,
    panels_of,
    shown_of,
)
from prefill_decode.plots.tables import (
    SIGNS,
    judgement_header,
    judgement_row,
    table,
)
from prefill_decode.results import STEP_PREFIXES, Record, Run, interval_of, run_of

MACHINES_FOLDER, HISTORY_FOLDER = "results_by_machine", "history"  # below book/
TABLE_RUNS = 10
LARGEST_HISTORY_BYTES = 350_000  # of Markdown; tables and the theme's frame add up to 100 kB
FEWER_RUNS = (MOST_RUNS, 30, 15, 8)
STEP_QUANTITIES = dict(
    zip(STEP_PREFIXES, ("Share of the possible, by step", "Time, by step"), strict=True)
)


MACHINES_LEGEND = (
    "A point is the median with its interval, the blue line what the claim expects on that "
    "machine, the dashed one what its strongest rival expects, and the shade the claim's side. "
    "Each machine has lines of its own, because expectations are computed from ceilings measured "
    "there."
)
SIMULATED_LEGEND = (
    "A point is the median with its interval, the blue line what the claim expects, the dashed one "
    "what its strongest rival expects, and the shade the claim's side. The numbers are simulated "
    "for data-sheet hardware; the machines only computed them."
)
HISTORY_LEGEND = (
    "A point is the median of a run with its interval; the band is the baseline, where there is "
    "one. The marks below are the verdicts; where runs stand too close, some ✓ are left out. A "
    "dotted line says that the parameters changed."
)


@dataclass(frozen=True)
class Chapter:
    name: str
    title: str


def chapters_of(project: Project) -> list[Chapter]:
    return [Chapter(name, project.title(name)) for name in project.chapters()]


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in a table as well."""
    return re.sub(r"([\\`*_{}\[\]<>|#$~^])", r"\\\1", " ".join(text.split()))


def committed_records(root: Path) -> set[tuple[str, str]] | None:
    """(claim, machine) of the records that the checkout's git tracks; None without git."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--", "book/results"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    paths = [Path(name) for name in done.stdout.split("\0") if name.endswith(".json")]
    return {(path.parent.name, path.stem) for path in paths}


def problems_note(problems: Sequence[str]) -> str:
    """A sentence for each file that could not be shown."""
    return "\n\n".join(f"Not shown: {plain(problem)}." for problem in problems)


def with_records(runs: Sequence[Run], records: Sequence[Record]) -> list[Run]:
    """The runs, and those of records that are not among them."""
    known = {run.run_id for run in runs}
    return [*runs, *(run for run in map(run_of, records) if run.run_id not in known)]


def write_results_pages(
    book: Path,
    chapters: Sequence[Chapter],
    records: Sequence[Record],
    runs: Sequence[Run],
    pinned: Sequence[Run],
    slug: str,
    committed: set[tuple[str, str]] | None = None,
) -> None:
    """Both pages of every chapter, below the folder BOOK."""
    for folder in (MACHINES_FOLDER, HISTORY_FOLDER):
        (book / folder).mkdir()
    for chapter in chapters:
        machines = machines_page(chapter, records, slug, committed)
        (book / MACHINES_FOLDER / f"{chapter.name}.md").write_text(machines, encoding="utf-8")
        past = history_page(chapter, runs, pinned, slug)
        (book / HISTORY_FOLDER / f"{chapter.name}.md").write_text(past, encoding="utf-8")


def machines_page(
    chapter: Chapter,
    records: Sequence[Record],
    slug: str,
    committed: set[tuple[str, str]] | None = None,
) -> str:
    """One chapter's machines: a figure, what is surprising on this one, and every number."""
    mine = [record for record in records if record["claim"] == chapter.name]
    runs = in_order([run_of(record) for record in mine], slug)
    legend = SIMULATED_LEGEND if runs and runs[0].is_simulated else MACHINES_LEGEND
    lines = [
        f"(machines-{chapter.name})=\n# By machine: {chapter.title}\n",
        f"{_chapter_link(chapter)} on every machine that has a record of it. {legend} "
        f"The same numbers [run after run](../{HISTORY_FOLDER}/{chapter.name}"
        f".md); [all chapters by machine](../{MACHINES_FOLDER}.md).\n",
    ]
    lines += machines_section(runs, slug, committed) if mine else ["Not run yet.\n"]
    order = {run.machine["slug"]: place for place, run in enumerate(runs)}
    names = labels(runs, slug)
    for record in sorted(mine, key=lambda record: order[record["machine"]["slug"]]):
        lines.append(_record_section(record, names[record["machine"]["slug"]]))
    return "\n".join(lines)


def _chapter_link(chapter: Chapter) -> str:
    return f"[{chapter.title}](../../notebooks/{chapter.name}.ipynb)"


def machines_section(
    runs: Sequence[Run], slug: str, committed: set[tuple[str, str]] | None = None
) -> list[str]:
    """The figure of one claim's runs, whose they are, and where this machine stands apart."""
    lines = [f"{_whose(runs, slug, committed)}\n"]
    if panels_of(runs):
        lines.append(f"{machines_figure(runs, slug)._repr_html_()}\n")
    if len(runs) > MOST_MACHINES:
        lines.append(
            f"The figure shows {MOST_MACHINES} of {len(runs)} machines, the most recently "
            f"{done_of(runs[0])}; the tables show all.\n"
        )
    return [*lines, f"{surprises(runs, slug)}\n"]


def surprises(runs: Sequence[Run], slug: str) -> str:
    """Where this machine's interval overlaps that of no other machine, in a sentence each."""
    ordered = in_order(runs, slug)
    mine, others = ordered[0], ordered[1:]
    if mine.machine["slug"] != slug:
        return "This machine has no result for this claim to compare."
    if not others:
        done = done_of(mine)
        return f"No other machine has {done} this claim yet, so nothing can be surprising here."
    if clauses := findings(runs, slug):
        return f"**Surprising here:** {plain('; '.join(clauses))}."
    return _no_surprise(mine, others)


def surprising_here(chapters: Sequence[Chapter], records: Sequence[Record], slug: str) -> str:
    """Where this machine stands apart from all others: a point for each chapter, or a sentence."""
    found = findings_by_claim([chapter.name for chapter in chapters], records, slug)
    points = [
        f"- [{chapter.title}]({MACHINES_FOLDER}/{chapter.name}.md): {plain('; '.join(clauses))}."
        for chapter in chapters
        if (clauses := found.get(chapter.name))
    ]
    return "\n".join(points) or f"{no_findings(found).capitalize()}."


def history_overview(chapters: Sequence[Chapter], runs: Sequence[Run], slug: str) -> str:
    """The verdicts of every chapter's last runs on every machine, oldest first."""
    titles = labels(runs, slug)
    slugs = [run.machine["slug"] for run in in_order(runs, slug)]
    rows = [
        [
            f"[{chapter.title}]({HISTORY_FOLDER}/{chapter.name}.md)",
            *(_last_verdicts(_runs_on(runs, chapter, each)) for each in slugs),
        ]
        for chapter in chapters
    ]
    return table(["claim", *(_heading(titles[each]) for each in slugs)], rows)


def _runs_on(runs: Sequence[Run], chapter: Chapter, slug: str) -> list[Run]:
    """One chapter's on one machine, oldest first."""
    own = [run for run in runs if (run.claim, run.machine["slug"]) == (chapter.name, slug)]
    return sorted(own, key=lambda run: run.date)


def _last_verdicts(runs: Sequence[Run]) -> str:
    marks = "".join(SIGNS[run.outcome] for run in runs[-TABLE_RUNS:])
    return f"{'… ' if len(runs) > TABLE_RUNS else ''}{marks}" if runs else "not run"


def history_page(chapter: Chapter, runs: Sequence[Run], pinned: Sequence[Run], slug: str) -> str:
    """One chapter's runs on every machine, with fewer of them where the page would be large."""
    opening = (
        f"(history-{chapter.name})=\n# History: {chapter.title}\n\n"
        f"{_chapter_link(chapter)} run after run, oldest on the left. {HISTORY_LEGEND} The newest "
        f"runs [machine by machine](../{MACHINES_FOLDER}/{chapter.name}.md); "
        f"[all histories](../{HISTORY_FOLDER}.md).\n\n"
    )
    text = ""
    for most in FEWER_RUNS:
        text = _histories_by_machine(chapter, runs, pinned, slug, most)
        if len(text.encode()) <= LARGEST_HISTORY_BYTES:
            break
    return opening + (text or "Not run yet.\n")


def _histories_by_machine(
    chapter: Chapter, runs: Sequence[Run], pinned: Sequence[Run], slug: str, most: int
) -> str:
    mine = [run for run in runs if run.claim == chapter.name]
    names = labels(mine, slug)
    lines = []
    drawn = {run.machine["slug"] for run in shown_of(mine, slug)}
    for newest in in_order(mine, slug):
        here = newest.machine["slug"]
        lines.append(f"## {_heading(names[here])}\n")
        own = _runs_on(runs, chapter, here)
        if here in drawn:
            lines += history_section(own, _runs_on(pinned, chapter, here), most)
        else:
            told = f"Figures and earlier runs are of {MOST_MACHINES} other machines.\n"
            lines += [told, _last_runs(own[-1:]), ""]
    return "\n".join(lines)


def history_section(runs: Sequence[Run], pinned: Sequence[Run], most: int = MOST_RUNS) -> list[str]:
    """One chapter on one machine: its predictions, its steps folded, its last runs in a table."""
    ordered = sorted(runs, key=lambda run: run.date)
    newest = ordered[-1]
    lines = []
    if len(ordered) < LEAST_RUNS:
        lines.append(
            f"One run so far, of {newest.date[:10]}: {SIGNS[newest.outcome]} {newest.outcome}. "
            "A history needs another.\n"
        )
    if len(ordered) > most:
        lines.append(f"The figures show the last {most} of {len(ordered)} runs.\n")
    if len(ordered) >= LEAST_RUNS:
        lines += _histories(ordered, pinned, most)
    return [*lines, _last_runs(ordered), ""]


def _histories(runs: Sequence[Run], pinned: Sequence[Run], most: int) -> list[str]:
    names = list(dict.fromkeys(name for run in reversed(runs) for name in run.quantities))
    predicted = dict.fromkeys(name for run in reversed(runs) for name in run.expected)
    first = [_history(runs, name, pinned, most) for name in predicted if name in names]
    steps = {
        words: [name for name in names if name.startswith(prefix) and name not in predicted]
        for prefix, words in STEP_QUANTITIES.items()
    }
    folded = {name for group in steps.values() for name in group} | set(predicted)
    groups = {"Controls": [name for name in names if name not in folded]} | steps
    more = [
        _folded(words, [_history(runs, name, pinned, most) for name in group])
        for words, group in groups.items()
        if group
    ]
    return ["\n".join(first) + "\n", *more]


def _history(runs: Sequence[Run], name: str, pinned: Sequence[Run], most: int) -> str:
    """The figure below its finding; the finding alone where one run holds the quantity."""
    finding = f"<p>{escape(history_finding(runs, name, pinned))}</p>"
    enough = len(holding(runs, name)[-most:]) >= LEAST_RUNS
    picture = history_figure(runs, name, pinned, most).svg if enough else ""
    return f'<div class="history">{finding}{picture}</div>'


def _folded(words: str, pictures: Sequence[str]) -> str:
    summary = f"<summary>{words} ({len(pictures)})</summary>"
    return f'<details class="more">{summary}\n' + "\n".join(pictures) + "\n</details>\n"


def _last_runs(runs: Sequence[Run]) -> str:
    """The last runs, newest first: date, commit, verdict, every prediction with its interval."""
    last = list(reversed(runs))[:TABLE_RUNS]
    names = list(dict.fromkeys(name for run in last for name in run.expected))
    rows = [
        [
            run.date[:10],
            plain(run.commit or "unknown"),
            f"{SIGNS[run.outcome]} {run.outcome}",
            *(_shown(run, name) for name in names),
        ]
        for run in last
    ]
    return table(["date", "commit", "verdict", *map(plain, names)], rows)


def _shown(run: Run, name: str) -> str:
    if name not in run.quantities:
        return f"not {done_of(run)}"
    quantity = run.quantities[name]
    return shown_value(quantity.measured, quantity.unit)


def _whose(runs: Sequence[Run], slug: str, committed: set[tuple[str, str]] | None) -> str:
    """Which of the results were made here and which came with the book."""
    titles = labels(runs, slug)
    others = ", ".join(plain(title) for each, title in titles.items() if each != slug)
    mine = next((run for run in runs if run.machine["slug"] == slug), None)
    if mine is None:
        return f"The book's: {others}. This machine has not {done_of(runs[0])} it."
    title = plain(titles[slug].removeprefix("this machine: "))
    if committed is not None and (mine.claim, slug) not in committed:
        return f"{done_of(mine).capitalize()} here: {title}." + (
            f" The book's: {others}." if others else ""
        )
    return f"This machine: {title}." + (f" Others: {others}." if others else "")


def _no_surprise(mine: Run, others: Sequence[Run]) -> str:
    compared = [
        name
        for name in mine.expected
        if any(name in run.expected and name in run.quantities for run in others)
    ]
    if not compared:
        return "The other machines made this claim's predictions at other sizes: nothing compares."
    return "Nothing surprising here: no prediction lies apart from those of all other machines."


def _record_section(record: Record, label: str) -> str:
    rows = [
        judgement_row(
            plain(("control: " if metric["role"] == "control" else "") + metric["name"]),
            metric["outcome"],
            interval_of(metric["measured"]),
            metric["expected"],
            metric["rival"],
        )
        for metric in record["metrics"]
    ]
    verdict, model = record["verdict"], record["model"]
    return (
        f"## {_heading(label)}\n\n"
        f"{SIGNS[verdict['outcome']]} **{verdict['outcome']}**: {plain(verdict['reason'])}.\n\n"
        f"{table(judgement_header(_seen(record)), rows)}\n\n"
        f"{record['date'][:10]}, {plain(model['name'])} in {plain(model['dtype'])}"
        f"{'; simulated, not measured' if record['simulated'] else ''}.\n"
    )


def _seen(record: Record) -> str:
    return "simulated" if record["simulated"] else "measured"


def _heading(label: str) -> str:
    return plain(label.replace("this machine: ", "This machine: ", 1))
