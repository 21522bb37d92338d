"""Pages: what the book says about records, as Markdown: verdict tables, provenance, the README's
table.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prefill_decode.book.project import Project
from prefill_decode.hardware import Hardware
from prefill_decode.plots import Figure, phases_on_the_roofline
from prefill_decode.plots.machine_figures import distinct_titles
from prefill_decode.plots.request_figures import life_of, request_life
from prefill_decode.plots.tables import SIGNS, table
from prefill_decode.results import Record, write_atomically
from prefill_decode.units import format_bytes

ROOFLINE_CLAIM = "prefill_is_compute_bound"
LONG_LIST = 12  # values; the strip shows the first few of a longer one


def claims_table(
    project: Project, records: Sequence[Record], link: str | None = None, slug: str | None = None
) -> str:
    """Every claim and its verdict on every recorded machine, SLUG's first; titles link to
    LINK, in which {} stands for the chapter."""
    machines = machine_names(records, slug)
    verdicts = {(r["claim"], r["machine"]["slug"]): r["verdict"]["outcome"] for r in records}
    rows = []
    for chapter in project.chapters():
        outcomes = [verdicts.get((chapter, slug)) for slug in machines]
        cells = [f"{SIGNS[outcome]} {outcome}" if outcome else "not run" for outcome in outcomes]
        title = project.title(chapter)
        rows.append([f"[{title}]({link.format(chapter)})" if link else title, *cells])
    return table(["claim", *machines.values()], rows)


def machine_names(records: Sequence[Record], slug: str | None = None) -> dict[str, str]:
    """What each recorded machine is called, no two alike; SLUG's first, the others by name."""
    titles = {record["machine"]["slug"]: str(record["machine"]["title"]) for record in records}
    names = distinct_titles(titles)
    return dict(sorted(names.items(), key=lambda item: (item[0] != slug, item[1], item[0])))


def machine_marks(records: Sequence[Record]) -> str:
    """What the marks behind names say, where machines share one; else nothing."""
    titles = {record["machine"]["slug"]: record["machine"]["title"] for record in records}
    if len(set(titles.values())) == len(titles):
        return ""
    return (
        "Machines of one name are told apart by the mark in brackets, the end of their records' "
        "file names. "
    )


def folding_words(cells: str) -> str:
    """A table of verdicts whose words a narrow screen leaves out: the signs stay."""
    signs, words = "".join(SIGNS.values()), "|".join(SIGNS)
    signed = re.sub(rf"([{signs}]) ({words}) \|", r'\1 <span class="word">\2</span> |', cells)
    return signed.replace(" not run |", ' <span class="word">not run</span> |')


def asymmetry(records: Sequence[Record], slug: str) -> str:
    """The cover's two figures, both of one record, each below a line; empty without a record."""
    chosen = _roofline_record(records, slug)
    if chosen is None:
        return ""
    machine = machine_names(records)[chosen["machine"]["slug"]]
    figures = {
        f"One request, timed on {machine}:": request_figure(records, slug),
        f"Steps by what limits them, on {machine}:": phases_figure(records, slug),
    }
    shown = [f"{line}\n\n{each._repr_html_()}" for line, each in figures.items() if each]
    return "\n\n".join(shown)


def request_figure(records: Sequence[Record], prefer_slug: str | None = None) -> Figure | None:
    """One request's life from the same record as `phases_figure`; None if it holds none."""
    chosen = _roofline_record(records, prefer_slug)
    if chosen is None:
        return None
    life = life_of(chosen["points"], chosen["timings"]["raw_s"], chosen["timings"]["disturbed"])
    return request_life(life, chosen["machine"]["title"]) if life else None


def phases_figure(records: Sequence[Record], prefer_slug: str | None = None) -> Figure | None:
    """The roofline with a decode and the prefills of one record on it: this machine's, or the
    newest.
    """
    chosen = _roofline_record(records, prefer_slug)
    if chosen is None:
        return None
    ceilings = chosen["ceilings"]
    hardware = Hardware(
        chosen["machine"]["title"],
        ceilings["dtype"],
        ceilings["during"]["peak_flops_per_s"],
        ceilings["during"]["bandwidth_bytes_per_s"],
        ceilings["source"],
    )
    return phases_on_the_roofline(_roofline_points(chosen), hardware)


def _roofline_record(records: Sequence[Record], prefer_slug: str | None) -> Record | None:
    """This machine's record with a decode and prefills to show, or the newest, a void one last;
    None without any."""
    candidates = [
        record
        for record in records
        if record["claim"] == ROOFLINE_CLAIM and len(_roofline_points(record)) > 1
    ]

    def rank(record: Record) -> tuple[bool, bool, str]:
        sound = record["verdict"]["outcome"] != "void"
        return sound, record["machine"]["slug"] == prefer_slug, record["date"]

    return max(candidates, key=rank, default=None)


