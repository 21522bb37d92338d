"""`compare` and `results --accept` as a user types them: sources, exit codes, measuring again."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from prefill_decode import cli, measure, paired, results
from prefill_decode.book import find_project, remeasure
from prefill_decode.book.run import ChapterFailure, measuring_alone
from prefill_decode.cli.parser import make_parser
from prefill_decode.cli.shared import project_of
from prefill_decode.results import read_runs, run_of, save

CLAIM = "decode_is_bandwidth_bound"


@pytest.fixture
def here(machine):
    """This machine, known to be itself."""
    return replace(machine, host="1" * 16)


@pytest.fixture
def make(record, here):
    """make(seed, median, claim): a valid record whose first prediction came out so."""

    def made(seed, median=1.2, claim=CLAIM, machine=here):
        measured = record["metrics"][0]["measured"] | {
            "median": median,
            "low": 0.95 * median,
            "high": 1.05 * median,
        }
        first = record["metrics"][0] | {"measured": measured}
        return record | {
            "claim": claim,
            "seed": seed,
            "machine": {**machine.as_dict(), "products": None},
            "date": f"2026-01-{seed + 1:02d}T00:00:00Z",
            "metrics": [first, *record["metrics"][1:]],
        }

    return made


@pytest.fixture
def folders(make, tmp_path, monkeypatch):
    """A base of five equal runs, and an empty folder for current ones; outside of a checkout."""
    base, current = tmp_path / "base", tmp_path / "current"
    for seed in range(5):
        save(make(seed), base)
    current.mkdir()
    monkeypatch.chdir(tmp_path)
    return base, current


def compared(capsys, *words):
    code = cli.main(["compare", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def first_prediction(out):
    return next(row for row in json.loads(out)["rows"] if row["name"] == "batch 8 / batch 1")


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(("median", "code"), [(1.2, 0), (0.5, 0), (2.0, 1)])
def test_the_exit_code_is_1_for_a_regression_only(median, code, make, folders, capsys):
    base, current = folders
    save(make(9, median), current)
    found, out, err = compared(capsys, base, current, "--remeasure", "0")
    assert (found, err) == (code, "")
    assert out.startswith("**The gate fails:**" if code else "**The gate passes:**")


def test_json_is_the_same_report(make, folders, capsys):
    base, current = folders
    save(make(9, 2.0), current)
    code, out, _ = compared(capsys, base, current, "--json", "--remeasure", "0")
    document = json.loads(out)
    assert (code, document["failed"], document["tolerance"]) == (1, True, 0.1)
    row = first_prediction(out)
    assert len(row["base"]) == 5  # the history counts, not the newest record alone
    assert row["change"]["answer"] == "regression"


def test_a_wider_tolerance_forgives(make, folders, capsys):
    base, current = folders
    save(make(9, 2.0), current)
    assert compared(capsys, base, current, "--tolerance", "2")[0] == 0


def test_pinned_runs_of_the_base_count_too(make, folders, capsys):
    base, current = folders
    results.accept(base, [CLAIM], make(0)["machine"]["slug"])
    for seed in range(10, 15):
        save(make(seed, 2.0), base)
    save(make(20, 2.0), current)
    code, out, _ = compared(capsys, base, current, "--json", "--remeasure", "0")
    rows = [r for r in json.loads(out)["rows"] if r["name"] == "batch 8 / batch 1"]
    assert {row["against"]: row["change"]["answer"] for row in rows} == {
        "last": "inconclusive",
        "pinned": "regression",
    }
    assert code == 1


def test_a_record_and_a_file_of_runs_are_sources_too(make, folders, capsys):
    base, current = folders
    record = save(make(9, 2.0), current)
    save(make(3, claim="another_claim"), base)
    runs = next(base.glob(f"history/{CLAIM}/*.jsonl"))
    code, out, _ = compared(capsys, runs, record, "--remeasure", "0")
    assert code == 1
    code, out, _ = compared(capsys, base, record, "--remeasure", "0")
    assert code == 1
    assert "another_claim" not in out  # a record speaks for its own claim


def test_a_claim_that_a_current_folder_lacks_is_missed(make, folders, capsys):
    base, current = folders
    save(make(3, claim="another_claim"), base)
    save(make(9), current)
    code, out, _ = compared(capsys, base, current, "--remeasure", "0")
    assert code == 1
    assert "missing in this run" in out


def test_one_unusable_file_hides_no_other_and_makes_the_exit_code_2(make, folders, capsys):
    base, current = folders
    save(make(9), current)
    (current / CLAIM / "torn.json").write_text('{"schema_version": 2, "cla')
    (base / CLAIM / "empty.json").write_text("")
    code, out, err = compared(capsys, base, current)
    assert code == 2
    assert "torn.json" in err
    assert "empty.json" in err
    assert out.startswith(
        "**The gate fails:** 2 files could not be used, so that the result cannot"
    )
    assert "torn.json" in out
    code, out, _ = compared(capsys, base, current, "--json")
    assert (code, json.loads(out)["failed"]) == (2, True)


@pytest.mark.parametrize("direction", [None, "sideways"])
def test_h13_i_a_file_whose_direction_is_unknown_is_refused(direction, make, folders, capsys):
    base, current = folders
    path = save(make(9), current)
    document = json.loads(path.read_text())
    document["metrics"][0]["measured"]["better"] = direction
    path.write_text(json.dumps(document))
    code, out, err = compared(capsys, base, current)
    assert (code, out) == (2, "")
    assert path.name in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["base", "base"], "never compared with itself"),
        (["base", "base/../base"], "never compared with itself"),
        ([".", "."], "never compared with itself"),
        (["", "good"], "BASE is a folder, a file or a revision; got an empty text"),
        (["base", " "], "CURRENT is a folder, a file or a revision; got an empty text"),
        (["--code", "", "good"], "got an empty text"),
        (["base", "copy"], "never compared with itself"),
        (["base", "current"], "'current' holds no usable one"),
        (["current", "base"], "'current' holds no usable one"),
        (["base", "nowhere"], "this is no checkout"),
        (["base", "x" * 300], "File name too long"),
        (["--code", "base", "good", "--remeasure", "2"], "--remeasure is for records"),
    ],
)
def test_what_cannot_be_compared_is_a_sentence_and_exit_code_2(
    words, message, make, folders, capsys
):
    base, _ = folders
    save(make(4), base.parent / "copy")  # the base's newest record
    save(make(9), base.parent / "good")
    code, out, err = compared(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    "words",
    [
        ["a"],
        *(["a", "b", "--remeasure", text] for text in ("-1", "x")),
        *(["a", "b", "--tolerance", text] for text in ("0", "-1", "nan", "inf", "10", "x")),
    ],
)
def test_a_mistyped_comparison_ends_with_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", *words])
    assert ended.value.code == 2
    assert capsys.readouterr().err


@pytest.fixture
def checkout(make, tmp_path, monkeypatch, here):
    """A checkout in miniature under git: five runs committed, on this machine."""
    root = tmp_path / "checkout"
    (root / "notebooks").mkdir(parents=True)
    (root / "lib").mkdir()
    (root / "lib" / "code.py").write_text("1")
    (root / "notebooks" / f"{CLAIM}.ipynb").write_text("{}")
    entry = {"file": f"notebooks/{CLAIM}"}
    toc = {"format": "jb-book", "root": "book/index", "parts": [{"chapters": [entry]}]}
    (root / "_toc.yml").write_text(json.dumps(toc))
    (root / ".gitignore").write_text("_build\n.lock\n")
    git(root.parent, "init", "-q", "-b", "main", str(root))
    git(root, "add", ".")
    git(root, "commit", "-qm", "code")
    for seed in range(5):
        save(make(seed), root / "book" / "results")
    git(root, "add", ".")
    git(root, "commit", "-qm", "records")
    monkeypatch.chdir(root)
    monkeypatch.setattr(measure, "describe_machine", lambda device="auto": here)
    return root


def head(root):
    words = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(
        words, cwd=root, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_revision_is_a_source_and_so_is_the_working_tree(make, checkout, capsys):
    save(make(9, 2.0), checkout / "book" / "results")
    code, out, _ = compared(capsys, "main", ".", "--remeasure", "0", "--json")
    assert code == 1
    assert len(json.loads(out)["rows"][0]["base"]) == 5
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "slower")
    code, out, _ = compared(capsys, "HEAD~1", "HEAD", "--remeasure", "0")
    assert code == 1


def slug_of(make):
    return make(0)["machine"]["slug"]


def against(out):
    return {row["against"] for row in json.loads(out)["rows"]}


def test_a_baseline_that_moved_with_the_change_turns_the_gate_green(make, checkout, capsys):
    here = checkout / "book" / "results"
    results.accept(here, [CLAIM], slug_of(make))
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "baseline")
    (checkout / "measured").mkdir()
    save(make(9, 2.0), checkout / "measured")
    for current in (".", "measured"):
        save(make(9, 2.0), here)
        code, out, _ = compared(capsys, "main", current, "--remeasure", "0", "--json")
        assert (code, against(out)) == (1, {"last", "pinned"})
    for seed in range(10, 13):
        save(make(seed, 2.0) | {"commit": "0123456789ab"}, here)
    results.accept(here, [CLAIM], slug_of(make))
    for current in (".", "measured"):
        code, out, _ = compared(capsys, "main", current, "--remeasure", "0", "--json")
        assert (code, against(out)) == (0, {"pinned"})
        assert json.loads(out)["notes"][0].startswith(f"baseline moved: {CLAIM} on ")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "the change is meant")
    code, out, _ = compared(capsys, "HEAD~1", "HEAD", "--remeasure", "0", "--json")
    assert (code, against(out)) == (0, {"pinned"})
    save(make(20, 2.0), checkout / "measured")
    code, out, _ = compared(capsys, "HEAD", "measured", "--remeasure", "0", "--json")
    assert (code, against(out)) == (0, {"last", "pinned"})


def test_a_record_alone_goes_with_its_own_claims_baseline(make, checkout, capsys):
    here = checkout / "book" / "results"
    save(make(3, claim="another_claim"), here)
    results.accept(here, [CLAIM, "another_claim"], slug_of(make))
    record = save(make(9), checkout / "measured")
    code, out, _ = compared(capsys, "main", record, "--remeasure", "0", "--json")
    assert (code, against(out)) == (0, {"pinned"})
    assert "another_claim" not in out


def test_a_base_that_keeps_no_baselines_moves_none(make, checkout, capsys):
    """A folder of records is not a state in which a baseline was absent."""
    here = checkout / "book" / "results"
    for seed in range(5):
        save(make(seed), checkout.parent / "older")
    save(make(9, 2.0), here)
    results.accept(here, [CLAIM], slug_of(make))
    code, out, _ = compared(capsys, "../older", ".", "--remeasure", "0", "--json")
    assert (code, "last" in against(out)) == (1, True)


def test_a_torn_baseline_around_fresh_records_fails(make, checkout, capsys):
    here = checkout / "book" / "results"
    results.accept(here, [CLAIM], slug_of(make))
    next(here.glob("baseline/*/*.jsonl")).write_text("{")
    save(make(9), checkout / "measured")
    code, out, _ = compared(capsys, "main", "measured", "--remeasure", "0")
    assert code == 2
    assert out.startswith("**The gate fails:** 1 file could not be used")


def test_a_reader_that_has_seen_enough_does_not_change_the_exit_code(make, folders, root):
    base, current = folders
    save(make(9, 2.0), current)
    for words in ([], ["--json"]):
        command = [sys.executable, "-m", "prefill_decode.cli", "compare", str(base), str(current)]
        child = subprocess.Popen(
            [*command, "--remeasure", "0", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(root / "lib")},
        )
        child.stdout.close()  # as head does, only sooner
        assert child.stderr.read() == b""
        child.stderr.close()
        assert child.wait(timeout=60) == 1


def test_the_same_code_twice_is_refused(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    for words in ([".", "."], [str(root), "."]):
        code, out, err = compared(capsys, "--code", *words)
        assert (code, out) == (2, "")
        assert "code is never compared with itself" in err


def test_a_revision_is_not_compared_with_itself_but_may_have_two_names(checkout, capsys):
    (checkout / "lib" / "prefill_decode").mkdir(parents=True, exist_ok=True)
    (checkout / "lib" / "prefill_decode" / "a.py").write_text("one")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "code")
    code, out, err = compared(capsys, "--code", "HEAD", "HEAD")
    assert (code, out) == (2, "")
    assert "never compared with itself; both sides are 'HEAD'" in err
    code, out, err = compared(capsys, "--code", "HEAD", "HEAD~0")
    assert (code, err) == (0, "")
    assert "nothing to measure" in out


def test_a_link_in_a_revision_is_a_problem_and_in_code_a_refusal(make, checkout, capsys):
    package, records = checkout / "lib" / "prefill_decode", checkout / "book" / "results"
    package.mkdir(parents=True, exist_ok=True)
    (package / "a.py").symlink_to("elsewhere.py")
    (records / CLAIM / "linked.json").symlink_to("elsewhere.json")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "links")
    (records / CLAIM / "linked.json").unlink()
    save(make(9), records)
    code, out, err = compared(capsys, "HEAD", ".", "--json")
    assert code == 2
    assert f"HEAD:book/results/{CLAIM}/linked.json: a symbolic link" in err
    assert len(json.loads(out)["problems"]) == 1
    code, out, err = compared(capsys, "--code", "HEAD", str(checkout))
    assert (code, out) == (2, "")
    assert "HEAD:lib/prefill_decode/a.py: a symbolic link" in err


def test_codes_are_compared_under_the_lock_that_chapters_are_measured_under(
    checkout, capsys, monkeypatch
):
    for name in ("one", "two"):
        package = checkout / name / "lib" / "prefill_decode"
        package.mkdir(parents=True)
        (package / "a.py").write_text(name)
    timed = []
    monkeypatch.setattr(paired, "compare_code", lambda *given, **named: timed.append(given))
    project = find_project(checkout)
    project.prepare()
    with measuring_alone(project):
        code, out, err = compared(capsys, "--code", "one", "two")
    assert (code, out, timed) == (2, "", [])
    assert "another run is measuring" in err


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("nosuch", "none of them"),
        ("HEAD~1", "holds no book/results"),
        ("HEAD", "never compared with itself"),
        ("--output=x", "required"),
        ("HEAD:lib", "none of them"),
    ],
)
def test_a_revision_without_results_is_refused(base, message, checkout, capsys):
    if base.startswith("-"):
        with pytest.raises(SystemExit):
            cli.main(["compare", base, "."])
        return
    code, out, err = compared(capsys, base, ".")
    assert (code, out) == (2, "")
    assert message in err


def test_a_damaged_file_in_a_revision_is_named_by_the_revision(make, checkout, capsys):
    (checkout / "book" / "results" / CLAIM / "torn.json").write_text("{")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "torn")
    (checkout / "book" / "results" / CLAIM / "torn.json").unlink()
    save(make(9), checkout / "book" / "results")
    code, _, err = compared(capsys, "HEAD", ".")
    assert code == 2
    assert f"HEAD:book/results/{CLAIM}/torn.json" in err


@pytest.fixture
def measured_again(make, monkeypatch):
    """measured_again(medians): what the chapter gives when it is run again; a list of its calls."""

    def prepare(medians):
        calls = []

        def run_chapter(project, chapter, parameters, machine, *, again):
            assert again
            calls.append(parameters)
            save(make(20 + len(calls), medians[len(calls) - 1]), project.results)

        monkeypatch.setattr(remeasure, "run_chapter", run_chapter)
        monkeypatch.setattr(remeasure, "_parameters", lambda *given: {"seed": 7})
        return calls

    return prepare


def save_current(make, checkout, median=2.0, **other):
    record = make(9, median) | {"commit": head(checkout)} | other
    save(record, checkout / "book" / "results")


def test_what_looks_worse_is_measured_again_and_dropped_if_it_does_not_stand(
    make, checkout, measured_again, capsys
):
    save_current(make, checkout)
    calls = measured_again([1.2, 1.2])
    code, out, err = compared(capsys, "main", ".")
    assert (code, calls) == (0, [{"seed": 7}] * 2)
    assert "measured again: does not stand" in out
    assert "[2/2] " in err
    assert (checkout / "_build" / "remeasured" / "2" / "results" / CLAIM).is_dir()
    assert len(list((checkout / "book" / "results" / CLAIM).glob("*.json"))) == 1


def test_what_stands_when_measured_again_fails_the_gate(make, checkout, measured_again, capsys):
    save_current(make, checkout)
    calls = measured_again([2.0, 2.0, 2.0])
    code, out, _ = compared(capsys, "main", ".", "--remeasure", "3", "--json")
    assert (code, len(calls)) == (1, 3)
    row = first_prediction(out)
    assert (row["again"], len(row["current"])) == ("stands", 4)


def test_nothing_is_measured_again_when_all_is_well(make, checkout, measured_again, capsys):
    save_current(make, checkout, median=1.2)
    calls = measured_again([])
    assert compared(capsys, "main", ".")[0] == 0
    assert calls == []


def test_the_first_judgement_counts_where_measuring_again_is_not_possible(
    make, checkout, measured_again, monkeypatch, here, capsys
):
    measured_again([1.2] * 9)
    save_current(make, checkout, commit=None)
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "made by other code (commit unknown)" in out

    save_current(make, checkout, commit=f"{head(checkout)}+changes")
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "made by code that no commit holds" in out

    save_current(make, checkout)
    (checkout / "lib" / "code.py").write_text("2")
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "made by other code" in out
    git(checkout, "checkout", "-q", "lib")

    elsewhere = replace(here, host="2" * 16)
    monkeypatch.setattr(measure, "describe_machine", lambda device="auto": elsewhere)
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "this machine is not known to be that one" in out


def test_a_chapter_that_fails_when_run_again_is_told(make, checkout, monkeypatch, capsys):
    def fails(project, chapter, *given, **named):
        raise ChapterFailure(chapter, "the kernel died", None)

    monkeypatch.setattr(remeasure, "run_chapter", fails)
    monkeypatch.setattr(remeasure, "_parameters", lambda *given: {})
    save_current(make, checkout)
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "could not be measured again: decode_is_bandwidth_bound: the kernel died" in out
    assert "measured again: stands" not in out


def test_an_interrupted_remeasuring_ends_the_command(make, checkout, monkeypatch, capsys):
    def interrupted(project, chapter, *given, **named):
        raise ChapterFailure(chapter, "interrupted", None)

    monkeypatch.setattr(remeasure, "run_chapter", interrupted)
    monkeypatch.setattr(remeasure, "_parameters", lambda *given: {})
    save_current(make, checkout)
    assert compared(capsys, "main", ".")[0] == 130


def test_a_run_is_this_codes_while_nothing_changed_and_never_if_it_had_changes(checkout):
    commit = head(checkout)
    assert remeasure.made_by_this_code(checkout, commit)
    assert not remeasure.made_by_this_code(checkout, f"{commit}+changes")
    (checkout / "lib" / "code.py").write_text("2")
    assert not remeasure.made_by_this_code(checkout, f"{commit}+changes")
    assert not remeasure.made_by_this_code(checkout, commit)
    assert not remeasure.made_by_this_code(checkout, "0" * 12)


def test_the_chapter_is_run_again_with_the_records_parameters(root, make, here):
    """Of a real notebook; one value that its reader could not have given is left to it."""
    project = project_of(make_parser().parse_args(["results", "--results", "/tmp/x"]))
    stored = make(9) | {
        "parameters": {"batch_sizes": [1, 4], "context_tokens": -3, "budget_s": 12.0, "other": 1}
    }
    given = remeasure._parameters(project, here, run_of(stored), stored)
    assert given == {"device": "cpu", "batch_sizes": [1, 4], "budget_s": 12.0, "seed": 9}


def test_accept_pins_this_machines_last_runs_and_says_that_a_review_moves_the_baseline(
    make, checkout, capsys
):
    assert cli.main(["results", "--accept"]) == 0
    out = capsys.readouterr().out
    path = next((checkout / "book" / "results" / "baseline").glob("*/*.jsonl"))
    assert f"{CLAIM}: 5 runs pinned\n    {path}" in out
    assert "reviewed" in out
    assert [run.run_id for run in read_runs(path)] == [run_of(make(s)).run_id for s in range(5)]


def test_accept_names_a_refuted_run_and_refuses_a_void_one(make, checkout, capsys):
    def turned(seed, outcome, reason, median):
        record = make(seed, median)
        first = record["metrics"][0] | {"outcome": outcome, "reason": reason}
        verdict = {"outcome": outcome, "reason": f"{first['name']}: {reason}"}
        return record | {"metrics": [first, *record["metrics"][1:]], "verdict": verdict}

    reason = "the whole interval lies on the rival's side"
    save(turned(9, "refuted", reason, 7.0), checkout / "book" / "results")
    assert cli.main(["results", "--accept", CLAIM]) == 0
    assert f"; refuted: batch 8 / batch 1: {reason}" in capsys.readouterr().out
    broken = {"outcome": "void", "reason": "the clock stood still: the ruler is broken"}
    save(make(10) | {"verdict": broken}, checkout / "book" / "results")
    assert cli.main(["results", "--accept", CLAIM]) == 2
    assert "a void run is no baseline" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("claim", "message"),
    [("decode_is_bandwith_bound", "did you mean decode_is_bandwidth_bound?"), (None, "no claim")],
)
def test_accept_of_nothing_is_refused(claim, message, checkout, capsys, monkeypatch, machine):
    other = replace(machine, device_name="Other")
    monkeypatch.setattr(measure, "describe_machine", lambda device="auto": other)
    assert cli.main(["results", "--accept", *([claim] if claim else [])]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_came_out_with_other_parameters_is_left_out(make, checkout, monkeypatch, capsys):
    def run_chapter(project, *given, **named):
        save(make(20) | {"parameters": {"batch_sizes": [1, 4]}}, project.results)

    monkeypatch.setattr(remeasure, "run_chapter", run_chapter)
    monkeypatch.setattr(remeasure, "_parameters", lambda *given: {})
    save_current(make, checkout)
    code, out, _ = compared(capsys, "main", ".")
    assert code == 1
    assert "with other parameters: that run is left out" in out
