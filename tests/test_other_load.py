"""What others take of the processors, by invented counts and by a neighbour that works."""

import subprocess
import sys
from collections import namedtuple

import pytest

from prefill_decode import other_load


def test_the_time_that_others_take_is_counted_and_our_own_is_not(monkeypatch):
    fields = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"]
    cpu_times = namedtuple("cpu_times", fields)
    every = [cpu_times(10, 1, 2, 500, 50, 0.25, 0.25, 3), cpu_times(*[4] * 8), cpu_times(*[9] * 8)]
    monkeypatch.setattr(other_load.psutil, "cpu_times", lambda percpu: every)
    monkeypatch.setattr(other_load, "allowed_cpus", lambda: [0, 1])
    monkeypatch.setattr(other_load.time, "process_time", lambda: 7.5)
    busy_s = 16.5 + 24  # idle and iowait left out
    assert other_load.OtherLoad()._others_s() == pytest.approx(busy_s - 7.5)
    assert other_load.OtherLoad(lambda: 30.0)._others_s() == pytest.approx(busy_s - 30)


def test_a_neighbours_work_shows_up():
    theirs = other_load.OtherLoad()
    code = "import time\nwhile time.process_time() < 0.8: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert theirs._others_s() - theirs.others_s > 0.6


def test_one_of_every_core_comes_before_the_second_of_any(tmp_path, monkeypatch):
    for cpu, siblings in {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 6: "6"}.items():
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings)
    monkeypatch.setattr(other_load, "TOPOLOGY", tmp_path)
    assert other_load.cores_first([0, 1, 2, 3, 6]) == [0, 2, 6, 1, 3]
    assert other_load.cores_first([1, 2, 3]) == [1, 2, 3]


def test_where_no_cores_are_told_processors_stay_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(other_load, "TOPOLOGY", tmp_path)
    assert other_load.cores_first([4, 2, 7]) == [4, 2, 7]
