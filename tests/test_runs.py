"""Runs: every save is remembered, whatever happens to the process, the disk or another writer."""

import copy
import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode import results
from prefill_decode.change import Quantity
from prefill_decode.results import files, runs, store
from prefill_decode.statistics import Interval


def turn(record, number, **changed):
    """A record that its run can be told from others by."""
    return {**record, "parameters": {**record["parameters"], "turn": number}, **changed}


def turns_in(folder):
    found, problems = results.history(folder)
    assert problems == []
    return [run.setting["turn"] for run in found]


def history_file(record, folder):
    return folder / "history" / record["claim"] / f"{record['machine']['slug']}.jsonl"


def litter(folder):
    return [path for path in folder.rglob("*") if path.suffix == ".tmp"]


def test_a_run_is_its_record_in_short(record):
    run = results.run_of({**record, "parameters": {"batch_sizes": (1, 8), "budget_s": 35.0}})
    assert run.claim == "decode_is_bandwidth_bound"
    assert (run.outcome, run.failed_control) == ("supported", False)
    assert run.setting == {"batch_sizes": [1, 8], "model": "tiny", "dtype": "float64"}
    assert run.machine == record["machine"]
    assert run.expected == {"batch 8 / batch 1": (1.1, 8.0)}
    assert run.quantities.keys() == {
        *("batch 8 / batch 1", "prefill", "reached, decode x1", "reached, decode x8"),
        *("time, decode x1", "time, decode x8"),
    }
    assert run.quantities["batch 8 / batch 1"] == Quantity(
        Interval(1.2, 1.1, 1.3, 10, 0.97), "1", "lower"
    )
    assert run.quantities["prefill"].better == "higher"
    assert run.quantities["reached, decode x1"].better == "higher"
    time_s = run.quantities["time, decode x1"]
    assert (time_s.unit, time_s.better, time_s.travels) == ("s", "lower", False)
    assert time_s.measured.median == pytest.approx(0.01045)
    assert run.quantities["reached, decode x8"].travels


def test_a_run_is_known_by_its_records_content_alone(record):
    known = {name: value for name, value in record.items() if (name, value) != ("simulated", None)}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"))
    assert results.run_of(record).run_id == sha256(text.encode()).hexdigest()[:16]
    backwards = dict(reversed(record.items()))
    assert results.run_of(backwards).run_id == results.run_of(record).run_id
    assert results.run_of({**record, "seed": 1}).run_id != results.run_of(record).run_id


def test_a_control_that_failed_is_remembered(record):
    for outcome, failed in [("refuted", True), ("void", True), ("inconclusive", False)]:
        controls = [{**metric, "outcome": outcome} for metric in record["metrics"][1:]]
        changed = {**record, "metrics": [record["metrics"][0], *controls]}
        assert results.run_of(changed).failed_control is failed
    lost = [{**record["metrics"][0], "outcome": "refuted"}, *record["metrics"][1:]]
    assert results.run_of({**record, "metrics": lost}).failed_control is False


def test_every_save_adds_a_run_and_none_is_added_twice(record, tmp_path):
    for number in (0, 1, 1, 2):
        results.save(turn(record, number), tmp_path)
    assert turns_in(tmp_path) == [0, 1, 2]
    results.append(tmp_path, results.run_of(turn(record, 1)))
    assert turns_in(tmp_path) == [0, 1, 2]
    assert results.history(tmp_path)[0][2] == results.run_of(turn(record, 2))
    assert results.baselines(tmp_path) == ([], [])


def test_a_record_that_was_there_before_any_history_is_its_first_run(record, tmp_path):
    path = results.save(turn(record, 0), tmp_path)
    history_file(record, tmp_path).unlink()
    results.save(turn(record, 1), tmp_path)
    assert turns_in(tmp_path) == [0, 1]
    path.write_text("{}")  # no record, no run
    results.save(turn(record, 2), tmp_path)
    assert turns_in(tmp_path) == [0, 1, 2]


