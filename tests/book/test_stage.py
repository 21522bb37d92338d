"""What a reader gets: executed notebooks without traces, filled pages, the same paths as in git."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from prefill_decode.book import pages, refresh_readme
from prefill_decode.book.pages import claims_table, fill, phases_figure, provenance
from prefill_decode.book.stage import publishable, stage


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
    home = "https://example.org/book"
    (project.root / "_config.yml").write_text(f"repository:\n  url: {home}\n")
    (project.root / "book" / "results").mkdir(parents=True)
    (project.root / "book" / "index.md").write_text(
        "# Cover\n\n<!-- claims -->\n\n<!-- repository -->"
    )
    run = project.build / "run.ipynb"
    run.parent.mkdir()
    notebook = executed()
    notebook.cells[3].source = f"install({home})"
    nbformat.write(notebook, run)
    records = [{**record, "claim": "first"}]
    fork = "https://example.org/fork"
    source = stage(
        project, {"first": run}, {"second": "it broke"}, records, record["machine"]["slug"], fork
    )
    cover = (source / "book" / "index.md").read_text()
    assert "| [The first claim](../notebooks/first.ipynb) | ✓ supported |" in cover
    assert "| [The second claim](../notebooks/second.ipynb) | not run |" in cover
    assert cover.endswith(fork)
    first = (source / "notebooks" / "first.ipynb").read_text()
    assert f"install({fork})" in first
    assert "Test CPU @ 2.0, 2 cores" in first
    assert "it broke" in (source / "notebooks" / "second.ipynb").read_text()
    assert not (source / "book" / "results").exists()
    assert fork in (source / "_config.yml").read_text()


def test_every_machine_has_its_column_and_unlike_verdicts_stand_side_by_side(make_project, record):
    other = {**record, "claim": "second", "verdict": {"outcome": "refuted", "reason": "r"}}
    other["machine"] = {**record["machine"], "slug": "other", "title": "Other"}
    table = claims_table(make_project(), [{**record, "claim": "first"}, other], "n")
    lines = table.splitlines()
    assert lines[0] == "| claim | Test CPU @ 2.0, 2 cores | Other |"
    assert lines[2].endswith("| ✓ supported | not run |")
    assert lines[3].endswith("| not run | ✗ refuted |")


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
    lonely = {**on("here", "2026-01-01T00:00:00Z", "Mine"), "points": record["points"][:1]}
    assert phases_figure([lonely], "here") is None


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
