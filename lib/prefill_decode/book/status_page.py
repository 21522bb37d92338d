"""Status page: when and with which code each chapter was last run on this machine, and what time
and memory that took.

A run's time is that of the whole notebook, as papermill noted it; the record says how much of it
was measuring, and the most memory that its process held."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

from prefill_decode.book.project import Project, read_notebook
from prefill_decode.plots.tables import SIGNS, table
from prefill_decode.results import Record
from prefill_decode.units import format_bytes

HEADER = ("chapter", "verdict", "run took", "measured for", "memory", "device", "date", "commit")
UNKNOWN, NOT_RUN = "unknown", "not run"


def status_page(
    project: Project, runs: Mapping[str, Path], records: Sequence[Record], slug: str
) -> str:
    """A row for each chapter and what the whole book took; `runs` are executed notebooks."""
    by_claim = {r["claim"]: r for r in records if r["machine"]["slug"] == slug}
    took_s = {chapter: run_time_s(path) for chapter, path in runs.items()}
    chapters = project.chapters()
    rows = [
        (
            f"[{project.title(chapter)}](../notebooks/{chapter}.ipynb)",
            *_cells(by_claim.get(chapter), took_s.get(chapter)),
        )
        for chapter in chapters
    ]
    return f"{whole_book(chapters, took_s, by_claim)}\n\n{table(HEADER, rows)}"


def run_time_s(notebook: Path) -> float | None:
    """How long an executed notebook took; None if it does not say."""
    duration = read_notebook(notebook).metadata.get("papermill", {}).get("duration")
    known = isinstance(duration, int | float) and isfinite(duration)
    return float(duration) if known else None


def whole_book(
    chapters: Sequence[str],
    took_s: Mapping[str, float | None],
    by_claim: Mapping[str, Record],
) -> str:
    """The sum of what the chapters took here, and of how many."""
    known = [took_s[chapter] for chapter in chapters if chapter in took_s]
    times_s = [time_s for time_s in known if time_s is not None]
    if not times_s or not by_claim:
        return "No chapter has been run on this machine yet."
    title = next(iter(by_claim.values()))["machine"]["title"]
    counted = "all" if len(times_s) == len(chapters) else f"{len(times_s)} of"
    return (
        f"On {title}, {counted} {len(chapters)} chapters took {format_minutes(sum(times_s))} "
        "together, the set-up and the pages not counted."
    )


def format_minutes(time_s: float) -> str:
    """A long time to the second: 12 min 5 s."""
    minutes, seconds = divmod(round(time_s), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def _cells(record: Record | None, took_s: float | None) -> tuple[str, ...]:
    took = format_minutes(took_s) if took_s is not None else UNKNOWN
    if record is None:
        return (NOT_RUN, *("" for _ in HEADER[2:]))
    outcome = record["verdict"]["outcome"]
    simulated = " of simulating" if record["simulated"] else ""
    memory_bytes = record["peak_memory_bytes"]
    return (
        f"{SIGNS[outcome]} {outcome}",
        took,
        f"{format_minutes(record['measuring_s'])}{simulated}",
        format_bytes(memory_bytes) if memory_bytes else UNKNOWN,
        record["machine"]["device"],
        record["date"][:10],
        f"`{record['commit']}`" if record["commit"] else UNKNOWN,
    )
