"""Every row of a trace is used, skipped or rejected, and its line says why."""

import json
import os
from math import isnan
from pathlib import Path

import pytest

from prefill_decode.trace import read_trace, spread_arrivals, summary

# A folder with the public traces, which are not part of this project: Azure's two of 2023 and
# Mooncake's conversation trace, under their own names. Those tests skip without it.
TRACES = os.environ.get("PUBLIC_TRACES")
HEADER = "timestamp,prompt_tokens,output_tokens\n"


def trace(tmp_path, text, **options):
    path = tmp_path / "trace"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(path, **options)


def test_a_plain_trace_is_its_rows_by_arrival(tmp_path):
    found = trace(tmp_path, HEADER + "2.5,10,4\n1, 20 ,5\n\n3,30,6\n")
    assert [(r.line, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found.rows] == [
        (3, 1.0, 20, 5),
        (2, 2.5, 10, 4),
        (5, 3.0, 30, 6),
    ]
    assert (found.kind, found.data_rows, found.rejected_lines) == ("plain", 3, {})
    assert found.flagged_lines == {3: "earlier than the row before (arrivals get sorted)"}
    assert [request.prompt_tokens for request in found.requests()] == [20, 10, 30]


def test_columns_may_stand_in_any_order(tmp_path):
    found = trace(tmp_path, "output_tokens,timestamp,prompt_tokens\r\n4,2.5,10\r\n")
    assert (found.rows[0].arrival_s, found.rows[0].prompt_tokens) == (2.5, 10)


def test_dates_of_azure_become_seconds_from_the_first(tmp_path):
    rows = [
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-16 18:15:46.6805900,374,44",
        "2024-05-10 00:00:00.009930+00:00,5,6",
        "yesterday,1,1",
    ]
    found = trace(tmp_path, "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\r\n".join(rows))
    assert found.kind == "azure"
    assert [row.line for row in found.rows] == [3, 2, 4]
    assert found.rows[0].arrival_s == 0
    assert found.rows[1].arrival_s == pytest.approx(4.314579, abs=2e-6)
    assert found.rejected_lines == {5: "not a date and time"}


def mooncake(*rows):
    names = ("timestamp", "input_length", "output_length")
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)


def test_mooncakes_milliseconds_become_seconds(tmp_path):
    found = trace(tmp_path, mooncake((0, 6758, 500), (1500, 7, 3)) + '\n{"timestamp": 1}\n[7]\n{')
    assert [(r.arrival_s, r.prompt_tokens) for r in found.rows] == [(0.0, 6758), (1.5, 7)]
    assert found.rejected_lines == {3: "missing value", 4: "not an object", 5: "not valid JSON"}
    text = mooncake((0, 1, 1), (0, "7", 1), (0, True, 1), (0, [1], 1))
    assert trace(tmp_path, text).rejected_lines == dict.fromkeys([2, 3, 4], "not a number")


def hashed(ms, tokens, ids):
    return json.dumps(
        {"timestamp": ms, "input_length": tokens, "output_length": 4, "hash_ids": ids}
    )


def test_mooncakes_hash_ids_become_the_pieces_of_prompts(tmp_path):
    rows = [hashed(0, 1100, [0, 1, 2]), hashed(0, 1100, [0, 1, 9]), hashed(0, 512, [0])]
    found = trace(tmp_path, "\n".join(rows))
    assert [request.pieces for request in found.requests()] == [
        ((0, 512), (1, 512), (2, 76)),
        ((0, 512), (1, 512), (9, 76)),
        ((0, 512),),
    ]
    assert found.flagged_lines == {}, "the first two differ in what they hold"


def test_hash_ids_that_fit_no_prompt_are_named_by_their_lines(tmp_path):
    rows = [
        hashed(0, 600, [1]),
        hashed(1, 600, [1, 2, 3]),
        *(hashed(2, 600, [1, wrong]) for wrong in ("2", 2.0, True, None)),
        hashed(3, 600, 7),
        hashed(4, 600, []),
    ]
    found = trace(tmp_path, "\n".join(rows))
    odd = "hash_ids not one for each 512 tokens: its prompt shares nothing"
    assert found.flagged_lines == dict.fromkeys([1, 2], odd)
    assert found.rejected_lines == dict.fromkeys(
        [3, 4, 5, 6, 7], "hash_ids not a list of whole numbers"
    )
    assert [(row.line, row.pieces) for row in found.rows] == [(1, ()), (2, ()), (8, ())]


VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"


def test_vidurs_columns_are_seconds_and_lengths(tmp_path):
    found = trace(tmp_path, VIDUR + "0.0,374,44\n4.314579,396,109\nsoon,1,1\n5,1,\n")
    assert found.kind == "vidur"
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found.rows] == [
        (0.0, 374, 44),
        (4.314579, 396, 109),
    ]
    assert found.rejected_lines == {4: "not a number", 5: "missing value"}


