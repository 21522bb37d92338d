"""What a reader gets: executed notebooks without traces, filled pages, the same paths as in git."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from prefill_decode.book import pages, refresh_readme
from prefill_decode.book.pages import (
    asymmetry,
    claims_table,
    fill,
    folding_words,
    machine_marks,
    machine_names,
    phases_figure,
    provenance,
    request_figure,
)
from prefill_decode.book.stage import page_entries, publishable, stage


def executed(**last):
    return new_notebook(
        cells=[
            new_markdown_cell("# Title"),
            new_code_cell("a = 1\nresults_dir = None", metadata={"tags": ["parameters"]}),
            new_code_cell(
                '# Parameters\na = 2\nresults_dir = "/home/someone/results"\n',
                metadata={"tags": ["injected-parameters"], "papermill": {"start_time": "now"}},
            ),
            new_code_cell("a", **last),
        ],
        metadata={
            "kernelspec": {"name": "prefill-decode", "display_name": "Python 3"},
            "language_info": {"name": "python"},
            "papermill": {"input_path": "/home/someone/x.ipynb"},
        },
    )


def test_a_published_notebook_says_its_values_and_nothing_of_the_machines_folders():
    published = publishable(executed(), "strip")
    text = nbformat.writes(published)
    assert "/home/someone" not in text
    assert "papermill" not in text
    assert published.metadata.kernelspec.name == "python3"
    assert [cell.source for cell in published.cells] == [
        "# Title",
        "strip",
        "a = 1\nresults_dir = None",
        "# this run's values\na = 2",
        "a",
    ]
    nbformat.validate(published)


def test_other_machines_stand_before_the_limits_or_at_the_end():
    notebook = executed()
    assert [c.source for c in publishable(notebook, "strip", "beside").cells][-1] == "beside"
    notebook.cells.insert(3, new_markdown_cell("## What this does not show\n\nMuch."))
    sources = [cell.source for cell in publishable(notebook, "strip", "beside").cells]
    assert sources.index("beside") == sources.index("## What this does not show\n\nMuch.") - 1
    assert "beside" not in [cell.source for cell in publishable(notebook, "strip").cells]


def test_a_chapters_verdict_has_a_heading_that_its_contents_can_name():
    notebook = executed()
    assert "## Verdict" not in [cell.source for cell in publishable(notebook, "strip").cells]
    judging = new_code_cell("plots.verdict_table(claim.statement, verdict)")
    notebook.cells += [judging, new_code_cell("saved = 1")]
    sources = [cell.source for cell in publishable(notebook, "strip").cells]
    assert sources[-3:] == ["## Verdict", judging.source, "saved = 1"]
    assert sources[1] == "strip"


def test_values_that_are_only_a_folder_leave_no_cell():
    notebook = executed()
    notebook.cells[2].source = '# Parameters\nresults_dir = "/home/someone"\n'
    assert len(publishable(notebook, "strip").cells) == 4


@pytest.mark.parametrize(
    "output",
    [
        new_output("stream", name="stderr", text="warning: something"),
        new_output("error", ename="E", evalue="v", traceback=[]),
    ],
)
def test_a_warning_or_an_error_never_reaches_a_page(output):
    with pytest.raises(ValueError, match="failed or wrote to stderr"):
        publishable(executed(outputs=[output]), "strip")


def test_the_mirror_keeps_the_checkouts_paths_and_points_to_a_fork(make_project, record):
    project = make_project()
    (project.root / "book").mkdir()
    (project.root / "book" / "glossary.md").write_text("(term-a)=\ncover\n: A page. The cover.\n")
    home = "https://example.org/book"
    (project.root / "_config.yml").write_text(f"repository:\n  url: {home}\n")
    (project.root / "book" / "results").mkdir()
    (project.root / "book" / "index.md").write_text(
        "# Cover\n\nThe cover.\n\n<!-- claims -->\n\n<!-- repository -->"
    )
    run = project.build / "run.ipynb"
    run.parent.mkdir()
    notebook = executed()
    notebook.cells[0].source = "# Title\n\nA cover."
    notebook.cells[3].source = f"install({home})"
    nbformat.write(notebook, run)
    records = [{**record, "claim": "first"}]
    fork = "https://example.org/fork"
    source = stage(
        project, {"first": run}, {"second": "it broke"}, records, record["machine"]["slug"], fork
    )
    cover = (source / "book" / "index.md").read_text()
    row = '| [The first claim](../notebooks/first.ipynb) | ✓ <span class="word">supported</span> |'
    assert row in cover
    row = '| [The second claim](../notebooks/second.ipynb) | <span class="word">not run</span> |'
    assert row in cover
    assert cover.endswith(fork)
    assert "The [cover](#term-a)." in cover
    assert (source / "book" / "glossary.md").read_text().endswith("The cover.\n")
    first = (source / "notebooks" / "first.ipynb").read_text()
    assert f"install({fork})" in first
    assert "A [cover](#term-a)." in first
    assert "## On other machines" in first
    assert "Test CPU @ 2.0, 2 cores" in first
    assert "it broke" in (source / "notebooks" / "second.ipynb").read_text()
    assert not (source / "book" / "results").exists()
    assert fork in (source / "_config.yml").read_text()


def test_every_machine_has_its_column_and_unlike_verdicts_stand_side_by_side(make_project, record):
    other = {**record, "claim": "second", "verdict": {"outcome": "refuted", "reason": "r"}}
    other["machine"] = {**record["machine"], "slug": "other", "title": "Other"}
    table = claims_table(make_project(), [{**record, "claim": "first"}, other], "n")
    lines = table.splitlines()
    assert lines[0] == "| claim | Other | Test CPU @ 2.0, 2 cores |"
    assert lines[2].endswith("| not run | ✓ supported |")
    assert lines[3].endswith("| ✗ refuted | not run |")


def on(record, slug, title="Test CPU"):
    return {**record, "machine": {**record["machine"], "slug": slug, "title": title}}


def test_machines_of_one_name_have_columns_of_their_own_and_this_one_is_first(record):
    records = [on(record, "cpu-9ed8"), on(record, "cpu-fe86"), on(record, "a-1111", "Another")]
    assert list(machine_names(records).values()) == [
        "Another",
        "Test CPU (9ed8)",
        "Test CPU (fe86)",
    ]
    assert next(iter(machine_names(records, "cpu-fe86"))) == "cpu-fe86"
    assert "mark in brackets" in machine_marks(records)
    assert machine_marks(records[1:]) == ""


def test_a_narrow_screen_keeps_the_signs_of_a_table_of_verdicts():
    cells = "| a void | ✓ supported | ∅ void | not run |"
    assert folding_words(cells) == (
        '| a void | ✓ <span class="word">supported</span> | ∅ <span class="word">void</span> '
        '| <span class="word">not run</span> |'
    )


def test_the_strip_names_machine_versions_parameters_and_commit(record):
    strip = provenance({**record, "commit": None})
    for words in (
        "Test CPU @ 2.0",
        "torch 2.13.0",
        "batch_sizes = 1, 8",
        "commit unknown",
        "seed 0",
    ):
        assert words in strip


@pytest.mark.parametrize(
    ("outcome", "words"), [("supported", "**✓ supported**"), ("void", "**∅ void**")]
)
def test_the_strip_begins_with_the_verdict(record, outcome, words):
    strip = provenance({**record, "verdict": {**record["verdict"], "outcome": outcome}})
    assert strip.splitlines()[1].startswith(words)
    assert "(../book/how_to_read.md)" in strip


def test_the_strip_shows_the_beginning_of_a_list_that_is_long(record):
    parameters = {"output_tokens": list(range(64)), "batch_sizes": list(range(12)), "a_s": 1 / 3}
    parameters["objectives"] = {"ttft_s": 2 / 3, "stall_s": 0.5}
    strip = provenance({**record, "parameters": parameters})
    assert "output_tokens = 0, 1, 2, … (64 values)" in strip
    assert ", a_s = 0.3333, objectives = ttft_s 0.6667, stall_s 0.5 ·" in strip
    assert "batch_sizes = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, a_s" in strip


@pytest.mark.parametrize(
    ("device", "memory_bytes", "words"),
    [
        ("cpu", 1_930_000_000, "about 1 s of measuring, 1.93 GB of memory in its process, CPU"),
        ("cuda", None, "about 1 s of measuring, GPU"),
    ],
)
def test_the_strip_says_what_a_run_takes_as_far_as_the_record_does(
    record, device, memory_bytes, words
):
    machine = {**record["machine"], "device": device}
    run = {**record, "machine": machine, "measuring_s": 1.2, "peak_memory_bytes": memory_bytes}
    assert f" · {words} · " in provenance(run)


def test_a_page_that_asks_for_an_unknown_part_is_refused():
    assert fill("a <!-- b-c --> d", {"b-c": "x"}) == "a x d"
    with pytest.raises(ValueError, match="nothing"):
        fill("<!-- nothing -->", {"b": "x"})


def test_the_cover_figure_prefers_this_machine_and_then_the_newest(record):
    def on(slug, date, title):
        machine = {**record["machine"], "slug": slug, "title": title}
        return {**record, "claim": pages.ROOFLINE_CLAIM, "machine": machine, "date": date}

    records = [on("here", "2026-01-01T00:00:00Z", "Mine"), on("b", "2026-02-01T00:00:00Z", "New")]
    assert "Mine" in phases_figure(records, "here").alt
    assert "New" in phases_figure(records, "elsewhere").alt
    assert phases_figure([record], "here") is None
    assert request_figure([record], "here") is None
    lonely = {**on("here", "2026-01-01T00:00:00Z", "Mine"), "points": record["points"][:1]}
    assert phases_figure([lonely], "here") is None


def test_the_cover_draws_a_request_and_the_roofline_of_one_record(record):
    decode = record["points"][0]
    prompt = {**decode, "step": "prefill 32", "chunks": [[32, 0, 1]], "new_tokens": 32}
    times = {"median": 0.5, "low": 0.4, "high": 0.6, "n": 8, "coverage": 0.99}
    points = [decode, {**prompt, "flops": 100 * decode["flops"], "time_s": times}]
    on_it = {**record, "claim": pages.ROOFLINE_CLAIM, "points": points}
    assert "Test CPU @ 2.0" in request_figure([on_it]).alt
    assert "the prefill of 32 tokens takes 500 ms" in request_figure([on_it]).alt
    text = asymmetry([on_it], record["machine"]["slug"])
    assert text.count("<svg") == 2
    assert text.startswith("One request, timed on Test CPU @ 2.0, 2 cores:\n\n<div")
    assert asymmetry([record], record["machine"]["slug"]) == ""


def test_a_void_record_is_drawn_only_where_there_is_no_other(record):
    void = {**record, "claim": pages.ROOFLINE_CLAIM, "verdict": {"outcome": "void", "reason": "r"}}
    sound = {**on(record, "there-1111", "There"), "claim": pages.ROOFLINE_CLAIM}
    slug = record["machine"]["slug"]
    assert "There" in phases_figure([void, sound], slug).alt
    assert "Test CPU @ 2.0" in phases_figure([void], slug).alt


def test_the_readme_gets_its_table_and_its_figure(make_project, record):
    project = make_project()
    readme = project.root / "README.md"
    readme.write_text("before\n<!-- claims -->\nold\n<!-- end of claims -->\nafter\n")
    records = [{**record, "claim": "first"}, {**record, "claim": pages.ROOFLINE_CLAIM}]
    project.results.mkdir()
    refresh_readme(project, records, readme)
    text = readme.read_text()
    assert text.startswith("before\n<!-- claims -->\n| claim |")
    assert "old" not in text
    assert text.endswith("<!-- end of claims -->\nafter\n")
    assert "<svg" in (project.root / "book" / "results" / "phases.svg").read_text()
    refresh_readme(project, records, readme)
    assert readme.read_text() == text
    readme.write_text("no table")
    with pytest.raises(ValueError, match="between <!-- claims -->"):
        refresh_readme(project, records, readme)
    assert readme.read_text() == "no table"


def test_the_pages_are_those_of_the_contents_and_all_that_a_glob_finds(tmp_path):
    toc = """
root: book/index
parts:
  - chapters:
      - file: notebooks/first
      - file: book/api
        sections:
          - glob: book/api/*
          - file: book/more
"""
    (tmp_path / "_toc.yml").write_text(toc)
    (tmp_path / "book" / "api").mkdir(parents=True)
    for name in ("words", "engine"):
        (tmp_path / "book" / "api" / f"{name}.md").write_text("# Page\n")
    (tmp_path / "book" / "api" / "picture.svg").write_text("<svg/>")
    assert page_entries(tmp_path) == [
        *("book/index", "notebooks/first", "book/api"),
        *("book/api/engine", "book/api/words", "book/more"),
    ]
