"""Replays run in turns with the episodes of a calibration, and are held beside every story."""

from dataclasses import replace

import pytest

from prefill_decode.calibrating import ReplayRunner, replay, replay_runner, short_calibrator
from prefill_decode.calibrating.replay_runner import (
    CALIBRATED,
    RECORDED,
    LongerSteps,
    short_episodes,
)
from prefill_decode.claim import Claim, Prediction
from prefill_decode.engine.serving import build_serving_engine
from prefill_decode.fleet_claims.foreseeing import (
    CHECKS,
    LOADS,
    LONGER_STEPS,
    ONE_AT_A_TIME,
    SETTINGS,
    Plan,
    idle_s,
    ratio_of,
)
from prefill_decode.measure import interleave
from prefill_decode.request import Request
from prefill_decode.results import load, make_record, save
from prefill_decode.serving_metrics import is_answered


@pytest.fixture(scope="module")
def runner(tiny_model, machine, ceilings):
    """Rounds take seconds, since requests come in real time: all tests share them. On a machine of
    so many cores nobody disturbs."""
    many = replace(machine, cores=1000)
    calibrator = short_calibrator(tiny_model, many, ceilings, 0)
    calibrator.run(0.01)
    return ReplayRunner(Plan(calibrator.calibrated(fits=0), num_requests=5), calibrator)


@pytest.fixture(scope="module")
def found(runner):
    times = interleave(runner.steps(), runner.calibrator.machine, 0.01, 0, runner.own_s)
    return runner.found(times)


@pytest.fixture(scope="module")
def last(runner, found):
    """Of each load, when the rounds had ended."""
    return {name: records[-1] for name, records in runner.played.items()}


def test_every_round_replays_other_requests_and_times_every_step(runner, found, last):
    times = found.times
    assert len(runner.calibrator.timings) == 2
    for name, rounds in found.told.items():
        assert len(rounds) == times.num_rounds
        for each in rounds:
            assert all(is_answered(record) for record in each["measured"])
            asked = [record.request for record in each["measured"]]
            assert [record.request for record in each["simulated"]] == asked
        if name in LOADS:
            assert rounds[-1]["measured"] == last[name]
            assert len({str(each["measured"]) for each in rounds}) == times.num_rounds
    assert set(found.chunks) == {f"{name}: step" for name in RECORDED}
    assert set(found.works) <= set(found.times.raw_s)
    assert all(found.times.warmup_s[name] for name in found.times.raw_s)  # as a record wants them
    checks = [ratio_of(name, "mean TTFT") for name in CHECKS]
    assert set(found.figures()) == {*(each.name for each in runner.plan.predictions), *checks}


def test_what_is_found_makes_a_record(runner, found, tmp_path):
    plan, calibrator = runner.plan, runner.calibrator
    controls = [Prediction(ratio_of(name, "mean TTFT"), 1.0, 2.0) for name in CHECKS]
    claim = Claim("any", plan.predictions, controls)
    record = make_record(
        "any",
        claim,
        claim.judge(found.figures()),
        chunks=found.chunks,
        times=found.times,
        ceilings=calibrator.ceilings,
        machine=calibrator.machine,
        model=calibrator.model,
        parameters={},
        seed=0,
    )
    assert load(save(record, tmp_path)) == record


def test_a_pause_between_requests_is_nobody_s_work(runner):
    steps, first_s = runner.steps(), runner.idled_s
    steps[f"replay: {ONE_AT_A_TIME}"]()
    between_s = runner.idled_s
    assert between_s - first_s == pytest.approx(idle_s(runner.played[ONE_AT_A_TIME][-1]))
    steps[f"replay: {LONGER_STEPS}"]()
    assert runner.idled_s > between_s
    before_s = runner.own_s()
    runner.idled_s += 100.0
    assert runner.own_s() - before_s >= 100.0 * runner.calibrator.machine.threads


def test_the_episodes_are_of_the_design_and_hold_what_a_record_shows():
    names = [one.name for one in short_episodes()]
    assert sorted(names) == sorted(CALIBRATED)
    assert set(RECORDED) <= set(names)


def test_steps_made_longer_take_three_times_as_long_and_give_the_same_tokens(
    tiny_model, monkeypatch
):
    """On a clock that every look moves on by a second."""

    class Clock:
        def __init__(self):
            self.now_s, self.slept_s = 0.0, []

        def perf_counter(self):
            self.now_s += 1.0
            return self.now_s

        def sleep(self, time_s):
            self.slept_s.append(time_s)

    clock = Clock()
    monkeypatch.setattr(replay_runner, "time", clock)
    plain = build_serving_engine(tiny_model, cache_tokens=512)
    longer = LongerSteps(plain.engine, SETTINGS)
    given = []
    for engine in (plain, longer):
        engine.submit("a", [3, 1, 4], 3)
        given.append([engine.step()[0].token_id for _ in range(3)])
    assert given[0] == given[1]
    assert clock.slept_s == [2.0, 2.0, 2.0]
    assert longer.slept_s == 6.0


def test_an_engine_with_longer_steps_can_be_replayed(tiny_model):
    engine = LongerSteps(build_serving_engine(tiny_model, cache_tokens=512).engine, SETTINGS)
    [record] = replay(engine, [Request("a", 0.0, 5, 2)], tiny_model.vocab_size)
    assert is_answered(record)
    assert engine.slept_s > 0
