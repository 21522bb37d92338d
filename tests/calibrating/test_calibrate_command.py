"""The calibrate command as a user types it, mistakes included."""

import json
import os

import pytest

import prefill_decode.calibrating
from prefill_decode import cli
from prefill_decode.calibrating import Calibrator, design
from prefill_decode.simulator import read_calibrated


def run(capsys, *words):
    try:
        code = cli.main(["calibrate", *map(str, words)])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err


@pytest.fixture
def quick(tiny_model, ceilings, monkeypatch):
    """The tiny model in place of the one that is asked for, and a few rounds."""
    asked = {}

    def measure(model, machine, budget_s, *, seed, num_blocks, progress):
        asked.update(model=model, budget_s=budget_s, seed=seed, machine=machine)
        calibrator = Calibrator(
            tiny_model,
            machine,
            episodes=[
                one
                for one in design(most_rows=32, most_sequences=3, long_context=128)
                if not one.idle_s
            ][::3],
            ceilings=ceilings,
            num_blocks=num_blocks or 40,
            progress=progress,
        )
        calibrator.run(0.01)
        return calibrator.calibrated(fits=3)

    monkeypatch.setattr(prefill_decode.calibrating, "measure_calibration", measure)
    return asked


def test_a_file_is_written_and_told_in_words_and_in_strict_json(quick, capsys, tmp_path):
    path = tmp_path / "here.json"
    words = ["--model", "laptop-254m", "--layers", "2", "--device", "cpu", "--out", path]
    code, out, _ = run(capsys, *words, "--budget", "5", "--seed", "3")
    assert code == 0
    assert "decode: " in out
    assert f"simulate --calibration {path}" in out
    assert (quick["budget_s"], quick["seed"]) == (5.0, 3)
    assert (quick["model"].num_layers, quick["model"].dtype) == (2, "float32")
    assert len(read_calibrated(path).calibration.fits) == 3
    code, out, _ = run(capsys, *words, "--json", "--blocks", "9")
    assert code == 0
    assert json.loads(out, parse_constant=pytest.fail) == json.loads(path.read_text())
    assert read_calibrated(path).num_blocks == 9


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "--out"),
        (["--out", "no-such-folder/here.json"], "--out is a file in a folder"),
        (["--out", "/dev/null"], "--out is a file in a folder"),
        (["--out", "x.json", "--layers", "0"], "from 1"),
        (["--out", "x.json", "--budget", "-5"], "a positive number of seconds"),
        (["--out", "x.json", "--threads", "none"], "a whole number"),
        (["--out", "x.json", "--model", "laptop-254n"], "laptop-254m"),
        (["--out", "x.json", "--model", "laptop-254m", "--layers", "99"], "from 1 to 16 layers"),
    ],
)
def test_a_mistake_is_named_with_exit_code_2(capsys, tmp_path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert why in err
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_keeps_the_earlier_calibration(quick, capsys, tmp_path, monkeypatch):
    path = tmp_path / "here.json"
    path.write_text("the earlier one")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = run(capsys, "--model", "laptop-254m", "--device", "cpu", "--out", path)
    assert (code, "No space left" in err) == (2, True)
    assert path.read_text() == "the earlier one"
    assert list(tmp_path.iterdir()) == [path]
