"""Figures: predictions are lines, measurements are points with intervals, the title is the
finding.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Literal

from prefill_decode.hardware import Hardware
from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.results import interval_of
from prefill_decode.roofline import StepWork, Work
from prefill_decode.statistics import Interval
from prefill_decode.units import GFLOP, MS, format_seconds, format_si, format_significant

__all__ = ["Figure", "phases_on_the_roofline", "rate_against_tokens", "time_against_sequences"]


def time_against_sequences(
    times: Timings, steps: Mapping[int, str], works: Mapping[str, StepWork], ceilings: Ceilings
) -> Figure:
    """Time of a decode step against the sequences in it, between the two stories.

    `steps` names the timed step of each number of sequences.
    """
    counts = sorted(steps)
    hardware = ceilings.during(times)
    measured = [times.time_s(steps[count]) for count in counts]
    bounds_ms = [works[steps[count]].least_time_s(hardware) / MS for count in counts]
    first, last, middle = counts[0], counts[-1], len(counts) // 2
    arithmetic_ms = [measured[0].median / MS * count / first for count in counts]
    ratio = format_significant(times.ratio(steps[last], over=steps[first]).median)
    title = f"{last} sequences take {ratio} times as long as {first}"
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot(counts, bounds_ms, color=BLUE)
        axes.plot(counts, arithmetic_ms, color=ORANGE, linestyle="--")
        _points(axes, counts, measured, MS)
        axes.set(xscale="log", yscale="log", xlabel="sequences in the step", title=title)
        axes.set_ylim(min(bounds_ms) / 1.7, max(arithmetic_ms) * 1.2)
        axes.set_ylabel("time of one step (ms)")
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        height_ms = arithmetic_ms[middle]
        _label(axes, counts[middle], height_ms, "if each cost\none more step", ORANGE, "above")
        _label(axes, last, bounds_ms[-1], "least time: read everything once", BLUE, "below")
        shown = _spoken(counts, [format_seconds(interval.median) for interval in measured])
        return as_figure(
            figure,
            f"{title}. Measured times of a step by sequences in it: {shown}. For {last}, reading "
            f"everything once takes at least {format_seconds(bounds_ms[-1] * MS)}; if each cost as "
            f"much as the first, they would take {format_seconds(arithmetic_ms[-1] * MS)}.",
        )


def rate_against_tokens(
    times: Timings, steps: Mapping[int, str], works: Mapping[str, StepWork], ceilings: Ceilings
) -> Figure:
    """Arithmetic done a second against the tokens in a prefill, under the most that is possible.

    `steps` names the timed step of each number of tokens.
    """
    counts = sorted(steps)
    hardware = ceilings.during(times)
    flops = [works[steps[count]].total.flops for count in counts]
    rates = [_rate(f, times.time_s(steps[n])) for f, n in zip(flops, counts, strict=True)]
    bounds_s = [works[steps[count]].least_time_s(hardware) for count in counts]
    most = [f / bound_s / GFLOP for f, bound_s in zip(flops, bounds_s, strict=True)]
    ceiling = hardware.peak_flops_per_s / GFLOP
    share = times.share(flops[-1], steps[counts[-1]], ceilings.matrix).median
    title = f"At {counts[-1]} tokens, {share:.0%} of the matrix ceiling"
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot(counts, most, color=BLUE, marker="_", markersize=10)
        axes.axhline(ceiling, color=ORANGE, linestyle="--")
        _points(axes, counts, rates, GFLOP)
        axes.set(xscale="log", yscale="log", xlabel="tokens in the prompt", title=title)
        axes.set_ylim(rates[0].median / GFLOP / 2, ceiling * 2)
        axes.set_ylabel("arithmetic done (GFLOP/s)")
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        _label(axes, counts[-1], ceiling, "matrix ceiling", ORANGE, "above")
        axes.text(counts[0], most[1], "the most\nthat is possible", color=BLUE)
        shown = _spoken(counts, [format_si(rate.median, "FLOP/s") for rate in rates])
        return as_figure(
            figure,
            f"{title}. Measured rates by tokens in the prompt: {shown}. The matrix ceiling is "
            f"{format_si(ceiling * GFLOP, 'FLOP/s')}.",
        )


def phases_on_the_roofline(points: Sequence[Mapping[str, Any]], hardware: Hardware) -> Figure:
    """Recorded steps on the measured roofline: decode on the slope, prefill under the ceiling.

    `points` are those of a record, by rising intensity: the first is the decode, the last the
    longest prefill."""
    intensities = [Work(p["flops"], p["bytes"]).intensity_flops_per_byte for p in points]
    rates = [_rate(p["flops"], interval_of(p["time_s"])) for p in points]
    decode, prefill = rates[0].median / GFLOP, rates[-1].median / GFLOP
    ridge, ceiling = hardware.ridge_flops_per_byte, hardware.peak_flops_per_s / GFLOP
    title = f"Prefill does {format_significant(prefill / decode, 2)} times the FLOP/s of decode"
    with canvas() as figure:
        axes = figure.subplots()
        span = _log_range(intensities[0] / 1.6, intensities[-1] * 1.6)
        roof = [min(x * hardware.bandwidth_bytes_per_s / GFLOP, ceiling) for x in span]
        axes.plot(span, roof, color=BLUE)
        axes.axvline(ridge, color=INK, alpha=0.4, linestyle=":")
        _points(axes, intensities, rates, GFLOP)
        axes.set(xscale="log", yscale="log", title=title, ylim=(decode / 3, ceiling * 1.6))
        axes.set_xlabel("arithmetic for each byte moved (FLOP/byte)")
        axes.set_ylabel("arithmetic done (GFLOP/s)")
        _decade_ticks(axes.yaxis, (1, 2, 5))
        _decade_ticks(axes.xaxis, (1, 3))
        for word, x, y, corner in (
            ("decode:\none token", intensities[0], decode, (10, -6, "left", "top")),
            (
                f"prefill:\n{points[-1]['new_tokens']} tokens",
                intensities[-1],
                prefill,
                (4, -12, "right", "top"),
            ),
            ("limited by memory", ridge, decode / 3, (-6, 4, "right", "bottom")),
            ("limited by arithmetic", ridge, decode / 3, (6, 4, "left", "bottom")),
        ):
            across, up, ha, va = corner
            axes.annotate(
                word,
                (x, y),
                (across, up),
                textcoords="offset points",
                ha=ha,
                va=va,
                fontweight="bold" if "\n" in word else "normal",
            )
        return as_figure(
            figure,
            f"{title}, on {hardware.name}. By the arithmetic done for each byte moved, steps reach "
            + _spoken(
                [f"{x:.3g} FLOP/byte" for x in intensities],
                [format_si(rate.median, "FLOP/s") for rate in rates],
            )
            + f". Memory is the limit below {format_significant(ridge)}, arithmetic above.",
        )


def _spoken(places: Sequence[object], values: Sequence[str]) -> str:
    """Points of a figure for those who cannot see it: 1: 40 ms, 2: 42 ms."""
    return ", ".join(f"{place}: {value}" for place, value in zip(places, values, strict=True))


def _rate(amount: float, time_s: Interval) -> Interval:
    """An amount over a time; the longest time gives the lowest rate."""
    return Interval(amount / time_s.median, amount / time_s.high, amount / time_s.low, time_s.n)


def _points(
    axes: Any, x: Sequence[float], measured: Sequence[Interval], unit: float, color: str = INK
) -> None:
    middles = [interval.median / unit for interval in measured]
    below = [_reach(interval.median - interval.low) / unit for interval in measured]
    above = [_reach(interval.high - interval.median) / unit for interval in measured]
    axes.errorbar(
        x, middles, yerr=[below, above], fmt="o", color=color, markersize=5.5, capsize=3, zorder=3
    )


def _reach(length: float) -> float:
    return 0.0 if isnan(length) else length


def _label(
    axes: Any, x: float, y: float, words: str, color: str, side: Literal["above", "below"]
) -> None:
    """Words that end at a point of a line, in the line's colour."""
    offset, anchor = (5, "bottom") if side == "above" else (-5, "top")
    axes.annotate(
        words, (x, y), (-5, offset), textcoords="offset points", color=color, ha="right", va=anchor
    )


def _plain_ticks(axis: Any, values: Sequence[float]) -> None:
    axis.set_ticks(list(values), labels=[f"{value:g}" for value in values])
    axis.set_ticks([], minor=True)


def _decade_ticks(axis: Any, digits: Sequence[float] = (1, 2, 5)) -> None:
    """Such as 1, 2, 5, 10, 20, ... as plain numbers; call it when all is drawn. Where so many have
    no room, matplotlib would draw none: then powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=tuple(digits)))
    low, high = axis.get_view_interval()
    if not any(low <= tick <= high for tick in axis.get_majorticklocs()):
        axis.set_major_locator(LogLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _log_range(first: float, last: float, count: int = 60) -> list[float]:
    return [first * (last / first) ** (i / (count - 1)) for i in range(count)]
