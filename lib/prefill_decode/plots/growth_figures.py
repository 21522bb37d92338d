"""Growth figures: what a step costs as its prompt or context grows, and what fills a batch.

As everywhere in the book, predictions are lines, measurements are points with intervals, the
title is the finding."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.figures import _label, _plain_ticks, _points, _spoken
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.words import Place, Words, place_words, uprights
from prefill_decode.roofline import StepWork
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk
from prefill_decode.units import MS, counted, format_seconds, format_significant

US = 1e-6


def time_of_each_prompt_token(
    times: Timings,
    steps: Mapping[int, str],
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
    fits: Sequence[tuple[float, float]],
) -> Figure:
    """Time to first token over the prompt's tokens, where a n + b n^2 is the straight line a + b n.

    `steps` names the timed request of each prompt length, `fits` holds (a, b) of every round."""
    counts = sorted(steps)
    hardware = ceilings.during(times)
    measured = [_divided(times.time_s(steps[count]), count) for count in counts]
    least_us = [works[steps[n]].least_time_s(hardware) / n / US for n in counts]
    a, b = (median(terms) for terms in zip(*fits, strict=True))
    first, last = counts[0], counts[-1]
    ratio = format_significant(measured[-1].median / measured[0].median)
    title = f"Per token, {last} cost {ratio} times as much as {first}"
    balance = f"{a / b:.0f} tokens" if b > 0 else "no length"
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot([0, *counts], [(a + b * n) / US for n in (0, *counts)], color=INK, alpha=0.5)
        axes.plot(counts, least_us, color=BLUE)
        axes.plot([0, last], [a / US, a / US], color=ORANGE, linestyle="--")
        _points(axes, counts, measured, US)
        axes.set(xlabel="tokens in the prompt", title=title)
        axes.set_ylabel("TTFT / tokens in the prompt (µs)")
        axes.set_ylim(0, 1.25 * max(each.median for each in measured) / US)
        _plain_ticks(axes.xaxis, counts)
        axes.tick_params(axis="x", rotation=45)
        _label(axes, last, least_us[0], "least time", BLUE, "below")
        _label(axes, last, a / US, "fit without attention", ORANGE, "above")
        shown = _spoken(counts, [format_seconds(each.median) for each in measured])
        return as_figure(
            figure,
            f"{title}. Time to first token over the tokens of the prompt: {shown}. In the fitted "
            f"law the products cost {format_seconds(a)} a token at every length, and attention as "
            f"much again at {balance}.",
        )


def time_against_context(
    times: Timings,
    steps: Mapping[int, Mapping[int, str]],
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
    fits: Mapping[int, Sequence[tuple[float, float]]],
) -> Figure:
    """Time of a decode step against the tokens that each sequence holds, for two KV-head counts.

    `steps[heads][tokens]` names a timed step, `fits[heads]` holds (intercept, slope) by round.
    """
    hardware = ceilings.during(times)
    few, many = sorted(steps)
    slopes = {heads: median(slope for _, slope in fits[heads]) for heads in (few, many)}
    ratio = format_significant(slopes[many] / slopes[few])
    title = (
        f"A cached token costs {ratio} times as much with {counted(many, 'KV head')} as with {few}"
    )
    spoken, labels, drawn = [], list[Words](), list[list[Place]]()
    with canvas() as figure:
        axes = figure.subplots()
        for heads, color in ((many, ORANGE), (few, BLUE)):
            counts = sorted(steps[heads])
            measured = [times.time_s(steps[heads][n]) for n in counts]
            least_ms = [works[steps[heads][n]].least_time_s(hardware) / MS for n in counts]
            axes.plot(counts, least_ms, color=color)
            _points(axes, counts, measured, MS, color)
            name = f"least, {counted(heads, 'KV head')}"
            labels.append(Words(name, counts[-2], least_ms[-2], color))
            drawn += [list(zip(counts, least_ms, strict=True)), *uprights(counts, measured, MS)]
            shown = _spoken(counts, [format_seconds(each.median) for each in measured])
            least = format_seconds(least_ms[-1] * MS)
            spoken.append(
                f"With {counted(heads, 'KV head')}, a step by tokens held by each sequence: "
                f"{shown}; at the last, least {least}"
            )
        axes.set(xlabel="tokens that each sequence holds", title=_wrapped(title))
        axes.set_ylabel("time of one step (ms)")
        axes.set_ylim(bottom=0)
        _plain_ticks(axes.xaxis, counts)
        axes.tick_params(axis="x", rotation=45)
        place_words(axes, labels, drawn)
        return as_figure(figure, f"{title}. " + ". ".join(spoken) + ".")


def batches_step_by_step(schedules: Mapping[str, Sequence[Sequence[Chunk]]], slots: int) -> Figure:
    """How many slots make a token at each step of each schedule, and how many make none."""
    counts = {name: len(steps) for name, steps in schedules.items()}
    title = ", ".join(f"{name} {count}" for name, count in counts.items())
    title = f"Steps for the same tokens: {title}"
    used = {name: _share_of_slots(steps, slots) for name, steps in schedules.items()}
    with canvas() as figure:
        panels = figure.subplots(len(schedules), 1, sharex=True, sharey=True, squeeze=False)
        for (name, steps), axes in zip(schedules.items(), panels[:, 0], strict=True):
            _draw_slots(axes, steps, slots)
            axes.set_title(f"{name}: {used[name]:.0%} of the slots make a token", fontsize=10.5)
        panels[-1, 0].set_xlabel("step")
        figure.supylabel("slots", fontsize=10.5)
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        spoken = [f"with {name} batching {used[name]:.0%} of the slots make one" for name in used]
        return as_figure(
            figure,
            f"{title}. Slots that make a token, step by step: " + "; ".join(spoken) + ". "
            "The others are empty until the longest answer of a batch is done, or the line ends.",
        )


def _draw_slots(axes: Any, steps: Sequence[Sequence[Chunk]], slots: int) -> None:
    making = [sum(chunk.samples_token for chunk in step) for step in steps]
    places = range(len(steps))
    empty = [slots] * len(steps)
    axes.bar(places, empty, width=1.0, align="edge", color=ORANGE, alpha=0.35, linewidth=0)
    axes.bar(places, making, width=1.0, align="edge", color=BLUE, linewidth=0)
    axes.set_yticks([0, slots])


def _share_of_slots(steps: Sequence[Sequence[Chunk]], slots: int) -> float:
    """Tokens made over the slots that were there to make them."""
    return sum(chunk.samples_token for step in steps for chunk in step) / (slots * len(steps))


def _divided(interval: Interval, by: float) -> Interval:
    ends = interval.median / by, interval.low / by, interval.high / by
    return Interval(*ends, interval.n, interval.coverage)


def _wrapped(title: str, width: int = 48) -> str:
    from textwrap import fill

    return fill(title, width)
