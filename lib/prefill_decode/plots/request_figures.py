"""Request figures: one request's life, drawn with the times that a record's steps took.

The prefill is the median of its rounds; each token after the first has the time of a decode step of
another round, in the order of the rounds. Disturbed rounds are left out where enough others
remain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import Any

from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.statistics import LEAST_SAMPLES, median_interval
from prefill_decode.units import format_seconds, format_significant, seconds_unit

MOST_STEPS = 16  # ticks that a phone still tells apart
HEIGHT_INCHES = 2.1


@dataclass(frozen=True)
class Life:
    """A prompt's prefill and the decode steps that follow it."""

    prompt_tokens: int
    context_tokens: int  # in the cache of the decode steps
    prefill_s: float
    decode_s: tuple[float, ...]

    @property
    def token_s(self) -> float:
        """Of a decode step, the median."""
        return median_interval(self.decode_s).median

    @property
    def tokens_for_the_prompt(self) -> float:
        """Decode steps that take as long as the prefill."""
        return self.prefill_s / self.token_s


def life_of(
    points: Sequence[Mapping[str, Any]],
    raw_s: Mapping[str, Sequence[float]],
    disturbed: Sequence[bool],
) -> Life | None:
    """From a record's steps of one sequence: its decode, and the prefill whose prompt is nearest to
    the context of that decode. None where one of the two is missing."""
    alone = [point for point in points if point["sequences"] == 1]
    decodes = [p for p in alone if p["new_tokens"] == 1 and p["chunks"][0][1] > 0]
    prefills = [p for p in alone if p["new_tokens"] > 1 and p["chunks"][0][1] == 0]
    if not decodes or not prefills:
        return None
    decode = decodes[0]
    context = int(decode["chunks"][0][1])
    prefill = min(prefills, key=lambda p: abs(log(p["new_tokens"] / context)))
    rounds = zip(raw_s[decode["step"]], disturbed, strict=True)
    quiet = [time_s for time_s, bad in rounds if not bad]
    if len(quiet) < LEAST_SAMPLES:  # then the medians count the disturbed rounds, too
        quiet = list(raw_s[decode["step"]])
    return Life(
        int(prefill["new_tokens"]),
        context,
        float(prefill["time_s"]["median"]),
        tuple(quiet[:MOST_STEPS]),
    )


def request_life(life: Life, machine: str) -> Figure:
    """A bar for the prefill, then a tick for every token of the answer, over time."""
    factor, unit = seconds_unit(life.prefill_s + sum(life.decode_s))
    first = life.prefill_s / factor
    ticks = [first, *accumulate((each / factor for each in life.decode_s), initial=first)][1:]
    ratio = format_significant(life.tokens_for_the_prompt, 2)
    title = f"Reading {life.prompt_tokens} tokens takes as long as writing {ratio}"
    with canvas() as figure:
        figure.set_figheight(HEIGHT_INCHES)
        axes = figure.subplots()
        axes.barh([0], [first], height=0.9, color=BLUE, linewidth=0)
        axes.vlines(ticks, -0.45, 0.45, color=ORANGE, linewidth=2.2)
        axes.set(title=title, xlim=(0, ticks[-1] * 1.01), ylim=(-1.5, 1.5), yticks=[])
        axes.set_xlabel(f"time since the request began ({unit})")
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        _words(axes, life, ticks[-1])
        return as_figure(figure, f"{title}, on {machine}. {_spoken(life)}")


def _words(axes: Any, life: Life, end: float) -> None:
    first = f"first token after {format_seconds(life.prefill_s)}"
    each = f"then one every {format_seconds(life.token_s)}"
    for x, y, side, words, color, weight in (
        (0, 0.62, "left", "prefill: the prompt in one step", BLUE, "bold"),
        (end, 0.62, "right", "decode: a token a step", ORANGE, "bold"),
        (0, -0.62, "left", first, INK, "normal"),
        (end, -0.62, "right", each, INK, "normal"),
    ):
        axes.text(
            x,
            y,
            words,
            ha=side,
            va="bottom" if y > 0 else "top",
            color=color,
            fontweight=weight,
            fontsize=9.5,
        )


def _spoken(life: Life) -> str:
    return (
        f"Over time: the prefill of {life.prompt_tokens} tokens takes "
        f"{format_seconds(life.prefill_s)} and brings the first token; then {len(life.decode_s)} "
        f"decode steps, with {life.context_tokens} tokens in the cache, bring one each, every "
        f"{format_seconds(life.token_s)}."
    )
