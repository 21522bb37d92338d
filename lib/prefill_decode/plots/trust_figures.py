"""Trust figures: how far results move when nothing has changed, and when something has."""

import re
from collections.abc import Mapping, Sequence
from math import expm1, log1p
from statistics import NormalDist, median
from typing import Any

from prefill_decode.plots.svg import BLUE, INK, ORANGE, WIDTH_INCHES, Figure, as_figure, canvas
from prefill_decode.statistics import COVERAGE
from prefill_decode.units import format_significant

MARKS = ("o", "s", "^", "D", "v", "P")
ROW_INCHES, FRAME_INCHES = 0.3, 1.25
SORT_INCHES = 0.75
PLANTED = re.compile(r"planted (\d+(?:\.\d+)?)%")
# How many standard deviations the half-width of a normal interval of this coverage is.
DEVIATIONS = NormalDist().inv_cdf((1 + COVERAGE) / 2)


def planted_share(sort: str) -> float:
    """The slowdown that a name such as "planted 10%" speaks of; 0 if it speaks of none."""
    found = PLANTED.match(sort)
    return float(found[1]) / 100 if found else 0.0


def beyond_the_line(
    distributions: Mapping[str, Mapping[str, Sequence[float]]], tolerance: float
) -> dict[str, tuple[int, int]]:
    """For each sort of pairs, how many session medians reach half the tolerance, and of how
    many."""
    line = log1p(tolerance) / 2
    values = {
        sort: [v for group in steps.values() for v in group]
        for sort, steps in _sorts(distributions).items()
    }
    return {sort: (sum(v >= line for v in each), len(each)) for sort, each in values.items()}


def sessions_figure(
    distributions: Mapping[str, Mapping[str, Sequence[float]]], tolerance: float
) -> Figure:
    """Session medians of the log ratio: equal code, code with a planted slowdown, and the line
    from which a session may be called slower. ValueError if there are none."""
    counts = beyond_the_line(distributions, tolerance)
    if not counts:
        raise ValueError("a figure of sessions needs their medians; got none")
    told = [f"{beyond} of {total} {_words(sort)}" for sort, (beyond, total) in counts.items()]
    title = f"Beyond the line: {_extremes(counts)}"
    line = log1p(tolerance) / 2
    with canvas() as figure:
        figure.set_size_inches(WIDTH_INCHES, FRAME_INCHES + SORT_INCHES * len(counts))
        axes = figure.subplots()
        _draw_sessions(axes, _sorts(distributions))
        axes.axvline(100 * expm1(line), color=ORANGE, linestyle="--")
        axes.set(xlabel="current / base, slower by (%)")
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        axes.set(ylim=(len(counts) - 0.5, -0.6), yticks=range(len(counts)))
        axes.set_yticklabels([_words(sort) for sort in counts])
        axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.28), frameon=False, ncols=3)
        return as_figure(
            figure,
            f"Beyond the line at half the tolerance, {_percent(expm1(line))} slower: "
            f"{', '.join(told)}. {_spoken_sessions(_sorts(distributions))}",
        )


def spread_finding(spread: Mapping[str, Mapping[str, float]]) -> str:
    """How much further runs lie apart than their own intervals say, in the middle quantity."""
    ratios = [
        DEVIATIONS * each["between_runs"] / each["half_width"]
        for each in spread.values()
        if each["half_width"]
    ]
    if not ratios:
        return "Runs that say nothing of their own spread"
    return f"Runs lie {format_significant(median(ratios), 2)} times as far apart as each one says"


def spread_figure(spread: Mapping[str, Mapping[str, float]]) -> Figure:
    """For each quantity the standard deviation between runs, beside the one that a run's own
    interval stands for. ValueError if there is none."""
    if not spread:
        raise ValueError("a figure of spreads needs a quantity; got none")
    names = sorted(spread, key=lambda name: spread[name]["between_runs"])
    between = [100 * spread[name]["between_runs"] for name in names]
    own = [100 * spread[name]["half_width"] / DEVIATIONS for name in names]
    title = spread_finding(spread)
    with canvas() as figure:
        figure.set_size_inches(WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(names))
        axes = figure.subplots()
        rows = range(len(names))
        axes.hlines(rows, own, between, color=INK, alpha=0.4)
        tick = {"marker": "|", "markersize": 13, "markeredgewidth": 2.5, "linestyle": "none"}
        axes.plot(own, rows, color=BLUE, label="as one run says", **tick)
        axes.plot(between, rows, "o", color=INK, markersize=5.5, label="between runs")
        axes.set(yticks=rows, xlim=(0, None), xlabel="standard deviation (%)")
        axes.set_yticklabels([_shorten(name) for name in names], fontsize=9.5)
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
        axes.legend(loc="lower right", frameon=False)
        return as_figure(figure, f"{title}. {_spoken_spread(names, between, own)}")


def _sorts(
    distributions: Mapping[str, Mapping[str, Sequence[float]]],
) -> dict[str, Mapping[str, Sequence[float]]]:
    """Those with a value, by rising slowdown."""
    found = [sort for sort, steps in distributions.items() if any(len(v) for v in steps.values())]
    return {sort: distributions[sort] for sort in sorted(found, key=planted_share)}


def _extremes(counts: Mapping[str, tuple[int, int]]) -> str:
    """What is equal beside what is slowest, short enough for a title."""
    told = [
        f"{beyond} of {total} {'slower' if planted_share(sort) else sort}"
        for sort, (beyond, total) in counts.items()
    ]
    return ", ".join(dict.fromkeys((told[0], told[-1])))


def _draw_sessions(axes: Any, sorts: Mapping[str, Mapping[str, Sequence[float]]]) -> None:
    steps = list(dict.fromkeys(step for groups in sorts.values() for step in groups))
    for row, (sort, groups) in enumerate(sorts.items()):
        planted = 100 * planted_share(sort)
        axes.plot([planted, planted], [row - 0.4, row + 0.4], color=BLUE)
        for place, (step, mark) in enumerate(zip(steps, _cycled(len(steps)), strict=True)):
            values = [100 * expm1(value) for value in groups.get(step, [])]
            height = row + 0.24 * (place - (len(steps) - 1) / 2)
            style = {"color": INK, "alpha": 0.6, "markersize": 4.5, "linestyle": "none"}
            label = step if row == 0 else None
            axes.plot(values, [height] * len(values), marker=mark, label=label, **style)


def _cycled(count: int) -> list[str]:
    return [MARKS[i % len(MARKS)] for i in range(count)]


def _words(sort: str) -> str:
    share = planted_share(sort)
    return f"{100 * share:g}% slower" if share else sort


def _spoken_sessions(sorts: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    sentences = []
    for sort, groups in sorts.items():
        middles = [
            f"{step} {_percent(expm1(median(values)))}" for step, values in groups.items() if values
        ]
        sentences.append(f"Middle session, {_words(sort)}: {', '.join(middles)}.")
    return " ".join(sentences)


def _spoken_spread(names: Sequence[str], between: Sequence[float], own: Sequence[float]) -> str:
    parts = [
        f"{name}: {format_significant(b, 2)}% between runs, {format_significant(o, 2)}% as one says"
        for name, b, o in zip(names, between, own, strict=True)
    ]
    return f"Standard deviations: {'; '.join(parts)}."


def _percent(share: float) -> str:
    return f"{format_significant(100 * share, 2)}%"


def _shorten(name: str) -> str:
    return name if len(name) <= 27 else name[:26] + "…"
