"""Fits become intervals, a calibration measured here becomes a fleet, saturation is told."""

import json
from dataclasses import replace

import pytest

from prefill_decode import cli
from prefill_decode.hardware import Hardware
from prefill_decode.request import Request
from prefill_decode.simulator import (
    Calibrated,
    Calibration,
    Fleet,
    Pool,
    Predicted,
    fleet_of,
    intervals,
    near_saturation,
    simulate,
    simulate_fits,
    under_fits,
    write_calibrated,
    write_calibration,
)
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals
from tests.simulator.random_fleets import DENSE

FREE = Hardware("free", "bfloat16", 1e40, 1e40, "a machine on which only the host takes time")
STEPS_S = (0.8e-3, 0.9e-3, 1.1e-3, 1.4e-3)
FITTED = Calibration(
    step_s=1e-3, source="by hand", fits=tuple(Calibration(step_s=each) for each in STEPS_S)
)
HERE = Calibrated(FITTED, FREE, DENSE, num_blocks=500, block_tokens=32)


def fleet_with(*calibrations):
    return Fleet(
        tuple(
            Pool(f"pool {i}", DENSE, FREE, 1000, calibration=one)
            for i, one in enumerate(calibrations)
        )
    )


def first_s(outcome):
    return {"TTFT": float(outcome.first_s[0])}


def test_every_fit_is_simulated_with_the_same_requests():
    requests = [Request("a", 0.0, 5, 3)]
    found = simulate_fits(fleet_with(FITTED), requests, first_s)
    assert [each["TTFT"] for each in found] == pytest.approx(STEPS_S)
    told = intervals({"TTFT": 1e-3}, found)["TTFT"]
    assert told.value == 1e-3
    assert STEPS_S[0] <= told.low < STEPS_S[1]
    assert STEPS_S[2] < told.high <= STEPS_S[3]
    assert told.covers(1e-3)
    assert not told.covers(2e-3)


def test_pools_change_their_fits_together_and_one_without_stays():
    plain = Calibration(step_s=5e-3)
    found = under_fits(fleet_with(FITTED, plain, replace(FITTED, fits=FITTED.fits[:2])), 3)
    told = [[pool.calibration.step_s for pool in fleet.pools] for fleet in found]
    assert told == [
        [STEPS_S[0], 5e-3, STEPS_S[0]],
        [STEPS_S[1], 5e-3, STEPS_S[1]],
        [STEPS_S[2], 5e-3, STEPS_S[0]],
    ]
    assert under_fits(fleet_with(plain)) == []


def test_without_fits_there_is_no_interval():
    told = intervals({"TTFT": 1.0}, [])["TTFT"]
    assert told.value == 1.0
    assert not told.covers(1.0)
    lost = intervals({"TTFT": float("nan")}, [{"TTFT": 1.0}, {"TTFT": 2.0}])["TTFT"]
    assert str(lost) == str(Predicted(float("nan")))


@pytest.mark.parametrize(("load", "told"), [(0.3, False), (0.95, True), (1.5, True)])
def test_a_fleet_near_saturation_is_told(load, told):
    tokens = 20
    places = 4
    settings = replace(fleet_with(FITTED).pools[0].settings, most_sequences=places)
    pool = replace(fleet_with(FITTED).pools[0], settings=settings)
    rate = load * places / (tokens * FITTED.step_s)
    requests = make_requests(
        poisson_arrivals(rate, 400, 1), fixed_lengths(1, 400), fixed_lengths(tokens, 400)
    )
    assert (near_saturation(simulate(Fleet((pool,)), requests)) is not None) == told


def test_a_calibrated_machine_is_a_pool_by_its_file_alone(tmp_path):
    write_calibrated(tmp_path / "here.json", HERE)
    (pool,) = fleet_of({"pool": [{"calibration": "here.json"}]}, tmp_path).pools
    assert (pool.model, pool.hardware, pool.calibration) == (DENSE, FREE, FITTED)
    assert (pool.num_blocks, pool.block_tokens) == (500, 32)
    table = {"calibration": "here.json", "num_blocks": 9, "block_tokens": 8, "policy": "static"}
    (pool,) = fleet_of({"pool": [table]}, tmp_path).pools
    assert (pool.num_blocks, pool.block_tokens, pool.settings.policy) == (9, 8, "static")
    (pool,) = fleet_of(
        {"pool": [{"calibration": "here.json", "model": "llama-3.1-8b"}]}, tmp_path
    ).pools
    assert pool.model.name == "llama-3.1-8b"
    assert pool.num_blocks == int(500 * DENSE.kv_bytes(32) // pool.model.kv_bytes(32))


def test_what_a_calibration_cannot_stand_for_is_refused(tmp_path):
    write_calibrated(tmp_path / "here.json", HERE)
    write_calibration(tmp_path / "plain.json", FITTED)
    wrong = [
        ({"calibration": "plain.json"}, "needs model and accelerator"),
        ({"calibration": "here.json", "model": "llama-3.1-8b", "dtype": "float8"}, "measured in"),
    ]
    for table, why in wrong:
        with pytest.raises(ValueError, match=why):
            fleet_of({"pool": [table]}, tmp_path)


def run(capsys, *words):
    try:
        code = cli.main(["simulate", *map(str, words)])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err


def test_the_command_needs_no_accelerator_beside_a_calibrated_machine(tmp_path, capsys):
    path = tmp_path / "here.json"
    write_calibrated(path, HERE)
    words = ["--calibration", path, "--rate", "5", "--requests", "50"]
    words += ["--prompt-tokens", "30", "--output-tokens", "10"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert "by 4 fits" in out
    assert "near saturation" not in out
    code, out, _ = run(capsys, *words, "--json", "--fits", "3")
    told = json.loads(out, parse_constant=pytest.fail)
    assert told["fits"]["count"] == 3
    median = told["fits"]["intervals"]["tpot_s p50"]
    assert median["low"] == pytest.approx(STEPS_S[0], rel=0.05)
    assert median["value"] == pytest.approx(1e-3)
    assert told["near_saturation"] is None
    code, out, _ = run(capsys, *words, "--json", "--fits", "0")
    assert json.loads(out)["fits"] is None
    words[3] = "2e4"
    assert "near saturation" in run(capsys, *words)[1]
