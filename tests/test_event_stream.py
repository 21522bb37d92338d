"""Bytes become events as the standard says, and events become the metrics worked out by hand."""

import json
from itertools import pairwise
from math import isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefill_decode import event_stream
from prefill_decode.event_stream import (
    DONE,
    ServerSentEvents,
    StreamReader,
    event_data,
    to_record,
)
from prefill_decode.request import Request
from prefill_decode.serving_metrics import gaps_s, is_answered, tpot_s, ttft_s
from tests.streams import chat, completion, read_stream, total

KINDS = ["content", "refusal", "reasoning_content", "reasoning"]


def split(*reads):
    """(events, what was left) of a stream that came in these reads."""
    stream = ServerSentEvents()
    return [event for read in reads for event in stream.feed(read)], stream.close()


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_kind_of_line_end_ends_a_line(end):
    stream = end.join([b"data: a", b"", b"data: b", b"data: c", b"", b""])
    assert split(stream) == ([b"a", b"b\nc"], None)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),  # a byte order mark comes first
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),  # and nowhere else
        (b": ping\n\ndata: a\n: ping\n\n", [b"a"]),
        (b"data:a\n\ndata:  a\n\n", [b"a", b" a"]),  # one space is the colon's
        (b"event: x\nid: 1\nretry: 9\n\n", []),
        (b"event: x\ndata: a\nid: 1\n\n", [b"a"]),
        (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),  # the standard's own example
        (b"Data: a\n data: a\ndata : a\n\n", []),  # other fields
        ("data: ü\u2028\x0b\x85\n\n".encode(), ["ü\u2028\x0b\x85".encode()]),  # end no line
        (b"data: a:b: c\n\n", [b"a:b: c"]),
        (b"\n\n\n", []),
        (b"", []),
    ],
)
def test_events_are_those_of_the_standard(stream, events):
    assert split(stream)[0] == events


def test_an_event_that_only_the_end_ended_is_handed_over_at_the_end():
    for stream in (b"data: a\n\ndata: b", b"data: a\n\ndata: b\n", b"data: a\r\rdata: b\r"):
        assert split(stream) == ([b"a"], b"b")
    assert split(b"data: a\n\n: ping") == ([b"a"], None)
    assert split(b"data: a\n\nda") == ([b"a"], None)


def test_a_return_ends_an_event_before_its_line_feed_comes():
    stream = ServerSentEvents()
    assert stream.feed(b"data: a\r\n\r") == [b"a"]
    assert stream.feed(b"\n") == []
    assert stream.feed(b"data: b\r\n\r\n") == [b"b"]


STREAM = (
    "\ufeffdata: é€😀\r\n\r\n: ping\r\rdata: a\r\ndata: b\n\nevent: error\rdata\n\r\ndata: z"
).encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_a_stream_has_the_same_events_wherever_it_is_cut(cuts):
    ends = [0, *sorted(cuts), len(STREAM)]
    reads = [STREAM[start:end] for start, end in pairwise(ends)]
    assert split(*reads) == split(STREAM) == (["é€😀".encode(), b"a\nb", b""], b"z")


@given(st.lists(st.text(st.characters(exclude_characters="\r\n"))), st.sampled_from(["\n", "\r\n"]))
def test_what_was_put_into_events_comes_out(texts, end):
    stream = "".join(f"data: {text}{end}{end}" for text in texts).encode("utf-8", "surrogatepass")
    events, rest = split(*[stream[i : i + 3] for i in range(0, len(stream), 3)])
    assert [event.decode("utf-8", "surrogatepass") for event in events] == texts
    assert rest is None


def test_an_event_without_end_is_refused_and_many_small_ones_are_not(monkeypatch):
    monkeypatch.setattr(event_stream, "MOST_EVENT_BYTES", 100)
    assert len(split(*[b"data: 12345678\n: 1234567\n\n"] * 50)[0]) == 50
    assert split(*[b": 12345678\n"] * 50) == ([], None)
    for reads in ([b"x" * 60] * 2, [b"data: 123\n"] * 20):
        with pytest.raises(ValueError, match="at most 100 bytes"):
            split(*reads)


