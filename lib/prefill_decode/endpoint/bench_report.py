"""Bench report: what a run against a server says, as strict JSON and as a table.

Every latency is a percentile with its interval and n, withheld where too few samples bound it
(statistics). Two clocks: from when a request was really sent, and, of an open loop, from when it
should have been. Goodput counts from the latter.

Counts:  the measured run. Warm-up, probes and the client's overhead stand beside it.
Ignores: nothing that failed: failures are counted by their message, and enter no latency but
         `ttft_with_failures_s`.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf, isfinite, nan
from statistics import median
from typing import Any

from prefill_decode.endpoint.bench import Bench
from prefill_decode.endpoint.client import EXTENSIONS
from prefill_decode.endpoint.load import Exchange
from prefill_decode.event_stream import to_record
from prefill_decode.request import RequestRecord
from prefill_decode.serving_metrics import (
    NO_OBJECTIVES,
    Objectives,
    Summary,
    is_answered,
    summarize,
)
from prefill_decode.statistics import Percentile, percentile
from prefill_decode.units import format_seconds, format_significant

MOST_MESSAGES = 12  # in a table
SHOWN = (0.5, 0.95, 0.99)
LATENESS = (0.5, 0.95)


def records_of(exchanges: Iterable[Exchange], from_planned: bool) -> list[RequestRecord]:
    """A record of each exchange, whose request arrives when it should have been sent, or when it
    was."""
    return [
        to_record(each.result, each.request, each.sent_s)
        if from_planned
        else to_record(each.result, replace(each.request, arrival_s=each.sent_s))
        for each in exchanges
    ]


def report(bench: Bench, objectives: Objectives = NO_OBJECTIVES) -> dict[str, Any]:
    """The run as one strict JSON document. ValueError if nothing ended in it."""
    if not bench.exchanges:
        raise ValueError("no request ended, so there is nothing to report")
    plan, exchanges = bench.plan, bench.exchanges
    sent = records_of(exchanges, from_planned=False)
    planned = records_of(exchanges, from_planned=True)
    answered = [record for record in sent if is_answered(record, may_stop_early=True)]
    counted = all(record.tokens_counted for record in answered)
    tokens = sum(sum(record.event_tokens) for record in answered) if counted else None
    events = sum(len(record.event_times_s) for record in answered)
    notes = [*bench.notes, *_notes(bench, answered, objectives)]
    judged = counted or objectives.tpot_s == inf
    return {
        "url": bench.target.url,
        "model": bench.target.model,
        "loop": plan.loop,
        "rate_per_s": plan.rate_per_s,
        "burstiness": plan.burstiness,
        "concurrency": plan.concurrency,
        "trace": plan.trace,
        "seed": plan.seed,
        "options": list(bench.target.optional),
        "num_planned": plan.num_requests,
        "num_sent": len(exchanges) + bench.num_cut,
        "num_answered": len(answered),
        "num_failed": len(exchanges) - len(answered),
        "num_cut_off": bench.num_cut,
        "num_resent": sum(each.num_resent for each in exchanges),
        "num_ended_by_model": sum(_ended_by_model(each) for each in exchanges),
        "interrupted": bench.interrupted,
        "num_warmup": len(bench.warmup),
        "num_warmup_failed": sum(not each.result.success for each in bench.warmup),
        "duration_s": bench.duration_s,
        "requests_per_s": len(answered) / bench.duration_s,
        "output_tokens": tokens,
        "output_tokens_per_s": None if tokens is None else tokens / bench.duration_s,
        "tokens_per_event": tokens / events if tokens and events else None,
        "prompt_tokens": _prompt_tokens(exchanges),
        "from_sent": _without(summarize(sent, bench.duration_s, objectives, True), judged),
        "from_planned": _without(summarize(planned, bench.duration_s, objectives, True), judged)
        if plan.loop == "open"
        else None,
        "lateness_s": _lateness(exchanges) if plan.loop == "open" else None,
        "errors": _errors(sent),
        "client_overhead": None if bench.overhead is None else bench.overhead.as_dict(),
        "notes": notes,
    }


def table(bench: Bench, objectives: Objectives = NO_OBJECTIVES) -> str:
    """The same for a person. ValueError as `report`."""
    found = report(bench, objectives)
    records = records_of(bench.exchanges, from_planned=False)
    lines = [
        f"{found['url']}, {found['model']}: {_loop(found)}",
        f"{found['num_answered']} answered of {found['num_sent']} sent, {found['num_failed']} "
        f"failed, {found['num_cut_off']} cut off; {found['num_warmup']} before them as warm-up "
        f"({found['num_warmup_failed']} failed)",
        f"{format_seconds(found['duration_s'])}: "
        f"{format_significant(found['requests_per_s'])} requests/s answered, "
        f"{_number(found['output_tokens_per_s'])} output tokens/s, "
        f"{_number(found['tokens_per_event'])} tokens an event",
        _prompts(found["prompt_tokens"]),
    ]
    lines += _latencies(summarize(records, bench.duration_s, objectives, True))
    if found["loop"] == "open":
        planned = records_of(bench.exchanges, from_planned=True)
        summary = summarize(planned, bench.duration_s, objectives, True)
        lines += _rows("TTFT, planned", summary.ttft_s) + _rows("E2E, planned", summary.e2e_s)
        late = found["lateness_s"]
        lines.append(f"{'sent late':15}at most {format_seconds(late['max'])}")
    lines += _goodput(found, objectives)
    if bench.overhead is not None:
        lines.append(f"client overhead, under {bench.overhead.load} of a stub server:")
        lines += _rows("  TTFT", bench.overhead.ttft_s, (0.5, 0.95))
        lines += _rows("  gap error", bench.overhead.gap_error_s, (0.5, 0.95))
    for error in found["errors"][:MOST_MESSAGES]:
        lines.append(f"failed {error['count']} times: {error['message']}")
    return "\n".join([*lines, *(f"note: {note}" for note in found["notes"])])


def exchange_line(exchange: Exchange) -> dict[str, Any]:
    """One request as a line of a file: times in seconds from the run's start, and its stream's
    from when it was sent."""
    request = exchange.request
    return {
        "request_id": request.request_id,
        "planned_s": request.arrival_s,
        "sent_s": exchange.sent_s,
        "ended_s": exchange.ended_s,
        "num_resent": exchange.num_resent,
        "asked_prompt_tokens": request.prompt_tokens,
        "asked_output_tokens": request.output_tokens,
        **exchange.result.as_dict(),
    }


def _notes(bench: Bench, answered: Sequence[RequestRecord], objectives: Objectives) -> list[str]:
    notes = []
    ended = sum(_ended_by_model(each) for each in bench.exchanges)
    if ended:
        held = set(EXTENSIONS) <= set(bench.target.optional)
        why = "though it was told to go on" if held else "which the server cannot be told not to"
        notes.append(f"in {ended} answers the model ended before the length asked, {why}")
    resent = sum(each.num_resent for each in bench.exchanges)
    if resent:
        notes.append(f"{resent} times the server had closed a kept connection: sent on another")
    uncounted = sum(not record.tokens_counted for record in answered)
    if uncounted:
        notes.append(f"{uncounted} answers report no usage: their tokens and TPOT are unknown")
        if objectives.tpot_s < inf:
            notes.append("so nobody knows whether they met --tpot: goodput is withheld")
    if bench.plan.loop == "closed":
        notes.append("a closed loop asks a slow server less often: its queue does not show")
    if bench.interrupted:
        notes.append("interrupted: what had ended by then is reported")
    return notes


def _without(summary: Summary, judged: bool) -> dict[str, Any]:
    """The summary as JSON; without goodput where an objective could not be judged."""
    found = summary.as_dict()
    return found if judged else found | {"goodput_per_s": None, "share_good": None}


def _ended_by_model(exchange: Exchange) -> bool:
    tokens = exchange.result.output_tokens
    return (
        exchange.result.success
        and tokens is not None
        and (tokens < exchange.request.output_tokens and not exchange.result.short_output)
    )


def _prompt_tokens(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """Asked and real lengths, of the requests whose usage tells."""
    asked = [each.request.prompt_tokens for each in exchanges]
    real = [n for each in exchanges if (n := each.result.prompt_tokens) is not None]
    return {
        "asked_median": median(asked),
        "real_median": median(real) if real else None,
        "real_least": min(real, default=None),
        "real_most": max(real, default=None),
        "n": len(real),
    }


def _lateness(exchanges: Sequence[Exchange]) -> dict[str, Any]:
    """How long after its planned time each request was sent, seconds."""
    late_s = [each.sent_s - each.request.arrival_s for each in exchanges]
    shown = [percentile(late_s, p) for p in LATENESS]
    return {"max": max(late_s), **{found.name: found.as_dict() for found in shown}}


def _errors(records: Iterable[RequestRecord]) -> list[dict[str, Any]]:
    failures = (record.failure for record in records if record.failure is not None)
    return [{"message": why, "count": times} for why, times in Counter(failures).most_common()]


def _loop(found: dict[str, Any]) -> str:
    if found["loop"] == "closed":
        return f"closed loop, {found['concurrency']} streams"
    rate = format_significant(found["rate_per_s"] or nan)
    told = f"open loop, {rate} requests/s planned" + (" from a trace" if found["trace"] else "")
    burstiness = found["burstiness"]
    return told if burstiness in (None, 1) else f"{told}, burstiness {burstiness:g}"


def _prompts(found: dict[str, Any]) -> str:
    asked = f"prompts of {found['asked_median']:g} tokens asked"
    if found["real_median"] is None:
        return f"{asked}, real lengths unknown"
    ends = f"{found['real_least']} to {found['real_most']}"
    return f"{asked}, {found['real_median']:g} real ({ends}, n = {found['n']}; medians)"


def _latencies(summary: Summary) -> list[str]:
    return [
        *_rows("TTFT", summary.ttft_s),
        *_rows("TPOT", summary.tpot_s),
        *_rows("ITL", summary.itl_s),
        *_rows("stall", summary.stall_s),
        *_rows("E2E", summary.e2e_s),
    ]


def _rows(
    name: str, percentiles: Iterable[Percentile], shown: Sequence[float] = SHOWN
) -> list[str]:
    texts = [found.text(format_seconds) for found in percentiles if found.p in shown]
    return [f"{name if place == 0 else '':15}{text}" for place, text in enumerate(texts)]


def _goodput(found: dict[str, Any], objectives: Objectives) -> list[str]:
    if objectives == NO_OBJECTIVES:
        return []
    asked = ", ".join(
        f"{name.removesuffix('_s').upper()} {format_seconds(most_s)}"
        for name, most_s in vars(objectives).items()
        if isfinite(most_s)
    )
    judged = found["from_planned"] or found["from_sent"]
    if judged["goodput_per_s"] is None:
        return [f"{'goodput':15}unknown within {asked}"]
    share = judged["share_good"]
    rate = format_significant(judged["goodput_per_s"])
    kept = f"{share['count']} of {share['of']} [{share['low']:.0%}, {share['high']:.0%}]"
    return [f"{'goodput':15}{rate} requests/s within {asked}: {kept}"]


def _number(value: float | None) -> str:
    return "unknown" if value is None else format_significant(value)
