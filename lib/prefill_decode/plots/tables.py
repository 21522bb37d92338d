"""Tables: what was set, predicted, timed and judged, as Markdown with its numbers filled in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan, sqrt

from prefill_decode.capacity import sequences_that_fit
from prefill_decode.claim import Verdict
from prefill_decode.crossover import predicted_crossover
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Ceilings, Machine, Timings
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork
from prefill_decode.statistics import COVERAGE, Interval, median_interval
from prefill_decode.units import (
    format_bytes,
    format_seconds,
    format_si,
    format_significant,
    seconds_unit,
)

LIMITS = {"compute": "arithmetic", "bandwidth": "memory"}
SEEN = "measured"
JUDGEMENT_HEADER = (
    "what",
    "says",
    f"{SEEN}, {COVERAGE:.0%}",
    "claim expects",
    "midpoint",
    "rival expects",
    "n",
)
SIGNS = {"supported": "✓", "refuted": "✗", "inconclusive": "?", "void": "∅"}


@dataclass(frozen=True)
class Text:
    """Markdown that a notebook shows as such."""

    markdown: str

    def _repr_markdown_(self) -> str:
        return self.markdown

    def __str__(self) -> str:
        return self.markdown

    def __add__(self, other: "Text") -> "Text":
        return Text(self.markdown + "\n\n" + other.markdown)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: first column left, the others right."""
    aligned = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, aligned, *rows))


def closing(times: Timings) -> str:
    """How long the timer ran, why it stopped, and what it has to say."""
    stopped = {
        "narrow": "every ratio was known well enough",
        "budget": "the time budget ended",
    }[times.stopped_because]
    sentences = [f"{times.num_rounds} rounds in {times.duration_s:.0f} s, until {stopped}."]
    sentences += [line[0].upper() + line[1:] + "." for line in times.advice]
    return " ".join(sentences)


def setting_table(model: ModelSpec, machine: Machine) -> Text:
    """The model and the machine this run uses, and whether the weights dwarf the cache."""
    cache_bytes = machine.last_level_cache_bytes
    cache = format_bytes(cache_bytes) if cache_bytes else "not reported"
    if cache_bytes and machine.cache_bytes < cache_bytes:
        cache = f"{format_bytes(machine.cache_bytes)}, counted of a host's {cache}"
    rows = [
        ("machine", machine.title),
        ("model", model.name),
        ("parameters", f"{format_si(model.total_params, '')} in {model.dtype}"),
        ("weights read in a step (no input embedding)", format_bytes(model.weight_bytes_read)),
        ("last-level cache", cache),
        ("keys and values of one token", format_bytes(model.kv_bytes_per_token)),
        ("threads", str(machine.threads)),
    ]
    return Text(table(("what", "here"), rows))


def ceilings_table(ceilings: Ceilings) -> Text:
    """Every kernel's rate, and the two that set the ceilings."""
    hardware = ceilings.hardware
    rows = []
    for name, rate in ceilings.rates.items():
        computes = name.endswith("matrices")
        best = name in (ceilings.matrix.name, ceilings.read.name)
        mark = "**" if best else ""
        rows.append((name, f"{mark}{format_si(rate, 'FLOP/s' if computes else 'B/s')}{mark}"))
    rows.append(("ridge", f"{format_significant(hardware.ridge_flops_per_byte)} FLOP/byte"))
    return Text(table(("kernel", f"median rate, {hardware.dtype}"), rows))


def work_table(works: Mapping[str, StepWork], hardware: Hardware) -> Text:
    """What each step must do, and the least time it can take on `hardware`."""
    rows = [
        (
            name,
            format_bytes(work.total.bytes),
            format_si(work.total.flops, "FLOP"),
            format_significant(work.total.intensity_flops_per_byte),
            LIMITS[work.total.limited_by(hardware)],
            format_seconds(work.least_time_s(hardware)),
        )
        for name, work in works.items()
    ]
    header = ("step", "bytes", "arithmetic", "FLOP/byte", "limited by", "least time")
    return Text(table(header, rows))


