"""Real processes: the tiny model end to end, workers that misbehave, and none left behind."""

import gc
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace

import psutil
import pytest

from prefill_decode.paired import compare_code, sides, worker
from prefill_decode.paired.sides import Job, Worker, two_sides, watching

STEPS = {"decode": [(1, 8, 2)], "prefill": [(16, 0, 1)]}
FACTS = {
    "library_version": "0",
    "model": {"name": "tiny", "dtype": "float32"},
    "machine": {"device": "cpu", "cores": 2, "threads": 2},
}


@pytest.fixture
def tiny(tiny_model):
    """Its fields, as a worker of any version takes them."""
    plain = asdict(replace(tiny_model, dtype="float32"))
    return {k: v for k, v in plain.items() if v is not None and not isinstance(v, dict)}


@pytest.fixture
def scripted(tmp_path, monkeypatch):
    """A worker that runs the given lines of Python instead; `facts` are a good first answer."""

    def make(code):
        path = tmp_path / "fake.py"
        path.write_text(f"import json, os, sys\nfacts = {FACTS!r}\n{code}\n")
        monkeypatch.setattr(sides, "WORKER", path)

    return make


READY = "sys.stdin.readline(); print(json.dumps(facts), flush=True); sys.stdin.readline()"


def test_two_processes_of_one_checkout_are_compared_end_to_end(root, tiny):
    said = []
    comparison = compare_code(
        root, root, device="cpu", budget_s=1.0, model_name=tiny, steps=STEPS, say=said.append
    )
    assert [step.step for step in comparison.steps] == ["decode", "prefill"]
    assert all(step.n >= 8 and step.base_s > 0 for step in comparison.steps)
    assert comparison.machine["device"] == "cpu"
    assert comparison.model["name"] == "tiny"
    assert json.dumps(comparison.as_dict(), allow_nan=False)
    assert "session 1 of 1" in said[0]
    assert _workers_of_this_process() == []


def test_a_planted_slowdown_doubles_the_time_and_is_never_an_improvement(root, tiny):
    comparison = compare_code(
        root, root, device="cpu", budget_s=3.0, planted=1.0, model_name=tiny, steps=STEPS
    )
    assert comparison.planted == 1.0
    assert all(step.first.answer != "improvement" for step in comparison.steps)
    with two_sides({"base": root, "current": root}, Job(STEPS, tiny, "cpu"), "seed") as workers:
        for share in (0.0, 1.0):
            answer = workers["current"]._ask({"step": "decode", "planted": share}, 60)
            assert answer["time_s"] >= (1 + share) * answer["bare_s"]
        assert watching(workers)()() in (True, False)


def test_a_worker_serves_its_lines_in_this_process_too(root, tiny):
    lines = [asdict(Job(STEPS, tiny, "cpu")), {"step": "prefill", "planted": 0.5}]
    facts, answer = worker.serve(root, iter(lines))
    assert facts["model"]["name"] == "tiny"
    assert facts["machine"]["device"] == "cpu"
    assert answer["time_s"] >= 1.5 * answer["bare_s"] > 0
    gc.unfreeze()
    gc.enable()


def test_a_count_writes_a_chunk_out_so_often():
    steps = {"mixed": [(1, 512, 3), (64, 0, 1)]}
    assert dict(worker._counted(steps)) == {"mixed": [(1, 512)] * 3 + [(64, 0)]}


def test_what_a_library_prints_is_no_answer(monkeypatch, root):
    out = io.StringIO()
    monkeypatch.setattr(worker, "_private_answers", lambda: out)
    monkeypatch.setattr(worker.sys, "stdin", io.StringIO("nonsense\n"))
    worker.main(root)
    assert "JSONDecodeError" in json.loads(out.getvalue())["error"]


def test_a_library_from_elsewhere_is_refused(tmp_path, tiny):
    with pytest.raises(ValueError, match="the library must come from"):
        list(worker.serve(tmp_path, iter([asdict(Job(STEPS, tiny, "cpu"))])))


