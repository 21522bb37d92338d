"""Stall figures: one engine against two workers, for streams and for the prompt among them.

As everywhere in the book, the title is the finding. What is foreseen is an open diamond or a line,
what is measured a point with its interval."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_decode.hardware import Hardware
from prefill_decode.measure import Timings
from prefill_decode.plots.figures import _decade_ticks, _points, _spoken
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.request import RequestRecord
from prefill_decode.serving_metrics import Objectives, gaps_s, ttft_s
from prefill_decode.stall_cost import APART, ONE_PIECE, Foreseen, Latency
from prefill_decode.statistics import Interval
from prefill_decode.units import MS, format_seconds, format_si, format_significant


def gaps_of_ways(timelines: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Every gap of a stream at the time, since the prompt came, at which it ended; one way above
    the other. Each holds the records of its streams and, last, that of the prompt.

    One run of each: a picture of what happens, not a measurement."""
    worst = {way: max(_during_s(records)) for way, records in timelines.items()}
    shown = _spoken(list(worst), [format_seconds(gap_s) for gap_s in worst.values()])
    apart, other = format_seconds(worst[APART]), format_seconds(max(worst.values()))
    title = f"Apart, the longest gap is {apart}, not {other}"
    with canvas() as figure:
        figure.set_figheight(figure.get_figheight() * 1.25)
        panels = figure.subplots(len(timelines), 1, sharex=True, sharey=True, squeeze=False)
        for axes, (way, records) in zip(panels[:, 0], timelines.items(), strict=True):
            _draw_gaps(axes, records)
            wait, gap = format_seconds(ttft_s(records[-1])), format_seconds(worst[way])
            axes.set_title(f"{way}: at worst {gap}; the prompt waits {wait}", fontsize=10.5)
        panels[-1, 0].set_xlabel("time since the prompt came (s)")
        figure.supylabel("gap between two tokens (ms)", fontsize=10.5)
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        waits = [format_seconds(ttft_s(records[-1])) for records in timelines.values()]
        return as_figure(
            figure,
            f"{title}. The longest gap of a stream while a prompt is read and answered: {shown}. "
            f"The prompt itself waits for its first token, {_spoken(list(timelines), waits)}.",
        )


def _during_s(records: Sequence[RequestRecord]) -> list[float]:
    """Gaps that ended between the prompt's arrival and its last token."""
    first_s, last_s = records[-1].request.arrival_s, records[-1].event_times_s[-1]
    return [
        gap_s
        for stream in records[:-1]
        for end_s, gap_s in zip(stream.event_times_s[1:], gaps_s(stream), strict=True)
        if first_s < end_s <= last_s
    ]


def _draw_gaps(axes: Any, records: Sequence[RequestRecord]) -> None:
    *streams, prompt = records
    zero_s = prompt.request.arrival_s
    axes.axvspan(0, ttft_s(prompt), color=ORANGE, alpha=0.18, linewidth=0)
    for stream in streams:
        ends = [end_s - zero_s for end_s in stream.event_times_s[1:]]
        gaps_ms = [gap_s / MS for gap_s in gaps_s(stream)]
        axes.plot(ends, gaps_ms, "o", color=BLUE, markersize=3.5, alpha=0.7)
    axes.set_yscale("log")
    _decade_ticks(axes.yaxis, (1, 3))


def gap_against_wait(
    times: Timings,
    gaps: Mapping[str, str],
    waits: Mapping[str, str],
    foreseen: Foreseen,
) -> Figure:
    """Worst gap of the streams against the TTFT of the prompt, for every way, with the strict half
    of both objectives. `gaps` and `waits` name what was timed of each way."""
    shorter = times.ratio(gaps[ONE_PIECE], over=gaps[APART]).median
    later = times.ratio(waits[APART], over=waits[ONE_PIECE]).median
    title = f"Apart: gap / {format_significant(shorter, 2)}, TTFT × {format_significant(later, 2)}"
    with canvas() as figure:
        axes = figure.subplots()
        for way, latency in foreseen.latencies.items():
            gap, wait = times.time_s(gaps[way]), times.time_s(waits[way])
            color = {ONE_PIECE: ORANGE, APART: BLUE}.get(way, INK)
            _draw_way(axes, way, wait, gap, latency, color)
        _draw_objectives(axes, foreseen)
        axes.set(xscale="log", yscale="log", xlabel="TTFT of the prompt (ms)", title=title)
        axes.set_ylabel("worst gap of the streams (ms)")
        axes.margins(0.22)
        for axis in (axes.xaxis, axes.yaxis):
            _decade_ticks(axis, (1, 2, 3, 5))
        ways = list(foreseen.latencies)
        both = [
            f"{format_seconds(times.time_s(gaps[way]).median)} at a TTFT of "
            f"{format_seconds(times.time_s(waits[way]).median)}"
            for way in ways
        ]
        return as_figure(figure, f"{title}. Worst gap of the streams, {_spoken(ways, both)}.")


