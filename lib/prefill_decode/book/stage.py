"""Stage: mirror the checkout with executed notebooks and filled pages, and build HTML from the
mirror.

The mirror keeps every path of the checkout, so the links to source, Colab, Binder and download
that Jupyter Book writes open files that are really there."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
import yaml

from prefill_decode import __version__
from prefill_decode.book.api_pages import api_contents, write_api_pages
from prefill_decode.book.architecture_page import architecture_parts
from prefill_decode.book.atlas_page import atlas_table, measured_table
from prefill_decode.book.beside import beside_others
from prefill_decode.book.calculator_page import calculator_parts
from prefill_decode.book.decision_page import decision_parts, held_parts
from prefill_decode.book.glossary import Term, link_terms, read_terms
from prefill_decode.book.pages import (
    asymmetry,
    claims_table,
    fill,
    folding_words,
    machine_marks,
    machine_names,
    provenance,
)
from prefill_decode.book.part_pages import part_tables
from prefill_decode.book.project import Project, read_notebook, read_yaml
from prefill_decode.book.results_pages import (
    HISTORY_FOLDER,
    MACHINES_FOLDER,
    chapters_of,
    committed_records,
    history_overview,
    problems_note,
    surprising_here,
    with_records,
    write_results_pages,
)
from prefill_decode.book.run import check_outputs
from prefill_decode.book.site_address import site_address
from prefill_decode.book.site_files import name_toggles, write_site_files
from prefill_decode.book.social_card import CARD_NAME, Finding, newest_finding
from prefill_decode.book.social_card import draw as draw_card
from prefill_decode.book.status_page import status_page
from prefill_decode.book.trust_page import trust_parts
from prefill_decode.results import Record, baselines, history, load_all

NOT_RUN = """```{{warning}}
This chapter has not been run on this machine: {reason}
```"""

GLOSSARY = "glossary.md"
STRIP, BESIDE = "provenance", "beside-others"  # cells that staging adds
LIMITS = "## What this does not show"  # a chapter's section after the verdict
JUDGES = "plots.verdict_table("  # in the cell that shows the verdict
VERDICT = "verdict-heading"  # a cell that staging adds, so that the contents lead there


def stage(
    project: Project,
    runs: Mapping[str, Path],
    failures: Mapping[str, str],
    records: Sequence[Record],
    slug: str,
    repository_url: str | None = None,
) -> Path:
    """Build the mirror afresh under BUILD/src and return it.

    `runs` are executed notebooks by chapter; a chapter without one is staged as it is, with the
    reason in `failures` above it. `repository_url` replaces the address in _config.yml, for
    forks."""
    source = project.build / "src"
    shutil.rmtree(source, ignore_errors=True)
    (source / "notebooks").mkdir(parents=True)
    config = read_yaml(project.root / "_config.yml")
    original_url = project.repository_url()
    url = repository_url or original_url
    config["repository"]["url"] = url
    (source / "_config.yml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    contents = yaml.safe_dump(_contents(project), sort_keys=False, allow_unicode=True)
    (source / "_toc.yml").write_text(contents, encoding="utf-8")
    shutil.copytree(
        project.root / "book", source / "book", ignore=shutil.ignore_patterns("results")
    )
    terms = _terms(source)
    names = machine_names(records, slug)
    write_api_pages(source / "book" / "api")
    by_claim = {r["claim"]: r for r in records if r["machine"]["slug"] == slug}
    for chapter in project.chapters():
        notebook = read_notebook(runs.get(chapter, project.notebook(chapter)))
        note = (
            provenance(by_claim[chapter])
            if chapter in runs
            else NOT_RUN.format(reason=failures.get(chapter, "it was left out"))
        )
        published = publishable(notebook, note, beside_others(chapter, records, slug, names))
        _link_terms_of_cells(published, terms)
        for cell in published.cells:
            cell.source = cell.source.replace(original_url, url)
        nbformat.write(published, source / "notebooks" / f"{chapter}.ipynb")
    parts = _parts(project, records, slug, source / "book") | {
        "status": status_page(project, runs, records, slug),
        "repository": url,
    }
    for page in source.glob("book/*.md"):
        text = page.read_text(encoding="utf-8")
        if page.name != GLOSSARY:
            text = link_terms(text, terms, set())
        page.write_text(fill(text, parts), encoding="utf-8")
    return source


def _contents(project: Project) -> dict[str, Any]:
    """_toc.yml with the chapters' own pages below the two on results. The menu calls them as the
    chapters: what they are of stands above them there."""
    contents = read_yaml(project.root / "_toc.yml")
    for entry in (entry for part in contents["parts"] for entry in part["chapters"]):
        if entry["file"] in (f"book/{MACHINES_FOLDER}", f"book/{HISTORY_FOLDER}"):
            entry["sections"] = [
                {"file": f"{entry['file']}/{chapter.name}", "title": chapter.title}
                for chapter in chapters_of(project)
            ]
    return contents


def _parts(project: Project, records: Sequence[Record], slug: str, book: Path) -> dict[str, str]:
    """What the pages show, by the names that they ask for; some have pages below them in BOOK."""
    return {
        "claims": folding_words(claims_table(project, records, "../notebooks/{}.ipynb", slug)),
        "machine-marks": machine_marks(records),
        "asymmetry": asymmetry(records, slug),
        "atlas-short": atlas_table(32),
        "atlas-long": atlas_table(8192),
        "atlas-measured": measured_table(records),
        "api-contents": api_contents(),
        **architecture_parts(),
        **calculator_parts(),
        **part_tables(project, records, slug),
        **decision_parts(),
        **held_parts(project.chapters(), records),
        **_results_parts(project, records, slug, book),
    }


def _terms(source: Path) -> list[Term]:
    """Those of the glossary, if the book has one."""
    page = source / "book" / GLOSSARY
    return read_terms(page.read_text(encoding="utf-8")) if page.is_file() else []


def _link_terms_of_cells(notebook: nbformat.NotebookNode, terms: Sequence[Term]) -> None:
    """Link each term where the chapter's prose uses it first; the strip is no prose."""
    linked: set[str] = set()
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.id not in (STRIP, BESIDE):
            cell.source = link_terms(cell.source, terms, linked)


