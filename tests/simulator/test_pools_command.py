"""The pools command as a user types it, mistakes included."""

import json

import pytest

from prefill_decode import cli
from prefill_decode.units import format_significant

COMMON = ["--model", "llama-3.1-8b", "--workers", "2", "--seeds", "1", "--requests", "60"]
ONE = ["--accelerator", "h100-sxm"]
LOAD = ["--prompt-tokens", "2048", "--output-tokens", "20", "--most-sequences", "8"]
WITHIN = ["--ttft", "400ms", "--tpot", "20ms"]


def run(capsys, *words):
    try:
        code = cli.main(["pools", *map(str, words)])
    except SystemExit as end:
        code = end.code
    told = capsys.readouterr()
    return code, told.out, told.err


def test_one_command_says_how_many_workers_of_which_accelerator(capsys):
    code, out, err = run(capsys, *COMMON, *ONE, "--accelerator", "h200-sxm", *LOAD, *WITHIN)
    assert (code, err) == (0, "")
    assert "simulated, not measured" in out
    assert "H100 SXM prefills, H200 SXM decodes" in out
    assert out.splitlines()[-1].startswith("best of a device: ")


def test_the_report_holds_every_split_of_every_number_of_workers(capsys):
    given = [*COMMON, *ONE, *LOAD, *WITHIN, "--workers", "2-3", "--json"]
    code, out, _ = run(capsys, *given)
    report = json.loads(out)
    assert code == 0
    assert [each["split"] for each in report["searches"][1]["splits"]] == ["1:2", "2:1", "3 whole"]
    first = report["searches"][0]["splits"][0]
    assert first["rate_per_s"]["low"] is None  # one seed has no interval
    assert first["of_a_device_per_s"]["median"] == first["rates_per_s"][0] / 2
    assert report["best"] in (0, 1)


def test_a_rate_asks_for_the_goodput_at_it(capsys):
    code, out, _ = run(capsys, *COMMON, *ONE, *LOAD, *WITHIN, "--rate", 2, "--json")
    assert code == 0
    assert [each["rates_per_s"] for each in json.loads(out)["searches"][0]["splits"]] == [
        [2.0],
        [2.0],
    ]


def test_a_trace_is_searched_as_it_is(capsys, tmp_path):
    rows = "\n".join(f"{0.3 * i},{2500 + i},{10 + i % 3}" for i in range(60))
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\n" + rows + "\n")
    code, out, _ = run(capsys, *COMMON[:4], *ONE, "--trace", path, *WITHIN, "--json")
    assert code == 0
    assert json.loads(out)["searches"][0]["num_requests"] == 60


def test_what_no_split_can_keep_is_a_finding(capsys):
    hasty = ["--ttft", "1ms", "--tpot", "1ms"]
    code, out, err = run(capsys, *COMMON, *ONE, *LOAD, *hasty)
    assert code == 1
    assert "not even one sequence decodes within the objectives" in out
    assert "no split answers" in err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([*COMMON, *LOAD, *WITHIN], "give --accelerator"),
        ([*COMMON, "--accelerator", "h1000", *WITHIN], "accelerator must be one of"),
        ([*COMMON, *ONE, "--ttft", "400ms"], "an objective for TTFT and one"),
        ([*COMMON, *ONE, *WITHIN, "--workers", "1"], "from 2 to 64"),
        ([*COMMON, *ONE, *WITHIN, "--workers", "8-4"], "from 2 to 64"),
        ([*COMMON, *ONE, *WITHIN, "--share", "0"], "above 0"),
        ([*COMMON, *ONE, *WITHIN, "--spread"], "are for --trace"),
        ([*COMMON, "--accelerator", "h20", *WITHIN], "no source prints the link"),
        ([*COMMON, *ONE, *WITHIN, "--most-tokens-per-step", "4"], "most_sequences"),
        ([*COMMON, *ONE, *WITHIN, "--requests", "1"], "more than one moment"),
    ],
)
def test_bad_input_is_said_in_a_sentence_and_ends_with_2(capsys, words, why):
    code, _, err = run(capsys, *words)
    assert code == 2
    assert why in err


def test_a_figure_shows_every_split_and_the_whole_workers(capsys, tmp_path):
    path = tmp_path / "splits.svg"
    given = [*COMMON, *ONE, *LOAD, *WITHIN, "--workers", "3", "--figure", path, "--json"]
    code, out, _ = run(capsys, *given)
    assert code == 0
    drawn = path.read_text()
    rates = {
        each["split"]: each["of_a_device_per_s"]["median"]
        for each in json.loads(out)["searches"][0]["splits"]
    }
    for split in ("1:2", "2:1"):
        assert f"{split}: {format_significant(rates[split])}" in drawn
    assert f"Whole workers: {format_significant(rates['3 whole'])}" in drawn
