"""Open and closed loops, and what a run against a server tells."""

import asyncio
import json
import time
from dataclasses import replace
from math import isnan

import pytest

from prefill_decode.endpoint.bench import Plan, endless_requests, mean_rate_per_s, run_bench
from prefill_decode.endpoint.bench_report import exchange_line, report, table
from prefill_decode.endpoint.client import Target, open_session, send
from prefill_decode.endpoint.load import Load, Progress, watched
from prefill_decode.endpoint.overhead import measure_overhead
from prefill_decode.endpoint.prompts import Prompts
from prefill_decode.serving_metrics import Objectives
from prefill_decode.workload import fixed_lengths, make_requests


def requests_at(*arrivals_s, output_tokens=4):
    number = len(arrivals_s)
    return make_requests(
        arrivals_s, fixed_lengths(20, number), fixed_lengths(output_tokens, number)
    )


def loaded(stub, work, mode="steady"):
    """What `work` gives for a load that starts now."""

    async def run():
        async with open_session() as session:
            target = Target(f"http://127.0.0.1:{stub.port}/v1", mode)
            return await work(Load(session, target, Prompts(0), Progress(None)))

    return asyncio.run(run())


def test_an_open_loop_sends_when_planned_and_waits_for_no_answer(stub):
    arrivals_s = [0.0] * 20 + [0.05]
    asked = requests_at(*arrivals_s, output_tokens=60)  # 0.3 s each: all are under way at once
    exchanges, cut = loaded(stub, lambda load: load.open_loop(asked))
    assert (len(exchanges), cut) == (21, 0)
    assert all(each.result.success for each in exchanges)
    assert all(each.request.arrival_s <= each.sent_s < each.ended_s for each in exchanges)
    assert sorted(each.request.arrival_s for each in exchanges) == arrivals_s
    assert stub.most_at_once >= 20  # nothing in the client makes one wait for another


@pytest.fixture
def noted(stub, monkeypatch):
    """What an open loop of three requests does, in order."""
    notes = []

    class Noted(Prompts):
        def prompt(self, name, tokens):
            notes.append(f"made {name}")
            return super().prompt(name, tokens)

    async def sending(session, target, body):
        notes.append("sent")
        return await send(session, target, body)

    async def work(load):
        return await replace(load, prompts=Noted(0)).open_loop(requests_at(0.0, 0.0, 0.0))

    def run():
        exchanges, _ = loaded(stub, work)
        assert len(exchanges) == 3
        return notes

    monkeypatch.setattr("prefill_decode.endpoint.load.send", sending)
    return run


def test_prompts_are_made_before_the_run_starts(noted):
    assert noted() == ["made 0", "made 1", "made 2", "sent", "sent", "sent"]


def test_a_prompt_that_could_not_be_made_ahead_waits_for_the_request_before_it(noted, monkeypatch):
    monkeypatch.setattr("prefill_decode.endpoint.load.AHEAD_S", 0.0)
    assert noted() == ["made 0", "sent", "made 1", "sent", "made 2", "sent"]


def test_the_time_that_prompts_take_is_not_part_of_the_run(stub, monkeypatch):
    class Slow(Prompts):
        def prompt(self, name, tokens):
            time.sleep(0.1)
            return super().prompt(name, tokens)

    async def work(load):
        return await replace(load, prompts=Slow(0)).open_loop(requests_at(0.0, 0.0, 0.0))

    before_s = time.monotonic()
    exchanges, _ = loaded(stub, work)
    after_s = time.monotonic()
    assert max(each.ended_s for each in exchanges) <= after_s - before_s - 0.3


def test_a_closed_loop_has_so_many_requests_under_way_and_no_more(stub):
    exchanges, cut = loaded(stub, lambda load: load.closed_loop(requests_at(*[0.0] * 12), 3))
    assert (len(exchanges), cut) == (12, 0)
    assert stub.most_at_once == 3
    assert {each.request.request_id for each in exchanges} == {str(i) for i in range(12)}
    later = sorted(each.sent_s for each in exchanges)[3:]
    assert min(later) >= 0.02  # the first answers took at least so long
    assert all(each.request.arrival_s <= each.sent_s for each in exchanges)