def _draw_way(
    axes: Any, way: str, wait: Interval, gap: Interval, least: Latency, color: str
) -> None:
    _points(axes, [wait.median / MS], [gap], MS, color)
    if wait.low == wait.low:  # an interval there is
        axes.plot([wait.low / MS, wait.high / MS], [gap.median / MS] * 2, color=color)
    place = (least.ttft_s / MS, least.worst_gap_s / MS)
    axes.plot(*place, "D", markersize=6, markerfacecolor="none", markeredgecolor=color)
    axes.annotate(
        way,
        (wait.median / MS, gap.median / MS),
        (7, 7),
        textcoords="offset points",
        color=color,
        va="bottom",
    )


def _draw_objectives(axes: Any, foreseen: Foreseen) -> None:
    """Below the line a stream keeps its objective, left of the other the prompt does."""
    gap_ms, wait_ms = foreseen.readers.stall_s / MS, foreseen.askers.ttft_s / MS
    axes.axhline(gap_ms, color=INK, alpha=0.4, linestyle=":")
    axes.axvline(wait_ms, color=INK, alpha=0.4, linestyle=":")
    across, up = axes.get_yaxis_transform(), axes.get_xaxis_transform()
    small = {"alpha": 0.7, "fontsize": 9}
    axes.text(0.01, gap_ms, "readers ask for less", transform=across, va="top", **small)
    axes.text(wait_ms, 0.02, "askers ask for less ", transform=up, ha="right", va="bottom", **small)


def foreseen_table(
    foreseen: Foreseen, share: Hardware, elsewhere: Mapping[str, Latency] | None = None
) -> Text:
    """The least latencies of every way before anything is measured, and of machines that are not
    here (`elsewhere`), which are never measured at all. `share`: what a worker has."""
    rows = [
        (
            way,
            format_seconds(latency.quiet_gap_s),
            format_seconds(latency.worst_gap_s),
            format_seconds(latency.joining_s),
            format_seconds(latency.ttft_s),
        )
        for way, latency in {**foreseen.latencies, **(elsewhere or {})}.items()
    ]
    header = ("least time", "gap with nobody", "worst gap", "first gap of an answer", "TTFT")
    burst, peak, read = foreseen.burst, share.peak_flops_per_s, share.bandwidth_bytes_per_s
    closing = (
        f"{burst.streams} streams, and a prompt of {burst.prompt_tokens} tokens, in pieces of "
        f"{burst.chunk_tokens} where it is chunked. A worker's share of this machine: "
        f"{format_si(peak, 'FLOP/s')} and {format_si(read, 'B/s')}."
    )
    return Text(table(header, rows) + f"\n\n{closing}\n")


def ways_table(
    times: Timings,
    names: Sequence[Mapping[str, str]],
    foreseen: Foreseen,
) -> Text:
    """What was timed of each way: `names` of its worst gap, its median gap, its worst gap with
    nobody, its worst first gap, and its TTFT; the least ones beside."""
    gaps, medians, quiets, joins, waits = names
    rows = [
        (
            way,
            format_interval_s(times.time_s(quiets[way])),
            format_interval_s(times.time_s(medians[way])),
            format_seconds(least.worst_gap_s),
            format_interval_s(times.time_s(gaps[way])),
            format_seconds(least.joining_s),
            format_interval_s(times.time_s(joins[way])),
            format_seconds(least.ttft_s),
            format_interval_s(times.time_s(waits[way])),
        )
        for way, least in foreseen.latencies.items()
    ]
    header = (
        "way",
        "worst gap, nobody",
        "median gap",
        "worst gap, least",
        "worst gap",
        "first gap, least",
        "worst first gap",
        "TTFT, least",
        "TTFT",
    )
    return Text(table(header, rows) + f"\n\n{timer_says(times)}\n")


def goodput_table(
    foreseen: Foreseen, found: Mapping[str, Mapping[str, Interval]] | None = None
) -> Text:
    """The share of requests within each objective, as foreseen and, where given, as found: by
    objective and way."""
    objectives = {"readers": foreseen.readers, "askers": foreseen.askers}
    rows = []
    for name, wanted in objectives.items():
        shares = []
        for way in foreseen.latencies:
            share = format_significant(foreseen.share_good(way, wanted), 2)
            if found is not None:
                share += f"; {format_interval(found[name][way], 2)}"
            shares.append(share)
        rows.append((f"{name}: {_in_words(wanted)}", *shares))
    told = "foreseen" if found is None else "foreseen; found"
    header = (f"share of requests within, {told}", *foreseen.latencies)
    return Text(table(header, rows))


def _in_words(objectives: Objectives) -> str:
    ttft, stall = format_seconds(objectives.ttft_s), format_seconds(objectives.stall_s)
    return f"TTFT {ttft}, no gap over {stall}"