def plain(*contents, usage=None, finish="stop", done=True):
    """A chat with an event every 0.1 s from 0.5 s on, then its usage, then [DONE]."""
    events = [(0.5 + 0.1 * i, chat(content)) for i, content in enumerate(contents)]
    tail = [chat("", finish)] if finish else []
    tail += [total(usage)] if usage is not None else []
    tail += [DONE] if done else []
    return events + [(0.5 + 0.1 * len(contents) + 0.01 * i, each) for i, each in enumerate(tail)]


def test_an_ordinary_answer():
    found = read_stream([(0.1, chat(role="assistant")), *plain("a", "b", "c", usage=3)], 3)
    assert found.ttft_s == found.time_to_first_content_s == 0.5
    assert found.tpot_s == pytest.approx(0.1)
    assert found.event_gaps_s == pytest.approx((0.1, 0.1))
    assert (found.output_tokens, found.prompt_tokens, found.finish_reason) == (3, 9, "stop")
    assert (found.success, found.error, found.short_output) == (True, None, False)
    assert (found.tokens_per_event, found.notes) == (None, ())


@pytest.mark.parametrize(
    "silent",
    [
        chat(role="assistant"),
        chat("", role="assistant"),
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0}]},
        {"choices": [{"delta": {"reasoning_content": None, "reasoning": "", "tool_calls": []}}]},
        chat(tool_calls=[{"index": 0, "function": {"name": "", "arguments": ""}}]),
        chat(tool_calls=[None, {"function": None}], function_call=None),
        completion(""),
        completion(None),
        {"choices": [], "usage": None},
        {"choices": []},
        {"choices": None, "usage": 7},
        {"object": "chat.completion.chunk"},
        {"choices": [], "error": None},
        total(0),
        b"",
        None,
    ],
)
def test_an_event_without_a_token_is_no_token_and_no_failure(silent):
    found = read_stream([(0.2, silent), *plain("a", "b"), (0.9, silent)])
    assert found.event_times_s == (0.5, 0.6)
    assert (found.success, found.error) == (True, None)


@pytest.mark.parametrize(
    ("event", "is_content"),
    [(chat(**{kind: "x"}), kind in ("content", "refusal")) for kind in KINDS]
    + [
        (completion("x"), True),
        (completion(" "), True),
        (chat(tool_calls=[{"index": 0, "function": {"name": "f"}}]), False),
        (chat(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]), False),
        (chat(function_call={"arguments": "{"}), False),
    ],
)
def test_any_text_is_a_token_and_reasoning_is_not_content(event, is_content):
    found = read_stream([(0.5, event), (0.7, chat("y")), (0.8, chat("", "stop"))])
    assert found.ttft_s == 0.5
    assert found.time_to_first_content_s == (0.5 if is_content else 0.7)
    assert found.event_gaps_s == pytest.approx((0.2,))


def test_an_answer_of_reasoning_alone_has_a_first_token_and_no_first_content():
    found = read_stream([(0.5, chat(reasoning="x")), (0.6, chat("", "length"))])
    assert found.ttft_s == 0.5
    assert isnan(found.time_to_first_content_s)
    assert found.success


def cumulative(*totals, final=None):
    events = [(0.5 + 0.12 * i, chat("w", usage=n)) for i, n in enumerate(totals)]
    tail = [(3.0, total(final))] if final is not None else []
    return [*events, (2.0, chat("", "length")), *tail, (4.0, DONE)]


def test_usage_with_every_event_tells_the_tokens_of_each():
    found = read_stream(cumulative(2, 3, 6, final=6))
    assert found.tokens_per_event == (2, 1, 3)
    assert found.tpot_s == pytest.approx(0.24 / 5)
    assert found.decode_tokens_per_s == pytest.approx(5 / 0.24)
    assert found.itl_even_split_s == pytest.approx((0.12, 0.04, 0.04, 0.04))
    assert found.notes == ()


def test_tokens_without_text_count_but_belong_to_no_event():
    events = [(0.5, chat("a", usage=1)), (0.55, chat("", usage=2)), (0.6, chat("bc", usage=3))]
    found = read_stream([*events, (0.7, chat("", "stop", usage=4))])
    assert (found.output_tokens, found.tokens_per_event) == (4, (1, 2))
    assert found.tpot_s == pytest.approx(0.1 / 3)
    assert to_record(found, Request("r", 0.0, 9, 4)).event_tokens == (1, 3)