def test_a_checkout_without_an_engine_is_refused_in_one_sentence(tmp_path, tiny):
    package = tmp_path / "lib" / "prefill_decode"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    with pytest.raises(
        ValueError, match=r"the base code in .* cannot be timed: ImportError"
    ) as got:
        Worker("base", tmp_path, Job(STEPS, tiny, "cpu"))
    assert "\n" not in str(got.value)
    assert _workers_of_this_process() == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('no memory left')", r"ended.*\(its last words: no memory left\)"),
        ("print('hello', flush=True)", "an answer is one JSON object; got 'hello'"),
        ("print('[1]', flush=True)", "an answer is one JSON object"),
        ("print('{}', flush=True)", "its first answer lacks library_version, machine, model"),
        ("print(json.dumps({'error': 'too old'}), flush=True)", "cannot be timed: too old"),
    ],
)
def test_a_worker_that_does_not_start_is_refused_in_one_sentence(scripted, root, code, words):
    scripted(f"sys.stdin.readline(); {code}")
    with pytest.raises(ValueError, match=words):
        Worker("base", root, Job(STEPS))
    assert _workers_of_this_process() == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("os._exit(3)", "it ended without an answer"),
        ("print(json.dumps({'time_s': None}), flush=True)", "a time is a positive number"),
        ("print(json.dumps({'time_s': -1.0}), flush=True)", "a time is a positive number"),
        ("print(json.dumps({'error': 'KeyError: x'}), flush=True)", "KeyError: x"),
    ],
)
def test_a_worker_that_fails_later_is_refused_and_both_are_ended(scripted, root, code, words):
    scripted(f"{READY}; {code}")
    roots = {"base": root, "current": root}
    with two_sides(roots, Job(STEPS), "s") as workers:
        assert len(_workers_of_this_process()) == 2
        with pytest.raises(ValueError, match=words):
            workers["base"].time_s("decode", 0.0)
    assert _workers_of_this_process() == []


def test_a_worker_that_has_ended_is_said_to_have_ended(scripted, root):
    scripted(READY.rpartition(";")[0])
    running = Worker("current", root, Job(STEPS))
    for _ in range(2):  # it ends when asked, and is gone when asked again
        with pytest.raises(ValueError, match=r"the current code .* ended"):
            running.time_s("decode", 0.0)
        running._signal(signal.SIGCONT)
        running.process.wait(10)
    assert running.cpu_s() == 0.0
    running.close()


def test_a_worker_that_does_not_answer_in_time_is_refused(scripted, root, monkeypatch):
    scripted(f"{READY}; sys.stdin.readline()")
    monkeypatch.setattr(sides, "LONGEST_ANSWER_S", 0.1)
    running = Worker("current", root, Job(STEPS))
    with pytest.raises(ValueError, match=r"no answer in 0\.1 s"):
        running.time_s("decode", 0.0)
    running.close()


def test_a_worker_that_ignores_the_request_to_end_is_forced(scripted, root, monkeypatch):
    scripted(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}")
    monkeypatch.setattr(sides, "LONGEST_END_S", 0.1)
    Worker("base", root, Job(STEPS)).close()
    assert _workers_of_this_process() == []


def test_an_interruption_leaves_no_process_behind(scripted, root):
    scripted(READY)
    roots = {"base": root, "current": root}
    with pytest.raises(KeyboardInterrupt), two_sides(roots, Job(STEPS), "s"):
        raise KeyboardInterrupt
    assert _workers_of_this_process() == []


def test_a_side_lies_stopped_except_while_it_is_asked(root, tiny):
    with two_sides({"base": root, "current": root}, Job(STEPS, tiny, "cpu"), "s") as workers:
        processes = [psutil.Process(worker.process.pid) for worker in workers.values()]
        assert _all_become(processes, psutil.STATUS_STOPPED)
        assert workers["base"].time_s("decode", 0.0) > 0
        assert _all_become(processes, psutil.STATUS_STOPPED)


def test_a_driver_that_is_killed_leaves_no_worker_behind(root):
    code = (
        "import sys, time; from pathlib import Path; from prefill_decode.paired import sides\n"
        f"root = Path({str(root)!r}); sides.WORKER = Path(sys.argv[1])\n"
        "worker = sides.Worker('base', root, sides.Job({}))\n"
        "print(worker.process.pid, flush=True); time.sleep(60)"
    )
    with tempfile.NamedTemporaryFile("w", suffix=".py") as fake:
        fake.write(f"import json, os, sys\nfacts = {FACTS!r}\n{READY}\n")
        fake.flush()
        driver = subprocess.Popen(
            [sys.executable, "-c", code, fake.name], stdout=subprocess.PIPE, text=True
        )
        running = psutil.Process(int(driver.stdout.readline()))
        assert _all_become([running], psutil.STATUS_STOPPED)
        driver.kill()
        driver.wait()
        _, alive = psutil.wait_procs([running], timeout=10)
    assert not alive


def test_both_sides_run_the_model_that_the_first_one_chose(scripted, root):
    scripted(
        "job = json.loads(sys.stdin.readline())\n"
        "facts['model']['name'] = 'chosen' if job['model'] == 'auto' else job['model'] + ' too'\n"
        "print(json.dumps(facts), flush=True); sys.stdin.readline()"
    )
    with pytest.raises(ValueError, match="the same model") as got:
        two_sides({"base": root, "current": root}, Job(STEPS), "s").__enter__()
    assert "chosen too" in str(got.value)
    assert _workers_of_this_process() == []


def _all_become(processes, status):
    """Whether they get there within some seconds: a signal takes a moment."""
    deadline_s = time.monotonic() + 10
    while not all(process.status() == status for process in processes):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.01)
    return True


def _workers_of_this_process():
    return [child for child in psutil.Process().children() if "-P" in child.cmdline()]
