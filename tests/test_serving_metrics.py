"""Metrics of a request worked out by hand."""

from math import isnan

import pytest

from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import itl_s, stall_s, tpot_s, ttft_s

REQUEST = Request("r", arrival_s=10.0, prompt_tokens=5, output_tokens=4)


def test_one_token_an_event():
    record = RequestRecord(REQUEST, (10.5, 10.6, 10.9, 11.0), (1, 1, 1, 1))
    assert ttft_s(record) == pytest.approx(0.5)
    assert tpot_s(record) == pytest.approx(0.5 / 3)
    assert itl_s([record, record]) == pytest.approx([0.1, 0.3, 0.1] * 2)
    assert stall_s(record) == pytest.approx(0.3)


def test_several_tokens_an_event_are_divided_by_the_tokens_that_came_later():
    record = RequestRecord(REQUEST, (10.5, 11.1), (1, 3))
    assert tpot_s(record) == pytest.approx(0.2)
    assert itl_s([record]) == pytest.approx([0.6])


def test_what_does_not_exist_is_nan_and_never_0():
    silent = RequestRecord(REQUEST, failure="refused")
    single = RequestRecord(REQUEST, (10.5,), (4,))
    assert isnan(ttft_s(silent))
    assert isnan(tpot_s(single))
    assert isnan(stall_s(single))
    assert itl_s([silent, single]) == []
