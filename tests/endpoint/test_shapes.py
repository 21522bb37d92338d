"""ShapeRunner against the stub, whose times are known, and against our own server."""

import threading
from dataclasses import replace

import pytest

from prefill_decode.endpoint.launch import ServedHere
from prefill_decode.endpoint.shapes import (
    KNOWN,
    MOST_DOUBLINGS,
    SEEN,
    STUB,
    ShapeRunner,
    shared_gaps_s,
)
from prefill_decode.measure import interleave
from prefill_decode.step import Chunk
from tests.small_config import write_small_config
from tests.streams import read_stream


@pytest.fixture
def runner(stub):
    """Of the stub as if it were an engine."""
    runner = ShapeRunner({"ours": f"http://127.0.0.1:{stub.port}"}, (4, 32), streams=3)
    yield runner
    runner.close()


def stream(times_s, tokens=None):
    def data(text, **more):
        return {"choices": [{"index": 0, "text": text, **more}]}

    events = [(t, data("w")) for t in times_s]
    result = read_stream([*events, (times_s[-1], data("", finish_reason="length"))])
    return replace(result, tokens_per_event=tokens)


def test_every_run_notes_one_time_under_each_of_its_names(runner):
    assert list(runner.steps) == [
        "ours: 1 stream, prompts of 4",
        "ours: 1 stream, prompts of 32",
        "ours: 3 streams, prompts of 4",
        STUB,
    ]
    for step in runner.steps.values():
        step()
    names = {*runner.ttft["ours"].values(), *runner.itl["ours"].values(), SEEN, KNOWN}
    assert {name: len(values) for name, values in runner.noted_s.items()} == dict.fromkeys(names, 1)
    assert names >= {"ours: TTFT, prompt of 32", "ours: ITL, 3 streams after 4"}


def test_prompts_have_their_length_are_new_each_time_and_ask_for_no_early_end(runner, stub):
    stub.bodies.clear()
    steps = list(runner.steps.values())
    steps[1]()
    steps[1]()
    steps[2]()
    assert [len(body["prompt"]) for body in stub.bodies] == [32, 32, 4, 4, 4]
    assert len({tuple(body["prompt"]) for body in stub.bodies}) == 5
    assert {(b["temperature"], b["ignore_eos"], b["stream"]) for b in stub.bodies} == {
        (0, True, True)
    }
    assert stub.bodies[0]["max_tokens"] == 8
    assert stub.bodies[-1]["max_tokens"] == 8 + 3  # until the last of three has begun
    assert stub.most_at_once == 3


def test_what_is_noted_is_what_the_stub_did(runner, monkeypatch):
    """Only bounds that no slow machine can break: nothing comes before it was sent."""
    for step in runner.steps.values():
        step()
    assert runner.noted_s["ours: TTFT, prompt of 4"][0] >= 0.02
    assert runner.noted_s[SEEN][0] >= runner.noted_s[KNOWN][0] >= 0.02


def test_the_notes_fit_the_rounds_of_the_timer(runner, machine):
    timings = interleave(runner.steps, machine, 0.01, own_s=runner.own_s)
    timings = timings.with_noted(runner.noted_s)
    assert timings.ratio(SEEN, over=KNOWN).low >= 1.0
    assert len(timings.raw_s["ours: ITL, 3 streams after 4"]) == timings.num_rounds


def test_the_chunks_of_an_engine_are_its_prompts_and_the_decodes_of_all_streams(runner):
    assert runner.chunks("ours") == {
        "ours: TTFT, prompt of 4": [Chunk(4)],
        "ours: TTFT, prompt of 32": [Chunk(32)],
        "ours: ITL, 1 stream after 4": [Chunk(1, 4)],
        "ours: ITL, 1 stream after 32": [Chunk(1, 32)],
        "ours: ITL, 3 streams after 4": [Chunk(1, 4)] * 3,
    }


def test_each_ratio_compares_with_the_lone_short_request(runner):
    assert runner.ratios["ours"] == {
        "ours: TTFT, prompt of 32 / of 4": ("ours: TTFT, prompt of 32", "ours: TTFT, prompt of 4"),
        "ours: ITL, 3 streams / 1": ("ours: ITL, 3 streams after 4", "ours: ITL, 1 stream after 4"),
        "ours: ITL, after 32 / after 4": (
            "ours: ITL, 1 stream after 32",
            "ours: ITL, 1 stream after 4",
        ),
    }


def test_processor_time_counts_the_stub_in_its_own_process(runner):
    assert runner.own_s() > 0
    assert len(runner._pids) == 2  # the stub in this process, and the one beside it


