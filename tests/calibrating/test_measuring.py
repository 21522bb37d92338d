"""Episodes run the chunks that they say, and a calibration measured here is a whole machine."""

from dataclasses import replace

import pytest

from prefill_decode.calibrating import (
    Calibrator,
    Episode,
    EpisodeRunner,
    design,
    measure_calibration,
)
from prefill_decode.simulator import (
    Fleet,
    Pool,
    intervals,
    read_calibrated,
    read_calibration,
    simulate,
    simulate_fits,
    write_calibrated,
)
from prefill_decode.step import Chunk
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals

SMALL = [
    *(one for one in design(most_rows=32, most_sequences=3, long_context=128) if not one.idle_s),
    Episode("prefill 32 after a pause", "waking", (Chunk(32),), idle_s=1e-3),
]


@pytest.fixture
def measured(tiny_model, machine, ceilings):
    calibrator = Calibrator(tiny_model, machine, episodes=SMALL, ceilings=ceilings, num_blocks=50)
    calibrator.run(0.01)
    return calibrator


def test_an_episode_runs_its_chunks_and_notes_whole_and_host(tiny_model, monkeypatch):
    episodes = [
        Episode("two decode", "decode", (Chunk(1, 40), Chunk(1, 9)), steps=3),
        Episode("a prompt beside one", "mixed", (Chunk(1, 40), Chunk(20, 33))),
    ]
    runner = EpisodeRunner(tiny_model, episodes)
    seen = []
    forward = runner.engine.forward

    def watched(chunks, on_layer=None):
        seen.append([(len(c.token_ids), c.cached_tokens, c.samples_token) for c in chunks])
        return forward(chunks, on_layer)

    monkeypatch.setattr(runner.engine, "forward", watched)
    for one in episodes:
        runner.steps[one.name]()
        runner.steps[one.name]()
    expected = [
        [(c.new_tokens, c.cached_tokens, c.samples_token) for c in one.chunks_of(step)]
        for one in episodes
        for _ in range(2)
        for step in range(one.steps)
    ]
    assert seen == expected
    for one in episodes:
        whole, host = runner.noted_s[runner.whole(one.name)], runner.noted_s[runner.host(one.name)]
        assert len(whole) == len(host) == 2
        assert all(0 < h < w for w, h in zip(whole, host, strict=True))


def test_episodes_need_names_of_their_own(tiny_model):
    one = Episode("same", "decode", (Chunk(1, 4),))
    for wrong in ([], [one, one]):
        with pytest.raises(ValueError, match="a name of its own"):
            EpisodeRunner(tiny_model, wrong)
    with pytest.raises(ValueError, match="a chunk and a step"):
        Episode("none", "decode", ())


def test_a_calibration_measured_here_comes_back_from_disk_whole(measured, tmp_path):
    found = measured.calibrated(fits=5)
    assert len(found.calibration.fits) == 5
    assert {each.kind for each in found.residuals} == {"prefill", "prefix", "decode", "mixed"}
    assert found.calibration.idle_s == (1e-3,)
    assert (found.calibration.exact_rows, found.calibration.rows_together) == (32, 16)
    assert all(wake_s >= 0 for wake_s in found.calibration.wake_s)
    assert found.num_rounds >= 6
    path = tmp_path / "here.json"
    write_calibrated(path, found)
    assert read_calibrated(path) == found
    assert read_calibration(path) == found.calibration


def test_rounds_of_several_runs_are_pooled(measured):
    first = measured.calibrated(fits=2).num_rounds
    measured.run(0.01)
    assert measured.calibrated(fits=2).num_rounds >= first + 6


def test_fits_of_one_measurement_differ_and_give_intervals(measured):
    found = measured.calibrated(fits=8)
    assert len(set(found.calibration.fits)) == 8
    pool = Pool("here", found.model, found.hardware, 50, calibration=found.calibration)
    requests = make_requests(
        poisson_arrivals(20, 20, 1), fixed_lengths(20, 20), fixed_lengths(4, 20)
    )

    def figures(outcome):
        return {"ttft": float((outcome.first_s - [r.arrival_s for r in requests]).mean())}

    around = simulate_fits(Fleet((pool,)), requests, figures, most_fits=6)
    assert len(around) == 6
    central = figures(simulate(Fleet((pool,)), requests))
    told = intervals(central, around)["ttft"]
    assert told.low <= told.value <= told.high
    assert told.low < told.high


def test_no_rounds_and_no_budget_are_refused(tiny_model, machine, ceilings):
    calibrator = Calibrator(tiny_model, machine, episodes=SMALL, ceilings=ceilings, num_blocks=50)
    with pytest.raises(ValueError, match="needs rounds"):
        calibrator.calibrated()
    with pytest.raises(ValueError, match="positive number of seconds"):
        measure_calibration(tiny_model, machine, 0.0)
    with pytest.raises(ValueError, match="no room for a cache"):
        measure_calibration(tiny_model, replace(machine, memory_bytes=1000), 1.0)


def test_progress_is_told_of_every_episode(tiny_model, machine, ceilings):
    told = []
    calibrator = Calibrator(
        tiny_model,
        machine,
        episodes=SMALL[:5],
        ceilings=ceilings,
        num_blocks=50,
        progress=lambda episodes, elapsed_s: told.append((episodes, elapsed_s)),
    )
    calibrator.run(0.01)
    assert [count for count, _ in told] == list(range(1, len(told) + 1))
    assert len(told) >= 6 * 5


def test_a_file_with_a_machine_that_is_none_is_refused(measured, tmp_path):
    import json

    path = tmp_path / "here.json"
    write_calibrated(path, measured.calibrated(fits=2))
    good = json.loads(path.read_text())
    wrong = [
        ({"num_blocks": 0}, "whole number from 1"),
        ({"model": {}}, "measured"),
        ({"hardware": {"name": "x"}}, "measured"),
        ({"speed": 1}, "it has"),
        ({"residuals": [{"kind": "x"}]}, "measured"),
    ]
    for change, why in wrong:
        path.write_text(json.dumps({**good, "measured": {**good["measured"], **change}}))
        with pytest.raises(ValueError, match=why):
            read_calibrated(path)
        assert read_calibration(path).fits


def test_a_pause_counts_as_this_processes_own_time(measured):
    before_s, idled_s = measured.own_s(), measured.runner.idled_s
    measured.runner.steps["prefill 32 after a pause"]()
    assert measured.runner.idled_s == pytest.approx(idled_s + 1e-3)
    assert measured.own_s() - before_s >= measured.machine.threads * 1e-3


def test_rounds_are_told_of_the_pauses(measured, monkeypatch):
    class Told(Exception):
        pass

    def interleave(steps, machine, budget_s, seed, own_s):
        before_s = own_s()
        measured.runner.idled_s += 100.0
        assert own_s() - before_s >= 100.0 * machine.threads
        raise Told

    monkeypatch.setattr("prefill_decode.calibrating.measuring.interleave", interleave)
    with pytest.raises(Told):
        measured.run(0.01)
