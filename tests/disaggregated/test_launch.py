"""Real workers in processes of their own: the tokens of one engine, whatever is killed, and nothing
left behind."""

import os
import signal
import subprocess
import sys
import time
from functools import cache
from importlib.util import find_spec

import psutil
import pytest

from prefill_decode import hf_config
from prefill_decode.disaggregated import launch
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.launch import Fleet, pids_of, workers_here
from prefill_decode.disaggregated.restarts import RestartLimits
from prefill_decode.engine.answering import FailedAnswer
from prefill_decode.engine.sampling import Sampling
from prefill_decode.engine.serving import build_serving_engine
from prefill_decode.other_load import allowed_cpus
from tests.conftest import ROOT
from tests.small_config import write_small_config

SAMPLINGS = (Sampling(), Sampling(1.0, 0.9, seed=7))
COMPLAINTS: list[str] = []  # of the workers that most tests share
PROMPTS = [[(7 * i + j) % 300 for j in range(length)] for i, length in enumerate((3, 40, 130, 64))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_small_config(tmp_path_factory.mktemp("small"), max_position_embeddings=4096))


def fleet(model, **facts):
    given = {
        "num_prefill": 1,
        "num_decode": 1,
        "vocab_size": 300,
        "num_blocks": 200,
        "dtype": "float64",
        "block_tokens": 16,
        "capacity_tokens": 1500,
        "most_tokens_per_step": 48,
        "most_sequences": 16,
        "threads": 1,
        "seed": 3,
    }
    return Fleet(model=model, **(given | facts))


@cache
def alone(model, prompt, most, sampling, answers):
    """By one engine, nothing beside it."""
    engine = build_serving_engine(hf_config.find(model, "float64"), cache_tokens=8000, seed=3)
    engine.submit("r", list(prompt), most, sampling, answers=answers)
    heard = {answer: [] for answer in range(answers)}
    while engine.has_work:
        for token in engine.step():
            heard[token.answer].append(token.token_id)
    return heard


def test_workers_that_have_processors_of_their_own_keep_to_them(model, monkeypatch):
    monkeypatch.setattr(launch, "allowed_cpus", lambda: [2, 3, 5, 7, 11])
    monkeypatch.setattr(launch, "cores_first", list)
    two_each = fleet(model, num_decode=1, threads=2, own_cpus=True)
    assert [two_each.cpus_of(name) for _, name in two_each.names()] == [[2, 3], [5, 7]]
    sharing = fleet(model, threads=2)
    assert sharing.cpus_of("decode-0") is None
    with pytest.raises(ValueError, match="got 6 threads for 5 processors: give fewer"):
        fleet(model, num_decode=2, threads=2, own_cpus=True)


@pytest.mark.skipif(sys.platform != "linux", reason="processors are held to on Linux only")
@pytest.mark.skipif(len(allowed_cpus()) < 2, reason="two workers need a processor each")
def test_processes_run_on_the_processors_of_their_worker_also_when_started_again(model):
    given = fleet(model, own_cpus=True)
    with workers_here(given) as coordinator:
        first = pids_of(coordinator)
        assert_held(given, first)
        os.kill(first["decode-0"], signal.SIGKILL)
        end_s = time.monotonic() + 240
        while pids_of(coordinator).get("decode-0") in (None, first["decode-0"]):
            assert time.monotonic() < end_s, coordinator.state()
            coordinator.step()
        assert_held(given, pids_of(coordinator))


def assert_held(given, pids):
    for name, pid in pids.items():
        for thread in psutil.Process(pid).threads():
            assert os.sched_getaffinity(thread.id) == set(given.cpus_of(name))


class Asking:
    """A client of a coordinator."""

    def __init__(self, coordinator, model):
        self.coordinator, self.model = coordinator, model
        self.asked, self.heard, self.ends = {}, {}, {}

    def submit(self, name, prompt, most, sampling=SAMPLINGS[0], answers=1):
        self.asked[name] = (tuple(prompt), most, sampling, answers)
        self.coordinator.submit(name, prompt, most, sampling, answers=answers)

    def step(self):
        for item in self.coordinator.step():
            key = (item.request_id, item.answer)
            if isinstance(item, FailedAnswer):
                self.ends[key] = item.reason
                continue
            self.heard.setdefault(key, []).append(item.token_id)
            if item.finish_reason:
                self.ends[key] = item.finish_reason

    def until(self, true, most_s=240.0):
        end_s = time.monotonic() + most_s
        while not true():
            assert time.monotonic() < end_s, f"{self.coordinator.state()}, {COMPLAINTS}"
            self.step()

    def assert_answered(self):
        """Everything that was asked, with the tokens of one engine, and all blocks free."""
        self.until(lambda: len(self.ends) == sum(asked[3] for asked in self.asked.values()))
        for (name, answer), ended in self.ends.items():
            assert ended == "length"
            assert self.heard[name, answer] == alone(self.model, *self.asked[name])[answer]
        state = self.coordinator.state
        self.until(lambda: state().free_blocks == state().num_blocks)
        assert (state().num_running, state().num_waiting) == (0, 0)