def test_runs_are_read_oldest_first_and_each_once(record, tmp_path):
    dates = ["2026-03-01T00:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]
    for number, date in enumerate(dates):
        results.save(turn(record, number, date=date), tmp_path)
    path = history_file(record, tmp_path)
    assert [run.date for run in results.read_runs(path)] == sorted(dates)
    path.write_text(path.read_text() + "\n" + path.read_text())  # as a merge may leave it
    assert turns_in(tmp_path) == [1, 2, 0]


def test_earlier_lines_are_kept_byte_for_byte_even_bad_ones(record, tmp_path):
    results.save(turn(record, 0), tmp_path)
    path = history_file(record, tmp_path)
    damaged = path.read_bytes() + b"\xff not a run"
    path.write_bytes(damaged)
    results.save(turn(record, 1), tmp_path)
    assert path.read_bytes().startswith(damaged + b"\n")
    assert results.load(next((tmp_path / record["claim"]).iterdir()))["parameters"]["turn"] == 1


def line(record, **changed):
    return {**json.loads(runs.line_of(results.run_of(record))), **changed}


def with_quantity(record, name, **changed):
    stored = line(record)
    stored["quantities"][name].update(changed)
    return stored


BAD_LINES = {
    "not valid JSON": lambda record: '{"run_id": ',
    "not a finite number": lambda record: '{"run_id": NaN}',
    "'a' appears twice": lambda record: '{"a": 1, "a": 2}',
    "nested too deeply": lambda record: "[" * 5000,
    "is not of type 'object'": lambda record: "[]",
    "'schema_version' is a required property": lambda record: "{}",
    "schema_version: 1 was expected": lambda record: line(record, schema_version=2),
    "no such moment": lambda record: line(record, date="2026-02-30T00:00:00Z"),
    "unexpected": lambda record: line(record, more=1),
    "stand in order": lambda record: with_quantity(record, "prefill", low=9),
    "both ends or none": lambda record: with_quantity(record, "prefill", low=None),
    "None is not of type 'integer'": lambda record: with_quantity(record, "prefill", n=None),
    "null is not a finite number": lambda record: with_quantity(record, "prefill", median=None),
    "'down' is not one of": lambda record: with_quantity(record, "prefill", better="down"),
    "the lower one": lambda record: with_quantity(record, "batch 8 / batch 1", better="higher"),
    "is expected and was not measured": lambda record: line(record, expected={"a": [1, 2]}),
    "stands for another run": lambda record: line(record, commit="abc"),
}


@pytest.mark.parametrize("reason", BAD_LINES)
def test_a_bad_line_is_refused_with_file_line_and_reason(record, tmp_path, reason):
    results.save(record, tmp_path)
    path = history_file(record, tmp_path)
    bad = BAD_LINES[reason](record)
    if isinstance(bad, dict):
        bad = json.dumps(bad)
    path.write_text(path.read_text() + bad + "\n")
    with pytest.raises(ValueError, match=reason) as caught:
        results.read_runs(path)
    assert str(caught.value).startswith(f"{path}, line 2: not a run: ")


def test_one_bad_history_does_not_hide_the_others(record, tmp_path):
    results.save(turn(record, 0), tmp_path)
    good = history_file(record, tmp_path)
    (good.parent / "elsewhere.jsonl").write_text(good.read_text())
    (good.parent / "empty.jsonl").write_text("")
    os.mkfifo(good.parent / "pipe.jsonl")
    found, problems = results.history(tmp_path)
    assert [run.setting["turn"] for run in found] == [0]
    assert len(problems) == 3
    assert "elsewhere.jsonl: a record lies at CLAIM/MACHINE.jsonl" in problems[0]
    assert "empty" in problems[1]
    assert "regular file" in problems[2]


def test_a_history_that_is_a_pipe_stops_no_writer_for_ever(record, tmp_path):
    path = history_file(record, tmp_path)
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    with pytest.raises(ValueError, match="regular file"):
        results.save(record, tmp_path)


def accept(record, folder, most_runs=5):
    return results.accept(folder, [record["claim"]], record["machine"]["slug"], most_runs)


def pinned(folder):
    found, problems = results.baselines(folder)
    assert problems == []
    return [run.library_version for run in found]


def test_the_last_runs_are_pinned_and_a_later_pin_replaces_them(record, tmp_path):
    for number in range(4):
        results.save({**record, "library_version": str(number)}, tmp_path)
    slug = record["machine"]["slug"]
    assert accept(record, tmp_path, 3) == [
        tmp_path / "baseline" / record["claim"] / f"{slug}.jsonl"
    ]
    assert pinned(tmp_path) == ["1", "2", "3"]
    results.save({**record, "library_version": "4"}, tmp_path)
    assert pinned(tmp_path) == ["1", "2", "3"]
    accept(record, tmp_path)
    assert pinned(tmp_path) == ["0", "1", "2", "3", "4"]


def test_a_record_without_a_history_is_pinned_alone(record, tmp_path):
    results.save({**record, "library_version": "a"}, tmp_path)
    history_file(record, tmp_path).unlink()
    accept(record, tmp_path)
    assert pinned(tmp_path) == ["a"]


def test_only_runs_like_the_newest_are_pinned_and_no_void_ones(record, tmp_path):
    void = {"outcome": "void", "reason": "a neighbour: the ruler is broken"}
    elsewhere = {**record["machine"], "host": "0" * 16}
    for version, changed in [
        ("another host", {"machine": elsewhere}),
        ("another commit", {"commit": "0123456789ab"}),
        ("changed since", {"commit": f"{record['commit']}+changes"}),
        ("other parameters", {"parameters": {"batch_sizes": [1, 9]}}),
        ("void", {"verdict": void}),
        ("like it", {"parameters": {**record["parameters"], "budget_s": 3}}),
        ("newest", {}),
    ]:
        results.save({**record, "library_version": version, **changed}, tmp_path)
    accept(record, tmp_path)
    assert pinned(tmp_path) == ["like it", "newest"]
    results.save({**record, "verdict": void}, tmp_path)
    with pytest.raises(ValueError, match="a void run is no baseline"):
        accept(record, tmp_path)
    with pytest.raises(ValueError, match="has no run on"):
        results.accept(tmp_path, [record["claim"], "another_claim"], "no-machine")
    with pytest.raises(ValueError, match="one run or more"):
        accept(record, tmp_path, 0)
    assert pinned(tmp_path) == ["like it", "newest"]


@pytest.mark.parametrize("part", ["record", "history"])
def test_a_record_or_run_of_another_claim_is_not_pinned(record, tmp_path, part):
    slug = record["machine"]["slug"]
    results.save(turn(record, 0), tmp_path)
    results.save(turn(record, 1, claim="another_claim"), tmp_path)
    there = {
        "record": tmp_path / "another_claim" / f"{slug}.json",
        "history": history_file({**record, "claim": "another_claim"}, tmp_path),
    }
    here = {
        "record": tmp_path / record["claim"] / f"{slug}.json",
        "history": history_file(record, tmp_path),
    }
    there[part].write_bytes(here[part].read_bytes())
    with pytest.raises(ValueError, match="a record lies at CLAIM/MACHINE"):
        results.accept(tmp_path, [record["claim"], "another_claim"], slug)
    assert not (tmp_path / "baseline").exists()


@pytest.mark.parametrize("part", ["record", "history"])
def test_a_link_that_leads_nowhere_is_not_passed_over_when_runs_are_pinned(record, tmp_path, part):
    path = results.save(record, tmp_path)
    broken = path if part == "record" else history_file(record, tmp_path)
    broken.unlink()
    broken.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="is a regular file"):
        accept(record, tmp_path)
    assert not (tmp_path / "baseline").exists()