def test_a_closed_loop_pauses_after_a_failure_instead_of_asking_as_fast_as_it_can(stub):
    requests = endless_requests(20, 4)
    exchanges, _ = loaded(stub, lambda load: load.closed_loop(requests, 2, 0.25), "http_500")
    assert 2 <= len(exchanges) <= 6  # two streams, each at 0, 0.1 and 0.2 s


def test_a_closed_loop_ends_with_its_time(stub):
    exchanges, _ = loaded(stub, lambda load: load.closed_loop(endless_requests(20, 4), 2, 0.15))
    assert exchanges
    assert max(each.request.arrival_s for each in exchanges) <= 0.15


def test_stop_ends_the_sending_and_cuts_off_what_is_under_way(stub):
    async def interrupted(load, work):
        asyncio.get_running_loop().call_later(0.1, load.stop.set)
        return await work

    for work in (
        lambda load: interrupted(load, load.open_loop(requests_at(0.0, 0.0, 9.0))),
        lambda load: interrupted(load, load.closed_loop(endless_requests(20, 4), 2)),
    ):
        assert loaded(stub, work, "never") == ([], 2)
    exchanges, cut = loaded(
        stub, lambda load: interrupted(load, load.open_loop(requests_at(0.0, 9.0)))
    )
    assert (len(exchanges), cut) == (1, 0)


def test_watching_sees_how_far_it_is(stub):
    seen = []

    async def work(load):
        task = asyncio.create_task(load.closed_loop(requests_at(*[0.0] * 4), 2))
        await watched(task, lambda: seen.append((load.progress.ended, load.progress.failed)))

    loaded(stub, work, "http_500")
    assert seen[-1] == (4, 4)


def bench(stub, requests=None, objectives=None, mode="steady", **options):
    """(bench, report) of a run; closed, two streams, unless a rate is given."""
    requests = requests_at(*[0.0] * 8) if requests is None else requests
    if "rate_per_s" not in options:
        options.setdefault("concurrency", 2)
    plan = Plan(
        f"http://127.0.0.1:{stub.port}",
        requests,
        len(requests),
        20,
        model=mode,
        overhead=False,
        **options,
    )
    found = asyncio.run(run_bench(plan, lambda progress: None))
    told = report(found, objectives or Objectives())
    json.dumps(told, allow_nan=False)
    assert table(found, objectives or Objectives())
    return found, told


def test_a_run_reports_what_was_sent_answered_and_how_fast(stub):
    found, told = bench(stub, warmup=3)
    assert (told["num_sent"], told["num_answered"], told["num_failed"]) == (8, 8, 0)
    assert (told["num_warmup"], told["num_warmup_failed"]) == (3, 0)
    assert (told["output_tokens"], told["tokens_per_event"]) == (32, 1.0)
    assert told["output_tokens_per_s"] == pytest.approx(32 / told["duration_s"])
    assert told["requests_per_s"] == pytest.approx(8 / told["duration_s"])
    assert told["duration_s"] == max(each.ended_s for each in found.exchanges)
    assert told["from_sent"]["ttft_s"]["p50"]["value"] >= 0.02
    assert told["from_sent"]["ttft_s"]["p99"]["too_few"]
    assert (told["from_planned"], told["lateness_s"]) == (None, None)
    assert told["prompt_tokens"]["real_median"] == pytest.approx(20, abs=1)  # the stub adds 8
    assert any("closed loop" in note for note in told["notes"])


def test_in_an_open_loop_latency_also_counts_from_the_planned_time(stub):
    found, told = bench(stub, requests_at(*[0.01 * i for i in range(8)]), rate_per_s=100.0)
    late = replace(found, exchanges=tuple(replace(e, sent_s=e.sent_s + 1) for e in found.exchanges))
    moved = report(late)
    assert told["from_planned"]["ttft_s"]["p50"]["value"] >= 0.02
    real, planned = moved["from_sent"]["ttft_s"]["p50"], moved["from_planned"]["ttft_s"]["p50"]
    assert planned["value"] >= real["value"] + 1
    assert moved["lateness_s"]["max"] >= 1
    strict = report(late, Objectives(ttft_s=0.9))
    assert strict["from_planned"]["goodput_per_s"] == 0  # coordinated omission would hide it
    assert strict["from_sent"]["share_good"]["count"] == 8
    assert "within TTFT 900 ms: 0 of 8" in table(late, Objectives(ttft_s=0.9))


