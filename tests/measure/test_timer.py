"""The timer under a clock and a machine that the test controls: no real time is asserted."""

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from prefill_decode.measure import Kernel, Timings, interleave, timer


class FakeWorld:
    """A clock that steps advance by hand, and neighbours that take processor time."""

    def __init__(self, monkeypatch):
        self.now_s = 0.0
        self.others_s = 0.0
        monkeypatch.setattr(timer.time, "perf_counter", lambda: self.now_s)
        monkeypatch.setattr(timer.OtherLoad, "_others_s", lambda load: self.others_s)

    def step(self, times_s, calls=None, name=""):
        times = itertools.cycle(times_s)

        def run():
            self.now_s += next(times)
            if calls is not None:
                calls.append(name)

        return run


@pytest.fixture
def world(monkeypatch):
    return FakeWorld(monkeypatch)


def test_every_round_runs_every_step_once_in_an_order_that_changes(world, machine):
    calls = []
    steps = {name: world.step([0.3], calls, name) for name in "abcd"}
    timings = interleave(steps, machine, budget_s=30, seed=1)
    rounds = [tuple(calls[i : i + 4]) for i in range(4, len(calls), 4)]  # after one warm-up each
    assert len(rounds) == timings.num_rounds
    assert all(sorted(order) == list("abcd") for order in rounds)
    assert len(set(rounds)) > 1


def test_the_seed_decides_the_order(world, machine):
    def order(seed):
        calls = []
        interleave({n: world.step([0.3], calls, n) for n in "abcdef"}, machine, 30, seed)
        return calls

    assert order(1) == order(1) != order(2)


def test_steady_times_stop_at_the_first_look(world, machine):
    timings = interleave({"a": world.step([1.0])}, machine, budget_s=100, seed=0)
    assert timings.stopped_because == "narrow"
    assert timings.num_rounds == timer.LOOKS[0]
    assert timings.time_s("a").median == 1.0


def test_noisy_times_run_until_the_budget_ends_and_not_past_it(world, machine):
    steps = {"a": world.step([1.0, 2.0, 3.0]), "b": world.step([2.0, 1.0])}
    timings = interleave(steps, machine, budget_s=100, seed=0)
    assert timings.stopped_because == "budget"
    assert timings.num_rounds > 15
    assert timings.duration_s <= 100
    assert timings.is_unstable("a")
    assert any("spread over 10%" in line for line in timings.advice)


def test_advice_about_many_steps_names_a_few_and_counts_the_rest(timings):
    wild = {f"step {i}": (1.0, 9.0) * 5 for i in range(9)}
    steady = replace(timings, raw_s=wild | {"read": (1.0,) * 10})
    assert "in step 0, step 1, step 2, step 3 and 5 more: " in steady.advice[-1]
    assert len(steady.advice[-1]) < 500  # which is what a record may hold


def test_a_drift_that_all_steps_share_does_not_keep_the_timer_going(world, machine):
    speed = [1.0]

    def step(time_s):
        def run():
            speed[0] *= 1.02
            world.now_s += time_s * speed[0]

        return run

    timings = interleave({"a": step(0.1), "b": step(0.3)}, machine, budget_s=100, seed=0)
    assert timings.stopped_because == "narrow"
    assert timings.is_unstable("a")


def test_a_look_asks_for_more_coverage_than_is_stated(world, machine):
    """One low and one high time in ten: 95 % intervals leave both out, 99 % intervals neither."""
    early = [1.0, 0.9, 1.1, *[1.0] * 8]  # the first is the warm-up
    timings = interleave({"a": world.step(early + [1.0] * 100)}, machine, budget_s=200, seed=0)
    assert timings.num_rounds == timer.LOOKS[1]


def test_stopping_early_keeps_the_stated_coverage(world, machine):
    """Lognormal noise of 4 %, a known median ratio: 95 % intervals must hold it as often."""
    dice = random.Random(5)

    def step(time_s):
        def run():
            world.now_s += time_s * dice.lognormvariate(0, 0.04)

        return run

    hits, early = 0, 0
    for seed in range(400):
        steps = {"a": step(1.0), "b": step(2.0)}
        timings = interleave(steps, machine, budget_s=180, seed=seed)
        ratio = timings.ratio("b", over="a")
        hits += ratio.low <= 2.0 <= ratio.high
        early += timings.stopped_because == "narrow"
    assert early > 100  # the rule is at work
    assert hits / 400 > 0.95 - 3 * (0.95 * 0.05 / 400) ** 0.5


def test_a_tiny_budget_still_yields_an_interval(world, machine):
    timings = interleave({"a": world.step([5.0, 9.0])}, machine, budget_s=1, seed=0)
    assert timings.num_rounds == timer.LEAST_ROUNDS
    assert timings.time_s("a").low == 5.0


