"""Stage: mirror the checkout with executed notebooks and filled pages, and build HTML from the
mirror.

The mirror keeps every path of the checkout, so the links to source, Colab, Binder and download
that Jupyter Book writes open files that are really there."""

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
import yaml

from prefill_decode.book.api_pages import api_contents, write_api_pages
from prefill_decode.book.architecture_page import architecture_parts
from prefill_decode.book.atlas_page import atlas_table, measured_table
from prefill_decode.book.pages import claims_table, fill, phases_figure, provenance
from prefill_decode.book.project import Project, read_notebook, read_yaml
from prefill_decode.book.results_pages import (
    chapters_of,
    committed_records,
    history_page,
    problems_note,
    results_page,
    with_records,
)
from prefill_decode.book.run import check_outputs
from prefill_decode.book.trust_page import trust_parts
from prefill_decode.results import Record, baselines, history

NOT_RUN = """```{{warning}}
This chapter has not been run on this machine: {reason}
```"""

FRONT_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Prefill and Decode</title>
<meta http-equiv="refresh" content="0; url={cover}"></head>
<body><a href="{cover}">Prefill and Decode</a></body>
</html>
"""


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
    shutil.copy(project.root / "_toc.yml", source)
    shutil.copytree(
        project.root / "book", source / "book", ignore=shutil.ignore_patterns("results")
    )
    write_api_pages(source / "book" / "api")
    by_claim = {r["claim"]: r for r in records if r["machine"]["slug"] == slug}
    for chapter in project.chapters():
        notebook = read_notebook(runs.get(chapter, project.notebook(chapter)))
        note = (
            provenance(by_claim[chapter])
            if chapter in runs
            else NOT_RUN.format(reason=failures.get(chapter, "it was left out"))
        )
        published = publishable(notebook, note)
        for cell in published.cells:
            cell.source = cell.source.replace(original_url, url)
        nbformat.write(published, source / "notebooks" / f"{chapter}.ipynb")
    figure = phases_figure(records, prefer_slug=slug)
    parts = {
        "claims": claims_table(project, records, "../notebooks"),
        "phases-figure": figure._repr_html_() if figure else "",
        "atlas-short": atlas_table(32),
        "atlas-long": atlas_table(8192),
        "atlas-measured": measured_table(records),
        "repository": url,
        "api-contents": api_contents(),
        **architecture_parts(),
    } | _results_parts(project, records, slug)
    for page in source.glob("book/*.md"):
        page.write_text(fill(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    return source


def _results_parts(project: Project, records: Sequence[Record], slug: str) -> dict[str, str]:
    """What the pages on results show; a file that is unusable is named on the page."""
    chapters = chapters_of(project)
    kept, unusable = history(project.results)
    pinned, unusable_pinned = baselines(project.results)
    runs = with_records(kept, records)  # a record made elsewhere may come without its history
    problems = [each.replace(str(project.results), "results") for each in unusable]
    problems += [each.replace(str(project.results), "results") for each in unusable_pinned]
    return {
        "results": results_page(chapters, records, slug, committed_records(project.root)),
        "history": history_page(chapters, runs, pinned, slug),
        "history-problems": problems_note(problems),
        **trust_parts(project.results, slug),
    }


def publishable(notebook: nbformat.NotebookNode, note: str) -> nbformat.NotebookNode:
    """A copy without papermill's traces, with `note` below the title.

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
    strip = nbformat.v4.new_markdown_cell(note, id="provenance")
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    published: nbformat.NotebookNode = nbformat.v4.new_notebook(
        cells=[cells[0], strip, *cells[1:]], metadata=metadata
    )
    return published


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
    options = [
        "-b",
        "html",
        "-W",
        "--keep-going",
        "-q",
        "-E",
        "-d",
        str(project.build / "doctrees"),
    ]
    _call([sys.executable, "-m", "sphinx", *options, str(source), str(html)], log)
    cover = yaml.safe_load((source / "_toc.yml").read_text(encoding="utf-8"))["root"] + ".html"
    front = html / "index.html"
    front.write_text(FRONT_PAGE.format(cover=cover), encoding="utf-8")
    return front


def _call(command: list[str], log: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        words = ("WARNING", "ERROR", "Could not")
        causes = [line for line in lines if any(word in line for word in words)] or lines[-5:]
        raise ValueError(f"the pages could not be built; all is in {log}:\n" + "\n".join(causes))
