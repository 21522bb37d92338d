"""`prefill-decode trust` as a user types it, with the measuring taken out."""

from types import SimpleNamespace

import pytest

from prefill_decode import cli, measure, paired, results
from prefill_decode.book import run as running
from prefill_decode.book.run import ChapterFailure
from prefill_decode.cli.comparing import chapter_runner
from prefill_decode.cli.shared import project_of

STUDY = {
    "schema_version": 1,
    "kind": "trust study",
    "machine": {"slug": "a-cpu", "title": "A CPU", "device": "cpu"},
    "model": "tiny, float32",
    "commit": None,
    "library_version": "0.1.0",
    "date": "2026-11-30T00:00:00Z",
    "budget_s": 40.0,
    "tolerance": 0.1,
    "sessions": 2,
    "rates": {"equal, fresh": {"count": 0, "of": 2, "share": 0.0, "low": 0.0, "high": 0.842}},
    "noise": {"decode x1": {"n_pairs": 20, "pair_spread": 0.03, "session_spread": 0.01}},
    "distributions": {"equal": {"decode x1": [0.0, 0.01]}},
}


@pytest.fixture
def asked(monkeypatch, root):
    """The options that the study was asked with."""
    seen = SimpleNamespace()

    def run_study(where, folder, **options):
        seen.root, seen.folder, seen.options = where, folder, options
        return STUDY

    monkeypatch.setattr(paired, "run_study", run_study)
    monkeypatch.chdir(root)
    return seen


def test_the_study_is_saved_beside_the_records_and_its_rates_are_printed(
    asked, tmp_path, root, capsys
):
    words = ["--results", str(tmp_path / "results"), "--build", str(tmp_path / "build")]
    assert cli.main(["trust", *words]) == 0
    path = tmp_path / "results" / "trust" / "a-cpu.json"
    assert paired.load_study(path) == STUDY
    out = capsys.readouterr().out
    assert "equal, fresh: 0 of 2 (0.0%, 0.0% to 84.2%)" in out
    assert str(path) in out
    assert (asked.root, asked.folder) == (root, tmp_path / "build" / "trust")
    options = asked.options
    assert options["sessions"] == paired.SESSIONS
    assert options["budget_s"] == paired.BUDGET_S
    assert options["chapter_runs"] == paired.CHAPTER_RUNS
    assert not options["again"]


def test_every_option_reaches_the_study(asked, tmp_path):
    out = tmp_path / "study.json"
    words = ["--sessions", "2", "--budget", "3", "--chapter-runs", "1", "--again"]
    folders = ["--build", str(tmp_path / "build"), "--results", str(tmp_path / "results")]
    assert cli.main(["trust", *words, *folders, "--device", "cpu", "--out", str(out)]) == 0
    assert paired.load_study(out) == STUDY
    given = {key: asked.options[key] for key in ("sessions", "budget_s", "chapter_runs", "device")}
    assert given == {"sessions": 2, "budget_s": 3.0, "chapter_runs": 1, "device": "cpu"}
    assert asked.options["again"]


def test_a_refused_study_is_one_sentence_and_exit_code_2(monkeypatch, root, tmp_path, capsys):
    monkeypatch.chdir(root)
    words = ["--results", str(tmp_path / "results"), "--build", str(tmp_path / "build")]
    assert cli.main(["trust", "--sessions", "0", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("prefill-decode: a study needs at least one session")
    assert error.count("\n") == 1


@pytest.fixture
def project(root, tmp_path, monkeypatch):
    monkeypatch.chdir(root)
    found = project_of(SimpleNamespace(results=tmp_path / "results", build=tmp_path / "build"))
    found.prepare()
    return found


def test_a_chapter_run_is_fresh_and_leaves_the_books_records_alone(project, record, monkeypatch):
    machine = measure.describe_machine("cpu")

    def run_chapter(trial, chapter, parameters, machine, again):
        assert again
        assert parameters["device"] == "cpu"
        here = {**machine.as_dict(), "products": None}
        saved = {**record, "claim": chapter, "machine": here}
        return results.save(saved, trial.results), True

    monkeypatch.setattr(running, "run_chapter", run_chapter)
    run = chapter_runner(project, "cpu")()
    assert run.claim == paired.CHAPTER
    assert run.machine["slug"] == machine.slug
    assert "time, decode x1" in run.quantities
    assert not list(project.results.glob("*/*.json"))


@pytest.mark.parametrize(
    ("reason", "error"), [("interrupted", KeyboardInterrupt), ("the kernel died", ValueError)]
)
def test_a_chapter_that_does_not_finish_ends_the_study(project, monkeypatch, reason, error):
    def run_chapter(trial, chapter, *rest, **options):
        raise ChapterFailure(chapter, reason, None)

    monkeypatch.setattr(running, "run_chapter", run_chapter)
    with pytest.raises(error):
        chapter_runner(project, "cpu")()


def test_the_studys_chapter_is_one_of_the_books(project):
    assert paired.CHAPTER in project.chapters()