def _roofline_points(record: Record) -> list[dict[str, Any]]:
    """The decode and the prefills of more than one token, by rising intensity."""
    steps = [p for p in record["points"] if p["new_tokens"] > 1 or p["step"].startswith("decode")]
    return sorted(steps, key=lambda point: float(point["flops"] / point["bytes"]))


def provenance(record: Record) -> str:
    """A chapter's verdict, and where its numbers come from, in one strip."""
    machine, model = record["machine"], record["model"]
    values = [f"{name} = {_plain(value)}" for name, value in record["parameters"].items()]
    facts = [
        f"**{machine['title']}**",
        record["date"][:10],
        _cost(record),
        f"{model['name']}, {model['dtype']}",
        f"torch {machine['torch']}, Python {machine['python']}",
        *([] if record["simulated"] else [f"products: {machine['products'] or 'unknown'}"]),
        f"library {record['library_version']}, commit {record['commit'] or 'unknown'}",
        f"seed {record['seed']}, {', '.join(values)}",
        f"{{ref}}`compare with other machines <machines-{record['claim']}>`",
        f"{{ref}}`history <history-{record['claim']}>`",
    ]
    outcome = record["verdict"]["outcome"]
    verdict = f"**{SIGNS[outcome]} {outcome}** ([how to read a verdict](../book/how_to_read.md))."
    whence = f"{_whereabouts(record)} " + " · ".join(facts)
    return f":::{{div}} provenance\n{verdict} {whence}\n:::"


def _cost(record: Record) -> str:
    """What a run takes: time, memory where the record says it, device."""
    doing = "simulating" if record["simulated"] else "measuring"
    memory_bytes = record["peak_memory_bytes"]
    memory = [f"{format_bytes(memory_bytes)} of memory in its process"] if memory_bytes else []
    device = "GPU" if record["machine"]["device"] != "cpu" else "CPU"
    return ", ".join([f"about {record['measuring_s']:.0f} s of {doing}", *memory, device])


def _whereabouts(record: Record) -> str:
    """How the machine that is named next came into it."""
    simulated = record["simulated"]
    if simulated is None:
        return "Measured on"
    names = ", ".join(f"{each['name']} ({each['source']})" for each in simulated["hardware"])
    return f"Simulated with {simulated['num_seeds']} seeds, not measured, for {names}; computed on"


def fill(template: str, parts: Mapping[str, str]) -> str:
    """`template` with every <!-- name --> replaced by its part. ValueError for an unknown one."""

    def part(found: re.Match[str]) -> str:
        if found.group(1) not in parts:
            raise ValueError(f"a page asks for {found.group(0)}, but only {', '.join(parts)} exist")
        return parts[found.group(1)]

    return re.sub(r"<!-- ([a-z-]+) -->", part, template)


def refresh_readme(project: Project, records: Sequence[Record], readme: Path) -> None:
    """Rewrite the README's claims table and the figure it shows from the records."""
    text = readme.read_text(encoding="utf-8")
    rows = claims_table(project, records, "notebooks/{}.ipynb")
    pattern = r"(?s)(<!-- claims -->).*?(<!-- end of claims -->)"
    filled, count = re.subn(pattern, lambda found: f"{found[1]}\n{rows}\n{found[2]}", text)
    if count != 1:
        raise ValueError(
            f"{readme}: the table stands between <!-- claims --> and <!-- end of claims -->; "
            f"got {count} such places"
        )
    figure = phases_figure(records)
    if figure is not None:
        path = project.root / "book" / "results" / "phases.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, figure.standalone() + "\n")
    write_atomically(readme, filled)


def verdict_lines(chapters: Sequence[str], records: Sequence[Record], slug: str) -> list[str]:
    """One line a chapter for a terminal: its verdict on this machine and why."""
    verdicts = {r["claim"]: r["verdict"] for r in records if r["machine"]["slug"] == slug}
    lines = []
    for chapter in chapters:
        verdict = verdicts.get(chapter)
        if verdict is None:
            lines.append(f"  - {chapter}: not run on this machine")
            continue
        outcome = verdict["outcome"]
        lines.append(f"  {SIGNS[outcome]} {chapter}: {outcome}; {verdict['reason']}")
    return lines


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    if not isinstance(value, list):
        return str(value)
    if len(value) > LONG_LIST:
        return f"{_plain(value[:3])}, … ({len(value)} values)"
    return ", ".join(map(_plain, value))
