"""Records: strict, whole or not at all, and every damaged file refused with a sentence."""

import copy
import json
import os
import re
import subprocess
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode import results
from prefill_decode.results import record as record_module
from prefill_decode.results.files import canonical


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
    assert [point["chunks"] for point in record["points"]] == [[[1, 16, 1]], [[1, 16, 8]]]
    assert [point["time_s"]["unit"] for point in record["points"]] == ["s", "s"]
    assert [point["reached"]["better"] for point in record["points"]] == ["higher", "higher"]


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


def test_what_is_no_file_is_never_replaced_by_one(tmp_path):
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    for path in (pipe, folder):
        with pytest.raises(ValueError, match="only a file can be written anew"):
            results.write_all_atomically({tmp_path / "beside": b"x", path: b"x"})
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["folder", "pipe"]


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
        "no schema version": (text.replace('"schema_version": 2, ', ""), "schema version.*None"),
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
    for reserved in ("history", "baseline", "trust"):  # hold other things than records
        (tmp_path / reserved).mkdir(exist_ok=True)
        (tmp_path / reserved / "machine.json").write_text("{}")
    (tmp_path / "phases.svg").write_text("a file beside the claims")
    records, problems = results.load_all(tmp_path)
    assert records == [record]
    assert len(problems) == 2
    assert "bad.json" in problems[0]
    assert "CLAIM/MACHINE.json" in problems[1]


def test_every_file_contributed_to_book_results_is_accepted_by_this_library(root):
    folder = root / "book" / "results"
    records, problems = results.load_all(folder)
    runs, of_history = results.history(folder)
    pinned, of_baseline = results.baselines(folder)
    assert problems + of_history + of_baseline == []
    chapters = {path.stem for path in (root / "notebooks").glob("*.ipynb")}
    assert {record["claim"] for record in records} <= chapters
    assert {run.claim for run in runs + pinned} <= chapters
    assert {json.loads(p.read_text())["schema_version"] for p in folder.glob("*_*/*.json")} == {2}


def with_metric(record, **changed):
    return {**record, "metrics": [{**record["metrics"][0], **changed}, *record["metrics"][1:]]}


def with_value(record, path, value):
    """A copy in which the value at "a/0/b" is another."""
    changed = copy.deepcopy(record)
    *parents, last = [int(part) if part.isdigit() else part for part in path.split("/")]
    inner = changed
    for part in parents:
        inner = inner[part]
    inner[last] = value
    return changed


# The twelve defects of a published list of damaged result files, each on our own layout.
TWELVE = {
    "01": (lambda text: text, None),
    "02": (lambda text: text.replace('"median": 1.2', '"median": NaN'), "not a finite number"),
    "03": (lambda text: text[: text.index('"torch": "') + 10], "not valid JSON"),
    "04": (lambda text: "", "empty"),
    "05": (lambda text: "Downloading weights... done\n" + text, "not valid JSON"),
    "06": (
        lambda text: re.sub(
            r'"time_s": {"median": [^,]+(.*?)"unit": "s"',
            r'"time_s": {"median": 10.45\1"unit": "ms"',
            text,
            count=1,
        ),
        "points/0/time_s/unit: 'ms' is not one of",
    ),
    "07": (
        lambda text: text.replace('"metrics": [', '"metrics": [' + first_metric(text) + ", "),
        "two metrics have the same name",
    ),
    "08": (lambda text: text.replace('"median": 1.2', '"median": null'), "not a finite number"),
    "09": (lambda text: text.replace('"median": 7', '"median": -Infinity'), "not a finite number"),
    "10": (
        lambda text: re.sub('"schema_version": .', '"schema_version": 99', text),
        "unknown schema version.*got 99",
    ),
    "11": (lambda text: "\ufeff" + text, None),
    "12": (lambda text: json.dumps({**json.loads(text), "metrics": []}), "metrics"),
}


def first_metric(text):
    return json.dumps(json.loads(text)["metrics"][0])


