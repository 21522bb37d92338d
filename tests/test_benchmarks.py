"""The benchmark's runner: what it does with engines and with their times."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from prefill_decode import hf_config, other_load
from prefill_decode.measure import Kernel
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import engines
import interleaved
from processes import Adapter, EngineError, load_beside
from report import (
    END_MARK,
    START_MARK,
    Record,
    Round,
    engines_table,
    read_record,
    report,
    share_reached,
    write_record,
)

# Answers every step with the time it is given, and notes that it was asked.
FAKE = """
import json, sys
name, time_s, log = sys.argv[1:]
print(json.dumps({"version": name + " 1.0"}), flush=True)
for line in sys.stdin:
    with open(log, "a") as file:
        file.write(name + "\\n")
    print(json.dumps({"time_s": float(time_s)}), flush=True)
"""
# Keeps a core busy in a process of its own, until that has taken 0.2 s of it.
BUSY = """
import json, subprocess, sys
print(json.dumps({"version": "1"}), flush=True)
burn = "import time\\nwhile time.process_time() < 0.2: pass\\nprint(flush=True)\\ninput()"
for line in sys.stdin:
    child = subprocess.Popen(
        [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    print(json.dumps({"time_s": 1}), flush=True)
"""
FAILING = 'print("{\\"version\\": \\"1\\"}", flush=True); input(); print("{\\"error\\": \\"no\\"}")'
KERNELS = (Kernel("matrix", 1.0, lambda: None), Kernel("read", 1.0, lambda: None))


@pytest.fixture
def start(tmp_path: Path):
    started = []

    def make(name: str, script: str = FAKE, *words: str) -> Adapter:
        command = [sys.executable, "-c", script, *words]
        started.append(Adapter(name, command, {}))
        return started[-1]

    yield make
    for adapter in started:
        adapter.close()


def comes_to_a_stop(adapter: Adapter) -> bool:
    """The system delivers a signal when it next runs the process."""
    process, deadline_s = psutil.Process(adapter.process.pid), time.monotonic() + 10
    while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return process.status() == psutil.STATUS_STOPPED


def a_round(step: str, disturbed: bool = False, **times_s: float) -> Round:
    return Round(step, times_s, 1e12, 1e10, disturbed)


def a_record(*rounds: Round, **versions: str) -> Record:
    return Record("a machine", "laptop-254m", 2, versions, rounds)


def test_an_engine_is_stopped_except_while_it_is_asked(start, tmp_path):
    adapter = start("fake", FAKE, "fake", "0.25", str(tmp_path / "log"))
    assert adapter.version == "fake 1.0"
    assert comes_to_a_stop(adapter)
    assert adapter.time_s("prefill 128") == 0.25
    assert comes_to_a_stop(adapter)


def test_a_closed_engine_has_ended(start, tmp_path):
    adapter = start("fake", FAKE, "fake", "0.25", str(tmp_path / "log"))
    adapter.close()
    assert not psutil.pid_exists(adapter.process.pid)


def test_an_engine_that_cannot_start_says_why(start):
    with pytest.raises(EngineError, match="no such library"):
        start("broken", "raise SystemExit('no such library')")


def test_an_error_in_a_step_is_told_with_the_engine_s_name(start):
    with pytest.raises(EngineError, match="failing: no"):
        start("failing", FAILING).time_s("prefill 128")


def test_processor_time_of_an_engine_s_children_is_not_another_s(start):
    adapter = start("busy", BUSY)
    before_s = adapter.cpu_s()
    adapter.time_s("prefill 128")
    assert adapter.cpu_s() - before_s >= 0.2 - 2 * 0.01


def test_others_are_those_that_are_neither_this_process_nor_an_engine(monkeypatch):
    busy = iter([10.0, 14.0])
    cpus = lambda percpu: [SimpleNamespace(user=next(busy))]  # noqa: E731
    monkeypatch.setattr("psutil.cpu_times", cpus)
    monkeypatch.setattr(other_load, "allowed_cpus", lambda: [0])
    monkeypatch.setattr("time.process_time", iter([1.0, 1.5]).__next__)
    monkeypatch.setattr("time.perf_counter", iter([0.0, 2.0, 2.0]).__next__)
    engine = SimpleNamespace(cpu_s=iter([2.0, 5.0]).__next__)
    load = load_beside([engine])
    assert load.others_s == pytest.approx(10 - 1 - 2)
    # 4 s busy, of which this process 0.5 and the engine 3: others took 0.5 s in 2 s.
    assert load.took_more_than(spare_cores=0.0)


def test_a_round_asks_every_engine_once_in_an_order_that_changes(start, tmp_path):
    log = tmp_path / "log"
    fakes = [start(name, FAKE, name, "0.1", str(log)) for name in ("ours", "other")]
    rounds = interleaved.measure(fakes, ["prefill 128"], KERNELS, 1.0, spare_cores=64, seed=0)
    asked = log.read_text().split()
    pairs = {tuple(asked[i : i + 2]) for i in range(0, len(asked), 2)}
    assert pairs == {("ours", "other"), ("other", "ours")}
    assert len(asked) == 2 * (len(rounds) + 1)  # one more round, to warm up
    assert all(each.times_s == {"ours": 0.1, "other": 0.1} for each in rounds)


def test_an_engine_that_fails_is_left_out_and_the_others_go_on(start, tmp_path, capsys):
    fakes = [start("ours", FAKE, "ours", "0.1", str(tmp_path / "log")), start("failing", FAILING)]
    rounds = interleaved.measure(fakes, ["prefill 128"], KERNELS, 0.2, spare_cores=64, seed=0)
    assert capsys.readouterr().err.count("left out: failing") == 1
    assert rounds
    assert all(set(each.times_s) == {"ours"} for each in rounds)


def test_an_interrupt_keeps_the_rounds_that_are_whole(capsys):
    answers = iter([0.1, 0.2, 0.3])

    def time_s(step: str) -> float:
        if (answer := next(answers, None)) is None:
            raise KeyboardInterrupt
        return answer

    fake = SimpleNamespace(name="ours", time_s=time_s, cpu_s=lambda: 0.0)
    rounds = interleaved.measure([fake], ["prefill 128"], KERNELS, 60.0, spare_cores=64, seed=0)
    assert [each.times_s["ours"] for each in rounds] == [0.2, 0.3]
    assert "after 2 rounds" in capsys.readouterr().err


def test_a_step_that_costs_four_times_as_much_gets_half_the_rounds(monkeypatch):
    clock = [0.0]
    cost_s = {"prefill 128": 1.0, "prefill 512": 4.0}

    def time_s(step: str) -> float:
        clock[0] += cost_s[step]
        return cost_s[step]

    def now_s() -> float:
        clock[0] += 1e-9  # so that a kernel takes some time
        return clock[0]

    monkeypatch.setattr("time.perf_counter", now_s)
    fake = SimpleNamespace(name="ours", time_s=time_s, cpu_s=lambda: 0.0)
    rounds = interleaved.measure([fake], list(cost_s), KERNELS, 60.1, spare_cores=64, seed=0)
    steps = [each.step for each in rounds]
    assert steps.count("prefill 128") == 20
    assert steps.count("prefill 512") == 10


def test_a_ratio_is_taken_inside_quiet_rounds_that_hold_both_engines():
    rounds = [a_round("prefill 128", ours=t, peer=2 * t) for t in (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)]
    rounds += [a_round("prefill 128", disturbed=True, ours=1.0, peer=90.0)]
    rounds += [a_round("prefill 128", ours=1000.0), a_round("prefill 128", peer=5.0)]
    table = engines_table(rounds, hf_config.get("laptop-254m").with_dtype("float32"))
    cells = [cell.strip() for cell in table.splitlines()[-1].split("|")]
    assert cells[1] == "prefill 128"
    assert cells[2] == "800 ms, n=7"  # 0.1 to 3.2 and 1000: the fourth
    assert cells[3] == "1.60 s, × 2.00 [2.00, 2.00], n=6"


def test_a_step_without_quiet_rounds_leaves_its_cells_empty():
    rounds = [a_round("prefill 128", disturbed=True, ours=1.0, peer=2.0)]
    table = engines_table(rounds, hf_config.get("laptop-254m").with_dtype("float32"))
    assert table.splitlines()[-1] == "| prefill 128 |  |  |  |"


def test_the_share_reached_is_the_least_time_over_the_time():
    model = hf_config.get("laptop-254m").with_dtype("float32")
    layer = 1024 * (1024 + 512 + 512) + 1024 * 1024 + 3 * 1024 * 2816
    weight_bytes = 4 * (16 * layer + 32000 * 1024)
    cache_bytes = 16 * 2 * 512 * 4 * 513
    least_s = (weight_bytes + cache_bytes) / 1e10  # bandwidth-bound at 1e12 FLOP/s
    reached = share_reached(
        [a_round("decode 1 at 512", ours=4 * least_s)], "decode 1 at 512", model
    )
    assert reached.median == pytest.approx(0.25)


def test_rounds_survive_the_file(tmp_path):
    record = a_record(a_round("prefill 128", ours=1.0), ours="1", peer="2")
    write_record(record, tmp_path / "rounds.json")
    assert read_record(tmp_path / "rounds.json") == record


def test_runs_of_the_same_engines_are_pooled_and_others_refused():
    first = a_record(a_round("prefill 128", ours=1.0), ours="1")
    second = a_record(a_round("prefill 128", ours=2.0, peer=3.0), ours="1", peer="2")
    both = first.pooled_with(second)
    assert both.rounds == first.rounds + second.rounds
    assert both.versions == {"ours": "1", "peer": "2"}
    with pytest.raises(ValueError, match="name another file"):
        first.pooled_with(a_record(a_round("prefill 128", ours=2.0), ours="2"))


def test_the_report_says_how_many_rounds_were_left_out():
    rounds = [a_round("prefill 128", ours=1.0), a_round("prefill 128", True, ours=1.0)]
    assert "2 rounds, of which 1 left out" in report(a_record(*rounds, ours="1"))


def test_the_readme_s_table_is_written_between_its_marks(tmp_path, monkeypatch, capsys):
    readme, kept = tmp_path / "benchmarks" / "README.md", tmp_path / "rounds.json"
    readme.parent.mkdir()
    readme.write_text(f"above\n{START_MARK}\nold\n{END_MARK}\nbelow\n")
    write_record(a_record(a_round("prefill 128", ours=1.0), ours="1"), kept)
    monkeypatch.setattr(engines, "ROOT", tmp_path)
    assert engines.main(["--budget", "0", "--json", str(kept), "--write-readme"]) == 0
    text = readme.read_text()
    assert text.startswith("above\n")
    assert text.endswith("\nbelow\n")
    assert "old" not in text
    assert "| prefill 128 | 1.00 s, n=1 |" in text
    assert "| prefill 128 | 1.00 s, n=1 |" in capsys.readouterr().out


def test_an_unknown_engine_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        engines.main(["--engines", "ours,theirs"])
    assert "ctranslate2" in capsys.readouterr().err


def test_every_engine_has_an_adapter_that_says_how_it_times():
    for file, _ in engines.ENGINES.values():
        text = (ROOT / "benchmarks" / "adapters" / file).read_text()
        assert text.startswith('"""')
        assert len(text.splitlines()) < 100


def test_the_readme_names_every_engine():
    readme = (ROOT / "benchmarks" / "README.md").read_text().lower().replace(".", "")
    assert all(name in readme for name in engines.ENGINES)