@pytest.mark.parametrize(
    ("totals", "final", "output", "note"),
    [
        ((1, 5, 4), None, None, "usage fell from 5 to 4"),  # of each event, or nonsense
        ((1, 5, 4), 10, 10, "does not rise"),
        ((1, 1, 1), 3, 3, "does not rise"),
        ((0, 0, 0), 3, 3, "does not rise"),
        ((0, 0, 0), None, None, "usage says 0 tokens"),
        ((1, 3, 7), 5, 5, "does not rise"),  # more than the total
    ],
)
def test_usage_that_is_no_running_total_tells_no_tokens_of_events(totals, final, output, note):
    found = read_stream(cumulative(*totals, final=final))
    assert (found.output_tokens, found.tokens_per_event) == (output, None)
    assert found.itl_even_split_s is None
    assert any(note in each for each in found.notes)
    assert isnan(found.tpot_s) == (output is None)


@pytest.mark.parametrize("count", [True, -1, 2.0, "3", None])
def test_a_count_that_is_none_is_unknown(count):
    usage = {"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": count}}
    found = read_stream([*plain("a", "b", done=False), (0.9, usage)])
    assert (found.output_tokens, found.prompt_tokens) == (None, None)


def test_events_are_never_counted_as_tokens():
    found = read_stream(plain("a", "b", "c"), 3)
    assert (found.output_tokens, found.short_output) == (None, None)
    assert isnan(found.tpot_s)
    assert isnan(found.decode_tokens_per_s)
    assert found.event_gaps_s == pytest.approx((0.1, 0.1))
    assert "no usage" in found.notes[0]


def test_an_answer_of_one_token_has_no_tpot_and_so_has_one_of_a_single_event():
    for tokens in (1, 12):
        found = read_stream(plain("a", usage=tokens))
        assert (found.ttft_s, found.output_tokens, found.event_gaps_s) == (0.5, tokens, ())
        assert isnan(found.tpot_s)
        assert isnan(found.decode_tokens_per_s)


def test_gaps_are_those_of_one_answer_where_several_come_interleaved():
    events = [(0.5, chat("a")), (0.51, chat("b", index=1)), (0.6, chat("c"))]
    events += [(0.62, chat("d", index=1)), (0.7, chat("", "stop")), (0.8, total(4))]
    cut = read_stream(events)
    assert "cut" in cut.error  # the other answer did not end
    found = read_stream([*events, (0.9, chat("", "stop", index=1))])
    assert (found.success, found.num_answers, found.output_tokens) == (True, 2, 4)
    assert found.event_gaps_s == pytest.approx((0.1, 0.11))
    assert isnan(found.tpot_s)
    with pytest.raises(ValueError, match="one answer; got 2"):
        to_record(found, Request("r", 0.0, 9, 4))


FAILURES = [
    ({"error": {"message": "engine stopped", "code": 500}}, "engine stopped"),
    ({"error": "engine stopped"}, "engine stopped"),
    ({"error": {"code": 500}}, '{"code": 500}'),
    ({"error": {}}, "{}"),
    ({"error": {"message": None}, "choices": []}, '{"message": null}'),
    ({"object": "error", "message": "engine stopped", "code": 500}, "engine stopped"),
    ({"message": "engine stopped"}, "engine stopped"),
    ({"detail": "engine stopped"}, "engine stopped"),
    ("Internal Server Error", "Internal Server Error"),
    (b"engine {stopped", "an event is no JSON: engine {stopped"),
    (b"\xff", "an event is no JSON: \ufffd"),
    ([1], "an event is no chunk of an answer: [1]"),
    (7, "an event is no chunk of an answer: 7"),
    ({"choices": "x"}, "an event is no chunk"),
    ({"choices": [None]}, "choices cannot be read"),
    ({"choices": [{"index": "0", "delta": {"content": "x"}}]}, "choices cannot be read"),
    (chat("", "error"), "finish_reason 'error'"),
    (chat("", "abort"), "finish_reason 'abort'"),
]


