"""Metrics of a request and of a run worked out by hand, and against numpy on random runs."""

import json
import random
from math import inf, isnan, nan

import numpy
import pytest
from scipy import stats

from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import (
    Objectives,
    e2e_s,
    goodput_per_s,
    is_answered,
    itl_s,
    stall_s,
    summarize,
    tpot_s,
    ttft_percentile,
    ttft_s,
)

REQUEST = Request("r", arrival_s=10.0, prompt_tokens=5, output_tokens=4)


def test_one_token_an_event():
    record = RequestRecord(REQUEST, (10.5, 10.6, 10.9, 11.0), (1, 1, 1, 1))
    assert ttft_s(record) == pytest.approx(0.5)
    assert tpot_s(record) == pytest.approx(0.5 / 3)
    assert itl_s([record, record]) == pytest.approx([0.1, 0.3, 0.1] * 2)
    assert stall_s(record) == pytest.approx(0.3)


@pytest.mark.parametrize("tokens", [(1, 3), (3, 1), (2, 2)])
def test_tpot_counts_every_token_but_one_whatever_the_first_event_brought(tokens):
    record = RequestRecord(REQUEST, (10.5, 11.1), tokens)
    assert tpot_s(record) == pytest.approx(0.2)
    assert itl_s([record]) == pytest.approx([0.6])


def test_events_whose_tokens_nobody_counted_have_gaps_but_no_tpot():
    record = RequestRecord(REQUEST, (10.5, 11.1), (1, 1), tokens_counted=False)
    assert isnan(tpot_s(record))
    assert (stall_s(record), e2e_s(record)) == (pytest.approx(0.6), pytest.approx(1.1))
    assert is_answered(record)  # of the 4 tokens asked for, nobody can say that some are missing
    assert not is_answered(RequestRecord(REQUEST, (10.5, 11.1), (1, 1)))


def test_what_does_not_exist_is_nan_and_never_0():
    silent = RequestRecord(REQUEST, failure="refused")
    single = RequestRecord(REQUEST, (10.5,), (4,))
    assert isnan(ttft_s(silent))
    assert isnan(e2e_s(silent))
    assert isnan(tpot_s(single))
    assert isnan(stall_s(single))
    assert itl_s([silent, single]) == []


def answer(ttft, gaps=(), asked=None, failure=None, arrival=0.0):
    """A request that arrives, waits `ttft` and gets one token then and one after every gap."""
    times = [arrival + ttft]
    for gap in gaps:
        times.append(times[-1] + gap)
    request = Request("r", arrival, 5, asked or len(times))
    return RequestRecord(request, tuple(times), (1,) * len(times), failure)


FAST = answer(0.5, [0.25, 0.25])
SLOW_START = answer(2.0, [0.25, 0.25])
SLOW_TOKENS = answer(0.5, [0.5, 0.5])
STALLED = answer(0.5, [0.05, 0.45])  # a TPOT of 0.25, as the fast one
ONE_TOKEN = answer(0.5)
FAILED = answer(0.5, [0.25], failure="connection closed")
DROPPED = RequestRecord(REQUEST, failure="refused")
UNFINISHED = answer(0.5, [0.25, 0.25], asked=9)
SILENT = RequestRecord(REQUEST)  # waited until the run ended
RUN = [FAST, SLOW_START, SLOW_TOKENS, STALLED, ONE_TOKEN, FAILED, DROPPED, UNFINISHED, SILENT]


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({}, 5),
        ({"ttft_s": 1.0}, 4),
        ({"tpot_s": 0.25}, 4),
        ({"stall_s": 0.25}, 3),
        ({"ttft_s": 1.0, "tpot_s": 0.25}, 3),
        ({"ttft_s": 1.0, "tpot_s": 0.25, "stall_s": 0.25}, 2),  # the fast one and the one token
        ({"ttft_s": 0.1}, 0),
    ],
)
def test_goodput_counts_the_requests_that_met_every_objective(objectives, good):
    assert goodput_per_s(RUN, 10.0, **objectives) == pytest.approx(good / 10)
    found = summarize(RUN, 10.0, Objectives(**objectives))
    assert found.goodput_per_s == pytest.approx(good / 10)
    assert (found.share_good.count, found.share_good.of) == (good, 9)


def test_an_objective_that_is_just_met_is_met():
    assert goodput_per_s([answer(0.5)], 1.0, ttft_s=0.5) == 1


@pytest.mark.parametrize("miss", [FAILED, DROPPED, UNFINISHED, SILENT])
def test_a_request_that_was_not_answered_is_a_miss_whatever_was_asked(miss):
    assert not is_answered(miss)
    assert goodput_per_s([miss, FAST], 1.0) == 1


def test_all_tokens_and_a_failure_are_a_failure():
    assert not is_answered(answer(0.5, [0.1], failure="no end of the stream"))


def test_a_model_that_ends_its_answer_by_itself_has_answered_if_a_token_came():
    assert is_answered(UNFINISHED, may_stop_early=True)
    assert not is_answered(SILENT, may_stop_early=True)
    assert not is_answered(FAILED, may_stop_early=True)
    assert goodput_per_s(RUN, 10.0, may_stop_early=True) == pytest.approx(0.6)
    assert summarize(RUN, 10.0, may_stop_early=True).num_unfinished == 1


