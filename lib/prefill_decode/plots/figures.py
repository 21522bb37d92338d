"""Figures: predictions are lines, measurements are points with intervals, the title is the
finding.
"""

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any, Literal

from prefill_decode.hardware import Hardware
from prefill_decode.measure import Timings
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.roofline import Work, step_work
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk
from prefill_decode.units import GFLOP, MS, format_seconds, format_significant

__all__ = ["Figure", "phases_on_the_roofline", "rate_against_tokens", "time_against_sequences"]


def time_against_sequences(
    times: Timings,
    steps: Mapping[int, str],
    chunks: Mapping[str, Sequence[Chunk]],
    model: ModelSpec,
    hardware: Hardware,
) -> Figure:
    """Time of a decode step against the sequences in it, between the two stories.

    `steps` names the timed step of each number of sequences.
    """
    counts = sorted(steps)
    measured = [times.time_s(steps[count]) for count in counts]
    bounds_ms = [
        step_work(model, chunks[steps[count]]).least_time_s(hardware) / MS for count in counts
    ]
    first, last = counts[0], counts[-1]
    ratio = times.ratio(steps[last], over=steps[first]).median
    title = f"{last} sequences take {format_significant(ratio)} times as long as {first}"
    with canvas() as figure:
        axes = figure.subplots()
        arithmetic_ms = [measured[0].median / MS * count / first for count in counts]
        axes.plot(counts, bounds_ms, color=BLUE)
        axes.plot(counts, arithmetic_ms, color=ORANGE, linestyle="--")
        _points(axes, counts, measured, MS)
        axes.set(xscale="log", yscale="log", xlabel="sequences in the step", title=title)
        axes.set_ylim(min(bounds_ms) / 1.7, max(arithmetic_ms) * 1.2)
        axes.set_ylabel("time of one step (ms)")
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        middle = len(counts) // 2
        _label(
            axes,
            counts[middle],
            arithmetic_ms[middle],
            "if arithmetic\nwere the limit",
            ORANGE,
            "above",
        )
        _label(axes, last, bounds_ms[-1], "least time: read everything once", BLUE, "below")
        return as_figure(
            figure,
            f"{title}. The measured steps lie between the least time set by memory, "
            f"{format_seconds(bounds_ms[-1] * MS)} at {last} sequences, and the "
            f"{format_seconds(arithmetic_ms[-1] * MS)} that arithmetic would take.",
        )


def rate_against_tokens(
    times: Timings,
    steps: Mapping[int, str],
    chunks: Mapping[str, Sequence[Chunk]],
    model: ModelSpec,
    hardware: Hardware,
) -> Figure:
    """Arithmetic done a second against the tokens in a prefill, under the roofline.

    `steps` names the timed step of each number of tokens.
    """
    counts = sorted(steps)
    rates = [
        _rate(step_work(model, chunks[steps[count]]).total.flops, times.time_s(steps[count]))
        for count in counts
    ]
    share = rates[-1].median / hardware.peak_flops_per_s
    title = f"At {counts[-1]} tokens, {share:.0%} of the matrix ceiling"
    with canvas() as figure:
        axes = figure.subplots()
        roof = [
            (count, work.flops / work.least_time_s(hardware) / GFLOP)
            for count in sorted({round(x) for x in _log_range(counts[0], counts[-1])})
            for work in [step_work(model, [Chunk(count)]).total]
        ]
        axes.plot(*zip(*roof, strict=True), color=BLUE)
        axes.axhline(hardware.peak_flops_per_s / GFLOP, color=ORANGE, linestyle="--")
        _points(axes, counts, rates, GFLOP)
        ceiling = hardware.peak_flops_per_s / GFLOP
        axes.set(xscale="log", yscale="log", xlabel="tokens in the prompt", title=title)
        axes.set_ylim(rates[0].median / GFLOP / 2, ceiling * 2)
        axes.set_ylabel("arithmetic done (GFLOP/s)")
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        _label(axes, counts[-1], ceiling, "matrix ceiling", ORANGE, "above")
        _label(axes, *roof[len(roof) // 4], "the most\nthat is possible", BLUE, "above")
        return as_figure(
            figure,
            f"{title}. The rate grows with the prompt along the memory slope of the roofline "
            f"and then "
            f"flattens below the matrix ceiling of {hardware.peak_flops_per_s / GFLOP:.0f} "
            f"GFLOP/s.",
        )


def phases_on_the_roofline(points: Sequence[Mapping[str, Any]], hardware: Hardware) -> Figure:
    """Recorded steps on the measured roofline: decode on the slope, prefill under the ceiling.

    `points` are those of a record, by rising intensity: the first is the decode, the last the
    longest prefill."""
    intensities = [Work(p["flops"], p["bytes"]).intensity_flops_per_byte for p in points]
    rates = [_rate(p["flops"], Interval(**p["time_s"])) for p in points]
    decode, prefill = rates[0].median / GFLOP, rates[-1].median / GFLOP
    ridge, ceiling = hardware.ridge_flops_per_byte, hardware.peak_flops_per_s / GFLOP
    title = f"Prefill computes {format_significant(prefill / decode, 2)} times as fast as decode"
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
            f"{title}, on {hardware.name}. On a measured roofline, decode lies on the slope set by "
            f"memory bandwidth and prefill under the flat matrix ceiling; they meet at "
            f"{format_significant(ridge)} FLOP per byte.",
        )


def _rate(amount: float, time_s: Interval) -> Interval:
    """An amount over a time; the longest time gives the lowest rate."""
    return Interval(amount / time_s.median, amount / time_s.high, amount / time_s.low, time_s.n)


def _points(axes: Any, x: Sequence[float], measured: Sequence[Interval], unit: float) -> None:
    middles = [interval.median / unit for interval in measured]
    below = [_reach(interval.median - interval.low) / unit for interval in measured]
    above = [_reach(interval.high - interval.median) / unit for interval in measured]
    axes.errorbar(
        x, middles, yerr=[below, above], fmt="o", color=INK, markersize=5.5, capsize=3, zorder=3
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
    """Such as 1, 2, 5, 10, 20, ... as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(subs=tuple(digits)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _log_range(first: float, last: float, count: int = 60) -> list[float]:
    return [first * (last / first) ** (i / (count - 1)) for i in range(count)]
