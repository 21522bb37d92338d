"""The examples do what their first lines say, with tiny inputs."""

import runpy
import sys

import pytest

from tests.conftest import ROOT
from tests.endpoint.conftest import stub  # noqa: F401  a fixture

EXAMPLES = ROOT / "examples"
MOST_LINES = 45


@pytest.fixture
def example(monkeypatch, capsys):
    """example(name, *words) -> the lines that it prints."""

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_every_example_is_short_and_in_the_list():
    listed = (EXAMPLES / "README.md").read_text()
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert scripts
    for path in scripts:
        assert f"]({path.name})" in listed
        assert len(path.read_text().splitlines()) <= MOST_LINES, path.name


def test_a_step_is_priced_by_what_limits_it(example):
    header, prompt, decode, both = example("price_a_step.py", "llama-3.1-8b", "h100-sxm", 8, 4096)
    assert "H100" in header
    assert prompt.endswith("by its compute")
    assert decode.endswith("by its bandwidth")
    assert "both in one step" in both


def test_the_scheduler_cuts_a_prompt_beside_its_streams(example):
    *steps, last = example("ask_the_scheduler.py", 64, 100, 4)
    assert [line.partition(":")[0].strip() for line in steps] == [
        "60 tokens of the prompt beside 4 streams",
        "40 tokens of the prompt beside 4 streams",
    ]
    assert last.startswith("the first token comes after")


def test_a_split_is_picked_for_the_requests_of_a_trace(example, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{i / 4},4000,40" for i in range(400)]
    trace.write_text("\n".join(["timestamp,prompt_tokens,output_tokens", *rows]) + "\n")
    told = example("pick_a_split.py", trace, "llama-3.1-8b", "h100-sxm", 2)
    splits = [line for line in told if line.endswith("requests/s")]
    assert len(splits) == 2
    assert sum(line.startswith("*") for line in splits) == 1


def test_an_endpoint_is_measured(example, stub):  # noqa: F811
    told = example("measure_an_endpoint.py", f"http://127.0.0.1:{stub.port}", 2, 6)
    assert told[0].endswith("6 of 6 answered")
    assert [line.split(":")[0].strip() for line in told[1:]] == ["TTFT", "TPOT"]
    assert "unknown" not in " ".join(told)


@pytest.mark.parametrize("name", ["pick_a_split.py", "measure_an_endpoint.py"])
def test_an_example_that_needs_words_says_how_it_is_called(example, name, capsys):
    with pytest.raises(SystemExit) as end:
        example(name)
    assert end.value.code == 2
    assert f"usage: {name}" in capsys.readouterr().err


def test_an_endpoints_streams_and_requests_are_told_apart(example, stub):  # noqa: F811
    told = example("measure_an_endpoint.py", f"http://127.0.0.1:{stub.port}", 4)
    assert told[0].endswith("8 of 8 answered")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["price_a_step.py", "no-such-model"], "a model is a path to a config.json or one of"),
        (["price_a_step.py", "llama-3.1-8b", "h100-sxm", "x"], "invalid int value: 'x'"),
        (["price_a_step.py", "llama-3.1-8b", "h100-sxm", "-1"], "a step needs at least one chunk"),
        (["price_a_step.py", "llama-3.1-8b", "h100-sxm", "1", "1", "1"], "unrecognized arguments"),
        (["ask_the_scheduler.py", "0"], "most_sequences is from 1 to"),
        (["ask_the_scheduler.py", "1", "2", "3", "4"], "unrecognized arguments: 4"),
        (["pick_a_split.py", "no-such.csv"], "No such file"),
        (["pick_a_split.py", "no-such.csv", "llama-3.1-8b", "h100-sxm", "x"], "invalid int value"),
        (["measure_an_endpoint.py", "nowhere"], "a server's address is like"),
        (["measure_an_endpoint.py", "http://127.0.0.1:1", "0"], "are 1 or more; got 0, 8"),
    ],
    ids=" ".join,
)
def test_what_an_example_cannot_do_is_said_in_a_sentence(example, capsys, words, told):
    with pytest.raises(SystemExit) as end:
        example(*words)
    assert end.value.code == 2
    assert told in capsys.readouterr().err
