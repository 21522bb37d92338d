"""A claim that is begun: a notebook that keeps the rules and runs, in its place among others."""

import json
import shutil

import nbformat
import pytest

from prefill_decode import results
from prefill_decode.book import Project, find_project, new_chapter
from tests import test_notebooks
from tests.conftest import ROOT
from tests.prose import LABEL, markdown_of

CLAIM = "speculation_needs_slack"
RULES = [
    test_notebooks.test_notebooks_carry_no_outputs_and_stable_ids,
    test_notebooks.test_the_first_code_cell_installs_the_package_where_it_is_absent,
    test_notebooks.test_cells_are_few_short_and_without_machinery,
    test_notebooks.test_sections_come_in_the_books_order,
    test_notebooks.test_every_exercise_has_a_solution_and_one_at_least_is_code_that_runs,
    test_notebooks.test_solutions_in_code_lie_folded_between_the_exercises_and_the_sources,
    test_notebooks.test_a_solution_computes_and_measures_nothing,
    test_notebooks.test_the_refutation_is_committed_to_before_the_measurement,
    test_notebooks.test_prose_types_no_measured_number,
    test_notebooks.test_the_bibliography_can_be_read_and_holds_what_is_cited,
]


@pytest.fixture
def project(tmp_path) -> Project:
    """The book's notebooks and table of contents, to add to."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copy(ROOT / "_toc.yml", tmp_path)
    return find_project(tmp_path)


def last_cell(project, chapter):
    return nbformat.read(project.notebook(chapter), as_version=4).cells[-1].source


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_skeleton_keeps_the_rules_of_a_notebook(project, rule):
    new_chapter(project, CLAIM)
    rule(nbformat.read(project.notebook(CLAIM), as_version=4))


@pytest.mark.parametrize("claim", [CLAIM, "top_2_experts"])
def test_the_law_of_a_skeleton_bears_the_claims_name(project, claim):
    new_chapter(project, claim)
    prediction = next(cell for cell in markdown_of(project.notebook(claim)) if "## Pred" in cell)
    assert LABEL.findall(prediction) == [f"eq-{claim.replace('_', '-')}"]


def test_a_skeleton_is_refused_until_it_is_filled_in(project):
    new_chapter(project, CLAIM)
    begun = nbformat.read(project.notebook(CLAIM), as_version=4)
    with pytest.raises(AssertionError):
        test_notebooks.test_no_place_of_the_skeleton_is_left_to_fill_in(begun)


def test_the_code_of_a_skeleton_runs_and_leaves_a_record_under_its_name(project, tmp_path):
    new_chapter(project, CLAIM)
    notebook = nbformat.read(project.notebook(CLAIM), as_version=4)
    given = f"""
device, model_name, budget_s = "cpu", "smollm2-135m", 0.5
results_dir = {str(tmp_path / "records")!r}"""
    names: dict = {}
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][1:]:
        exec(cell.source + (given if "parameters" in cell.metadata.get("tags", []) else ""), names)
    records, problems = results.load_all(tmp_path / "records")
    assert not problems
    assert [record["claim"] for record in records] == [CLAIM]


def test_a_new_chapter_stands_behind_the_one_it_follows_and_its_neighbours_link_to_it(project):
    chapters = project.chapters()
    place = chapters.index("decode_is_serial") + 1
    comments_and_parts = (project.root / "_toc.yml").read_text().splitlines()
    written = new_chapter(project, CLAIM, "decode_is_serial", "Speculation needs slack, they say")
    assert written[0] == project.notebook(CLAIM)
    assert project.chapters() == [*chapters[:place], CLAIM, *chapters[place:]]
    now = (project.root / "_toc.yml").read_text().splitlines()
    assert [line for line in now if CLAIM not in line] == comments_and_parts
    link = f"[speculation needs slack, they say]({CLAIM}.ipynb)"
    assert f"Next: {link}." in last_cell(project, "decode_is_serial")
    assert f"Before: {link}." in last_cell(project, chapters[place])
    both = last_cell(project, CLAIM)
    assert "Before: [decode is serial](decode_is_serial.ipynb). Next: [batching" in both
    assert project.title(CLAIM) == "Speculation needs slack, they say"


def test_a_chapter_after_the_last_gives_that_one_a_next(project):
    last = project.chapters()[-1]
    new_chapter(project, CLAIM)
    assert project.chapters()[-1] == CLAIM
    assert f"Next: [speculation needs slack]({CLAIM}.ipynb)." in last_cell(project, last)
    assert "Next" not in last_cell(project, CLAIM)


def test_nothing_else_of_the_neighbours_changes(project):
    before = json.loads(project.notebook("decode_is_serial").read_text())
    new_chapter(project, CLAIM, "decode_is_serial")
    after = json.loads(project.notebook("decode_is_serial").read_text())
    assert after["cells"][:-1] == before["cells"][:-1]
    assert after["metadata"] == before["metadata"]


@pytest.mark.parametrize(
    ("claim", "after", "message"),
    [
        ("Speculation", None, "small letters"),
        ("speculation", None, "small letters"),
        ("../escape_is_bad", None, "small letters"),
        ("decode_is_serial", None, "there already"),
        (CLAIM, "decode_is_cereal", "did you mean decode_is_serial"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_written(project, claim, after, message):
    def state():
        return {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}

    before = state()
    with pytest.raises(ValueError, match=message):
        new_chapter(project, claim, after)
    assert state() == before