TRANSFERS = ["auto", "unix", "tcp", "cma"] + ["nixl"] * bool(find_spec("nixl_cu12"))


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_two_processes_give_the_tokens_of_one(model, transfer):
    with workers_here(fleet(model, transfer=transfer)) as coordinator:
        asking = Asking(coordinator, model)
        for index, prompt in enumerate(PROMPTS * 2):
            sampling = SAMPLINGS[index % 2]
            asking.submit(f"r{index}", prompt, 1 + 9 * (index % 3), sampling, 1 + index % 3)
        asking.assert_answered()
        hand_overs = coordinator.state().hand_overs
        assert (hand_overs.lost_workers, hand_overs.recomputed_answers) == (0, 0)
        assert hand_overs.moved_bytes > 0


@pytest.fixture(scope="module")
def coordinator(model):
    patience = Patience(silence_s=6.0)
    limits = RestartLimits(first_pause_s=0.1, longest_pause_s=0.1)
    many = fleet(model, num_decode=2)
    with workers_here(many, patience, COMPLAINTS.append, limits) as coordinator:
        yield coordinator


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("name", ["prefill-0", "decode-0", "decode-1"])
def test_a_worker_that_is_killed_or_stopped_costs_nobody_a_token(coordinator, model, name, number):
    lost = coordinator.state().hand_overs.lost_workers
    asking = Asking(coordinator, model)
    for index, prompt in enumerate(PROMPTS):
        asking.submit(f"r{index}", prompt, 120, SAMPLINGS[index % 2], 1 + index % 2)
    asking.until(lambda: len(asking.heard) > 3)
    os.kill(coordinator.keeper.running[name].pid, number)
    asking.until(lambda: coordinator.state().hand_overs.lost_workers > lost)
    asking.assert_answered()
    there = coordinator.state
    asking.until(lambda: there().hand_overs.num_decode_workers == 2)
    asking.until(lambda: there().hand_overs.num_prefill_workers == 1)
    assert any(complaint.startswith(name) for complaint in COMPLAINTS)
    asking.assert_answered()


def test_requests_that_are_cancelled_leave_both_sides_free(coordinator, model):
    asking = Asking(coordinator, model)
    for index, prompt in enumerate(PROMPTS * 3):
        asking.submit(f"c{index}", prompt, 200, answers=1 + index % 3)
    asking.until(lambda: len(asking.heard) > 3)
    for name in list(asking.asked):
        coordinator.cancel(name)
    state = coordinator.state
    asking.until(lambda: state().free_blocks == state().num_blocks)
    assert (state().num_running, state().num_waiting) == (0, 0)


def test_workers_that_cannot_start_say_why(tmp_path):
    bad = fleet(str(write_small_config(tmp_path, model_type="unheard of")))
    with (
        pytest.raises(ValueError, match=r"do not start: (prefill|decode)-0 ended with exit code 1"),
        workers_here(bad),
    ):
        pass


def test_a_fleet_has_workers_for_both_phases(model):
    with pytest.raises(ValueError, match="one worker for each phase; got 1 for prefill and 0"):
        fleet(model, num_decode=0)


PARENT = """
import sys, time
from prefill_decode.disaggregated.launch import Fleet, workers_here
if __name__ == "__main__":
    fleet = Fleet(1, 1, sys.argv[1], 300, 50, threads=1)
    with workers_here(fleet) as coordinator:
        print(*(worker.pid for worker in coordinator.keeper.running.values()), flush=True)
        time.sleep(1000)
"""


def test_workers_end_with_the_process_that_started_them_however_it_ends(model):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, model], cwd=ROOT,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.communicate()
    _, left = psutil.wait_procs([p for p in map(_process, pids) if p], timeout=30)
    assert not left


def _process(pid):
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None