def capacity_table(
    model: ModelSpec, machine: Machine, hardware: Hardware, token_counts: Sequence[int]
) -> Text:
    """Sequences that fit in the machine's memory beside the weights, against the crossover.

    Nothing here is measured but the ceilings, and the header says so.
    """
    rows = [
        (
            f"{tokens}",
            f"{sequences_that_fit(model, machine.memory_bytes, tokens)}",
            format_significant(predicted_crossover(model, tokens, hardware), 2),
        )
        for tokens in token_counts
    ]
    header = ("tokens in each sequence", "sequences that fit, predicted", "crossover, predicted")
    return Text(table(header, rows))


def times_table(times: Timings, works: Mapping[str, StepWork], ceilings: Ceilings) -> Text:
    """Measured times and the share of the possible they reach; then what the timer has to say."""
    rows = []
    for name in times.raw_s:
        measured = times.time_s(name)
        reached = ceilings.reached(works[name], name, times).median if name in works else None
        label = f"{name} (unstable)" if times.is_unstable(name) else name
        share = "" if reached is None else f"{reached:.0%}"
        rows.append((label, format_interval_s(measured), share, str(measured.n)))
    header = ("step", f"time, {COVERAGE:.0%} interval", "least time / time", "n")
    return Text(table(header, rows) + "\n\n" + closing(times))


def first_token_table(times: Timings, requests: Mapping[str, str]) -> Text:
    """Time to first token, and the share of it that the prefill takes.

    `requests` names for each timed request the step that does all of it but the prefill.
    """
    rows = []
    for request, rest in requests.items():
        pairs = zip(times.times_s(request), times.times_s(rest), strict=True)
        share = median_interval([1 - rest_s / whole_s for whole_s, rest_s in pairs])
        rows.append(
            (
                request,
                format_interval_s(times.time_s(request)),
                format_interval_s(times.time_s(rest)),
                format_interval(share, digits=4),
            )
        )
    return Text(table(("request", "TTFT", "all but the prefill", "prefill's share"), rows))


def verdict_table(statement: str, verdict: Verdict, seen: str = SEEN) -> Text:
    """The verdict in a sentence, then every prediction and control with its interval; `seen` says
    how they came about, such as simulated."""
    judged = [("", each) for each in verdict.predictions]
    judged += [("control: ", each) for each in verdict.controls]
    rows = [
        judgement_row(
            prefix + each.prediction.name,
            each.outcome,
            each.measured,
            each.prediction.expected,
            each.prediction.rival,
        )
        for prefix, each in judged
    ]
    sentence = f"**{SIGNS[verdict.outcome]} {verdict.outcome}.** “{statement}”: {verdict.reason}."
    return Text(sentence + "\n\n" + table(judgement_header(seen), rows))


def judgement_header(seen: str = SEEN) -> list[str]:
    """Of a table whose numbers came about as `seen` says: measured, or simulated."""
    return [words.replace(SEEN, seen) for words in JUDGEMENT_HEADER]


def judgement_row(
    name: str, outcome: str, measured: Interval, expected: float, rival: float
) -> tuple[str, ...]:
    """A prediction or control under `judgement_header`: its outcome early, for narrow screens."""
    return (
        name,
        f"{SIGNS[outcome]} {outcome}",
        format_interval(measured),
        format_significant(expected),
        format_significant(sqrt(expected) * sqrt(rival)),
        format_significant(rival),
        str(measured.n),
    )


def format_interval(interval: Interval, digits: int = 3) -> str:
    """1.79 [1.75, 1.84]."""
    middle = format_significant(interval.median, digits)
    if isnan(interval.low):
        return f"{middle} [too few]"
    low, high = (format_significant(end, digits) for end in (interval.low, interval.high))
    return f"{middle} [{low}, {high}]"


def format_interval_s(interval: Interval) -> str:
    """41.8 [41.0, 42.9] ms."""
    factor, unit = seconds_unit(interval.median)
    scaled = replace(
        interval,
        median=interval.median / factor,
        low=interval.low / factor,
        high=interval.high / factor,
    )
    return f"{format_interval(scaled)} {unit}"
