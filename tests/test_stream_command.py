"""`prefill-decode stream` as a user types it, mistakes included."""

import base64
import io
import json
import sys
from itertools import pairwise

import pytest

from prefill_decode import cli
from tests.streams import chat, sse, total

EVENTS = [
    (0.1, chat(role="assistant")),
    (0.5, chat("a")),
    (0.7, chat("é")),
    (0.8, chat("", "length")),
    (0.8, total(5)),
    (0.9, "[DONE]"),
]


def lines(events):
    return "".join(json.dumps({"t": t, "data": data}) + "\n" for t, data in events)


STREAM = b"".join(sse(data) for _, data in EVENTS)


def reads(cuts, stream=STREAM):
    """The stream in reads that end at these places, one read every 0.1 s."""
    ends = [0, *cuts, len(stream)]
    return "".join(
        json.dumps({"t": 0.1 * i, "base64": base64.b64encode(stream[a:b]).decode()}) + "\n"
        for i, (a, b) in enumerate(pairwise(ends))
    )


def run(tmp_path, capsys, text, *options):
    path = tmp_path / "events.jsonl"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code = cli.main(["stream", str(path), *options])
    return code, capsys.readouterr()


def test_a_recording_of_events_in_strict_json(tmp_path, capsys):
    code, shown = run(tmp_path, capsys, lines(EVENTS), "--json", "--max-tokens", "8")
    found = json.loads(shown.out)
    assert code == 0
    assert (found["ttft_s"], found["time_to_first_content_s"]) == (0.5, 0.5)
    assert found["tpot_s"] == pytest.approx(0.2 / 4)
    assert found["event_gaps_s"] == pytest.approx([0.2])
    assert (found["output_tokens"], found["tokens_per_event"]) == (5, None)
    assert (found["success"], found["error"], found["short_output"]) == (True, None, True)


def test_a_recording_of_reads_gives_an_event_the_time_of_the_read_that_completed_it(
    tmp_path, capsys
):
    inside, letter = STREAM.index(b'"a"'), STREAM.index("é".encode()) + 1
    code, shown = run(tmp_path, capsys, reads([inside, inside + 1, letter]), "--json")
    found = json.loads(shown.out)
    assert (code, found["success"], found["output_tokens"]) == (0, True, 5)
    assert found["event_times_s"] == pytest.approx([0.2, 0.3])


def test_an_answer_cut_inside_an_event_failed(tmp_path, capsys):
    stream = b"".join(sse(data) for _, data in EVENTS[:3])
    code, shown = run(tmp_path, capsys, reads([], stream[:-20]), "--json")
    assert (code, json.loads(shown.out)["error"]) == (1, "the stream was cut inside an event")
    code, shown = run(tmp_path, capsys, reads([], stream + b"data: [DONE]"), "--json")
    assert (code, json.loads(shown.out)["done_seen"]) == (0, True)


def test_a_failed_stream_is_a_finding(tmp_path, capsys):
    failed = [*EVENTS[:2], (0.6, {"error": {"message": "engine\x1b[2J\nstopped"}})]
    code, shown = run(tmp_path, capsys, lines(failed))
    assert code == 1
    assert "failed: engine\\x1b[2J" in shown.out
    code, shown = run(tmp_path, capsys, lines(failed), "--json")
    assert (code, json.loads(shown.out)["error"]) == (1, "engine\x1b[2J\nstopped")


def test_a_table_says_what_is_known_and_what_is_not(tmp_path, capsys):
    code, shown = run(tmp_path, capsys, lines(EVENTS))
    assert code == 0
    for words in ["TTFT              500 ms", "TPOT              50.0 ms", "20.0 tokens/s"]:
        assert words in shown.out
    code, shown = run(tmp_path, capsys, lines([*EVENTS[:4], EVENTS[5]]))
    assert code == 0
    assert "output tokens     unknown" in shown.out
    assert "nan" not in shown.out


def test_a_recording_comes_from_stdin(monkeypatch, capsys):
    stdin = io.TextIOWrapper(io.BytesIO(lines(EVENTS).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert cli.main(["stream", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ttft_s"] == 0.5


def test_empty_lines_and_a_byte_order_mark_are_no_lines(tmp_path, capsys):
    text = "\ufeff" + lines(EVENTS).replace("\n", "\r\n\r\n")
    assert run(tmp_path, capsys, text)[0] == 0


GOOD = '{"t": 0.1, "data": {"choices": []}}\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        (GOOD + "{", "line 2: not valid JSON"),
        (GOOD + "[" * 100000, "line 2: not valid JSON"),
        (GOOD + "7" * 5000, "line 2: not valid JSON"),
        (GOOD + '{"t": 0.2}', "line 2: a line is"),
        (GOOD + "[1]", "line 2: a line is"),
        (GOOD + '{"t": 0.2, "data": {}, "base64": ""}', "line 2: a line is"),
        (GOOD + '{"data": {}}', 'line 2: "t" is missing'),
        (GOOD + '{"t": NaN, "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": Infinity, "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": -1, "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": "0.2", "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": true, "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": null, "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '{"t": 1' + "0" * 400 + ', "data": {}}', 'line 2: "t" is a finite number'),
        (GOOD + '\n{"t": 0.05, "data": {}}', "line 3: time runs backwards"),
        (GOOD + '{"t": 0.2, "base64": "YQ=="}', "line 2: lines hold 'data' or 'base64'"),
        ('{"t": 0.2, "base64": "YQ"}', 'line 1: "base64" cannot be decoded'),
        ('{"t": 0.2, "base64": "Y*Q=="}', 'line 1: "base64" cannot be decoded'),
        ('{"t": 0.2, "base64": "é"}', 'line 1: "base64" cannot be decoded'),
        ('{"t": 0.2, "base64": 7}', 'line 1: "base64" is text'),
        (
            '{"t": 0.2, "base64": ""}\n{"t": 0.1, "base64": ""}',
            "line 2: time runs backwards",
        ),
        (b"\xff\xfe", "line 1: not valid JSON"),
    ],
)
def test_an_unusable_recording_is_one_sentence_that_names_the_line(tmp_path, capsys, text, told):
    code, shown = run(tmp_path, capsys, text, "--json")
    assert (code, shown.out) == (2, "")
    assert told in shown.err
    assert shown.err.startswith("prefill-decode: ")
    assert shown.err.count("\n") == 1


def test_a_file_that_is_not_there_is_one_sentence(tmp_path, capsys):
    assert cli.main(["stream", str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert cli.main(["stream", str(tmp_path)]) == 2
    for number in ["0", "-1", "1.5", "x", "²"]:
        with pytest.raises(SystemExit, match="2"):
            cli.main(["stream", "-", "--max-tokens", number])
