"""The rules that every notebook keeps."""

import ast
import json
import re
from pathlib import Path

import nbformat
import pytest
from pybtex.database import parse_file

from prefill_decode.book import find_project
from prefill_decode.book.parameters import read_parameters
from prefill_decode.book.project import read_yaml
from tests.conftest import ROOT
from tests.prose import typed_numbers

PROJECT = find_project(ROOT)
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
ORDER = [
    "stories",
    "Prediction",
    "What would refute it",
    "Method",
    "What this does not show",
    "Exercises",
    "Sources",
]
CHAPTERS = [
    Path(chapter["file"]).name
    for part in read_yaml(ROOT / "_toc.yml")["parts"]
    for chapter in part["chapters"]
    if chapter["file"].startswith("notebooks/")
]
FORBIDDEN = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.Try, ast.With)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request) -> nbformat.NotebookNode:
    return nbformat.read(request.param, as_version=4)


def code_cells(notebook):
    """The cells that carry the argument: all code but the one that installs and the solutions."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"][1:]
    return [cell for cell in cells if not is_solution(cell)]


def is_solution(cell):
    return "solution" in cell.metadata.get("tags", [])


def solution_cells(notebook):
    return [cell for cell in notebook.cells if is_solution(cell)]


def test_every_notebook_is_a_chapter_and_every_chapter_a_notebook():
    assert sorted(PROJECT.chapters()) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_parameters_are_one_cell_of_literals_with_the_common_names(path):
    names = read_parameters(path)
    assert {"device", "model_name", "budget_s", "seed", "results_dir"} <= set(names)


def test_every_notebook_measures_equally_long_unless_told_otherwise():
    budgets_s = {path.stem: read_parameters(path)["budget_s"].default for path in NOTEBOOKS}
    assert set(budgets_s.values()) == {35.0}, budgets_s


def test_notebooks_carry_no_outputs_and_stable_ids(notebook):
    nbformat.validate(notebook)
    for index, cell in enumerate(notebook.cells):
        assert cell.id == f"c{index:02d}"
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_first_code_cell_installs_the_package_where_it_is_absent(notebook):
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert 'find_spec("prefill_decode") is None' in first.source
    assert "%pip install" in first.source
    assert first.metadata.tags == ["remove-cell"]


def test_cells_are_few_short_and_without_machinery(notebook):
    assert len(notebook.cells) <= 26
    assert len(code_cells(notebook)) <= 8
    assert len(solution_cells(notebook)) <= 4
    for cell in [*code_cells(notebook), *solution_cells(notebook)]:
        lines = cell.source.splitlines()
        assert len(lines) <= 10, f"{cell.id} has {len(lines)} lines"
        assert [line for line in lines if len(line) > 80] == [], cell.id
        found = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, FORBIDDEN)]
        assert not found, cell.id


def test_sections_come_in_the_books_order(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    places = [next(i for i, found in enumerate(headings) if words in found) for words in ORDER]
    assert places == sorted(places)
    assert "**Claim.**" in notebook.cells[0].source
    assert "{admonition} Takeaway" in text
    assert "{dropdown} Solutions" in text


def test_every_exercise_has_a_solution_and_one_at_least_is_code_that_runs(notebook):
    cell = next(cell for cell in notebook.cells if cell.source.startswith("## Exercises"))
    asked, solved = cell.source.split("```{dropdown} Solutions")
    numbers = re.findall(r"^(\d)\. ", asked, re.MULTILINE)
    assert 2 <= len(numbers) <= 4
    assert numbers == re.findall(r"^(\d)\. ", solved, re.MULTILINE)
    assert solution_cells(notebook)
    computed = "".join(cell.source for cell in solution_cells(notebook))
    assert set(re.findall(r"(?:\"|\\n *|; )(\d)\. ", computed)) <= set(numbers)


def test_solutions_in_code_lie_folded_between_the_exercises_and_the_sources(notebook):
    sources = [cell.source for cell in notebook.cells]
    exercises = next(i for i, source in enumerate(sources) if source.startswith("## Exercises"))
    between = notebook.cells[exercises + 1 : -1]
    assert [cell.id for cell in between] == [cell.id for cell in solution_cells(notebook)]
    for cell in between:
        assert "hide-cell" in cell.metadata.tags
        assert cell.metadata.mystnb.code_prompt_show.startswith("Solution")
        assert "print(" in cell.source


def test_a_solution_computes_and_measures_nothing(notebook):
    """A verdict costs its budget; what follows from it is arithmetic."""
    for cell in solution_cells(notebook):
        assert not re.search(r"measure\.|simulate_seeds|Runner|results\.", cell.source)


def test_the_refutation_is_committed_to_before_the_measurement(notebook):
    sources = [cell.source for cell in notebook.cells]
    claims = next(i for i, source in enumerate(sources) if "claim = Claim(" in source)
    measures = next(
        i for i, s in enumerate(sources) if re.search(r"interleave\(|simulate_seeds\(", s)
    )
    refutes = next(i for i, source in enumerate(sources) if "## What would refute it" in source)
    assert refutes < claims < measures
    assert "controls=[" in sources[claims]


def test_the_record_bears_the_notebooks_name():
    for path in NOTEBOOKS:
        sources = "\n".join(
            cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
            for cell in json.loads(path.read_text())["cells"]
        )
        assert re.findall(r'make_(?:simulated_)?record\(\s*"(\w+)"', sources) == [path.stem]


def test_no_place_of_the_skeleton_is_left_to_fill_in(notebook):
    """`prefill-decode new` marks them; a notebook with one is not published."""
    assert [cell.id for cell in notebook.cells if "TODO" in cell.source] == []


def test_prose_types_no_measured_number(notebook):
    """Results are inserted by code, and so is what a parameter or a constant of the library sets:
    whoever changes it would make the prose wrong."""
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        assert typed_numbers(cell.source) == [], cell.source[:60]


def test_links_between_chapters_point_to_files(notebook):
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        for target in re.findall(r"\]\(([^)#:]+)\)", cell.source):
            assert (Path(ROOT) / "notebooks" / target).exists(), target


def test_the_bibliography_can_be_read_and_holds_what_is_cited(notebook):
    entries = parse_file(ROOT / "book" / "references.bib").entries
    cited = re.findall(r"\{cite:t\}`([^`]+)`", "\n".join(cell.source for cell in notebook.cells))
    assert cited
    assert set(cited) <= set(entries)


def test_the_book_begins_with_the_cache_and_has_its_chapters():
    assert CHAPTERS[0] == "kv_cache_is_exact"
    assert len(CHAPTERS) >= 11


@pytest.mark.parametrize(
    ("before", "name", "after"),
    list(zip([None, *CHAPTERS[:-1]], CHAPTERS, [*CHAPTERS[1:], None], strict=True)),
    ids=CHAPTERS,
)
def test_before_and_next_are_the_neighbours_in_the_table_of_contents(before, name, after):
    notebook = nbformat.read(PROJECT.notebook(name), as_version=4)
    sources = notebook.cells[-1].source
    for word, neighbour in (("Before", before), ("Next", after)):
        found = re.findall(rf"{word}: \[([^\]]+)\]\((\w+)\.ipynb\)", sources)
        links = [(title.lower(), target) for title, target in found]
        expected = [(PROJECT.title(neighbour).lower(), neighbour)] if neighbour else []
        assert links == expected, name
