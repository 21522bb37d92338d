"""A file with a calibration and its machine: whatever stands in it is read or refused by name."""

import copy
import json
import os

import pytest

from prefill_decode import cli
from prefill_decode.hardware import accelerator
from prefill_decode.hf_config import get
from prefill_decode.simulator import Calibrated, Calibration, read_calibrated, write_calibrated

LOAD = ["--rate", "1", "--requests", "3", "--prompt-tokens", "20", "--output-tokens", "4"]
NO_TRUTH = (None, "x", float("nan"), float("inf"), [], {}, 10**30, 1)


@pytest.fixture
def document(tmp_path):
    hardware, model = accelerator("h100-sxm").at("bfloat16"), get("llama-3.1-8b")
    fit = Calibration(0.5, 0.5, 0.5, 0.5, 1e-4, 1e-5, "a fit")
    path = tmp_path / "good.json"
    write_calibrated(path, Calibrated(Calibration(fits=(fit,)), hardware, model, 5000, 16))
    return json.loads(path.read_text())


@pytest.fixture
def simulated(tmp_path, capsys):
    """simulated(text) -> the exit code of `simulate --calibration` and what it complains of."""
    path = tmp_path / "here.json"

    def run(text):
        path.write_text(text)
        code = cli.main(["simulate", "--calibration", str(path), *LOAD])
        return code, capsys.readouterr().err

    return run


def test_the_file_itself_is_simulated(document, simulated):
    assert simulated(json.dumps(document)) == (0, "")


@pytest.mark.parametrize("name", ["gated_mlp", "tied_embeddings", "rms_norm", "qkv_bias"])
@pytest.mark.parametrize("value", NO_TRUTH, ids=repr)
def test_a_property_of_the_model_is_true_or_false(document, simulated, name, value):
    document["measured"]["model"][name] = value
    code, told = simulated(json.dumps(document))
    assert code == 2
    assert "here.json" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "place",
    [
        ("num_blocks",),
        ("block_tokens",),
        ("hardware", "peak_flops_per_s"),
        ("hardware", "dtype"),
        ("model", "num_layers"),
        ("model", "rope_theta"),
        ("model", "vectors"),
    ],
    ids="/".join,
)
def test_what_is_no_value_of_the_machine_is_refused_by_the_files_name(document, simulated, place):
    for value in (None, float("nan"), float("inf"), [], [1]):
        wrong = copy.deepcopy(document)
        inside = wrong["measured"]
        for name in place[:-1]:
            inside = inside[name]
        inside[place[-1]] = value
        code, told = simulated(json.dumps(wrong))
        assert (code, "here.json" in told) == (2, True), value


def test_a_cache_that_no_memory_holds_is_refused(document, simulated):
    for name in ("num_blocks", "block_tokens"):
        wrong = copy.deepcopy(document)
        wrong["measured"][name] = 10**30
        code, told = simulated(json.dumps(wrong))
        assert (code, "is a whole number from 1 to" in told) == (2, True)


def test_a_file_that_was_cut_is_refused_wherever_it_ends(document, simulated):
    text = json.dumps(document)
    for end in range(0, len(text), 97):
        code, told = simulated(text[:end])
        assert (code, "here.json" in told) == (2, True)


def test_no_number_that_is_none_is_read_even_where_nothing_computes_with_it(document, simulated):
    document["measured"]["num_rounds"] = float("nan")
    code, told = simulated(json.dumps(document))
    assert (code, "here.json: NaN is not a finite number" in told) == (2, True)


def test_a_file_of_the_future_says_what_to_do(document, simulated):
    code, told = simulated(json.dumps({**document, "version": 4}))
    assert code == 2
    assert "version 1 to 3; got version 4: calibrate anew, or update this package" in told


def test_what_may_never_end_is_not_read(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="a calibration is a regular file"):
        read_calibrated(pipe)