@pytest.mark.parametrize(("event", "message"), FAILURES)
def test_a_failure_inside_the_stream_is_one_and_its_message_and_tokens_are_kept(event, message):
    events = [(0.5, chat("a")), (0.6, chat("b")), (0.7, event)]
    found = read_stream([*events, (0.8, chat("c", "stop")), (0.9, DONE)])
    assert not found.success
    assert message in found.error
    assert (found.ttft_s, found.event_times_s, found.done_seen) == (0.5, (0.5, 0.6), True)
    record = to_record(found, Request("r", 0.0, 9, 4))
    assert record.failure == found.error
    assert not is_answered(record, may_stop_early=True)


def test_a_long_message_is_shortened():
    assert len(read_stream([(0.1, "x" * 9000)]).error) == event_stream.MOST_MESSAGE


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (plain("a", "b", finish=None, done=False), "was cut"),
        (plain("a", "b", finish=None, usage=2, done=False), "was cut"),
        ([], "was cut"),
        ([(0.1, DONE)], "without a single token"),
        ([(0.1, chat(role="assistant")), (0.2, chat("", "stop")), (0.3, DONE)], "single token"),
        (plain("a", finish=None), None),  # [DONE] is an end
        (plain("a", done=False), None),  # and so is a finish_reason
        ([*plain("a", done=False), (0.9, chat(""))], None),  # whatever else comes
    ],
)
def test_a_stream_ends_with_done_or_a_reason_or_was_cut(events, error):
    found = read_stream(events)
    assert found.success == (error is None)
    assert error is None or error in found.error


def test_what_follows_the_end_is_ignored():
    found = read_stream([*plain("a", "b", usage=2), (5.0, chat("c", usage=9)), (6.0, "late error")])
    assert (found.event_times_s, found.output_tokens, found.success) == ((0.5, 0.6), 2, True)


@pytest.mark.parametrize("t_s", [0.4, -1.0, nan, float("inf")])
def test_time_that_runs_backwards_is_refused(t_s):
    with pytest.raises(ValueError, match="time runs backwards"):
        read_stream([(0.1, chat()), (0.5, chat("a")), (t_s, chat("b"))])
    with pytest.raises(ValueError, match="time runs backwards"):
        read_stream([(0.5, DONE), (t_s, None)])


@pytest.mark.parametrize(
    ("asked", "reason", "short"),
    [
        (3, "length", False),
        (4, "length", True),
        (4, None, True),
        (4, "content_filter", True),
        (4, "stop", False),
        (4, "tool_calls", False),
        (None, "length", None),
    ],
)
def test_an_answer_is_short_if_it_ends_before_the_model_ends_it(asked, reason, short):
    found = read_stream(plain("a", "b", "c", usage=3, finish=reason), asked)
    assert found.short_output is short
    assert found.success  # the stream itself did not fail
    record = to_record(found, Request("r", 0.0, 9, asked or 3))
    assert (record.failure is not None) == bool(short)


def test_a_record_begins_when_the_request_was_meant_to_be_sent_or_when_it_was():
    found = read_stream(plain("a", "b", usage=2))
    request = Request("r", 10.0, 9, 2)
    assert ttft_s(to_record(found, request)) == pytest.approx(0.5)
    assert ttft_s(to_record(found, request, sent_s=11.5)) == pytest.approx(2.0)


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=9).map(sorted),
    st.integers(1, 30),
    st.booleans(),
)
def test_a_record_has_the_streams_tokens_ttft_and_tpot(times_s, tokens, each_told):
    each_told = each_told and tokens >= len(times_s)
    brought = [1] * (len(times_s) - 1) + [tokens - len(times_s) + 1]
    events = [
        (t_s, chat("w", usage=sum(brought[: i + 1]) if each_told else None))
        for i, t_s in enumerate(times_s)
    ]
    found = read_stream([*events, (10.0, chat("", "length")), (10.0, total(tokens))], tokens)
    record = to_record(found, Request("r", 0.0, 9, tokens))
    assert found.tokens_per_event == (tuple(brought) if each_told else None)
    assert sum(record.event_tokens) == found.output_tokens == tokens
    assert ttft_s(record) == found.ttft_s == times_s[0]
    assert record.event_times_s[-1] == (times_s[-1] if tokens > 1 else times_s[0])
    assert tpot_s(record) == pytest.approx(found.tpot_s, nan_ok=True)
    assert sum(gaps_s(record)) <= times_s[-1] - times_s[0] + 1e-9
    assert is_answered(record)
    if found.itl_even_split_s is not None:
        assert sum(found.itl_even_split_s) == pytest.approx(times_s[-1] - times_s[0])
        assert len(found.itl_even_split_s) == tokens - brought[0]


