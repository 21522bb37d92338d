"""A claim that is begun: a notebook that keeps the rules and runs, in its place among others."""

import json
import os
import shutil

import nbformat
import pytest

from prefill_decode import results
from prefill_decode.book import Project, find_project, new_chapter
from prefill_decode.book.new_chapter import LONGEST_NAME
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


def test_the_longest_name_fits_a_line_of_code(project):
    claim = "a_" + "b" * (LONGEST_NAME - 2)
    new_chapter(project, claim)
    begun = nbformat.read(project.notebook(claim), as_version=4)
    test_notebooks.test_cells_are_few_short_and_without_machinery(begun)


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
        (CLAIM, "", "--after must be one of"),
        ("a_" + "b" * 300, None, "of at most 60"),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_written(project, claim, after, message):
    before = state(project)
    with pytest.raises(ValueError, match=message):
        new_chapter(project, claim, after)
    assert state(project) == before


@pytest.mark.parametrize(
    "title",
    ["", " ", " spaces ", "two\nlines", "a](evil.ipynb)", "<b>bold</b>", "a | b", "x" * 121],
)
def test_a_title_that_would_break_its_page_is_refused_and_nothing_written(project, title):
    before = state(project)
    with pytest.raises(ValueError, match="a title is one printable line"):
        new_chapter(project, CLAIM, title=title)
    assert state(project) == before


def test_a_title_may_hold_the_names_of_the_skeletons_places(project):
    title = 'What CLAIM_NAME and "NEIGHBOURS" mean'
    new_chapter(project, CLAIM, title=title)
    assert project.title(CLAIM) == title
    assert "[real engines show it too](real_engines_show_it_too.ipynb)" in last_cell(project, CLAIM)


def test_a_claim_begun_twice_is_refused_and_what_was_filled_in_stays(project):
    new_chapter(project, CLAIM)
    before = state(project)
    with pytest.raises(ValueError, match="there already"):
        new_chapter(project, CLAIM)
    assert state(project) == before


def test_a_link_that_leads_nowhere_is_not_written_over(project):
    project.notebook(CLAIM).symlink_to("nowhere.ipynb")
    with pytest.raises(ValueError, match="there already"):
        new_chapter(project, CLAIM)
    assert project.notebook(CLAIM).is_symlink()


def test_ends_of_lines_stay_as_they_are(project):
    path = project.root / "_toc.yml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    before = path.read_bytes()
    new_chapter(project, CLAIM, "decode_is_serial")
    line = f"- file: notebooks/{CLAIM}\r\n".encode()
    added = [each for each in path.read_bytes().splitlines(keepends=True) if line in each]
    assert len(added) == 1
    assert path.read_bytes().replace(added[0], b"") == before


def test_a_remark_behind_a_chapter_in_the_table_of_contents_stays_there(project):
    path = project.root / "_toc.yml"
    plain = "- file: notebooks/decode_is_serial\n"
    path.write_text(path.read_text().replace(plain, plain[:-1] + "  # a remark\n"))
    new_chapter(project, CLAIM, "decode_is_serial")
    place = project.chapters().index("decode_is_serial")
    assert project.chapters()[place + 1] == CLAIM
    assert "decode_is_serial  # a remark\n" in path.read_text()
    assert path.read_text().count("# a remark") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('- file: "notebooks/decode_is_serial"', "without quotes; got 0 such lines"),
        ("- {file: notebooks/decode_is_serial}", "without quotes; got 0 such lines"),
    ],
)
def test_a_table_of_contents_in_another_form_is_refused(project, line, message):
    path = project.root / "_toc.yml"
    path.write_text(path.read_text().replace("- file: notebooks/decode_is_serial", line))
    before = state(project)
    with pytest.raises(ValueError, match=message):
        new_chapter(project, CLAIM, "decode_is_serial")
    assert state(project) == before


def test_a_book_without_a_chapter_has_none_to_follow(project):
    (project.root / "_toc.yml").write_text("root: book/index\nparts: []\n")
    with pytest.raises(ValueError, match="a claim follows a chapter; it has none"):
        new_chapter(project, CLAIM)


def test_a_neighbour_without_its_link_is_refused_and_nothing_written(project):
    path = project.notebook("decode_is_serial")
    notebook = json.loads(path.read_text())
    notebook["cells"][-1]["source"] = ["no link here"]
    path.write_text(json.dumps(notebook))
    before = state(project)
    with pytest.raises(ValueError, match=r"one link 'Next: \[title\]\(NAME.ipynb\)'; got 0"):
        new_chapter(project, CLAIM, "decode_is_serial")
    assert state(project) == before


def test_a_disk_that_fails_midway_leaves_everything_as_it_was(project, monkeypatch):
    before = state(project)
    synced = []

    def fail_at_the_third(handle):
        synced.append(handle)
        if len(synced) == 3:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail_at_the_third)
    with pytest.raises(OSError, match="No space left"):
        new_chapter(project, CLAIM, "decode_is_serial")
    assert state(project) == before


def state(project):
    return {path: path.read_bytes() for path in project.root.rglob("*") if path.is_file()}