def test_a_summary_says_what_became_of_every_request():
    found = summarize(iter(RUN), 10.0)
    assert (found.num_requests, found.num_failed, found.num_unfinished) == (9, 4, 2)
    assert found.num_without_tpot == 1
    assert found.num_gaps_of_failed == 3
    expected = stats.binomtest(4, 9).proportion_ci(0.95, method="exact")
    assert found.share_failed.share == pytest.approx(4 / 9)
    assert (found.share_failed.low, found.share_failed.high) == pytest.approx(expected)


def test_percentiles_of_what_was_answered_stand_beside_the_share_that_was_not():
    found = summarize(RUN, 10.0)
    medians = {"ttft_s": 0.5, "tpot_s": 0.25, "itl_s": 0.25}
    counts = {"ttft_s": 5, "tpot_s": 4, "itl_s": 8}
    for name, median in medians.items():
        p50 = getattr(found, name)[0]
        assert (p50.name, p50.value, p50.n) == ("p50", pytest.approx(median), counts[name])
    on_disk = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert on_disk["share_failed"]["count"] == 4
    assert on_disk["ttft_s"]["p99"]["value"] is None
    assert on_disk["ttft_s"]["p99"]["too_few"] is True
    assert on_disk["objectives"] == {"ttft_s": None, "tpot_s": None, "stall_s": None}
    assert set(on_disk) == set(vars(found))


def test_failures_are_later_than_any_answer_in_the_percentile_that_counts_them():
    """70 answers, after 1 s to 70 s, and 30 failures: p50 is an answer's, p90 a failure's."""
    run = [answer(float(wait)) for wait in range(1, 71)] + [FAILED, DROPPED, SILENT] * 10
    assert ttft_percentile(run, 0.5).value == pytest.approx(50.5)
    assert ttft_percentile(run, 0.9).value == inf
    assert ttft_percentile(run, 0.9).n == 100
    found = summarize(run, 100.0)
    assert found.ttft_s[0].value == pytest.approx(35.5)
    assert [p.value for p in found.ttft_with_failures_s[:3]] == [pytest.approx(50.5), inf, inf]
    on_disk = found.as_dict()["ttft_with_failures_s"]["p90"]
    assert (on_disk["value"], on_disk["infinite"], on_disk["too_few"]) == (None, True, False)
    withheld = found.as_dict()["ttft_with_failures_s"]["p99"]
    assert (withheld["value"], withheld["infinite"], withheld["too_few"]) == (None, False, True)


@pytest.mark.parametrize("run", [[], [DROPPED, SILENT]])
def test_a_run_without_answers_has_no_times_and_no_goodput(run):
    found = summarize(run, 10.0)
    assert (found.goodput_per_s, found.num_failed) == (0, len(run))
    for percentiles in (found.ttft_s, found.tpot_s, found.itl_s):
        assert all(isnan(p.value) and p.n == 0 for p in percentiles)
    on_disk = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert on_disk["share_failed"]["share"] == (1 if run else None)
    assert on_disk["ttft_s"]["p50"]["value"] is None


def random_run(seed, num_requests=400):
    """Records, and beside each what it was made from: (TTFT, gaps, answered)."""
    dice, run = random.Random(seed), []
    for arrival in range(num_requests):
        ttft, gaps = dice.expovariate(2), [dice.expovariate(20) for _ in range(dice.randrange(4))]
        fate = dice.choice(["answered", "answered", "failed", "unfinished"])
        asked = len(gaps) + (7 if fate == "unfinished" else 1)
        failure = "reset" if fate == "failed" else None
        record = answer(ttft, gaps, asked, failure, float(arrival))
        run.append((record, ttft, gaps, fate == "answered"))
    return run


@pytest.mark.parametrize("seed", range(5))
def test_a_random_run_is_summarized_as_numpy_does(seed):
    run = random_run(seed)
    objectives = Objectives(ttft_s=0.5, tpot_s=0.06, stall_s=0.1)
    found = summarize([record for record, *_ in run], 400.0, objectives)
    kept = [(ttft, gaps) for _, ttft, gaps, answered in run if answered]
    good = sum(t <= 0.5 and (not g or (numpy.mean(g) <= 0.06 and max(g) <= 0.1)) for t, g in kept)
    assert found.goodput_per_s == pytest.approx(good / 400)
    assert 0 < good < len(kept) < 400
    assert found.num_without_tpot == sum(not gaps for _, gaps in kept)
    for percentiles, samples in [
        (found.ttft_s, [ttft for ttft, _ in kept]),
        (found.tpot_s, [numpy.mean(gaps) for _, gaps in kept if gaps]),
        (found.itl_s, [gap for _, gaps in kept for gap in gaps]),
        (found.stall_s, [max(gaps) for _, gaps in kept if gaps]),
        (found.e2e_s, [ttft + sum(gaps) for ttft, gaps in kept]),
    ]:
        assert [p.n for p in percentiles] == [len(samples)] * 4
        shown = [(p.value, numpy.percentile(samples, 100 * p.p)) for p in percentiles if p.enough]
        assert len(shown) >= 3
        assert [value for value, _ in shown] == pytest.approx([other for _, other in shown])


@pytest.mark.parametrize("duration_s", [0.0, -1.0, nan, inf])
def test_a_run_of_no_time_is_refused(duration_s):
    for refusing in (goodput_per_s, summarize):
        with pytest.raises(ValueError, match="positive time"):
            refusing(RUN, duration_s)


@pytest.mark.parametrize("objective", [{"ttft_s": 0.0}, {"tpot_s": -1.0}, {"stall_s": nan}])
def test_an_objective_that_nothing_meets_is_refused(objective):
    with pytest.raises(ValueError, match="objective is a positive time"):
        goodput_per_s(RUN, 1.0, **objective)
