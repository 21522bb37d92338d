"""Running chapters: cached until something changes, and nothing is lost when one stops."""

import os

import nbformat
import pytest

from prefill_decode.book import ChapterFailure, find_project, run_chapter
from prefill_decode.results import load

SLUG = "test-cpu-2-0-2-cores"


def test_a_chapter_runs_once_and_again_when_something_it_depends_on_changes(make_project):
    project = make_project()
    path, ran = run_chapter(project, "first", {"value": 3}, SLUG)
    assert ran
    assert nbformat.read(path, as_version=4).cells[-1].outputs[0].data["text/plain"] == "6"
    assert load(project.results / "first" / f"{SLUG}.json")["claim"] == "first"
    assert run_chapter(project, "first", {"value": 3}, SLUG) == (path, False)

    other, ran = run_chapter(project, "first", {"value": 4}, SLUG)
    assert ran
    assert other != path
    assert not path.exists()  # only the newest run is kept

    (project.root / "constraints.txt").write_text("torch==2.14.0\n")
    assert run_chapter(project, "first", {"value": 4}, SLUG)[1]
    (project.results / "first" / f"{SLUG}.json").unlink()
    assert run_chapter(project, "first", {"value": 4}, SLUG)[1]  # its record is gone


def test_a_cell_that_raises_is_named_and_what_ran_is_kept(make_project):
    project = make_project("undefined_name")
    with pytest.raises(ChapterFailure, match=r"raised NameError.*undefined_name") as caught:
        run_chapter(project, "first", {}, SLUG)
    kept = nbformat.read(caught.value.kept, as_version=4)
    assert any("1" in str(cell.get("outputs")) for cell in kept.cells)
    assert load(project.results / "first" / f"{SLUG}.json")  # saved before the failure
    with pytest.raises(ChapterFailure):
        run_chapter(project, "first", {}, SLUG)  # a failure is not cached


def test_a_kernel_that_dies_is_named_with_its_cell(make_project):
    project = make_project("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ChapterFailure, match=r"the kernel died in cell .*os\.kill"):
        run_chapter(project, "first", {}, SLUG)
    assert load(project.results / "first" / f"{SLUG}.json")


def test_a_cell_that_runs_too_long_is_stopped(make_project):
    project = make_project("import time; time.sleep(60)")
    with pytest.raises(ChapterFailure, match="ran longer than 2 s"):
        run_chapter(project, "first", {}, SLUG, cell_timeout_s=2)


def test_an_interruption_keeps_finished_chapters_and_a_rerun_resumes(make_project, monkeypatch):
    project = make_project()
    done, _ = run_chapter(project, "first", {}, SLUG)
    import papermill

    def interrupt(*words, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(papermill, "execute_notebook", interrupt)
        with pytest.raises(ChapterFailure, match="interrupted"):
            run_chapter(project, "second", {}, SLUG)
    assert run_chapter(project, "first", {}, SLUG) == (done, False)
    assert run_chapter(project, "second", {}, SLUG)[1]


def test_a_users_own_kernel_and_start_up_files_cannot_get_in_the_way(
    make_project, tmp_path, monkeypatch
):
    hostile = tmp_path / "hostile"
    (hostile / "kernels" / "python3").mkdir(parents=True)
    (hostile / "kernels" / "python3" / "kernel.json").write_text('{"argv": ["false"]}')
    (hostile / "profile_default" / "startup").mkdir(parents=True)
    (hostile / "profile_default" / "startup" / "0.py").write_text("raise SystemExit('hostile')")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(hostile))
    monkeypatch.setenv("IPYTHONDIR", str(hostile))
    assert run_chapter(make_project(), "first", {}, SLUG)[1]
    assert os.environ["JUPYTER_DATA_DIR"] == str(hostile)  # and ours is gone again


def test_chapters_come_in_the_order_of_the_toc_and_misspelt_ones_are_answered(make_project):
    project = make_project()
    assert project.chapters() == ["first", "second"]
    assert project.chosen(["second", "first"]) == ["first", "second"]
    assert project.title("first") == "The first claim"
    with pytest.raises(ValueError, match=r"got 'secnd'; did you mean second\?"):
        project.chosen(["secnd"])
    project.notebook("second").unlink()
    with pytest.raises(ValueError, match="not there: second"):
        project.chapters()


def test_a_project_is_found_from_within_and_not_from_without(make_project, tmp_path):
    project = make_project()
    assert find_project(project.root / "notebooks").root == project.root
    with pytest.raises(ValueError, match="not inside a checkout"):
        find_project(tmp_path.parents[1])