@pytest.mark.parametrize("name", ["fsync", "chmod"])
def test_a_disk_that_fills_up_while_claims_are_pinned_moves_no_pin(
    record, tmp_path, monkeypatch, name
):
    claims, slug = [record["claim"], "another_claim"], record["machine"]["slug"]
    for number in (0, 1):
        for claim in claims:
            results.save(turn(record, number, claim=claim), tmp_path)
        if number == 0:
            results.accept(tmp_path, claims, slug)
    calls, works = [], getattr(os, name)

    def full_disk(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(*arguments)

    monkeypatch.setattr(os, name, full_disk)
    with pytest.raises(OSError, match="No space left"):
        results.accept(tmp_path, claims, slug)
    found, problems = results.baselines(tmp_path)
    assert ([run.setting["turn"] for run in found], problems) == ([0, 0], [])
    assert litter(tmp_path) == []


def test_what_is_there_and_is_no_folder_is_a_problem_and_what_is_not_there_is_none(
    record, tmp_path
):
    results.save(record, tmp_path)
    assert results.baselines(tmp_path) == ([], [])
    (tmp_path / "baseline").write_text("a plain file")
    assert "cannot be listed" in results.baselines(tmp_path)[1][0]
    (tmp_path / "baseline").unlink()
    (tmp_path / "baseline").symlink_to(tmp_path / "nowhere")
    assert "cannot be listed" in results.baselines(tmp_path)[1][0]
    (tmp_path / "history" / "a_claim").write_text("a plain file")
    found, problems = results.history(tmp_path)
    assert len(found) == len(problems) == 1
    assert "a_claim: the folder cannot be listed" in problems[0]


def test_a_file_of_runs_beyond_all_measure_is_not_read(record, tmp_path):
    results.save(record, tmp_path)
    with open(history_file(record, tmp_path), "ab") as file:
        file.truncate(100_000_001)  # a hole, which takes no room
    assert results.history(tmp_path)[0] == []
    assert "at most 100000000 bytes; got 100000001" in results.history(tmp_path)[1][0]


def test_an_unknown_host_is_never_the_same_and_a_kind_is_its_mark(record):
    machine = record["machine"]
    assert results.same_kind(machine, {**machine, "torch": "9"})
    assert not results.same_kind(machine, {**machine, "kind": "0" * 16})
    assert not results.same_host(machine, machine)  # its host is null
    known = {**machine, "host": "0" * 16}
    assert results.same_host(known, known)
    assert not results.same_host(known, {**machine, "host": "1" * 16})
    assert not results.same_host(known, machine)


def test_a_run_that_no_one_could_read_is_not_written(record, tmp_path):
    run = results.run_of(record)
    bad = replace(run.quantities["prefill"], measured=Interval(7.0, 8.0, 9.0, 10))
    wrong = replace(run, quantities={**run.quantities, "prefill": bad})
    with pytest.raises(ValueError, match="stand in order"):
        results.append(tmp_path, wrong)
    assert results.history(tmp_path) == ([], [])


FAILING = [
    (module, name, call)
    for module, name in ((os, "fsync"), (os, "replace"), (os, "chmod"), (tempfile, "mkstemp"))
    for call in (1, 2)
]


@pytest.mark.parametrize(("module", "name", "call"), FAILING)
def test_a_full_disk_loses_nothing_and_leaves_no_litter(
    record, tmp_path, monkeypatch, module, name, call
):
    """The first write is the record's, the second the history's."""
    path = results.save(turn(record, 0), tmp_path)
    before = path.read_bytes(), history_file(record, tmp_path).read_bytes()
    calls, works = [], getattr(module, name)

    def full_disk(*arguments, **options):
        calls.append(arguments)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, "No space left on device")
        return works(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, full_disk)
        with pytest.raises(OSError, match="No space left"):
            results.save(turn(record, 1), tmp_path)
    assert history_file(record, tmp_path).read_bytes() == before[1]
    if call == 1:
        assert path.read_bytes() == before[0]
    assert litter(tmp_path) == []
    results.save(turn(record, 2), tmp_path)
    assert turns_in(tmp_path) == ([0, 2] if call == 1 else [0, 1, 2])


