"""The simulate command as a user types it, mistakes included."""

import json
import os

import pytest

from prefill_decode import cli
from prefill_decode.hardware import accelerator
from prefill_decode.simulator import read_fleet

FLEET = """
routing = "prefix_aware"
slack = 4
[transfer]
bandwidth_bytes_per_s = 50e9
latency_s = 1e-3
[[pool]]
name = "prefill"
role = "prefill"
model = "llama-3.1-8b"
accelerator = "h100-sxm"
most_tokens_per_step = 2048
calibration = { product_compute_share = 0.7, step_s = 1e-3 }
[[pool]]
name = "decode"
role = "decode"
instances = 2
model = "llama-3.1-8b"
accelerator = "a100-sxm-80"
num_blocks = 10000
"""
FLAGS = ["--model", "llama-3.1-8b", "--accelerator", "h100-sxm"]
LOAD = ["--rate", "4", "--requests", "60"]


def run(capsys, *words):
    try:
        code = cli.main(["simulate", *map(str, words)])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err


def test_a_fleet_file_says_all_that_a_fleet_is(tmp_path):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    fleet = read_fleet(path)
    first, second = fleet.pools
    assert (fleet.routing, fleet.slack, fleet.num_devices) == ("prefix_aware", 4, 3)
    assert fleet.transfer.bandwidth_bytes_per_s == 50e9
    assert (first.role, first.settings.most_tokens_per_step) == ("prefill", 2048)
    assert (first.calibration.product_compute_share, first.calibration.step_s) == (0.7, 1e-3)
    assert (second.instances, second.num_blocks, second.hardware.name) == (
        2,
        10000,
        "A100 SXM 80GB",
    )
    room_bytes = 0.9 * accelerator("h100-sxm").capacity_bytes - first.model.weight_bytes
    assert first.num_blocks == int(room_bytes // first.model.kv_bytes(16))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("instances", "instnces", "did you mean instances"),
        ('role = "decode"', 'role = "decoder"', "role is one of"),
        ('role = "decode"', "", "give both or neither"),
        ("= 10000", "= 1e4", "a whole number"),
        ("= 10000", "= true", "a whole number"),
        ('accelerator = "a100-sxm-80"', "", "needs accelerator"),
        ("a100-sxm-80", "a1000", "accelerator must be one of"),
        ("slack = 4", "slack = -4", "slack is 0"),
        ("slack = 4", "slack = ", "fleet.toml"),
        ("[[pool]]", "[[pools]]", "did you mean pool"),
        ("product_compute_share = 0.7", "product_compute_share = 7", "at most 1"),
        ("50e9", "-50e9", "positive bandwidth"),
        ("most_tokens_per_step = 2048", 'policy = "greedy"', "policy is one of"),
    ],
)
def test_a_mistake_in_a_fleet_file_is_named(tmp_path, capsys, old, new, why):
    path = tmp_path / "fleet.toml"
    assert old in FLEET
    path.write_text(FLEET.replace(old, new))
    code, out, err = run(capsys, "--fleet", path, *LOAD)
    assert (code, out) == (2, "")
    assert why in err
    assert "fleet.toml" in err


def test_a_fleet_of_two_pools_is_told_in_words_and_in_strict_json(tmp_path, capsys):
    path = tmp_path / "fleet.toml"
    path.write_text(FLEET)
    code, out, _ = run(capsys, "--fleet", path, *LOAD, "--like", "azure-conversation")
    assert code == 0
    assert "predicted, not measured" in out
    assert "caches moved" in out
    code, out, _ = run(capsys, "--fleet", path, *LOAD, "--json", "--ttft", "1s")
    found = json.loads(out, parse_constant=pytest.fail)
    assert found["summary"]["num_requests"] == 60
    assert found["output_tokens"] == 60 * 128
    assert [use["pool"] for use in found["instances"]] == ["prefill", "decode", "decode"]
    assert found["summary"]["objectives"]["ttft_s"] == 1.0