def test_of_more_events_than_tokens_those_that_followed_most_closely_are_left_out():
    times_s = [0.1, 0.2, 0.2001, 0.4, 0.4001, 0.7]
    events = [(t_s, chat("x")) for t_s in times_s]
    record = to_record(read_stream([*events, (1.0, total(4)), (1.0, DONE)]), Request("r", 0, 9, 4))
    assert record.event_times_s == (0.1, 0.2, 0.4, 0.7)
    assert tpot_s(record) == pytest.approx(0.2)


def test_a_record_without_usage_has_events_and_no_tpot():
    record = to_record(read_stream(plain("a", "b", "c")), Request("r", 0.0, 9, 100))
    assert not record.tokens_counted
    assert isnan(tpot_s(record))
    assert gaps_s(record) == pytest.approx([0.1, 0.1])
    assert is_answered(record)


def test_a_result_is_strict_json_with_null_for_what_is_unknown():
    for events in ([], plain("a"), cumulative(1, 2, 4)):
        found = json.loads(json.dumps(read_stream(events).as_dict(), allow_nan=False))
        assert set(found) >= {"ttft_s", "tpot_s", "event_gaps_s", "success", "error"}
    assert json.loads(json.dumps(read_stream([]).as_dict()))["ttft_s"] is None


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_no_bytes_at_all_make_a_traceback(reads):
    stream, reader = ServerSentEvents(), StreamReader()
    for read in reads:
        for raw in stream.feed(read + b"\n\n"):
            reader.take(0.0, event_data(raw))
    assert not reader.finish().success


NAMES = ["choices", "delta", "content", "index", "usage", "error", "message", "text", "detail"]
NAMES += ["tool_calls", "function", "completion_tokens", "finish_reason"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=5))
def test_no_json_at_all_makes_a_traceback(events):
    found = read_stream([(0.5, json.loads(json.dumps(event))) for event in events], 3)
    json.dumps(found.as_dict(), allow_nan=False)


def test_neither_a_role_nor_an_empty_event_nor_usage_is_a_token():
    """Role alone, an empty event, four words, an empty end, usage without choices."""
    words = zip((0.214, 0.234, 0.254, 0.274), ("The", " answer", " is", " 42"), strict=True)
    found = read_stream(
        [
            (0.005, chat(role="assistant")),
            (0.006, chat("")),
            *[(t_s, chat(word)) for t_s, word in words],
            (0.2745, chat("", "stop")),
            (0.275, total(4)),
            (0.2755, "[DONE]"),
        ]
    )
    assert found.ttft_s == pytest.approx(0.214, abs=1e-9)
    assert found.tpot_s == pytest.approx((0.274 - 0.214) / 3, abs=1e-9)
    assert found.event_gaps_s == pytest.approx([0.02] * 3, abs=1e-9)
    assert (found.output_tokens, found.success) == (4, True)


def test_several_tokens_in_an_event_are_several_tokens():
    """Twelve tokens in four events: cumulative usage says 1, 5, 9, 12; without it nobody knows."""
    events = [(0.3, "w", 1), (0.34, "w" * 5, 5), (0.38, "w" * 9, 9), (0.42, "w" * 12, 12)]
    end = [(0.4201, chat("", "length")), (0.4202, "[DONE]")]
    found = read_stream([*[(t_s, chat(text, usage=n)) for t_s, text, n in events], *end])
    assert found.output_tokens == 12
    assert found.ttft_s == pytest.approx(0.3)
    assert found.tpot_s == pytest.approx((0.42 - 0.30) / 11)
    assert found.decode_tokens_per_s == pytest.approx(91.66666666666667)
    assert found.event_gaps_s == pytest.approx([0.04] * 3)
    split_s = [0.01] * 8 + [0.04 / 3] * 3
    assert found.itl_even_split_s == pytest.approx(split_s, abs=1e-6)
    assert tpot_s(to_record(found, Request("r", 0, 9, 12))) == pytest.approx(found.tpot_s)
    unknown = read_stream([*[(t_s, chat(text)) for t_s, text, _ in events], end[-1]])
    assert unknown.output_tokens is None
    assert isnan(unknown.tpot_s)
    assert unknown.notes
