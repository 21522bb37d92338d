"""The benchmark of clients: what it reads of each, what it refuses, and the table it makes."""

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import clients
from clients import ClientError, Figures, Load

LOAD = Load("http://127.0.0.1:1", 8, 2, 16, 4, Path("peers"))
# Prints what it is told, and ends with that code.
SAYS = "import sys; print(sys.argv[1]); sys.stderr.write('no server'); sys.exit(int(sys.argv[2]))"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch):
    """Makes `fake` a client that has so many requests answered and ends with that code."""

    def make(num_answered: int, code: int = 0) -> None:
        words = [sys.executable, "-c", SAYS, num_answered, code]
        entry = (lambda *_: words, lambda _, said: Figures(0.1, 0.2, 30.0, int(said)))
        monkeypatch.setitem(clients.CLIENTS, "fake", entry)

    return make


def test_a_client_that_ends_with_an_error_or_misses_answers_gives_no_figures(client):
    client(8)
    assert clients.run_client("fake", LOAD, random.Random(0)).ttft_s == 0.1
    client(7)
    with pytest.raises(ClientError, match="fake had 7 of 8 requests answered"):
        clients.run_client("fake", LOAD, random.Random(0))
    client(8, code=3)
    with pytest.raises(ClientError, match="fake ended with code 3: no server"):
        clients.run_client("fake", LOAD, random.Random(0))


def test_a_time_after_the_first_token_is_tpot_whatever_a_client_calls_it(tmp_path):
    vllm = {"median_ttft_ms": 10, "median_tpot_ms": 20, "median_itl_ms": 1, "completed": 8}
    (tmp_path / "vllm.json").write_text(json.dumps({**vllm, "output_throughput": 30}))
    assert clients.vllm_figures(tmp_path, "") == Figures(0.01, 0.02, 30, 8)
    metrics = {
        "time_to_first_token_ms": {"successful": {"median": 10, "count": 8}},
        "time_per_output_token_ms": {"successful": {"median": 99}},
        "inter_token_latency_ms": {"successful": {"median": 20}},
        "output_tokens_per_second": {"successful": {"mean": 30}},
    }
    (tmp_path / "guidellm.json").write_text(json.dumps({"benchmarks": [{"metrics": metrics}]}))
    assert clients.guidellm_figures(tmp_path, "") == Figures(0.01, 0.02, 30, 8)


@pytest.fixture
def stub_url():
    words = [sys.executable, "-m", "prefill_decode.endpoint.stub_server"]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.stdin.close()  # which ends it


def test_our_client_takes_the_options_and_gives_the_figures_that_are_read_of_it(stub_url):
    load = replace(LOAD, url=stub_url)
    found = clients.run_client("ours", load, random.Random(0))
    assert found.num_answered == load.requests
    assert found.ttft_s >= 0.02  # what the stub sleeps
    assert found.tpot_s > 0
    assert 0 < found.output_tokens_per_s < load.concurrency * load.output_tokens / 0.02


def test_every_client_is_asked_for_the_same_load():
    for name, (command, _) in clients.CLIENTS.items():
        words = " ".join(str(word) for word in command(LOAD, Path("folder"), 7))
        assert LOAD.url in words
        assert re.search(r"(concurrency |streams=)2\b", words), name
        assert re.search(r"(requests |prompts |count[ =])8\b", words), name


def test_prompts_have_the_asked_number_of_words_and_never_repeat(tmp_path):
    clients.write_prompts(tmp_path / "prompts.jsonl", LOAD, random.Random(0))
    rows = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert [len(row["prompt"].split()) for row in rows] == [16] * 8
    assert len({row["prompt"] for row in rows}) == 8
    assert {row["output_tokens_count"] for row in rows} == {4}


def test_agreement_is_a_ratio_inside_rounds():
    rounds = [
        {"ours": Figures(t, 0.02, 30.0, 8), "fake": Figures(1.5 * t, 0.02, 60.0, 8)}
        for t in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
    ]
    shown = clients.agreement(rounds, ["ours", "fake"]).splitlines()[2:]
    assert shown[0] == "| TTFT | 350 ms | 525 ms, × 1.50 [1.50, 1.50] |"
    assert shown[1] == "| TPOT | 20.0 ms | 20.0 ms, × 1.00 [1.00, 1.00] |"
    assert shown[2] == "| output tokens/s | 30.0 | 60.0, × 2.00 [2.00, 2.00] |"


def test_a_client_that_is_not_there_is_a_sentence_and_exit_code_two(tmp_path, capsys):
    words = ["http://127.0.0.1:1", "--clients", "guidellm", "--peers", str(tmp_path)]
    assert clients.main(words) == 2
    assert "guidellm" in capsys.readouterr().err
