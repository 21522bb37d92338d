"""Contention figures: what streams live through when a prompt arrives, and what its chunks cost.

As everywhere in the book, predictions are lines, measurements are points with intervals, the
title is the finding."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_decode.chunking import Price, best_chunk
from prefill_decode.measure import Timings
from prefill_decode.plots.figures import _decade_ticks, _plain_ticks, _points, _spoken
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.plots.words import Place, Words, place_words, uprights
from prefill_decode.request import RequestRecord
from prefill_decode.serving_metrics import gaps_s, itl_s
from prefill_decode.units import MS, format_seconds, format_significant


def gaps_over_time(timelines: Mapping[str, Sequence[RequestRecord]]) -> Figure:
    """Every gap between two tokens of a stream, at the time at which it ended.

    Each timeline holds the records of its streams and, last, that of the prompt among them. One
    run of each: a picture of what happens, not a measurement."""
    spoken, worst = [], {}
    with canvas() as figure:
        panels = figure.subplots(len(timelines), 1, sharex=True, sharey=True, squeeze=False)
        for axes, (name, records) in zip(panels[:, 0], timelines.items(), strict=True):
            streams, prompt = records[:-1], records[-1]
            _draw_gaps(axes, streams, prompt)
            worst[name] = max(_worst_gap_s(stream, prompt) for stream in streams)
            usual = sorted(itl_s(streams))[len(itl_s(streams)) // 2]
            if len(timelines) > 1:
                axes.set_title(f"{name}: at worst {format_seconds(worst[name])}", fontsize=10.5)
            spoken.append(
                f"{name}: {len(streams)} streams get a token every {format_seconds(usual)}; while "
                f"a prompt of {prompt.request.prompt_tokens} tokens is read, the longest gap is "
                f"{format_seconds(worst[name])}"
            )
        panels[-1, 0].set_xlabel("time (s)")
        first = next(iter(worst.values()))
        title = f"While a prompt is read, no stream gets a token for {format_seconds(first)}"
        if len(timelines) > 1:
            title = "The same prompt, whole and in chunks"
        figure.supylabel("gap between two tokens (ms)", fontsize=10.5)
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        return as_figure(figure, f"{title}. " + ". ".join(spoken) + ".")


def _worst_gap_s(stream: RequestRecord, prompt: RequestRecord) -> float:
    """The longest gap that ended between the prompt's arrival and its first token."""
    ends_s = stream.event_times_s[1:]
    first, last = prompt.request.arrival_s, prompt.event_times_s[0]
    during = zip(ends_s, gaps_s(stream), strict=True)
    return max(gap for end, gap in during if first <= end <= last)


def _draw_gaps(axes: Any, streams: Sequence[RequestRecord], prompt: RequestRecord) -> None:
    arrived_s, first_token_s = prompt.request.arrival_s, prompt.event_times_s[0]
    axes.axvspan(arrived_s, first_token_s, color=ORANGE, alpha=0.18, linewidth=0)
    for stream in streams:
        gaps_ms = [gap / MS for gap in gaps_s(stream)]
        axes.plot(stream.event_times_s[1:], gaps_ms, "o", color=BLUE, markersize=3.5, alpha=0.7)
    axes.set_yscale("log")
    _decade_ticks(axes.yaxis, (1, 3))
    axes.annotate(
        "from arrival to first token",
        (arrived_s, 1.0),
        (3, -3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        color=ORANGE,
    )


def price_of_chunks(
    times: Timings,
    gaps: Mapping[int, str],
    waits: Mapping[int, str],
    prices: Mapping[int, Price],
) -> Figure:
    """Worst gap of the streams and TTFT of the prompt, against the chunk's length.

    `gaps` and `waits` name what was timed for each chunk length, `prices` holds the least of each.
    """
    lengths = sorted(gaps)
    worst = [times.time_s(gaps[length]) for length in lengths]
    ttft = [times.time_s(waits[length]) for length in lengths]
    best = best_chunk({n: interval.median for n, interval in zip(lengths, ttft, strict=True)})
    shorter = times.ratio(gaps[lengths[-1]], over=gaps[best]).median
    later = times.ratio(waits[best], over=waits[lengths[-1]]).median
    title = (
        f"Pieces of {best}: gap / {format_significant(shorter, 2)}, "
        f"TTFT × {format_significant(later, 2)}"
    )
    with canvas() as figure:
        axes = figure.subplots()
        least_ttft = [prices[length].ttft_s / MS for length in lengths]
        least_gap = [prices[length].worst_gap_s / MS for length in lengths]
        axes.plot(lengths, least_ttft, color=ORANGE)
        axes.plot(lengths, least_gap, color=BLUE)
        _points(axes, lengths, ttft, MS, ORANGE)
        _points(axes, lengths, worst, MS, BLUE)
        axes.axvline(best, color=INK, alpha=0.4, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt in a step", title=title)
        axes.set_ylabel("time (ms)")
        _plain_ticks(axes.xaxis, lengths)
        _decade_ticks(axes.yaxis)
        middle = len(lengths) // 2
        labels = [
            Words("TTFT of the\nprompt, least", lengths[middle], least_ttft[middle], ORANGE),
            Words("worst gap,\nleast", lengths[middle], least_gap[middle], BLUE),
        ]
        drawn: list[list[Place]] = [
            list(zip(lengths, least, strict=True)) for least in (least_ttft, least_gap)
        ]
        drawn += [*uprights(lengths, ttft, MS), *uprights(lengths, worst, MS)]
        drawn.append([(best, least_gap[0]), (best, least_ttft[0])])
        place_words(axes, labels, drawn)
        shown_gap = _spoken(lengths, [format_seconds(each.median) for each in worst])
        shown_ttft = _spoken(lengths, [format_seconds(each.median) for each in ttft])
        return as_figure(
            figure,
            f"{title}. Worst gap of the streams by tokens of the prompt in a step: {shown_gap}. "
            f"TTFT of the prompt: {shown_ttft}.",
        )


def chunks_table(
    times: Timings,
    gaps: Mapping[int, str],
    waits: Mapping[int, str],
    prices: Mapping[int, Price],
) -> Text:
    """Worst gap and TTFT of each chunk length, least and measured, and the best length by both."""
    lengths = sorted(gaps)
    measured = best_chunk({n: times.time_s(waits[n]).median for n in lengths})
    predicted = best_chunk({n: prices[n].ttft_s for n in lengths})
    rows = [
        (
            f"{length}{' (best)' if length == measured else ''}",
            format_seconds(prices[length].worst_gap_s),
            format_interval_s(times.time_s(gaps[length])),
            format_seconds(prices[length].ttft_s),
            format_interval_s(times.time_s(waits[length])),
        )
        for length in lengths
    ]
    header = ("tokens in a step", "worst gap, least", "worst gap", "TTFT, least", "TTFT")
    closing = f"The best chunk here has {measured} tokens; the roofline names {predicted}."
    return Text(table(header, rows) + f"\n\n{closing} {timer_says(times)}\n")


def prices_table(prices: Mapping[int, Price], prompt_tokens: int) -> Text:
    """The least worst gap and the least TTFT of each chunk length, before anything is measured."""
    best = best_chunk({length: price.ttft_s for length, price in prices.items()})
    rows = [
        (
            f"{length}{' (best)' if length == best else ''}",
            str(-(-prompt_tokens // length)),
            format_seconds(price.worst_gap_s),
            format_seconds(price.ttft_s),
        )
        for length, price in sorted(prices.items())
    ]
    header = ("tokens in a step", f"steps for {prompt_tokens}", "worst gap, least", "TTFT, least")
    return Text(table(header, rows))
