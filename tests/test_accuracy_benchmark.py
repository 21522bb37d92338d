"""The benchmark of the simulator's accuracy: its workloads, its rates, and the table it makes."""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from prefill_decode.hardware import Hardware
from prefill_decode.simulator import (
    Calibrated,
    Calibration,
    Predicted,
    Transfer,
    simulate,
)
from tests.conftest import ROOT, TINY

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import accuracy
import accuracy_report
from accuracy_report import Replayed, Row
from accuracy_workloads import LEAST_REQUESTS, WORKLOADS

FREE = Hardware("free", "float64", 1e40, 1e40, "a machine on which only the host takes time")
FITTED = Calibration(
    step_s=2e-3, source="by hand", fits=tuple(Calibration(step_s=n * 1e-4) for n in (18, 19, 21))
)
HERE = Calibrated(FITTED, FREE, TINY, num_blocks=1000, block_tokens=32)


class Measuring:
    def calibrated(self):
        return HERE


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_workload_has_the_same_lengths_at_any_rate(workload):
    slow, fast = workload.requests(1.0, 30.0, 7), workload.requests(10.0, 30.0, 7)
    assert (len(slow), len(fast)) == (30, 300)
    assert len(workload.requests(0.01, 1.0, 7)) == LEAST_REQUESTS
    for one, other in zip(slow, fast[:30], strict=True):
        assert other.arrival_s == pytest.approx(one.arrival_s / 10)
        assert replace(one, arrival_s=0.0) == replace(other, arrival_s=0.0)
        low, high = workload.prompt_tokens
        assert low <= one.prompt_tokens - workload.text_tokens <= high


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: workload.name)
def test_a_rate_keeps_the_busiest_engine_as_busy_as_asked(workload):
    transfer = Transfer(1e9, 1e-4)
    rate = accuracy.rate_for(HERE, workload, transfer, 0.5, 30.0, 0)
    fleet = accuracy_report.fleet_of(HERE, workload, transfer)
    outcome = simulate(fleet, workload.requests(rate, 30.0, 0))
    assert accuracy_report.busiest(outcome) == pytest.approx(0.5, abs=0.06)
    assert len(fleet.pools) == (2 if workload.apart else 1)


def test_records_that_the_simulator_made_are_predicted_without_error():
    workload = WORKLOADS[0]
    requests = workload.requests(5.0, 10.0, 0)
    fleet = accuracy_report.fleet_of(HERE, workload, Transfer())
    records = list(simulate(fleet, requests).records())
    done = [Replayed(workload, requests, records, True, Measuring(), Transfer())]
    said = []
    found = accuracy_report.report(done, said.append)
    assert [row["error"] for row in found["rows"]] == [0.0] * 4
    assert all(row["covered"] for row in found["rows"])
    assert all("disturbed" in row["regime"] for row in found["rows"])
    assert "covered: 4 of 4" in said[-1]


def plan_of(names, budget_s=100.0):
    chosen = [workload for workload in WORKLOADS if workload.name in names]
    return accuracy.Plan("laptop-254m", 4, chosen, budget_s, 0.5, 0, lambda line: None)


def test_what_is_calibrated_shares_its_part_of_the_budget_among_its_segments():
    every = [workload.name for workload in WORKLOADS]
    few, apart = ["bursty", "small chunks"], ["prefill and decode apart"]
    for names, segments in ((every, 5), (few, 2), (apart, 2), ([*few, *apart], 4), (every[:4], 3)):
        plan = plan_of(names)
        spent_s = segments * plan.segment_s + len(names) * plan.each_s
        assert spent_s == pytest.approx(100.0)
        assert segments * plan.segment_s == pytest.approx(100.0 * accuracy.CALIBRATING_SHARE)


@pytest.mark.parametrize(
    ("waited_s", "disturbed"),
    [({1: 9.0, 2: 9.0}, False), ({1: 9.0, 2: 1e6}, True), ({1: 9.0, 2: 9.0, 3: 1e6}, True)],
    ids=["nobody", "one that was there", "one that is new"],
)
def test_a_run_is_disturbed_once_one_of_its_processes_waited_for_cores(
    monkeypatch, waited_s, disturbed
):
    told = iter([{1: 9.0, 2: 9.0}, waited_s])
    monkeypatch.setattr(accuracy, "waiting_s", lambda: next(told))
    assert accuracy.watched(lambda: [], 0) == ([], disturbed)


@pytest.mark.parametrize("took", [False, True])
def test_where_no_waiting_is_told_the_load_of_others_decides(machine, monkeypatch, took):
    class Load:
        def __init__(self, own_s):
            assert own_s() > 0

        def took_more_than(self, spare_cores):
            assert spare_cores == 1
            return took

    monkeypatch.setattr(accuracy, "waiting_s", dict)
    monkeypatch.setattr(accuracy, "OtherLoad", Load)
    assert accuracy.watched(lambda: [], 1) == ([], took)


def test_waiting_is_told_of_the_processes_that_were_started_too():
    """Of two that want one core, one waits."""
    if not accuracy.waiting_s():
        pytest.skip("this system does not tell")
    core = min(os.sched_getaffinity(0))
    spinning = f"import os; os.sched_setaffinity(0, [{core}])\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", spinning]) for _ in range(2)]
    end_s = time.monotonic() + 60
    try:
        while max(accuracy.waiting_s()[rival.pid] for rival in rivals) < 0.05:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert os.getpid() in accuracy.waiting_s()
    finally:
        for rival in rivals:
            rival.kill()
            rival.wait()


def test_a_figure_outside_its_interval_is_told():
    row = Row("a", "mean TTFT", 1.0, Predicted(1.3, 1.2, 1.4))
    assert row.error == pytest.approx(0.3)
    assert not row.covered
    assert "NO" in accuracy_report.line_of(row, "busy 50%")
    assert "+30.0%" in accuracy_report.line_of(row, "busy 50%")