def test_burstgpts_failures_are_skipped_and_its_clock_of_a_second_is_spread(tmp_path):
    rows = [
        *("5,ChatGPT,472,18,490,Conversation log", "5,GPT-4,417,276,693,API log"),
        *("6,ChatGPT,10,0,10,API log", "6,ChatGPT,0,0,0,API log", "7,,10,5,,"),
        *("7,ChatGPT,10,5,16,API log", "8,GPT-4,-1,5,4,API log", "9,GPT-4,1,5,6"),
    ]
    found = trace(tmp_path, BURSTGPT + "\n".join(rows))
    assert found.kind == "burstgpt"
    assert [(r.line, r.arrival_s, r.prompt_tokens, r.output_tokens) for r in found.rows] == [
        (2, 5.0, 472, 18),
        (3, 5.0, 417, 276),
        (6, 7.0, 10, 5),
        (7, 7.0, 10, 5),
    ]
    assert found.skipped_lines == {4: "zero response tokens: the service failed to answer"}
    assert found.rejected_lines == {
        5: "zero prompt tokens",
        8: "negative prompt length",
        9: "missing value",
    }
    assert found.flagged_lines == {
        7: "total tokens are not those of prompt and response; "
        "identical to the row before: kept, both are requests"
    }
    ticks = "".join(f"{second},GPT-4,{n + 1},1,,\n" for second in range(9) for n in range(3))
    coarse = trace(tmp_path, BURSTGPT + ticks)
    assert coarse.quantum_s == pytest.approx(1.0)
    assert len({row.arrival_s for row in spread_arrivals(coarse, 1).rows}) == 27


def test_burstgpts_later_columns_may_be_there(tmp_path):
    header = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens"
    found = trace(tmp_path, header + ",Log Type\n5,,1.5,GPT-4,7,8,15,API log\n")
    assert (found.rows[0].prompt_tokens, found.flagged_lines) == (7, {})


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (
            "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio",
            "of vidur's columns arrived_at are missing, none unknown",
        ),
        (
            "timestamp,prompt_tokens,output_token",
            "of plain's columns output_tokens are missing, 'output_token' unknown; did you mean "
            "output_tokens",
        ),
        ("timestamp,prompt_tokens,output_tokens,user", "none are missing, 'user' unknown"),
        ("timestamp,prompt_tokens,output_tokens,timestamp", "a column is there twice"),
        ("Timestamp,Model", "Request tokens, Response tokens are missing, none unknown"),
    ],
)
def test_columns_that_are_missing_or_unknown_are_named(tmp_path, header, told):
    with pytest.raises(ValueError, match=told) as refusal:
        trace(tmp_path, header + "\n1,2,3,4\n")
    assert "trace, line 1: a trace begins with the columns" in str(refusal.value)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("0,-5,1", "negative prompt length"),
        ("0,5,-1", "negative output length"),
        ("0,x,1", "not a number"),
        ("x,5,1", "not a number"),
        ("0,5,1_0", "not a number"),
        ("0,,1", "missing value"),
        ("0,5", "missing value"),
        ("0,5,1,2", "too many columns"),
        ("nan,5,1", "timestamp not finite"),
        ("inf,5,1", "timestamp not finite"),
        ("1e999,5,1", "timestamp not finite"),
        ("0,0,1", "zero prompt tokens"),
        ("0,2.5,1", "prompt length not a whole number"),
        ("0,5,nan", "output length not a whole number"),
        ("0,1e12,1", "prompt length beyond 2147483648"),
        ('0,"5,1', "not a row of a CSV"),
        ("0,\0,1", "not a"),
    ],
)
def test_a_bad_row_is_rejected_with_its_line_and_the_others_are_used(tmp_path, row, why):
    found = trace(tmp_path, f"{HEADER}0,5,1\n{row}\n1,5,1\n")
    assert list(found.rejected_lines) == [3]
    assert why in found.rejected_lines[3]
    assert [r.line for r in found.rows] == [2, 4]
    assert f"{found.rejected_lines[3]}: line 3" in summary(found)


def test_odd_rows_are_used_and_flagged(tmp_path):
    found = trace(
        tmp_path, HEADER + "4,64,4\n4,64,4\n5,1e3,5\n6,9,0\n6,8e3,500\n", max_model_len=8192
    )
    assert found.flagged_lines == {
        3: "identical to the row before: kept, both are requests",
        4: "1e3 is accepted as 1000",
        5: "zero output tokens: prefill only",
    }
    assert found.skipped_lines == {6: "8000 + 500 > max_model_len 8192"}
    assert [r.output_tokens for r in found.rows] == [4, 4, 5, 0]
    assert [r.output_tokens for r in found.requests()] == [4, 4, 5, 1]
    told = summary(found)
    assert "4 requests of 5 rows; 0 rejected, 1 skipped, 3 flagged" in told
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["accepted_requests"] == 4


