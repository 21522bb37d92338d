"""Endpoint figures: what clients see of engines behind HTTP, engine by engine.

As everywhere in the book, predictions are lines, measurements are points with intervals, the
title is the finding. Each engine has a colour and a marker of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.figures import _decade_ticks, _plain_ticks, _reach
from prefill_decode.plots.svg import (
    BLUE,
    INK,
    ORANGE,
    WIDTH_INCHES,
    Figure,
    as_figure,
    canvas,
)
from prefill_decode.plots.tables import Text, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.plots.words import Place, Words, place_words, uprights
from prefill_decode.roofline import StepWork
from prefill_decode.units import MS, counted, format_seconds, format_significant

GREEN, PURPLE = "#1f9e77", "#b05fb0"
STACKED_HEIGHT_INCHES = 6.2  # two panels, one above the other: a phone is narrow
LOOKS = ((INK, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))
APART = 1.06  # between the points of two engines, so that neither hides the other

Ttft = Mapping[str, Mapping[int, str]]  # names of times, by engine and prompt length
Itl = Mapping[str, Mapping[tuple[int, int], str]]  # by engine, and streams and prompt length


@dataclass(frozen=True)
class _Panel:
    """One quantity along one axis: names of times by engine, each by place on the axis."""

    grows: str
    seen: Literal["wait", "gap"]  # the rival says: this stays, and that grows as the streams do
    quantity: str
    across: str
    names: Mapping[str, Mapping[int, str]]

    @property
    def growth(self) -> float:
        places = sorted(next(iter(self.names.values())))
        return places[-1] / places[0]


def shapes_of_engines(
    times: Timings, ttft: Ttft, itl: Itl, works: Mapping[str, StepWork], ceilings: Ceilings
) -> Figure:
    """TTFT against the prompt and ITL against streams, of every engine, beside the rivals.

    `works` holds the work behind the times of the first engine: its least times are the lines."""
    shortest = min(next(iter(ttft.values())))
    by_streams = {
        name: {streams: itl[name][streams, n] for streams, n in itl[name] if n == shortest}
        for name in itl
    }
    panels = (
        _Panel("prompt", "wait", "time to first token", "tokens in the prompt", ttft),
        _Panel("streams", "gap", "gap between tokens", "streams at once", by_streams),
    )
    with canvas() as figure:
        figure.set_size_inches(WIDTH_INCHES, STACKED_HEIGHT_INCHES)
        for axes, panel in zip(figure.subplots(2, 1), panels, strict=True):
            _draw(axes, panel, times)
            _draw_lines(axes, panel, times, works, ceilings)
        if len(ttft) > 1:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        spoken = [_title(panel, times) for panel in panels]
        spoken += [_spoken_panel(panel, name, times) for name in ttft for panel in panels]
        return as_figure(figure, ". ".join(spoken) + ".")


def _title(panel: _Panel, times: Timings) -> str:
    """The finding: how many times as long the last place takes as the first, of all engines."""
    found = [
        times.ratio(names[max(names)], over=names[min(names)]).median
        for names in panel.names.values()
    ]
    least, most = (format_significant(end, 2) for end in (min(found), max(found)))
    factor = least if least == most else f"{least} to {most}"
    return f"{panel.growth:g} x {panel.grows}: {factor} x {panel.seen}"


def _draw(axes: Any, panel: _Panel, times: Timings) -> None:
    for index, (engine, names) in enumerate(panel.names.items()):
        color, marker = LOOKS[index % len(LOOKS)]
        places = sorted(names)
        measured = [times.time_s(names[place]) for place in places]
        middles = [each.median / MS for each in measured]
        below = [_reach(each.median - each.low) / MS for each in measured]
        above = [_reach(each.high - each.median) / MS for each in measured]
        shifted = [place * APART**index for place in places]
        look = {"fmt": marker, "color": color, "markersize": 5.5, "capsize": 3, "zorder": 3}
        axes.errorbar(shifted, middles, yerr=[below, above], label=engine, **look)
    axes.set(xscale="log", yscale="log", xlabel=panel.across)
    axes.set_ylabel(f"{panel.quantity} (ms)")
    axes.set_title(_title(panel, times), fontsize=10.5)
    axes.margins(x=0.25, y=0.15)


def _draw_lines(
    axes: Any, panel: _Panel, times: Timings, works: Mapping[str, StepWork], ceilings: Ceilings
) -> None:
    """The least time of the first engine, and what the rival makes of its first point."""
    names = next(iter(panel.names.values()))
    places, hardware = sorted(names), ceilings.during(times)
    least_ms = [works[names[place]].least_time_s(hardware) / MS for place in places]
    start_ms = times.time_s(names[places[0]]).median / MS
    rival_ms = [start_ms, start_ms * (panel.growth if panel.seen == "gap" else 1.0)]
    axes.plot(places, least_ms, color=BLUE)
    axes.plot((places[0], places[-1]), rival_ms, color=INK, linestyle="--", alpha=0.5)
    _plain_ticks(axes.xaxis, places)
    _decade_ticks(axes.yaxis)
    labels = [
        Words("least time", places[0], least_ms[0], BLUE),
        Words("rival", places[-1], rival_ms[1], INK),
    ]
    drawn: list[list[Place]] = [list(zip(places, least_ms, strict=True))]
    drawn.append([(places[0], rival_ms[0]), (places[-1], rival_ms[1])])
    for index, timed in enumerate(panel.names.values()):
        at = [place * APART**index for place in sorted(timed)]
        drawn += uprights(at, [times.time_s(timed[place]) for place in sorted(timed)], MS)
    place_words(axes, labels, drawn)


def _spoken_panel(panel: _Panel, engine: str, times: Timings) -> str:
    names = sorted(panel.names[engine].items())
    shown = ", ".join(f"{n}: {format_seconds(times.time_s(name).median)}" for n, name in names)
    return f"{engine}, {panel.quantity} by {panel.across}: {shown}"


def shapes_table(
    times: Timings, ttft: Ttft, itl: Itl, works: Mapping[str, StepWork], ceilings: Ceilings
) -> Text:
    """Every TTFT and ITL: the least time of the first engine's model, then each engine's own."""
    hardware, first = ceilings.during(times), next(iter(ttft))
    rows = [
        (f"TTFT, prompt of {n}", [ttft[engine][n] for engine in ttft]) for n in sorted(ttft[first])
    ]
    rows += [
        (f"ITL, {counted(at[0], 'stream')} after {at[1]}", [itl[engine][at] for engine in itl])
        for at in sorted(itl[first])
    ]
    lines = [
        (
            label,
            format_seconds(works[names[0]].least_time_s(hardware)),
            *(_cell(times, name) for name in names),
        )
        for label, names in rows
    ]
    header = ("seen by a client", "least", *ttft)
    return Text(table(header, lines) + f"\n\n{timer_says(times)}\n")


def _cell(times: Timings, name: str) -> str:
    mark = " (unstable)" if times.is_unstable(name) else ""
    return f"{format_interval_s(times.time_s(name))}{mark}"
