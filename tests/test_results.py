"""Records: strict, whole or not at all, and every damaged file refused with a sentence."""

import json
import multiprocessing
import os
import subprocess

import pytest

from prefill_decode import results
from prefill_decode.results import record as record_module


def test_a_record_survives_the_disk_unchanged(record, tmp_path):
    path = results.save(record, tmp_path)
    slug = record["machine"]["slug"]
    assert path == tmp_path / "decode_is_bandwidth_bound" / f"{slug}.json"
    assert results.load(path) == record
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_record_holds_what_is_needed_to_judge_it_again(record):
    metric = record["metrics"][0]
    assert metric["measured"] == {
        "median": 1.2,
        "low": 1.1,
        "high": 1.3,
        "n": 10,
        "coverage": 0.97,
        "unit": "1",
        "better": "lower",
    }
    assert metric["physical_limit"] is None
    assert record["metrics"][1]["measured"]["coverage"] is None  # unknown is null
    assert results.interval_of(record["metrics"][0]["measured"]).high == 1.3
    assert len(record["timings"]["raw_s"]["decode x1"]) == 10
    assert {point["step"]: point["sequences"] for point in record["points"]} == {
        "decode x1": 1,
        "decode x8": 8,
    }


def git(folder, *words):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def test_the_commit_is_marked_when_the_measuring_code_differs_from_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert record_module._commit() is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("1")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    clean = record_module._commit()
    assert len(clean) >= 12
    (tmp_path / "record.json").write_text("{}")  # results beside the code change nothing
    assert record_module._commit() == clean
    (tmp_path / "lib" / "a.py").write_text("2")
    assert record_module._commit() == clean + "+changes"


def test_the_default_folder_is_the_checkouts_and_else_the_current_one(root, tmp_path, monkeypatch):
    monkeypatch.chdir(root / "notebooks")
    assert results.default_folder() == root / "book" / "results"
    monkeypatch.chdir(tmp_path)
    assert results.default_folder() == tmp_path / "results"


def test_a_record_that_is_not_valid_is_never_written(record, tmp_path):
    record["points"][0]["time_s"]["median"] = float("nan")
    with pytest.raises(ValueError, match=r"points/0/time_s/median: numbers lie between"):
        results.save(record, tmp_path)
    record["points"][0]["time_s"]["median"] = -1.0
    with pytest.raises(ValueError, match="points/0/time_s/median"):
        results.save(record, tmp_path)
    for wrong in (
        "x" * 501,
        "<script>",
        "a | b",
        "line\nbreak",
        "\ud800",
        "\x1b[31m",
        1e308,
        {1: 2},
    ):
        with pytest.raises(ValueError, match="not a record"):
            results.save({**record, "parameters": {"a": wrong}}, tmp_path)
    for wrong in (None, {}, [], {"schema_version": 1}):
        with pytest.raises(ValueError, match="not a record"):
            results.save(wrong, tmp_path)
    with pytest.raises(ValueError, match="not a record"):
        results.save({**record, "claim": "abc\n"}, tmp_path)
    assert not list(tmp_path.rglob("*.json"))


def test_a_failed_write_leaves_the_earlier_record_and_no_litter(record, tmp_path, monkeypatch):
    path = results.save(record, tmp_path)
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        results.save({**record, "seed": 1}, tmp_path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def save_often(record, folder):
    for seed in range(20):
        results.save({**record, "seed": seed}, folder)


def test_two_runs_at_once_leave_a_whole_record(record, tmp_path):
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=save_often, args=(record, tmp_path)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert results.load(next(tmp_path.rglob("*.json")))["seed"] == 19


def damaged(record):
    text = json.dumps(record)
    nan = text.replace('"n": 10', '"n": NaN', 1)
    twice = text.replace('"seed": 0', '"seed": 0, "seed": 1')
    return {
        "empty": ("", "empty"),
        "blank": (" \n", "empty"),
        "truncated": (text[:200], "not valid JSON"),
        "a stray print": ("Downloading... done\n" + text, "not valid JSON"),
        "NaN": (nan, "not a finite number"),
        "infinity": (text.replace('"n": 10', '"n": -Infinity', 1), "not a finite number"),
        "a key twice": (twice, "'seed' appears twice"),
        "a newer schema": (text.replace('"schema_version": 2', '"schema_version": 99'), "99"),
        "no schema version": (text.replace('"schema_version": 2, ', ""), "schema_version"),
        "no metrics": (json.dumps({**record, "metrics": []}), "metrics"),
        "one metric twice": (
            json.dumps({**record, "metrics": record["metrics"][:1] * 2}),
            "two metrics have the same name",
        ),
        "null for a number": (text.replace('"seed": 0', '"seed": null'), "seed"),
        "no points": (json.dumps({**record, "points": []}), "points"),
        "a machine without its versions": (text.replace('"python": ', '"pithon": '), "python"),
        "a foreign document": ('{"hello": 1}', "not a record"),
        "a list": ("[1, 2]", "not a record"),
        "a number": ("3", "not a record"),
        "deep nesting": ("[" * 100_000, "nested too deeply"),
    }


@pytest.mark.parametrize("kind", damaged({"metrics": [], "points": []}))
def test_a_damaged_file_is_refused_with_its_name_and_the_reason(record, tmp_path, kind):
    text, reason = damaged(record)[kind]
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        results.load(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_files_that_are_no_text_too_large_or_not_files_are_refused(record, tmp_path):
    path = tmp_path / "machine.json"
    path.write_bytes(b"\xff\xfe\x00 is no text")
    with pytest.raises(ValueError, match="UTF-8"):
        results.load(path)
    with pytest.raises(ValueError, match="regular file"):
        results.load(tmp_path)
    os.truncate(path, 100_000_000)
    with pytest.raises(ValueError, match="at most 20000000 bytes; got 100000000"):
        results.load(path)


def test_a_byte_order_mark_is_harmless(record, tmp_path):
    path = tmp_path / "machine.json"
    path.write_text("\ufeff" + json.dumps(record), encoding="utf-8")
    assert results.load(path) == record


def test_one_bad_file_does_not_hide_the_others(record, tmp_path):
    good = results.save(record, tmp_path)
    (good.parent / "bad.json").write_text("")
    (good.parent / "elsewhere.json").write_text(json.dumps(record))
    records, problems = results.load_all(tmp_path)
    assert records == [record]
    assert len(problems) == 2
    assert "bad.json" in problems[0]
    assert "CLAIM/MACHINE.json" in problems[1]


def test_the_records_in_this_repository_are_valid(root):
    records, problems = results.load_all(root / "book" / "results")
    assert problems == []
    assert {record["claim"] for record in records} <= {
        path.stem for path in (root / "notebooks").glob("*.ipynb")
    }