def test_a_summary_shows_a_few_lines_of_each_reason(tmp_path):
    found = trace(tmp_path, HEADER + "0,5,1\n" + "0,x,1\n" * 20)
    assert "not a number: lines 3, 4, 5, 6, 7, 8, 9, 10 and 12 more" in summary(found)


def test_a_coarse_clock_is_noticed_and_its_arrivals_are_spread_on_request(tmp_path):
    ticks = [0, 0, 0, 3000, 3000, 9001, 9001, 9001, 9001]
    found = trace(tmp_path, mooncake(*[(ms, 10 + i, 5) for i, ms in enumerate(ticks)]))
    assert found.quantum_s == pytest.approx(3.0)
    assert "ticks every 3 s" in summary(found)
    spread = spread_arrivals(found, seed=1)
    assert isnan(spread.quantum_s)
    assert sorted(r.line for r in spread.rows) == [r.line for r in found.rows]
    before = {row.line: row.arrival_s for row in found.rows}
    assert all(0 <= row.arrival_s - before[row.line] < 3 for row in spread.rows)
    times_s = [row.arrival_s for row in spread.rows]
    assert times_s == sorted(times_s)
    assert len(set(times_s)) == len(ticks)
    assert spread_arrivals(found, 1) == spread
    assert spread_arrivals(found, 2) != spread


@pytest.mark.parametrize(
    "ticks", [[0, 3000, 6000, 9000], [0, 0, 1, 2, 2], [0, 0, 3000, 3000, 7100], [5, 5, 5], [0]]
)
def test_a_fine_clock_or_a_regular_one_is_not_coarse(tmp_path, ticks):
    found = trace(tmp_path, mooncake(*[(ms, 9, 5) for ms in ticks]))
    assert isnan(found.quantum_s)
    assert spread_arrivals(found, 1) is found


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the file is empty"),
        ("\n \n", "the file is empty"),
        ("a,b,c\n1,2,3\n", "line 1: a trace begins with the columns"),
        (HEADER, "no row can be used"),
        (HEADER + "0,x,1\n", "not a number: line 2"),
        (b"\xff\xfe\x00", "UTF-8"),
        (HEADER + "x" * 2**21, "line 2: a row has at most"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, text, told):
    with pytest.raises(ValueError, match=told):
        trace(tmp_path, text)


def test_every_kind_of_bad_row_is_named_and_none_is_dropped_in_silence(tmp_path):
    rows = [
        *("0.0,512,64", "0.5, 1024 ,32", "1.0,-5,10", "1.5,abc,10", "0.3,256,16", "2.0,300,0"),
        *("2.5,,20", "3.0,9000,100", "3.5,128,8,extra", "4.0,64,4", "4.0,64,4", "nan,10,10"),
        "5.0,1e3,5",
    ]
    found = trace(tmp_path, HEADER + "\n".join(rows) + "\n", max_model_len=8192)
    assert found.data_rows == 13
    assert found.rejected_lines == {
        4: "negative prompt length",
        5: "not a number",
        8: "missing value",
        10: "too many columns",
        13: "timestamp not finite",
    }
    flagged = found.flagged_lines | found.skipped_lines
    assert set(flagged) == {6, 7, 9, 12, 14}
    for line, words in [
        (6, "earlier than the row before (arrivals get sorted)"),
        (7, "zero output tokens: prefill only"),
        (9, "9000 + 100 > max_model_len 8192: skipped with a message, not a crash"),
        (12, "identical to the row before: kept, both are requests"),
    ]:
        assert flagged[line] in words
    assert [r.arrival_s for r in found.requests()] == [0.0, 0.3, 0.5, 2.0, 4.0, 4.0, 5.0]
    assert "7 requests of 13 rows; 5 rejected, 1 skipped" in summary(found)


@pytest.mark.skipif(TRACES is None, reason="the public traces are not here")
@pytest.mark.parametrize(
    ("file", "requests", "prompt_tokens", "duration_s"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366, 22361870, 3501.7219),
        ("AzureLLMInferenceTrace_code.csv", 8819, 18059974, 3435.9481),
        ("conversation_trace.jsonl", 12031, 144793823, 3536.999),
    ],
)
def test_public_traces_are_read_whole(file, requests, prompt_tokens, duration_s):
    (path,) = Path(TRACES).rglob(file)
    found = read_trace(path)
    assert len(found.rows) == found.data_rows == requests
    assert sum(row.prompt_tokens for row in found.rows) == prompt_tokens
    if path.suffix == ".jsonl":  # its clock ticks every 3 s
        assert found.quantum_s == pytest.approx(3.0, abs=1e-3)
    else:
        assert found.rows[-1].arrival_s == pytest.approx(duration_s, abs=1e-3)
        assert isnan(found.quantum_s)