def _results_parts(
    project: Project, records: Sequence[Record], slug: str, book: Path
) -> dict[str, str]:
    """What the pages on results show, once each chapter's own are written into BOOK; a file that is
    unusable is named on the page."""
    chapters = chapters_of(project)
    kept, unusable = history(project.results)
    pinned, unusable_pinned = baselines(project.results)
    runs = with_records(kept, records)  # a record made elsewhere may come without its history
    problems = [each.replace(str(project.results), "results") for each in unusable]
    problems += [each.replace(str(project.results), "results") for each in unusable_pinned]
    committed = committed_records(project.root)
    write_results_pages(book, chapters, records, runs, pinned, slug, committed)
    by_machine = claims_table(project, records, f"{MACHINES_FOLDER}/{{}}.md", slug)
    return {
        "by-machine": folding_words(by_machine),
        "surprising-here": surprising_here(chapters, records, slug),
        "histories": history_overview(chapters, runs, slug),
        "history-problems": problems_note(problems),
        **trust_parts(project.results, slug),
    }


def publishable(
    notebook: nbformat.NotebookNode, note: str, beside: str = ""
) -> nbformat.NotebookNode:
    """A copy without papermill's traces, with `note` below the title, a heading for the verdict,
    and `beside` after it, before the chapter's limits.

    ValueError if a cell failed or wrote to stderr.
    """
    check_outputs(notebook)
    cells = []
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if "injected-parameters" in tags:
            cell = _injected(cell)
            if cell is None:
                continue
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        cells.append(cell)
    judging = next((i for i, cell in enumerate(cells) if JUDGES in cell.source), None)
    if judging is not None:
        cells.insert(judging, nbformat.v4.new_markdown_cell("## Verdict", id=VERDICT))
    cells.insert(1, nbformat.v4.new_markdown_cell(note, id=STRIP))
    if beside:
        cells.insert(_limits_place(cells), nbformat.v4.new_markdown_cell(beside, id=BESIDE))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    published: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=metadata)
    return published


