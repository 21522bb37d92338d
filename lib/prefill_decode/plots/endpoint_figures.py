"""Endpoint figures: what clients see of engines behind HTTP, engine by engine.

As everywhere in the book, predictions are lines, measurements are points with intervals, the
title is the finding. Each engine has a colour and a marker of its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.figures import _decade_ticks, _plain_ticks, _reach
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.roofline import StepWork
from prefill_decode.units import MS, format_seconds

GREEN, PURPLE = "#1f9e77", "#b05fb0"
LOOKS = ((INK, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))
APART = 1.06  # between the points of two engines, so that neither hides the other

Ttft = Mapping[str, Mapping[int, str]]  # names of times, by engine and prompt length
Itl = Mapping[str, Mapping[tuple[int, int], str]]  # by engine, and streams and prompt length


@dataclass(frozen=True)
class _Panel:
    """One quantity along one axis: names of times by engine, each by place on the axis."""

    title: str
    across: str
    names: Mapping[str, Mapping[int, str]]


def shapes_of_engines(
    times: Timings, ttft: Ttft, itl: Itl, works: Mapping[str, StepWork], ceilings: Ceilings
) -> Figure:
    """TTFT against the prompt and ITL against streams, of every engine.

    `works` holds the work behind the times of the first engine: its least times are the lines."""
    first = next(iter(ttft))
    shortest = min(ttft[first])
    by_streams = {
        name: {streams: itl[name][streams, n] for streams, n in itl[name] if n == shortest}
        for name in itl
    }
    panels = (
        _Panel("time to first token", "tokens in the prompt", ttft),
        _Panel("gap between tokens", "streams at once", by_streams),
    )
    title = f"The shape of Part I, seen by a client of {_counted(len(ttft))}"
    with canvas() as figure:
        for axes, panel in zip(figure.subplots(1, 2), panels, strict=True):
            _draw(axes, panel, times)
            _draw_least(axes, panel.names[first], times, works, ceilings)
        figure.axes[0].set_ylabel("time (ms)")
        if len(ttft) > 1:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        spoken = [_spoken_panel(panel, name, times) for name in ttft for panel in panels]
        return as_figure(figure, f"{title}. " + ". ".join(spoken) + ".")


def _counted(engines: int) -> str:
    return "one engine" if engines == 1 else f"{engines} engines"


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
    places = sorted(next(iter(panel.names.values())))
    axes.set(xscale="log", yscale="log", xlabel=panel.across)
    axes.set_title(panel.title, fontsize=10.5)
    axes.margins(x=0.25, y=0.25)
    _plain_ticks(axes.xaxis, places)
    _decade_ticks(axes.yaxis)


def _draw_least(
    axes: Any,
    names: Mapping[int, str],
    times: Timings,
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
) -> None:
    places = sorted(names)
    hardware = ceilings.during(times)
    least_ms = [works[names[place]].least_time_s(hardware) / MS for place in places]
    axes.plot(places, least_ms, color=BLUE)
    axes.annotate(
        "least time",
        (places[-1], least_ms[-1]),
        (0, -6),
        textcoords="offset points",
        color=BLUE,
        ha="right",
        va="top",
    )


def _spoken_panel(panel: _Panel, engine: str, times: Timings) -> str:
    names = panel.names[engine]
    shown = ", ".join(
        f"{n}: {format_seconds(times.time_s(names[n]).median)}" for n in sorted(names)
    )
    return f"{engine}, {panel.title} by {panel.across}: {shown}"


def shapes_table(
    times: Timings, ttft: Ttft, itl: Itl, works: Mapping[str, StepWork], ceilings: Ceilings
) -> Text:
    """Every TTFT and ITL: the least time of the first engine's model, then each engine's own."""
    hardware, first = ceilings.during(times), next(iter(ttft))
    rows = [
        (f"TTFT, prompt of {n}", [ttft[engine][n] for engine in ttft]) for n in sorted(ttft[first])
    ]
    rows += [
        (f"ITL, {_streams(at[0])} after {at[1]}", [itl[engine][at] for engine in itl])
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


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"
