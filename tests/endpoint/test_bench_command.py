"""`prefill-decode bench` as a user types it, mistakes and Ctrl-C included."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from statistics import fmean, stdev

import pytest

from prefill_decode import cli
from tests.endpoint.test_client import free_port


def run(stub, capsys, *words, code=0):
    url = f"http://127.0.0.1:{stub.port}"
    assert cli.main(["bench", url, "--no-overhead", "--output-tokens", "4", *words]) == code
    return capsys.readouterr()


def test_a_closed_loop_in_strict_json_with_a_line_for_each_request(stub, capsys, tmp_path):
    out = tmp_path / "requests.jsonl"
    words = ["--concurrency", "3", "--requests", "9", "--json", "--out", str(out)]
    told = json.loads(run(stub, capsys, *words).out)
    assert (told["loop"], told["num_answered"], told["num_warmup"]) == ("closed", 9, 3)
    assert told["model"] == "steady"  # the first that the server lists
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["request_id"] for line in lines} == {str(i) for i in range(9)}


def test_an_open_loop_as_a_table_with_goodput(stub, capsys):
    shown = run(
        stub, capsys, "--rate", "200", "--requests", "20", "--ttft", "9s", "--model", "several"
    ).out
    for words in ["open loop, 200 requests/s", "20 answered of 20 sent", "TTFT, planned", "p50: "]:
        assert words in shown
    assert "within TTFT 9.00 s: 20 of 20" in shown
    assert "4.00 tokens an event" in shown


def planned_gaps_s(stub, capsys, out, burstiness):
    words = ["--rate", "400", "--requests", "40", "--burstiness", burstiness, "--json"]
    told = json.loads(run(stub, capsys, *words, "--out", str(out)).out)
    assert told["burstiness"] == float(burstiness)
    planned_s = sorted(json.loads(line)["planned_s"] for line in out.read_text().splitlines())
    return [later - earlier for earlier, later in pairwise(planned_s)]


def test_burstiness_is_the_spread_of_gaps_over_their_mean(stub, capsys, tmp_path):
    even, bursts = (planned_gaps_s(stub, capsys, tmp_path / "x", cv) for cv in ("0", "4"))
    assert even == pytest.approx([1 / 400] * 39)
    assert stdev(bursts) > 2 * fmean(bursts)
    shown = run(stub, capsys, "--rate", "400", "--burstiness", "4", "--duration", "0.05").out
    assert "open loop, 400 requests/s planned, burstiness 4" in shown


def test_a_trace_is_replayed_and_its_rows_are_accounted_for(stub, capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("timestamp,prompt_tokens,output_tokens\n5.0,30,3\n5.1,x,3\n5.05,40,5\n")
    out = tmp_path / "requests.jsonl"
    shown = run(stub, capsys, "--trace", str(path), "--json", "--out", str(out))
    told = json.loads(shown.out)
    assert (told["num_planned"], told["num_answered"], told["output_tokens"]) == (2, 2, 8)
    assert told["trace"]["rejected_lines"] == {"3": "not a number"}
    assert "not a number: line 3" in shown.err
    assert told["rate_per_s"] == pytest.approx(20)
    planned_s = [json.loads(line)["planned_s"] for line in out.read_text().splitlines()]
    assert planned_s == pytest.approx([0.0, 0.05])  # the trace's first is the run's start


def test_a_duration_ends_either_loop(stub, capsys):
    for loop in (["--rate", "100"], ["--concurrency", "2"]):
        told = json.loads(run(stub, capsys, *loop, "--duration", "0.2", "--json").out)
        assert told["num_answered"] >= 2
        assert told["num_failed"] == 0


def test_a_run_in_which_every_request_fails_is_a_finding_with_its_reason(stub, capsys):
    shown = run(stub, capsys, "--model", "http_500", "--requests", "3", "--json", code=1)
    assert "every request failed: HTTP 500: out of memory" in shown.err
    assert json.loads(shown.out)["num_failed"] == 3
    shown = run(stub, capsys, "--model", "never", "--requests", "2", "--timeout", "0.1", code=1)
    assert "no end of the answer within 0.1 s" in shown.err


def test_a_server_that_is_not_there_is_one_sentence(capsys):
    assert cli.main(["bench", f"http://127.0.0.1:{free_port()}"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "is the server running?" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nowhere"], "a server's address is like"),
        (["http://h", "--ttft", "soon"], "soon"),
        (["http://h", "--ttft", ""], "a duration must be"),
        (["http://h", "--spread"], "for --trace"),
        (["http://h", "--max-model-len", "9"], "for --trace"),
        (["http://h", "--api-key", "a\nb"], "must be printable ASCII"),
        (["http://h", "--rate", "1e5", "--duration", "1e308"], "at most 1000000 requests"),
        (["http://h", "--rate", "1e-9", "--duration", "1"], "none arrives within 1 s"),
        (["http://h", "--out", "/dev/null"], "--out is a file in a folder"),
        (["http://h", "--out", "/proc/x"], "--out is a file in a folder"),
        (["http://h", "--prompt-ids"], "--api completions"),
        (["http://h", "--burstiness", "2"], "--burstiness is of the arrivals that --rate makes"),
        (["http://h", "--trace", "/none"], "No such file"),
        (["http://h", "--out", "/none/x"], "--out is a file in a folder"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(words, told, capsys):
    assert cli.main(["bench", *words]) == 2
    shown = capsys.readouterr().err
    assert told in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--requests", "0"],
        ["--requests", "1000001"],
        ["--concurrency", "999999999"],
        ["--prompt-tokens", "999999999"],
        ["--output-tokens", "9" * 5000],
        ["--rate", "1", "--burstiness", "-1"],
    ],
)
def test_options_out_of_range_are_refused(words, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "http://h", *words])
    with pytest.raises(SystemExit, match="2"):
        cli.main(["bench", "http://h", "--rate", "1", "--concurrency", "1"])


def test_a_full_disk_costs_the_file_and_not_the_report(stub, capsys, tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("prefill_decode.results.write_atomically", full)
    out = tmp_path / "requests.jsonl"
    shown = run(stub, capsys, "--requests", "3", "--json", "--out", str(out), code=2)
    assert json.loads(shown.out)["num_answered"] == 3
    assert "--out was not written: No space left on device" in shown.err
    assert list(tmp_path.iterdir()) == []


def test_a_server_without_a_list_of_models_says_why_there_is_none(capsys, serve):
    server = serve(api_key="secret")
    assert cli.main(["bench", server.url]) == 2
    assert "(HTTP 401: the API key is missing" in capsys.readouterr().err


def test_a_prompt_that_is_too_long_is_not_made_longer_by_a_failed_probe(capsys, serve):
    server = serve()
    words = ["--api", "completions", "--no-overhead", "--requests", "1", "--warmup", "0"]
    assert cli.main(["bench", server.url, *words, "--prompt-tokens", "9000", "--prompt-ids"]) == 1
    assert "a prompt of 9000 and" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_what_had_ended(stub, tmp_path, number):
    out = tmp_path / "requests.jsonl"
    words = ["bench", f"http://127.0.0.1:{stub.port}", "--no-overhead", "--concurrency", "2"]
    words += ["--duration", "600", "--output-tokens", "4", "--json", "--out", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-m", "prefill_decode.cli", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )
    end_s = time.monotonic() + 30
    while len(stub.bodies) < 20 and time.monotonic() < end_s:
        time.sleep(0.01)
    process.send_signal(number)
    shown, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in told
    assert "Traceback" not in told
    found = json.loads(shown)
    assert found["interrupted"]
    assert found["num_answered"] >= 10
    assert found["num_failed"] == 0
    assert len(out.read_text().splitlines()) == found["num_answered"]