def _limits_place(cells: Sequence[nbformat.NotebookNode]) -> int:
    """Where the cell with the limits stands, or the end."""
    places = (i for i, cell in enumerate(cells) if cell.source.startswith(LIMITS))
    return next(places, len(cells))


def _injected(cell: nbformat.NotebookNode) -> nbformat.NotebookNode | None:
    """The cell that papermill added, less this machine's own folder; None if nothing is left."""
    lines = [
        line
        for line in cell.source.splitlines()
        if line.strip() and not line.startswith(("# Parameters", "results_dir"))
    ]
    if not lines:
        return None
    cell.source = "\n".join(["# this run's values", *lines])
    cell.id = "run-values"
    return cell


def build_html(project: Project, source: Path) -> Path:
    """Build the mirror with Jupyter Book, warnings being errors. The path of the front page.

    Jupyter Book writes Sphinx's configuration and Sphinx builds from it, so that the extension for
    live cells, which is not used here and complains on every page, can be left out in between.
    ValueError with the builder's warnings if it fails.
    """
    log, html = project.build / "build.log", project.build / "html"
    shutil.rmtree(html, ignore_errors=True)
    jupyter_book = "from jupyter_book.cli.main import main; main()"
    _call([sys.executable, "-c", jupyter_book, "config", "sphinx", str(source)], log)
    settings = source / "conf.py"
    settings.write_text(settings.read_text(encoding="utf-8").replace("'sphinx_thebe', ", ""))
    config = read_yaml(source / "_config.yml")
    address = site_address(config, project.repository_url())
    options = ["-b", "html", "-W", "--keep-going", "-q", "-E"]
    options += ["-d", str(project.build / "doctrees")]
    finding = newest_finding(load_all(project.results)[0])
    for name, value in _page_settings(project.commit(), address, finding).items():
        options += ["-D", f"{name}={value}"]
    _call([sys.executable, "-m", "sphinx", *options, str(source), str(html)], log)
    name_toggles(html)
    if finding:
        draw_card(finding, config["title"], html / "_static" / CARD_NAME)
    pages = [f"{entry}.html" for entry in page_entries(source)]
    return write_site_files(html, pages, address)


def page_entries(source: Path) -> list[str]:
    """Every page of the mirror as the table of contents names it, the cover first; a `glob` stands
    for the pages that it finds."""
    toc = read_yaml(source / "_toc.yml")
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    found = [toc["root"]]
    for entry in (each for chapter in chapters for each in (chapter, *chapter.get("sections", []))):
        paths = sorted(source.glob(f"{entry['glob']}.md")) if "glob" in entry else []
        found += [entry["file"]] if "file" in entry else []
        found += [path.relative_to(source).with_suffix("").as_posix() for path in paths]
    return found


def _page_settings(
    commit: str | None, address: str | None, finding: Finding | None
) -> dict[str, str]:
    """What the pages say of themselves, as settings of Sphinx."""
    return {
        "html_baseurl": address or "",
        "version": __version__,
        "release": f"{__version__}, commit {commit}" if commit else __version__,
        "social_card_finding": finding.sentence if finding else "",
    }


def _call(command: list[str], log: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        words = ("WARNING", "ERROR", "Could not")
        causes = [line for line in lines if any(word in line for word in words)] or lines[-5:]
        raise ValueError(f"the pages could not be built; all is in {log}:\n" + "\n".join(causes))