def test_each_of_twelve_damaged_files_is_reported_and_the_two_good_ones_are_read(record, tmp_path):
    folder = tmp_path / record["claim"]
    folder.mkdir()
    for name, (damage, _) in TWELVE.items():
        text = json.dumps(with_value(record, "machine/slug", name))
        damaged_text = damage(text)
        assert (damaged_text == text) == (name == "01")
        (folder / f"{name}.json").write_text(damaged_text, encoding="utf-8")
    records, problems = results.load_all(tmp_path)
    assert [found["machine"]["slug"] for found in records] == ["01", "11"]
    refused = [(name, reason) for name, (_, reason) in TWELVE.items() if reason]
    assert len(problems) == len(refused) == 10
    for problem, (name, reason) in zip(problems, refused, strict=True):
        assert problem.startswith(str(folder / f"{name}.json"))
        assert re.search(reason, problem)


NESTED = "[" * 40 + "]" * 40
TEXTS = {
    "an integer beyond floats": ('"seed": 0', f'"seed": 1{"0" * 400}', "numbers lie between"),
    "an integer Python will not read": ('"seed": 0', f'"seed": 1{"0" * 5000}', "not valid JSON"),
    "a float beyond floats": ('"seed": 0', '"seed": 1e999', "numbers lie between"),
    "a boolean for a number": ('"n": 10', '"n": true', "True is not of type 'integer'"),
    "a float for a count": ('"n": 10', '"n": 10.0', "10.0 is not of type 'integer'"),
    "a text for a number": ('"seed": 0', '"seed": "0"', "'0' is not of type 'integer'"),
    "an unknown key": ('"seed": 0', '"seed": 0, "sead": 0', "sead"),
    "a missing key": ('"seed": 0, ', "", "'seed' is a required property"),
    "a lone surrogate": ('"library_version": "', '"library_version": "\\ud800', "printable"),
    "a NUL": ('"library_version": "', '"library_version": "\\u0000', "printable"),
    "markup": ('"library_version": "', '"library_version": "<b>', "without < >"),
    "lists in lists": ('"parameters": {', f'"parameters": {{"deep": {NESTED}, ', "too deeply"),
    "a version that is a boolean": ('"schema_version": 2', '"schema_version": true', "got True"),
    "a version that is a float": ('"schema_version": 2', '"schema_version": 2.0', r"got 2\.0"),
    "a version that is a text": ('"schema_version": 2', '"schema_version": "2"', "got '2'"),
    "a version that is a list": ('"schema_version": 2', '"schema_version": [2]', r"got \[2\]"),
    "an older version": ('"schema_version": 2', '"schema_version": 0', "got 0"),
    "version 2 called version 1": ('"schema_version": 2', '"schema_version": 1', "not a record"),
    "an unknown direction": ('"better": "lower"', '"better": "down"', "'down' is not one of"),
    "no direction": (', "better": "lower"', "", "'better' is a required property"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_what_is_no_record_in_any_detail_is_refused(record, tmp_path, kind):
    before, after, reason = TEXTS[kind]
    text = json.dumps(record)
    assert before in text
    path = tmp_path / "machine.json"
    path.write_text(text.replace(before, after, 1))
    with pytest.raises(ValueError, match=reason) as caught:
        results.load(path)
    assert str(caught.value).startswith(str(path))
    assert len(str(caught.value)) < 700


def test_bytes_that_are_another_encoding_or_none_are_refused(record, tmp_path):
    path = tmp_path / "machine.json"
    for encoding in ("utf-16", "utf-16-le", "utf-32"):
        path.write_bytes(json.dumps(record).encode(encoding))
        with pytest.raises(ValueError, match=r"UTF-8|not valid JSON"):
            results.load(path)
    path.write_bytes(b"\0" * 1000)
    with pytest.raises(ValueError, match="not valid JSON"):
        results.load(path)
    path.write_text(json.dumps({str(key): 0 for key in range(200_000)})[:-1] + ', "7": 1}')
    with pytest.raises(ValueError, match="'7' appears twice"):  # found in one pass over the keys
        results.load(path)


def test_what_is_no_readable_file_is_refused_and_nothing_hangs(record, tmp_path, monkeypatch):
    pipe, loop, missing = (tmp_path / f"{name}.json" for name in ("pipe", "loop", "missing"))
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    for path in (pipe, loop, missing, tmp_path / ("x" * 300), tmp_path / "nul\0"):
        with pytest.raises(ValueError, match=r"regular file|UTF-8"):
            results.load(path)
    path = results.save(record, tmp_path)

    def denied(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    for name in ("read_text", "stat", "is_file"):  # of the file, of a folder above it
        with monkeypatch.context() as patch:
            patch.setattr(Path, name, denied)
            with pytest.raises(ValueError, match="Permission denied") as caught:
                results.load(path)
            assert str(path) in str(caught.value)


def test_a_folder_that_cannot_be_listed_is_reported_beside_the_others(
    record, tmp_path, monkeypatch
):
    results.save(record, tmp_path)
    closed = tmp_path / "a_closed_claim"
    closed.mkdir()
    (tmp_path / "a_loop").symlink_to(tmp_path / "a_loop")
    (tmp_path / "a_link").symlink_to(tmp_path / "nowhere")
    (tmp_path / record["claim"] / "folder.json").mkdir()
    listing = os.listdir

    def listed(folder):
        if Path(folder) == closed:
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(os, "listdir", listed)
    records, problems = results.load_all(tmp_path)
    assert records == [record]
    assert len(problems) == 4
    assert "a_closed_claim" in problems[0]
    assert "a_link" in problems[1]
    assert "a_loop" in problems[2]
    assert "folder.json: a record is a regular file" in problems[3]
    assert results.load_all(tmp_path / "nowhere") == ([], [])


FUTURE = (datetime.now(UTC) + timedelta(days=3)).strftime("%Y-%m-%dT%H:%M:%SZ")
CONTRADICTIONS = {
    "low above the median": ("metrics/0/measured/low", 1.25, "stand in order"),
    "high below the median": ("points/0/time_s/high", 0.001, "stand in order"),
    "one end of an interval": ("points/0/reached/low", None, "both ends or none"),
    "more samples than rounds": ("points/0/time_s/n", 11, "11 samples of 10 rounds"),
    "a round too few": ("timings/raw_s/decode x1", [0.01] * 9, "9 times of 10 rounds"),
    "a round too many": ("timings/disturbed", [False] * 11, "10 times of 11 rounds"),
    "an outcome that is not so": ("metrics/0/outcome", "refuted", "say supported"),
    "a verdict that is not so": ("verdict/outcome", "refuted", "the metrics say supported"),
    "a void without a reason": ("verdict/outcome", "void", "the metrics say supported"),
    "the rival's direction": ("metrics/0/measured/better", "higher", "the lower one"),
    "a share that had better be small": ("points/0/reached/better", "lower", "'higher' was exp"),
    "no such day": ("date", "2026-02-30T00:00:00Z", "no such moment"),
    "no such hour": ("date", "2026-02-03T25:00:00Z", "no such moment"),
    "a date to come": ("date", FUTURE, "lies in the future"),
    "chunks of more tokens": ("points/0/chunks", [[2, 16, 1]], "2 new tokens of 1 sequences"),
    "chunks of more sequences": ("points/1/chunks", [[1, 16, 9]], "9 new tokens of 9 sequences"),
    "a chunk that is empty": ("points/1/chunks", [[1, 16, 0]], "minimum"),
    "one step twice": ("points/0/step", "decode x8", "two points have the same step"),
    "a metric called like a time": ("metrics/0/name", "time, decode x1", "like a point's"),
    "a claim called like a folder": ("claim", "history", "no claim is called"),
    "a limit below what is expected": ("metrics/0/physical_limit", 1.0, "more than its limit"),
    "no control": ("metrics/1/role", "prediction", "needs a prediction and a control"),
}


MACHINE = {  # as version 2 describes one, and its kind by hand from what decides its speed
    **{"device": "cpu", "device_name": "A CPU", "cpu_name": "A CPU"},
    **{"cpu_family_model_stepping": "6/106/6", "instruction_sets": ["avx2", "fma"]},
    **{"cores": 2, "threads": 2, "last_level_cache_bytes": 32 * 2**20, "system": "Linux x86_64"},
    "memory_bytes": 16 * 2**30,
}
DECISIVE = ("device", "device_name", "cpu_name", "cpu_family_model_stepping", "instruction_sets")
DECISIVE += ("cores", "threads", "last_level_cache_bytes", "system")
KIND = sha256(
    b'["cpu", "A CPU", "A CPU", "6/106/6", ["avx2", "fma"], 2, 2, 33554432, "Linux x86_64", 16]'
).hexdigest()[:16]


def with_machine(record, **more):
    named = {"kind": KIND, "slug": f"a-cpu-2-cores-{KIND[:4]}", "host": "a" * 16}
    return {**record, "machine": {**record["machine"], **MACHINE, **named, **more}}


def test_a_machines_kind_and_slug_follow_from_what_it_says_of_itself(record, tmp_path):
    assert results.load(results.save(with_machine(record), tmp_path))
    for lie in ({"kind": "0" * 16}, {"cores": 3}, {"instruction_sets": None, "host": None}):
        with pytest.raises(ValueError, match=r"machine: its kind, .*; got"):
            results.save(with_machine(record, **lie), tmp_path)
    with pytest.raises(ValueError, match=f"slug ends in -{KIND[:4]}, .*; got a-cpu-2-cores-0000"):
        results.save(with_machine(record, slug="a-cpu-2-cores-0000"), tmp_path)
    nothing_new = dict.fromkeys(("host", "instruction_sets", "cpu_family_model_stepping"))
    less = {**MACHINE, **nothing_new}
    told = json.dumps([less[name] for name in DECISIVE] + [16])
    old = {**nothing_new, "kind": sha256(told.encode()).hexdigest()[:16]}
    assert results.save(with_machine(record, **old), tmp_path)  # its slug was made of less
    with pytest.raises(ValueError, match="its kind"):
        results.save(with_machine(record, **nothing_new), tmp_path)


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_record_that_contradicts_itself_is_refused(record, tmp_path, kind):
    place, value, reason = CONTRADICTIONS[kind]
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(with_value(record, place, value)))
    with pytest.raises(ValueError, match=reason):
        results.load(path)
    with pytest.raises(ValueError, match=reason):
        results.save(with_value(record, place, value), tmp_path)


def test_a_void_by_the_ruler_needs_no_metric_that_says_so(record, tmp_path):
    reason = "decode x1 took 0.90 of the least possible time: the ruler is broken"
    path = results.save({**record, "verdict": {"outcome": "void", "reason": reason}}, tmp_path)
    assert results.load(path)["verdict"]["reason"] == reason


def test_a_clock_that_is_an_hour_ahead_is_no_fault(record, tmp_path):
    date = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert results.load(results.save({**record, "date": date}, tmp_path))["date"] == date


def test_a_median_of_nothing_is_a_number(record, tmp_path):
    nothing = {**record["metrics"][0]["measured"], "median": 0, "low": 0, "high": 0}
    assert results.load(results.save(with_metric(record, measured=nothing), tmp_path))


VERSION_1_MACHINE = {
    "slug": "old-cpu-2-cores-0000",
    "title": "Old CPU, 2 cores",
    "device": "cpu",
    "device_name": "Old CPU",
    "cpu_name": "Old CPU",
    "cores": 2,
    "threads": 2,
    "memory_bytes": 16 * 10**9,
    "last_level_cache_bytes": None,
    "system": "Linux x86_64",
    "python": "3.11.0",
    "torch": "2.13.0",
    "numpy": "2.4.0",
}


def version_1(record):
    """What the library wrote before quantities had units."""
    old = {**copy.deepcopy(record), "schema_version": 1, "machine": VERSION_1_MACHINE}
    del old["simulated"], old["peak_memory_bytes"]
    for metric in old["metrics"]:
        metric["measured"] = without_unit(metric["measured"])
    for point in old["points"]:
        del point["chunks"]
        point["time_s"], point["reached"] = map(without_unit, (point["time_s"], point["reached"]))
    return old


def without_unit(stored):
    return {key: value for key, value in stored.items() if key not in ("unit", "better")}


def test_a_record_of_version_1_is_read_and_what_it_did_not_hold_is_unknown(record, tmp_path):
    path = tmp_path / record["claim"] / "old-cpu-2-cores-0000.json"
    path.parent.mkdir()
    path.write_text(json.dumps(version_1(record)))
    read = results.load(path)
    assert read["schema_version"] == 2
    assert [metric["measured"] for metric in read["metrics"]] == [
        metric["measured"] for metric in record["metrics"]
    ]
    assert [{**point, "chunks": None} for point in record["points"]] == read["points"]
    assert re.fullmatch("[0-9a-f]{16}", read["machine"]["kind"])
    unknown = {key: read["machine"][key] for key in read["machine"].keys() - VERSION_1_MACHINE}
    del unknown["kind"]
    assert unknown == {
        "host": None,
        "instruction_sets": None,
        "kernels": None,
        "products": None,
        "cpu_family_model_stepping": None,
        "accelerator_driver": None,
    }
    assert results.load_all(tmp_path) == ([read], [])
    assert results.load(results.save(read, tmp_path)) == read


def test_a_record_from_before_products_were_told_is_read_and_keeps_its_run(record, tmp_path):
    old = copy.deepcopy(record)
    del old["simulated"], old["peak_memory_bytes"]  # came later still
    assert old["machine"].pop("products")
    path = tmp_path / record["claim"] / f"{record['machine']['slug']}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(old))
    read = results.load(path)
    assert read == {
        **record,
        "machine": {**record["machine"], "products": None},
        "peak_memory_bytes": None,
    }
    as_ever = sha256(canonical(json.loads(json.dumps(old))).encode()).hexdigest()[:16]
    assert results.run_of(read).run_id == as_ever
    assert results.run_of(record).run_id != as_ever


def test_a_damaged_record_of_version_1_is_refused_as_before(record, tmp_path):
    path = tmp_path / "machine.json"
    for place, value in (("metrics", {}), ("points/0", 3), ("machine", []), ("seed", None)):
        path.write_text(json.dumps(with_value(version_1(record), place, value)))
        with pytest.raises(ValueError, match="not a record"):
            results.load(path)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["lower", "higher", "1", "s", "void", "supported", "control"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
FUZZ = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def holders(value, found):
    """Every object and list of a JSON tree that is not empty."""
    if isinstance(value, dict | list) and value:
        found.append(value)
        for inner in value.values() if isinstance(value, dict) else value:
            holders(inner, found)
    return found


def mutate(tree, data):
    """Replace, remove or repeat something, somewhere."""
    holder = data.draw(st.sampled_from(holders(tree, [])))
    keys = list(holder) if isinstance(holder, dict) else range(len(holder))
    key = data.draw(st.sampled_from(list(keys)))
    action = data.draw(st.sampled_from(["replace", "remove", "copy"]))
    if action == "replace":
        holder[key] = data.draw(JSON)
    elif action == "remove":
        del holder[key]
    else:
        other = data.draw(st.sampled_from(holders(tree, [])))
        holder[key] = copy.deepcopy(data.draw(st.sampled_from(holders(other, []))))


def mutate_bytes(content, data):
    place = data.draw(st.integers(0, len(content) - 1))
    some = data.draw(st.binary(min_size=1, max_size=4))
    return data.draw(
        st.sampled_from(
            [
                content[:place] + some + content[place + 1 :],  # another byte
                content[:place] + some + content[place:],  # more
                content[:place] + content[place + len(some) :],  # fewer
                content[:place],
                content + some,
            ]
        )
    )


def is_read_and_saved_again_or_refused(path, folder):
    try:
        read = results.load(path)
    except ValueError as error:
        refused = str(error)
    else:
        assert results.load(results.save(read, folder)) == read
        assert results.history(folder)[1] == []
        return
    assert str(path) in refused
    assert refused.encode("utf-8", "strict")  # a sentence that any stream can show


@FUZZ
@given(data=st.data())
def test_a_record_with_anything_changed_is_read_and_saved_again_or_refused(record, tmp_path, data):
    tree = json.loads(json.dumps(record))
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(tree, data)
    path = tmp_path / "mutated.json"
    path.write_text(json.dumps(tree))
    is_read_and_saved_again_or_refused(path, tmp_path / "saved")


@FUZZ
@given(data=st.data())
def test_a_record_with_any_byte_changed_is_read_and_saved_again_or_refused(record, tmp_path, data):
    path = tmp_path / "mutated.json"
    path.write_bytes(mutate_bytes(json.dumps(record).encode(), data))
    is_read_and_saved_again_or_refused(path, tmp_path / "saved")


@FUZZ
@given(value=JSON, content=st.binary(max_size=64))
def test_anything_else_is_refused(tmp_path, value, content):
    path = tmp_path / "anything.json"
    for written in (json.dumps(value).encode(), content):
        path.write_bytes(written)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            results.load(path)


def test_an_interval_may_reach_below_0_as_a_noisy_fit_does(record, tmp_path):
    """A ratio of two fitted terms has a positive median and, amid noise, a negative end."""
    metric = record["metrics"][0]
    metric["measured"] |= {"median": 1.2, "low": -1.8, "high": 9.0}
    metric["outcome"] = "inconclusive"
    record["verdict"] = {"outcome": "inconclusive", "reason": "too wide"}
    path = results.save(record, tmp_path)
    assert results.load(path)["metrics"][0]["measured"]["low"] == -1.8
    runs, problems = results.history(tmp_path)
    assert not problems
    assert runs[0].quantities[metric["name"]].measured.low == -1.8


def test_a_simulated_record_says_what_it_stands_for_and_holds_no_times(simulated_record, tmp_path):
    assert results.load(results.save(simulated_record, tmp_path)) == simulated_record
    assert simulated_record["simulated"]["hardware"][0]["source"] == "a data sheet"
    nothing = [simulated_record[name] for name in ("points", "timings", "ceilings")]
    assert nothing == [[], None, None]
    run = results.run_of(simulated_record)
    assert run.is_simulated
    assert run.setting["simulated"] == simulated_record["simulated"]


@pytest.mark.parametrize("name", ["points", "timings", "ceilings"])
def test_a_record_is_either_timed_or_simulated(record, simulated_record, name, tmp_path):
    assert not results.run_of(record).is_simulated
    for one, other in ((record, simulated_record), (simulated_record, record)):
        with pytest.raises(ValueError, match=f"not a record: {name}"):
            results.save({**one, name: other[name]}, tmp_path)


def test_a_record_says_what_memory_its_run_took(record, simulated_record):
    for each in (record, simulated_record):
        assert 10**7 < each["peak_memory_bytes"] < 10**12


@pytest.mark.parametrize("absent", [True, False])
def test_a_record_that_does_not_say_its_memory_is_read_and_keeps_its_run(record, absent, tmp_path):
    silent = {**record, "peak_memory_bytes": None}
    older = {name: value for name, value in record.items() if name != "peak_memory_bytes"}
    path = tmp_path / record["claim"] / f"{record['machine']['slug']}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(older if absent else silent))
    assert results.load(path) == silent
    assert results.run_of(silent) == results.run_of(older)
    assert results.run_of(silent).run_id != results.run_of(record).run_id


def test_a_record_from_before_there_were_simulated_ones_was_measured_and_keeps_its_run(
    record, tmp_path
):
    record = {**record, "peak_memory_bytes": None}
    old = copy.deepcopy(record)
    del old["simulated"], old["peak_memory_bytes"]
    path = tmp_path / record["claim"] / f"{record['machine']['slug']}.json"
    path.parent.mkdir()
    path.write_text(json.dumps(old))
    assert results.load(path) == record
    assert results.run_of(old) == results.run_of(record)