def test_failures_are_counted_by_message_and_enter_no_latency(stub):
    found, told = bench(stub, mode="flaky", concurrency=1)
    failed = told["num_failed"]
    assert failed + told["num_answered"] == 8
    assert failed == 4
    assert told["errors"] == [{"message": "engine stopped", "count": 4}]
    assert told["from_sent"]["ttft_s"]["p50"]["n"] == 4
    assert told["output_tokens"] == 4 * 4
    assert "failed 4 times: engine stopped" in table(found)


def test_short_answers_fail_and_those_that_the_model_ended_are_noted(stub):
    _, told = bench(stub, mode="short")
    assert (told["num_answered"], told["num_failed"], told["num_ended_by_model"]) == (0, 8, 0)
    assert "fewer tokens came than asked (4): 2" in told["errors"][0]["message"]
    _, told = bench(stub, mode="stops")
    assert (told["num_answered"], told["num_ended_by_model"]) == (8, 8)
    assert any("the model ended before the length asked" in note for note in told["notes"])


def test_options_that_the_server_refuses_are_left_out_and_the_report_says_so(stub):
    _, told = bench(stub, mode="picky")
    assert (told["num_failed"], told["options"]) == (0, ["stream_options", "temperature"])
    assert any("ignore_eos was left out: HTTP 400" in note for note in told["notes"])


def test_requests_that_were_sent_again_are_told(stub):
    found, told = bench(stub, mode="drops")
    assert (told["num_answered"], told["num_failed"]) == (8, 0)
    assert told["num_resent"] == sum(each.num_resent for each in found.exchanges) > 0
    assert any("closed a kept connection" in note for note in told["notes"])


def test_prompts_of_ids_have_the_exact_length(stub):
    _, told = bench(stub, prompt_ids=True, api="completions")
    assert told["prompt_tokens"]["real_least"] == told["prompt_tokens"]["real_most"] == 20
    assert all(len(body["prompt"]) == 20 for body in stub.bodies)


def test_goodput_is_withheld_where_nobody_counted_tokens(stub):
    found, told = bench(stub, mode="no_usage", objectives=Objectives(tpot_s=1.0))
    assert told["num_answered"] == 8
    assert (told["output_tokens"], told["output_tokens_per_s"]) == (None, None)
    assert told["from_sent"]["goodput_per_s"] is None
    assert "goodput        unknown" in table(found, Objectives(tpot_s=1.0))
    _, told = bench(stub, mode="no_usage", objectives=Objectives(ttft_s=1.0))
    assert told["from_sent"]["share_good"]["count"] == 8
    assert any("a probe failed: it reports no usage" in note for note in told["notes"])


def test_a_line_of_the_file_holds_all_that_is_known_of_a_request(stub):
    found, _ = bench(stub)
    line = json.loads(json.dumps(exchange_line(found.exchanges[0]), allow_nan=False))
    assert line["asked_output_tokens"] == line["output_tokens"] == 4
    assert len(line["event_times_s"]) == 4
    assert line["planned_s"] <= line["sent_s"] <= line["ended_s"]


def test_a_server_that_refuses_the_model_is_unusable(stub, monkeypatch):
    monkeypatch.setattr("prefill_decode.endpoint.bench.HOPELESS", (500,))
    with pytest.raises(ValueError, match="refuses the model 'http_500'"):
        bench(stub, mode="http_500")


def test_the_clients_overhead_is_measured_against_a_stub_in_another_process():
    for concurrency, rate, load in [(2, 0.0, "2 streams"), (None, 200.0, "200 requests/s")]:
        found = asyncio.run(measure_overhead(concurrency, rate))
        assert found.load == load
        ttft, gaps = found.ttft_s[0], found.gap_error_s[0]
        assert ttft.n >= 64
        assert gaps.n == 7 * ttft.n  # eight tokens each
        assert ttft.value > 0
        assert not isnan(found.ttft_s[1].value)
        json.dumps(found.as_dict(), allow_nan=False)


def test_the_mean_rate_of_arrivals():
    assert mean_rate_per_s(requests_at(1.0, 1.5, 3.0)) == 1.0
    assert mean_rate_per_s(requests_at(1.0, 1.0)) == 0