def test_warm_ups_are_kept_apart_and_short_steps_get_three(world, machine):
    timings = interleave(
        {"short": world.step([0.1]), "long": world.step([1.0])}, machine, budget_s=60, seed=0
    )
    assert len(timings.warmup_s["short"]) == 3
    assert len(timings.warmup_s["long"]) == 1
    assert len(timings.raw_s["short"]) == timings.num_rounds


def test_rounds_in_which_others_took_the_cores_are_kept_but_not_counted(world, machine):
    rounds = Counter()

    def step():
        rounds["n"] += 1
        busy = rounds["n"] % 3 == 0
        world.now_s += 5.0 if busy else 1.0
        world.others_s += 4.0 if busy else 0.0

    timings = interleave({"a": step}, machine, budget_s=60, seed=0)
    assert sum(timings.disturbed) == timings.raw_s["a"].count(5.0) > 0
    assert set(timings.times_s("a")) == {1.0}
    assert "they are left out" in timings.advice[0]


def test_a_round_that_was_disturbed_is_made_up_for_beyond_the_budget(world, machine):
    rounds = Counter()

    def step():
        rounds["n"] += 1
        busy = rounds["n"] in (3, 5)
        world.now_s += 1.0
        world.others_s += 1.0 if busy else 0.0

    timings = interleave({"a": step}, machine, budget_s=1, seed=0)
    assert timings.num_rounds == timer.LEAST_ROUNDS + 2
    assert not timings.trusts_all_rounds


def test_when_every_round_is_disturbed_all_count_and_the_reader_is_told(world, machine):
    def step():
        world.now_s += 1.0
        world.others_s += 1.0

    timings = interleave({"a": step}, machine, budget_s=5, seed=0)
    assert all(timings.disturbed)
    assert timings.num_rounds == timer.MOST_TRIES
    assert timings.stopped_because == "budget"
    assert len(timings.times_s("a")) == timings.num_rounds
    assert "too few were quiet" in timings.advice[0]


def test_spare_cores_may_be_taken_without_disturbing_anyone(world, machine):
    def step():
        world.now_s += 1.0
        world.others_s += 1.0

    spacious = type(machine)(**{**machine.__dict__, "cores": 4})
    assert not any(interleave({"a": step}, spacious, budget_s=20, seed=0).disturbed)


def test_a_ratio_is_taken_inside_each_round():
    timings = Timings(
        raw_s={"a": (2.0, 20.0, 4.0, 6.0, 8.0, 10.0), "b": (1.0, 10.0, 2.0, 3.0, 4.0, 5.0)},
        warmup_s={},
        disturbed=(False,) * 6,
        stopped_because="budget",
        duration_s=1.0,
    )
    assert timings.ratio("a", over="b").low == timings.ratio("a", over="b").high == 2.0
    share = timings.share(30.0, "a", Kernel("b", 60.0, lambda: None))
    assert share.median == pytest.approx(30 / 60 / 2)
    with pytest.raises(ValueError, match="timed steps are a, b; got 'c'"):
        timings.time_s("c")


def test_the_garbage_collector_is_back_afterwards_even_after_a_failure(world, machine):
    def fail():
        raise RuntimeError("broken step")

    with pytest.raises(RuntimeError):
        interleave({"a": fail}, machine, budget_s=1, seed=0)
    assert timer.gc.isenabled()


@pytest.mark.parametrize("budget_s", [0, -1, float("nan")])
def test_a_budget_is_a_positive_time(machine, budget_s):
    with pytest.raises(ValueError, match="budget_s"):
        interleave({"a": lambda: None}, machine, budget_s, 0)
    with pytest.raises(ValueError, match="nothing to time"):
        interleave({}, machine, 1.0, 0)


def test_rounds_ask_for_the_processor_time_of_what_is_timed(machine):
    asked = []
    interleave({"a": lambda: None}, machine, 0.01, own_s=lambda: asked.append(0) or 0.0)
    assert len(asked) >= 2 * timer.LEAST_ROUNDS  # before and after each round


def test_a_gpu_is_waited_for_and_a_cpu_is_not():
    import torch

    assert timer.synchronizer("cuda") is torch.cuda.synchronize
    assert timer.synchronizer("mps") is torch.mps.synchronize
    assert timer.synchronizer("cpu")() is None


def test_what_steps_noted_of_themselves_counts_round_by_round_after_the_warm_up(timings):
    with_gaps = timings.with_noted({"gap": [9.0, 9.0, *[0.001 * i for i in range(1, 11)]]})
    assert with_gaps.times_s("gap") == [0.001 * i for i in range(1, 11)]
    assert with_gaps.warmup_s["gap"] == (9.0, 9.0)
    assert with_gaps.ratio("gap", over="gap").median == 1
    assert with_gaps.times_s("decode x1") == timings.times_s("decode x1")


def test_a_noted_time_needs_a_name_of_its_own_and_a_value_for_each_round(timings):
    for noted in ({"gap": [1.0] * 9}, {"read": [1.0] * 10}):
        with pytest.raises(ValueError, match="a name of its own and a value for each of 10"):
            timings.with_noted(noted)
