"""Running chapters: cached until something changes, and nothing is lost when one stops."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import nbformat
import pytest

from prefill_decode import results
from prefill_decode.book import ChapterFailure, find_project, run_chapter
from prefill_decode.book.run import measuring_alone, sources_of_the_library
from prefill_decode.results import load


def test_every_source_of_the_library_outdates_a_chapter(root):
    package = root / "lib" / "prefill_decode"
    files = {path for path in package.rglob("*") if path.is_file()}
    sources = set(sources_of_the_library())
    assert package / "kernels.cpp" in sources
    left_out = {path for path in files - sources if "__pycache__" not in path.parts}
    assert {path.relative_to(package).parts[0] for path in left_out} <= {"book", "py.typed"}


def test_a_chapter_runs_once_and_again_when_something_it_depends_on_changes(make_project, machine):
    project = make_project()
    path, ran = run_chapter(project, "first", {"value": 3}, machine)
    assert ran
    assert nbformat.read(path, as_version=4).cells[-1].outputs[0].data["text/plain"] == "6"
    assert load(project.results / "first" / f"{machine.slug}.json")["claim"] == "first"
    assert run_chapter(project, "first", {"value": 3}, machine) == (path, False)

    other, ran = run_chapter(project, "first", {"value": 4}, machine)
    assert ran
    assert other != path
    assert not path.exists()  # only the newest run is kept

    (project.root / "constraints.txt").write_text("torch==2.14.0\n")
    assert run_chapter(project, "first", {"value": 4}, machine)[1]
    (project.results / "first" / f"{machine.slug}.json").unlink()
    assert run_chapter(project, "first", {"value": 4}, machine)[1]  # its record is gone
    (project.results / "first" / f"{machine.slug}.json").write_text("<<<<<<< damaged")
    assert run_chapter(project, "first", {"value": 4}, machine)[1]
    assert run_chapter(project, "first", {"value": 4}, machine, again=True)[1]  # as asked
    other = json.loads((project.results / "first" / f"{machine.slug}.json").read_text())
    results.save({**other, "seed": 4711}, project.results)  # from some other run
    assert run_chapter(project, "first", {"value": 4}, machine)[1]
    newer = replace(machine, torch="3.0")
    assert run_chapter(project, "first", {"value": 4}, newer)[1]  # the same machine, other software


def test_a_warning_on_a_page_fails_the_chapter_and_is_not_cached(make_project, machine):
    project = make_project("import sys; print('careful', file=sys.stderr)")
    for _ in range(2):
        with pytest.raises(ChapterFailure, match="wrote to stderr: careful"):
            run_chapter(project, "first", {}, machine)


def test_a_chapter_that_saves_no_record_fails(make_project, machine):
    project = make_project()
    text = project.notebook("first").read_text().replace("results.save(", "print(")
    project.notebook("first").write_text(text)
    with pytest.raises(ChapterFailure, match="without saving its record"):
        run_chapter(project, "first", {}, machine)


def test_a_cell_that_raises_is_named_and_what_ran_is_kept(make_project, machine):
    project = make_project("undefined_name")
    with pytest.raises(ChapterFailure, match=r"raised NameError.*undefined_name") as caught:
        run_chapter(project, "first", {}, machine)
    kept = nbformat.read(caught.value.kept, as_version=4)
    assert any("1" in str(cell.get("outputs")) for cell in kept.cells)
    assert load(project.results / "first" / f"{machine.slug}.json")  # saved before the failure
    with pytest.raises(ChapterFailure):
        run_chapter(project, "first", {}, machine)  # a failure is not cached


def test_a_kernel_that_dies_is_named_with_its_cell(make_project, machine):
    project = make_project("import os; os.kill(os.getpid(), 9)")
    with pytest.raises(ChapterFailure, match=r"the kernel died in cell .*os\.kill"):
        run_chapter(project, "first", {}, machine)
    assert load(project.results / "first" / f"{machine.slug}.json")


def test_a_cell_that_runs_too_long_is_stopped(make_project, machine):
    project = make_project("import time; time.sleep(60)")
    with pytest.raises(ChapterFailure, match="ran longer than 2 s"):
        run_chapter(project, "first", {}, machine, cell_timeout_s=2)


def test_control_c_keeps_what_ran_and_says_how_to_go_on(make_project, machine):
    """A real interrupt, sent to the whole group as a terminal does, while a cell runs."""
    project = make_project("import time, pathlib; pathlib.Path('on').touch(); time.sleep(value)")
    command = [sys.executable, "-m", "prefill_decode.cli", "run", "--device", "cpu"]
    started = subprocess.Popen(
        [*command, "-p", "value=60"],
        cwd=project.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + 90
    while not (project.root / "on").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(started.pid, signal.SIGINT)
    _, words = started.communicate(timeout=60)
    assert started.returncode == 130, words
    assert "first: interrupted" in words
    assert "run again to go on from here" in words
    assert "Traceback" not in words
    kept = nbformat.read(
        project.build / "trials" / "build" / "failed" / "first.ipynb", as_version=4
    )
    assert kept.cells[3].outputs[0].data["text/plain"] == "60"  # the third is this run's values


def test_a_users_own_kernel_and_start_up_files_cannot_get_in_the_way(
    make_project, machine, tmp_path, monkeypatch
):
    hostile = tmp_path / "hostile"
    (hostile / "kernels" / "python3").mkdir(parents=True)
    (hostile / "kernels" / "python3" / "kernel.json").write_text('{"argv": ["false"]}')
    (hostile / "profile_default" / "startup").mkdir(parents=True)
    (hostile / "profile_default" / "startup" / "0.py").write_text("raise SystemExit('hostile')")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(hostile))
    monkeypatch.setenv("IPYTHONDIR", str(hostile))
    assert run_chapter(make_project(), "first", {}, machine)[1]
    assert os.environ["JUPYTER_DATA_DIR"] == str(hostile)  # and ours is gone again


def test_chapters_come_in_the_order_of_the_toc_and_misspelt_ones_are_answered(
    make_project, machine
):
    project = make_project()
    assert project.chapters() == ["first", "second"]
    assert project.chosen(["second", "first"]) == ["first", "second"]
    assert project.title("first") == "The first claim"
    with pytest.raises(ValueError, match=r"got 'secnd'; did you mean second\?"):
        project.chosen(["secnd"])
    project.notebook("second").unlink()
    with pytest.raises(ValueError, match="not there: second"):
        project.chapters()


def test_two_runs_do_not_measure_side_by_side(make_project):
    project = make_project()
    project.prepare()
    with (
        measuring_alone(project),
        pytest.raises(ValueError, match="another run is measuring"),
        measuring_alone(project),
    ):
        pass
    with measuring_alone(project):
        pass


def test_folders_are_checked_before_anything_is_measured(make_project, tmp_path):
    project = make_project()
    project.prepare()
    assert project.results.is_dir()
    for results_folder in (project.build, project.build / "src" / "deep"):
        with pytest.raises(ValueError, match="outside of the build folder"):
            replace(project, results=results_folder).prepare()
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="must be a folder to write to"):
        replace(project, results=tmp_path / "file" / "inner").prepare()
    own = tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").touch()
    with pytest.raises(ValueError, match="did not make"):
        replace(project, build=own).prepare()
    assert (own / "thesis.txt").exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a: [",
        "[1]",
        "parts:",
        "parts: 5",
        "parts: [{chapters: []}]",
        "x: !!python/none x",
        "root: x\nparts: [{}]",
        "root: x\nparts: [{chapters: 5}]",
        "root: x\nparts: [{chapters: [{url: x}]}]",
        "root: r\nparts: [{chapters: [{file: notebooks/first}, {file: notebooks/first}]}]",
    ],
)
def test_a_damaged_table_of_contents_is_refused_by_name(make_project, text):
    project = make_project()
    (project.root / "_toc.yml").write_text(text)
    with pytest.raises(ValueError, match=r"_toc\.yml"):
        project.chapters()


@pytest.mark.parametrize("text", ["", "[", "a: 1", "repository: {}", "repository: {url: 5}"])
def test_a_damaged_configuration_is_refused_by_name(make_project, text):
    project = make_project()
    (project.root / "_config.yml").write_text(text)
    with pytest.raises(ValueError, match=r"_config\.yml"):
        project.repository_url()


def test_a_project_is_found_from_within_and_not_from_without(make_project, tmp_path):
    project = make_project()
    assert find_project(project.root / "notebooks").root == project.root
    with pytest.raises(ValueError, match="not inside a checkout"):
        find_project(tmp_path.parents[1])