def test_a_file_that_may_not_grow_is_a_full_disk_too(record, tmp_path):
    results.save(turn(record, 0), tmp_path)
    code = (
        "import json, resource, sys; from pathlib import Path; from prefill_decode import results\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: results.save(json.loads(sys.stdin.read()), sys.argv[1])\n"
        "except OSError as error: print(error.errno)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=json.dumps(turn(record, 1)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [str(errno.EFBIG)], done.stderr
    assert turns_in(tmp_path) == [0]
    assert results.load_all(tmp_path) == ([turn(record, 0)], [])
    assert litter(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_an_error_of_the_system(record, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        results.save(record, tmp_path / "file")

    def no_locks(*arguments):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match="No locks available"):
        results.save(record, tmp_path / "without locks")
    assert not list(tmp_path.rglob("*.json*"))


def test_a_lock_that_is_no_regular_file_is_refused(record, tmp_path):
    for name, make in [
        ("folder", Path.mkdir),
        ("pipe", os.mkfifo),
        ("link", lambda path: path.symlink_to(tmp_path / "elsewhere")),
    ]:
        (tmp_path / name).mkdir()
        make(tmp_path / name / ".lock")
        with pytest.raises(ValueError, match="a lock is a regular file"):
            results.save(record, tmp_path / name)
    assert not (tmp_path / "elsewhere").exists()
    assert not list(tmp_path.rglob("*.json*"))


def test_a_lock_that_another_writer_never_gives_back_is_named(record, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LONGEST_WAIT_S", 0.1)
    with open(tmp_path / ".lock", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"\.lock: another process has held this lock"):
            results.save(record, tmp_path)
    assert results.load_all(tmp_path) == ([], [])
    results.save(record, tmp_path)
    assert results.load_all(tmp_path) == ([record], [])


def test_what_a_killed_writer_left_is_removed_an_hour_later(record, tmp_path):
    path = results.save(turn(record, 0), tmp_path)
    folders = [path.parent, history_file(record, tmp_path).parent]
    for folder in folders:
        for age_s in (7200, 60):
            left = folder / f".machine.{age_s}.tmp"
            left.write_text("half a rec")
            os.utime(left, (time.time() - age_s,) * 2)
    results.save(turn(record, 1), tmp_path)
    assert sorted(litter(tmp_path)) == sorted(f / ".machine.60.tmp" for f in folders)
    assert turns_in(tmp_path) == [0, 1]


def test_a_save_that_ended_between_record_and_history_is_completed_by_the_next(
    record, tmp_path, monkeypatch
):
    results.save(turn(record, 0), tmp_path)
    works = store.append_alone

    def interrupted(folder, run):
        if run.setting["turn"] == 1:
            raise KeyboardInterrupt
        works(folder, run)

    with monkeypatch.context() as patch:
        patch.setattr(store, "append_alone", interrupted)
        with pytest.raises(KeyboardInterrupt):
            results.save(turn(record, 1), tmp_path)
    assert turns_in(tmp_path) == [0]
    assert results.load_all(tmp_path) == ([turn(record, 1)], [])
    accept(record, tmp_path, 1)  # counts the record, too
    assert results.baselines(tmp_path)[0][0].setting["turn"] == 1
    results.save(turn(record, 2), tmp_path)
    assert turns_in(tmp_path) == [0, 1, 2]


# A child that forks, for each line it is given, a writer that saves until it is killed.
NURSERY = """
import itertools, json, os, sys
from prefill_decode import results
record = json.loads(sys.stdin.readline())
for line in sys.stdin:
    first, count, mark = json.loads(line)
    pid = os.fork()
    if pid == 0:
        for turn in itertools.islice(itertools.count(first), count):
            record["parameters"].update(turn=turn, writer=mark)
            results.save(record, sys.argv[1])
        os._exit(0)
    print(pid, flush=True)
"""


@pytest.fixture
def nursery(record, tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", NURSERY, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    child.stdin.write(json.dumps(record) + "\n")

    def start(first, count, mark=0):
        child.stdin.write(json.dumps([first, count, mark]) + "\n")
        child.stdin.flush()
        return int(child.stdout.readline())

    yield start
    child.stdin.close()
    child.stdout.close()
    assert child.wait(timeout=60) == 0


def wait_for(pid, gone=("Z", "X")):
    """Until a grandchild has ended: it is then a zombie of its own parent, or no more."""
    while True:
        try:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state in gone:
            return
        time.sleep(0.002)


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are watched so")


@needs_proc
def test_writers_that_are_killed_at_any_moment_lose_nothing(record, nursery, tmp_path):
    path = results.save(turn(record, 0), tmp_path)
    last, moments = 0, random.Random(0)
    for _ in range(30):
        pid = nursery(last + 1, 10**6)
        time.sleep(moments.uniform(0.005, 0.08))
        os.kill(pid, signal.SIGKILL)
        wait_for(pid)
        turns = turns_in(tmp_path)
        now = results.load(path)["parameters"]["turn"]
        assert now >= last
        assert turns == list(range(len(turns)))
        assert turns[-1] in (now, now - 1)
        last = now
    assert last > 0, "no writer came to write: there was nothing to lose"
    results.save(turn(record, last + 1), tmp_path)
    assert turns_in(tmp_path) == list(range(last + 2))


@needs_proc
def test_two_writers_at_once_lose_no_run(record, nursery, tmp_path):
    for pid in [nursery(0, 25, mark) for mark in (1, 2)]:
        wait_for(pid)
    found, problems = results.history(tmp_path)
    assert problems == []
    assert sorted((run.setting["writer"], run.setting["turn"]) for run in found) == [
        (writer, number) for writer in (1, 2) for number in range(25)
    ]
    records, problems = results.load_all(tmp_path)
    assert problems == []
    assert results.run_of(records[0]) in found
    assert litter(tmp_path) == []


FUZZ = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
VALUES |= st.lists(VALUES, max_size=2) | st.dictionaries(st.text(max_size=4), VALUES, max_size=2)


@FUZZ
@given(data=st.data())
def test_a_line_with_anything_changed_is_read_and_written_again_or_refused(record, tmp_path, data):
    stored = copy.deepcopy(line(record))
    holder = stored
    while True:
        key = data.draw(st.sampled_from(sorted(holder)))
        if not (isinstance(holder[key], dict) and holder[key] and data.draw(st.booleans())):
            break
        holder = holder[key]
    holder[key] = data.draw(VALUES)
    text = json.dumps(stored).encode()
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(text) - 1))
        text = text[:place] + data.draw(st.binary(max_size=3)) + text[place + 1 :]
    path = tmp_path / "any.jsonl"
    path.write_bytes(text)
    try:
        found = results.read_runs(path)
    except ValueError as error:
        refused = str(error)
    else:
        path.write_text("".join(runs.line_of(run) for run in found))
        assert results.read_runs(path) == found
        return
    assert str(path) in refused
    assert refused.encode("utf-8", "strict")
