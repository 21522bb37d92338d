"""The recordings of other servers' streams: whole, small, described, and as their README says."""

import base64
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "recordings"
ENGINES = ("llamacpp", "transformers", "vllm")
FILES = sorted(FOLDER.glob("*.jsonl"))


def described(engine: str) -> dict[str, dict]:
    return json.loads((FOLDER / f"{engine}.json").read_text())


def reads(engine: str, case: str) -> list[tuple[float, bytes]]:
    lines = (FOLDER / f"{engine}-{case}.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["t"], base64.b64decode(row["base64"], validate=True)) for row in rows]


def body(engine: str, case: str) -> bytes:
    return b"".join(data for _, data in reads(engine, case))


def events(engine: str, case: str) -> list[dict]:
    """The JSON of each event; all of them are a line that begins with data."""
    lines = body(engine, case).decode().split("\n")
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def test_every_recording_is_described_and_every_description_recorded():
    names = {f"{engine}-{case}" for engine in ENGINES for case in described(engine)}
    assert names == {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_recording_is_small_and_its_times_never_fall(path: Path):
    assert path.stat().st_size < 20_000
    times_s = [t_s for t_s, _ in reads(*path.stem.split("-", 1))]
    assert times_s
    assert times_s == sorted(times_s)


@pytest.mark.parametrize(("engine", "ends"), [("vllm", 1), ("llamacpp", 1), ("transformers", 0)])
def test_a_whole_stream_says_it_is_done_once_but_for_transformers(engine: str, ends: int):
    for case, about in described(engine).items():
        if about["asked"]["stream"] and about["status"] == 200:
            hung_up = about["hang_up_after_reads"] is not None
            assert body(engine, case).count(b"data: [DONE]\n\n") == (0 if hung_up else ends)


@pytest.mark.parametrize("engine", ENGINES)
def test_usage_counts_the_tokens_of_a_whole_answer(engine: str):
    for case in ("chat-usage", "completion-usage"):
        usage = [each["usage"] for each in events(engine, case) if each.get("usage")]
        assert [(u["prompt_tokens"], u["completion_tokens"]) for u in usage] == [(8, 12)]


def test_continuous_usage_is_vllm_s_alone_and_cumulative():
    counts = [
        each["usage"]["completion_tokens"]
        for each in events("vllm", "chat-continuous-usage")
        if each["choices"]
    ]
    assert counts == list(range(13))  # the first event has a role and no token
    for engine in ("llamacpp", "transformers"):
        usages = [each.get("usage") for each in events(engine, "chat-continuous-usage")]
        assert len([u for u in usages if u]) == 1


def test_a_comment_keeps_llama_cpp_s_connection_while_a_prompt_is_long():
    recorded = [data for _, data in reads("llamacpp", "completion-pings")]
    assert recorded[0] == b":\n\n"
    assert all(each["choices"] for each in events("llamacpp", "completion-pings"))


@pytest.mark.parametrize("engine", ENGINES)
def test_some_read_holds_more_than_one_event(engine: str):
    whole = [data for case in described(engine) for _, data in reads(engine, case)]
    assert any(data.count(b"\n\n") > 1 for data in whole)
