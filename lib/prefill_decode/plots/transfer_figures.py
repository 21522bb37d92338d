"""Transfer figures: what moving a cache takes, over which link it pays, and what layers hide.

As everywhere in the book, predictions are lines, measurements are points with intervals, the
title is the finding. What is modelled from data sheets stands in a table that says so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prefill_decode.measure import Timings
from prefill_decode.plots.endpoint_figures import LOOKS
from prefill_decode.plots.figures import _decade_ticks, _log_range, _points, _reach, _spoken
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.plots.words import Place, Words, place_words, uprights
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.transfer_cost import LINKS_BYTES_PER_S, Handover, LinkFit
from prefill_decode.units import (
    GB,
    GIGABIT,
    MS,
    format_bits_per_s,
    format_bytes,
    format_seconds,
    format_significant,
)

MEGABIT = GIGABIT / 1000
SHOWN_SPEEDS = (1 / 4, 1 / 2, 1, 4, 16)  # of the break-even link
Names = Mapping[str, Mapping[int, str]]  # of times, by transport and bytes


def time_against_bytes(
    times: Timings, names: Names, fits: Mapping[str, LinkFit], held_bytes: int
) -> Figure:
    """Time of a transfer against its bytes, over every transport, with the law of each.

    `held_bytes` is the size that no law has seen; its points are diamonds."""
    misses = [fits[t].misses(held_bytes, times.times_s(names[t][held_bytes])) for t in fits]
    worst = max(miss.median for miss in misses) - 1
    title = f"Two numbers foresee a transfer within {worst:.0%}"
    spoken = []
    with canvas() as figure:
        axes = figure.subplots()
        for (transport, fit), (color, _) in zip(fits.items(), LOOKS * len(fits), strict=False):
            sizes = sorted(names[transport])
            span = _log_range(sizes[0], sizes[-1])
            axes.plot(span, [fit.middle.time_s(size) / MS for size in span], color=color)
            for size in sizes:
                interval = times.time_s(names[transport][size])
                label = transport if size == sizes[0] else None
                _point(axes, size, interval, color, "D" if size == held_bytes else "o", label)
            shown = [format_seconds(times.time_s(names[transport][n]).median) for n in sizes]
            spoken.append(f"{transport}: {_spoken([format_bytes(n) for n in sizes], shown)}")
        axes.set(xscale="log", yscale="log", xlabel="bytes moved", title=title)
        axes.set_ylabel("time (ms)")
        _decade_ticks(axes.yaxis, (1,))
        axes.legend(frameon=False)
        return as_figure(
            figure,
            f"{title}, of {format_bytes(held_bytes)}, a size that they have not seen. Measured "
            f"times by bytes: {'. '.join(spoken)}.",
        )


def _point(
    axes: Any, place: float, measured: Interval, color: str, marker: str, label: str | None
) -> None:
    below, above = _reach(measured.median - measured.low), _reach(measured.high - measured.median)
    axes.errorbar(
        [place],
        [measured.median / MS],
        yerr=[[below / MS], [above / MS]],
        fmt=marker,
        color=color,
        label=label,
        markersize=5.5,
        capsize=3,
        zorder=3,
    )


def move_or_compute(
    times: Timings,
    moves: Mapping[float, str],
    compute: str,
    moved_bytes: int,
    break_evens: Sequence[float],
) -> Figure:
    """Time to have the cache, moved over links of several speeds or computed again.

    `moves` names the timed transfer over a link of each speed, bytes/s, `compute` the timed
    prefill; `break_evens` holds the link of each round over which both take as long."""
    speeds = sorted(moves)
    middle = median_interval(break_evens).median
    computed = times.time_s(compute)
    title = f"Moving beats computing beyond {format_bits_per_s(middle)}"
    with canvas() as figure:
        axes = figure.subplots()
        span = _log_range(speeds[0] / 2, speeds[-1] * 2)
        lines = [moved_bytes / speed / MS for speed in span]
        axes.plot([speed / MEGABIT for speed in span], lines, color=BLUE)
        axes.axhline(computed.median / MS, color=ORANGE)
        measured = [times.time_s(moves[speed]) for speed in speeds]
        _points(axes, [speed / MEGABIT for speed in speeds], measured, MS)
        axes.axvline(middle / MEGABIT, color=INK, alpha=0.4, linestyle=":")
        axes.set(xscale="log", yscale="log", xlabel="speed of the link (Mb/s)", title=title)
        axes.set_ylabel("time to have the cache (ms)")
        _decade_ticks(axes.xaxis, (1, 3))
        _decade_ticks(axes.yaxis, (1, 3))
        _words(axes, "compute it: the prefill", span[-1], computed.median, ORANGE, "right")
        _words(axes, "move it:\nbytes / link", span[8], lines[8] * MS, BLUE, "left")
        links = [format_bits_per_s(speed) for speed in speeds]
        shown = _spoken(links, [format_seconds(interval.median) for interval in measured])
        return as_figure(
            figure,
            f"{title}. Measured times to move {format_bytes(moved_bytes)} by the speed of the "
            f"link: {shown}. Computing them takes {format_seconds(computed.median)}.",
        )


def hidden_by_the_prefill(
    times: Timings, whole: Mapping[float, str], layered: Mapping[float, str], handover: Handover
) -> Figure:
    """What a first token waits for the cache after its prefill: moved as a whole afterwards, and
    layer by layer as they are ready, over links of several speeds.

    `whole` and `layered` name the timed waits, the fastest of the layered being over the link that
    was to break even; `handover` holds the prefill as it was measured."""
    speeds = sorted(layered)
    even = speeds[-1]
    hidden = max(0.0, 1 - times.ratio(layered[even], over=whole[even]).median)
    title = f"Layer by layer, {hidden:.0%} of the transfer hides"
    with canvas() as figure:
        axes = figure.subplots()
        span = _log_range(min(whole) / 2, max(whole) * 2)
        across = [speed / MEGABIT for speed in span]
        at_once = [handover.transfer_s(speed) / MS for speed in span]
        piecewise = [handover.exposed_s(speed) / MS for speed in span]
        axes.plot(across, at_once, color=ORANGE)
        axes.plot(across, piecewise, color=BLUE)
        for names, color in ((whole, ORANGE), (layered, BLUE)):
            places = [speed / MEGABIT for speed in sorted(names)]
            _points(axes, places, [times.time_s(names[s]) for s in sorted(names)], MS, color)
        axes.set(xscale="log", yscale="log", xlabel="speed of the link (Mb/s)", title=title)
        axes.set_ylabel("wait after the prefill (ms)")
        _decade_ticks(axes.xaxis, (1, 3))
        _decade_ticks(axes.yaxis, (1, 3))
        seen = [(across[i], piecewise[i]) for i in range(len(across)) if piecewise[i] > 0]
        seen = seen or [(across[0], at_once[0])]
        labels = [
            Words("after the prefill,\nas a whole", across[22], at_once[22], ORANGE),
            Words("layer by layer", *seen[len(seen) // 2], BLUE),
        ]
        drawn: list[list[Place]] = [list(zip(across, at_once, strict=True)), seen]
        for names in (whole, layered):
            places = [speed / MEGABIT for speed in sorted(names)]
            drawn += uprights(places, [times.time_s(names[s]) for s in sorted(names)], MS)
        place_words(axes, labels, drawn)
        links = [format_bits_per_s(speed) for speed in speeds]
        apart = [
            f"{format_seconds(times.time_s(layered[s]).median)} instead of "
            f"{format_seconds(times.time_s(whole[s]).median)}"
            for s in speeds
        ]
        return as_figure(
            figure,
            f"{title} over a link of {format_bits_per_s(even)}. Measured waits after the "
            f"prefill by the speed of the link: {_spoken(links, apart)}.",
        )


def _words(axes: Any, words: str, x: float, time_s: float, color: str, ha: str) -> None:
    """Beside a point of a line, x in bytes/s."""
    axes.annotate(
        words,
        (x / MEGABIT, time_s / MS),
        (4 if ha == "left" else -4, 5),
        textcoords="offset points",
        color=color,
        ha=ha,
        va="bottom",
    )


def handover_table(handover: Handover) -> Text:
    """What the laws say of a prompt's cache over links around the one that breaks even, before it
    is moved."""
    speeds_bytes_per_s = [share * handover.break_even_bytes_per_s for share in SHOWN_SPEEDS]
    rows = [
        (
            format_bits_per_s(speed),
            format_seconds(handover.transfer_s(speed)),
            format_seconds(handover.serial_s(speed)),
            format_seconds(handover.layered_s(speed)),
            format_seconds(handover.exposed_s(speed)),
        )
        for speed in speeds_bytes_per_s
    ]
    header = ("link", "move the cache", "prefill, then move", "layer by layer", "of it exposed")
    closing = (
        f"The prefill takes at least {format_seconds(handover.prefill_s)} and leaves "
        f"{format_bytes(handover.moved_bytes)} in {handover.num_layers} layers: a link of "
        f"{format_bits_per_s(handover.break_even_bytes_per_s)} breaks even."
    )
    return Text(table(header, rows) + f"\n\n{closing}\n")


def laws_table(
    times: Timings, names: Names, fits: Mapping[str, LinkFit], held_bytes: int, compute: str
) -> Text:
    """Start and rate of every transport, the factor by which its law misses `held_bytes`, and the
    share of the prefill `compute` that moving so much takes."""
    rows = []
    for transport, fit in fits.items():
        held = names[transport][held_bytes]
        rows.append(
            (
                transport,
                format_interval_s(fit.start_s),
                f"{format_interval(_scaled(fit.bytes_per_s, GB))} GB/s",
                format_interval_s(times.time_s(held)),
                format_interval(fit.misses(held_bytes, times.times_s(held))),
                format_interval(times.ratio(held, over=compute)),
            )
        )
    size = format_bytes(held_bytes)
    header = ("transport", "start", "rate", f"{size}, unseen", "law misses by", "of a prefill")
    return Text(table(header, rows) + f"\n\n{timer_says(times)}\n")


def modelled_table(
    handovers: Mapping[tuple[str, str], Handover],
    links_bytes_per_s: Sequence[float] = LINKS_BYTES_PER_S,
) -> Text:
    """Nothing here is measured: prompts of models on accelerators, (model, accelerator), priced
    from data sheets, and the share of the prefill that moving the cache takes over each link."""
    rows = [
        (
            f"{model} on {accelerator}",
            format_bytes(handover.moved_bytes),
            format_seconds(handover.prefill_s),
            format_bits_per_s(handover.break_even_bytes_per_s),
            *(format_significant(handover.share(link), 2) for link in links_bytes_per_s),
        )
        for (model, accelerator), handover in handovers.items()
    ]
    links = [f"share at {format_bits_per_s(link)}" for link in links_bytes_per_s]
    header = ("modelled", "cache", "least prefill", "breaks even at", *links)
    return Text(table(header, rows))


def _scaled(interval: Interval, unit: float) -> Interval:
    ends = (interval.median, interval.low, interval.high)
    middle, low, high = (end / unit for end in ends)
    return replace(interval, median=middle, low=low, high=high)