@pytest.mark.parametrize(
    ("mode", "words"),
    [("error", "ours: engine stopped"), ("short", "fewer tokens came"), ("http_500", "of memory")],
)
def test_a_request_that_fails_stops_the_run_with_the_engines_words(runner, mode, words):
    engine = runner.engines[0]
    runner.engines[0] = replace(engine, target=replace(engine.target, model=mode))
    with pytest.raises(RuntimeError, match=words):
        next(iter(runner.steps.values()))()


def test_a_prompt_that_is_counted_otherwise_stops_the_run(runner):
    engine = runner.engines[0]
    runner.engines[0] = replace(engine, prompts=replace(engine.prompts, ids=False))
    with pytest.raises(RuntimeError, match="a prompt of 32 tokens was counted as 56"):
        list(runner.steps.values())[1]()


def test_only_gaps_while_all_streams_run_count():
    late = stream([5.0, 6.0, 7.5, 8.0])
    early = stream([1.0, 4.0, 5.5, 6.0, 7.0, 20.0])
    assert shared_gaps_s([(0.0, late), (0.0, early)]) == [1.0, 1.5, 0.5, 0.5, 1.0]
    assert shared_gaps_s([(0.0, late), (2.5, early)]) == [1.0, 1.5, 0.5, 1.5]  # sent later
    assert shared_gaps_s([(0.0, late), (90.0, early)]) == []


def test_a_gap_that_brought_several_tokens_is_shared_by_them():
    assert shared_gaps_s([(0.0, stream([1.0, 3.0, 4.0], (1, 4, 1)))]) == [0.5, 1.0]
    assert shared_gaps_s([(0.0, stream([1.0, 3.0, 3.0, 4.0]))]) == [1.0, 1.0]  # in one read


def test_a_run_whose_tokens_come_too_late_asks_for_more_of_them(runner, stub):
    late = replace(runner.engines[0].target, model="late")
    runner.engines[0] = replace(runner.engines[0], target=late)
    stub.bodies.clear()
    alone, _, together, _ = runner.steps.values()
    alone()
    together()
    asked = [body["max_tokens"] for body in stub.bodies]
    assert asked[-3:] == [asked[-1]] * 3
    assert asked[0] == 8  # all in one piece, as are 16
    assert asked[-1] in (22, 44)  # beyond the 16 that come in one piece
    assert len({tuple(body["prompt"]) for body in stub.bodies}) == len(stub.bodies)
    assert {name: len(values) for name, values in runner.noted_s.items()} == {
        "ours: TTFT, prompt of 4": 1,
        "ours: ITL, 1 stream after 4": 1,
        "ours: ITL, 3 streams after 4": 1,
    }


def test_a_run_that_never_sees_a_gap_ends_with_the_mend(runner, stub, monkeypatch):
    monkeypatch.setattr("prefill_decode.endpoint.shapes.shared_gaps_s", lambda streams: [])
    stub.bodies.clear()
    with pytest.raises(RuntimeError, match=r"3 streams of 176 tokens.* close other programs"):
        list(runner.steps.values())[2]()
    assert len(stub.bodies) == 3 * (1 + MOST_DOUBLINGS)
    assert not runner.noted_s


@pytest.mark.parametrize("wrong", [{"prompt_tokens": (8, 8)}, {"streams": 1}, {"engines": {}}])
def test_what_cannot_be_compared_is_refused(wrong):
    asked = {"engines": {"ours": "http://127.0.0.1:1"}, "prompt_tokens": (4, 8)} | wrong
    with pytest.raises(ValueError, match="nothing to compare"):
        ShapeRunner(asked.pop("engines"), asked.pop("prompt_tokens"), **asked)


def test_an_engine_that_is_not_there_is_an_error_that_leaves_nothing_running():
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="is the server running"):
        ShapeRunner({"gone": "http://127.0.0.1:9"}, (4, 8))
    assert set(threading.enumerate()) <= before


def test_closing_twice_does_nothing_and_ends_the_client(runner):
    runner.close()
    runner.close()
    assert not runner._thread.is_alive()


def test_our_own_server_answers_every_measurement_with_prompts_of_exact_length(tmp_path):
    write_small_config(tmp_path)
    served = ServedHere(str(tmp_path), "float32", "cpu", 1, ("--blocks", "80"))
    try:  # a tiny model is so fast that streams need many tokens to meet
        runner = ShapeRunner({"ours": served.url}, (8, 64), output_tokens=200)
        assert runner.engines[0].prompts.ids
        assert served.pid in runner._pids
        for step in runner.steps.values():
            step()
        runner.close()
    finally:
        served.stop()
    assert all(values[0] > 0 for values in runner.noted_s.values())
