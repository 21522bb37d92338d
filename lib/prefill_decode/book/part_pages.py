"""Part pages: for each part of the book, what its chapters found, as a table.

Which chapters a part has stands in _toc.yml. The numbers come from this machine's record of each
chapter, or else from the newest."""

import re
from collections.abc import Sequence

from prefill_decode.book.pages import machine_names
from prefill_decode.book.project import Project, read_yaml
from prefill_decode.book.results_pages import plain
from prefill_decode.plots.tables import SIGNS, format_interval, table
from prefill_decode.results import Record, interval_of
from prefill_decode.units import format_significant

HEADER = (
    "chapter, its first prediction",
    "verdict",
    "found, 95%",
    "claim expects",
    "rival expects",
)


def part_tables(project: Project, records: Sequence[Record], slug: str) -> dict[str, str]:
    """The table of every part with a page of its own, by that page's name with hyphens."""
    tables = {}
    for page, chapters in parts_of(project).items():
        chosen = {chapter: newest(records, chapter, slug) for chapter in chapters}
        rows = [_row(project.title(chapter), chapter, found) for chapter, found in chosen.items()]
        found = [record for record in chosen.values() if record is not None]
        text = f"{table(HEADER, rows)}\n\n{_whose(found, machine_names(records), slug)}"
        tables[page.replace("_", "-")] = text
    return tables


def parts_of(project: Project) -> dict[str, list[str]]:
    """Chapters by the page that opens their part, as _toc.yml has them."""
    parts: dict[str, list[str]] = {}
    for part in read_yaml(project.root / "_toc.yml")["parts"]:
        files = [str(each["file"]) for each in part["chapters"]]
        first = re.fullmatch(r"book/(part_\w+)", files[0])
        if first:
            parts[first[1]] = [
                file.removeprefix("notebooks/") for file in files if file.startswith("notebooks/")
            ]
    return parts


def newest(records: Sequence[Record], chapter: str, slug: str) -> Record | None:
    """A chapter's record on this machine, or else the newest; None without any."""
    mine = [record for record in records if record["claim"] == chapter]
    return max(mine, key=lambda r: (r["machine"]["slug"] == slug, r["date"]), default=None)


def _row(title: str, chapter: str, record: Record | None) -> tuple[str, ...]:
    link = f"[{title}](../notebooks/{chapter}.ipynb)"
    if record is None:
        return (link, "not run", "", "", "")
    outcome = record["verdict"]["outcome"]
    metric = next(m for m in record["metrics"] if m["role"] == "prediction")
    return (
        f"{link}<br>{plain(metric['name'])}",
        f"{SIGNS[outcome]} {outcome}",
        format_interval(interval_of(metric["measured"])),
        format_significant(metric["expected"]),
        format_significant(metric["rival"]),
    )


def _whose(records: Sequence[Record], names: dict[str, str], slug: str) -> str:
    """On which machines the numbers of a table were found."""
    if not records:
        return "No chapter of this part has been run yet."
    slugs = dict.fromkeys(record["machine"]["slug"] for record in records)
    here = [f"{plain(names[each])}{' (this machine)' if each == slug else ''}" for each in slugs]
    simulated = any(record["simulated"] for record in records)
    tail = " A chapter on fleets simulates, and says so." if simulated else ""
    machines = " and ".join(filter(None, [", ".join(here[:-1]), here[-1]]))
    return f"Found on {machines}.{tail}"