def test_a_prompt_of_mooncakes_trace_finds_what_an_earlier_one_left(tmp_path, capsys):
    """Two blocks of 512 tokens have the same ids."""
    path = tmp_path / "trace.jsonl"
    rows = [(0, [7, 8, 9]), (60_000, [7, 8, 10])]
    lines = [
        {"timestamp": ms, "input_length": 1100, "output_length": 2, "hash_ids": ids}
        for ms, ids in rows
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = run(capsys, *FLAGS, "--trace", path, "--json")
    assert code == 0
    assert json.loads(out)["reused_tokens"] == 1024


def test_a_trace_is_replayed_and_its_bad_rows_are_named(tmp_path, capsys):
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\n5,100,10\n6,x,10\n7,100,20\n")
    code, out, err = run(capsys, *FLAGS, "--trace", path, "--json")
    assert code == 0
    assert "line 3" in err
    found = json.loads(out)
    assert (found["output_tokens"], found["trace"]["accepted_requests"]) == (30, 2)


def test_a_request_that_fits_nowhere_is_a_finding(capsys):
    words = [*FLAGS, "--rate", "1", "--requests", "2", "--prompt-tokens", "999999"]
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert "must fit in the cache" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (LOAD, "--fleet FILE, or --model and --accelerator"),
        (FLAGS, "--trace FILE, or --rate"),
        ([*FLAGS, *LOAD, "--spread"], "are for --trace"),
        ([*FLAGS, *LOAD, "--fleet", "f.toml"], "not from both"),
        ([*FLAGS, *LOAD, "--policy", "greedy"], "policy is one of"),
        ([*FLAGS, *LOAD, "--calibration", "no-such.json"], "no-such.json"),
        (["--fleet", "no-such.toml", *LOAD], "no-such.toml"),
        ([*FLAGS, "--rate", "-1"], "a positive number"),
        (["--model", "llama-3.1-70b", "--accelerator", "h100-sxm", *LOAD], "more devices"),
        (["--model", "gpt-oss-20b", "--accelerator", "h100-sxm", *LOAD], "window"),
    ],
)
def test_a_mistake_is_named_with_exit_code_2(capsys, words, why):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert why in err


def test_a_figure_of_goodput_around_the_rate_is_drawn_to_a_file(capsys, tmp_path):
    path = tmp_path / "goodput.svg"
    given = [*FLAGS, "--rate", 20, "--requests", 60, "--ttft", "100ms", "--tpot", "20ms"]
    code, out, _ = run(capsys, *given, "--figure", path)
    assert code == 0
    assert "goodput" in out
    drawn = path.read_text()
    assert drawn.startswith("<svg")
    assert "Simulated goodput by the rate at which requests come" in drawn


def test_the_longest_gap_is_drawn_to_a_file(capsys, tmp_path):
    path = tmp_path / "gap.svg"
    given = [*FLAGS, "--policy", "prefill_first", "--most-tokens-per-step", 8192, *LOAD]
    code, out, _ = run(capsys, *given, "--timeline", path)
    assert code == 0
    assert "goodput" in out
    assert "Simulated timeline of the instance around its longest gap" in path.read_text()
    code, _, err = run(capsys, *FLAGS, *LOAD, "--output-tokens", 1, "--timeline", path)
    assert code == 2
    assert "no answer here has two" in err


def test_a_figure_needs_a_rate_and_a_place(capsys, tmp_path):
    given = [*FLAGS, "--rate", 20, "--figure"]
    code, _, err = run(capsys, *given, tmp_path / "a.svg", "--requests", 1)
    assert code == 2
    assert "more than one moment" in err
    code, _, err = run(capsys, *given, tmp_path / "nowhere" / "a.svg", "--requests", 20)
    assert code == 2
    assert "nowhere" in err


@pytest.mark.parametrize("option", ["--figure", "--timeline"])
def test_a_drawing_replaces_no_device_no_folder_and_no_link(tmp_path, capsys, option):
    pipe, folder, link = tmp_path / "pipe", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(pipe)
    folder.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    missing = tmp_path / "none" / "x.svg"
    for path in (pipe, folder, link, missing, ""):
        code, out, err = run(capsys, *FLAGS, *LOAD, option, path)
        assert (code, out) == (2, "")
        assert f"{option} is a file in a folder that can be written to" in err
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert link.is_symlink()


def test_two_drawings_go_into_two_files(tmp_path, capsys):
    path = tmp_path / "x.svg"
    code, _, err = run(capsys, *FLAGS, *LOAD, "--figure", path, "--timeline", path)
    assert code == 2
    assert "are two files" in err
    assert not path.exists()


def test_what_cannot_be_drawn_costs_no_result(tmp_path, capsys):
    words = [*FLAGS, *LOAD, "--output-tokens", 1, "--timeline", tmp_path / "x.svg"]
    code, out, err = run(capsys, *words)
    assert code == 2
    assert "no answer here has two" in err
    assert "60 requests in" in out


def test_one_request_has_no_figure_and_is_told_before_the_simulation(tmp_path, capsys):
    words = ["--rate", 4, "--requests", 1, "--figure", tmp_path / "x.svg"]
    code, out, err = run(capsys, *FLAGS, *words)
    assert (code, out) == (2, "")
    assert "got 1 at one: give more, or leave --figure out" in err


def test_a_fleet_that_no_memory_holds_is_refused(capsys):
    for instances, told in ((10**9, "instances is a whole number from 1 to"), (10**6, "fewer")):
        code, out, err = run(capsys, *FLAGS, *LOAD, "--instances", instances)
        assert (code, out) == (2, "")
        assert told in err
