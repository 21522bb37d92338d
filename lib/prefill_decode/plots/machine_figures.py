"""Machine figures: one claim on every machine that measured it, row by row.

Each machine has its own expected values, so each row has its own marks: a blue line where the claim
is, a dashed one where its rival is, shade on the claim's side of the midpoint, and the measured
median with its interval."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite, sqrt
from typing import Any

from prefill_decode.plots.figures import _decade_ticks, _reach
from prefill_decode.plots.svg import BLUE, INK, ORANGE, WIDTH_INCHES, Figure, as_figure, canvas
from prefill_decode.plots.tables import format_interval
from prefill_decode.results import Run
from prefill_decode.statistics import Interval
from prefill_decode.units import format_significant

MOST_MACHINES = 12  # rows of a figure; the tables hold every machine
LONGEST_LABEL = 46  # characters across a figure
ROW_INCHES, PANEL_INCHES, TITLE_INCHES = 0.46, 0.78, 0.3
MARGIN = 1.12  # of an axis beyond the outermost mark
SHADE = 0.13


def in_order(runs: Sequence[Run], slug: str) -> list[Run]:
    """One claim's newest run on each machine: this machine's first, the others by title."""
    newest: dict[str, Run] = {}
    for run in sorted(runs, key=lambda run: run.date):
        newest[run.machine["slug"]] = run
    return sorted(
        newest.values(),
        key=lambda run: (run.machine["slug"] != slug, run.machine["title"], run.machine["slug"]),
    )


def shown_of(runs: Sequence[Run], slug: str) -> list[Run]:
    """The rows of a figure: all machines, or this one and the most recently measured others."""
    ordered = in_order(runs, slug)
    if len(ordered) <= MOST_MACHINES:
        return ordered
    recent = sorted(ordered, key=lambda run: (run.machine["slug"] == slug, run.date))
    return in_order(recent[-MOST_MACHINES:], slug)


def labels(runs: Sequence[Run], slug: str) -> dict[str, str]:
    """What to call each machine, by slug: its title, with the slug's mark where titles repeat."""
    named = distinct_titles({run.machine["slug"]: str(run.machine["title"]) for run in runs})
    return {each: f"this machine: {t}" if each == slug else t for each, t in named.items()}


def distinct_titles(titles: Mapping[str, str]) -> dict[str, str]:
    """Titles by slug, each followed by its slug's mark where another machine has the same."""
    count = Counter(titles.values())
    return {
        slug: f"{title} ({slug.rpartition('-')[2]})" if count[title] > 1 else title
        for slug, title in titles.items()
    }


def machines_figure(runs: Sequence[Run], slug: str) -> Figure:
    """Every prediction of one claim, a panel each, and in it every machine, a row each.

    `runs` are those of one claim. ValueError for none, or for none with a prediction."""
    rows = shown_of(runs, slug)
    panels = panels_of(rows)
    if not panels:
        raise ValueError(
            f"a figure of machines needs a run that made a prediction; got {len(rows)}"
        )
    names = labels(in_order(runs, slug), slug)
    title = machines_finding(rows)
    with canvas() as figure:
        heights = [PANEL_INCHES + ROW_INCHES * len(mine) for mine in panels.values()]
        figure.set_size_inches(WIDTH_INCHES, TITLE_INCHES + sum(heights))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11.5)
        all_axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for (name, mine), axes in zip(panels.items(), all_axes[:, 0], strict=True):
            _panel(axes, name, mine, names)
        return as_figure(figure, f"{title}. {_spoken_panels(panels, names)}")


def panels_of(rows: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs that hold each prediction, by its name, in the order of the first run."""
    names = dict.fromkeys(name for run in rows for name in run.expected if name in run.quantities)
    return {
        name: [run for run in rows if name in run.expected and name in run.quantities]
        for name in names
    }


def machines_finding(rows: Sequence[Run]) -> str:
    """How many of the machines support the claim, in a few words."""
    outcomes = [run.outcome for run in rows]
    if len(outcomes) == 1:
        return f"{outcomes[0].capitalize()} on the one machine that {done_of(rows[0])} it"
    held = outcomes.count("supported")
    if held == len(outcomes):
        return "Supported on both machines" if held == 2 else f"Supported on all {held} machines"
    return f"Supported on {held} of {len(outcomes)} machines"


def done_of(run: Run) -> str:
    """What a run did with its figures."""
    return "simulated" if run.is_simulated else "measured"


def _panel(axes: Any, name: str, runs: Sequence[Run], names: Mapping[str, str]) -> None:
    low, high = _span(name, runs)
    axes.set(xscale="log", xlim=(low, high), ylim=(len(runs) - 0.5, -0.5), yticks=[])
    axes.set_title(_shorten(name), fontweight="normal", fontsize=10.5, pad=18)
    axes.spines["left"].set_visible(False)
    _sparse_ticks(axes.xaxis, low, high)
    for row, run in enumerate(runs):
        _row(axes, row, run, name, names[run.machine["slug"]])
    expected, rival = runs[0].expected[name]
    for value, other, word, color in (
        (expected, rival, "claim", BLUE),
        (rival, expected, "rival", ORANGE),
    ):
        axes.annotate(
            word,
            (value, -0.5),
            (0, 3),
            textcoords="offset points",
            ha="left" if value < other else "right",
            color=color,
            annotation_clip=False,
        )


def _row(axes: Any, row: int, run: Run, name: str, label: str) -> None:
    expected, rival = run.expected[name]
    measured = run.quantities[name].measured
    top, bottom = row - 0.5, row + 0.5
    midpoint = sqrt(expected) * sqrt(rival)
    edge = axes.get_xlim()[0 if expected < rival else 1]
    axes.fill_betweenx([top, bottom], midpoint, edge, color=BLUE, alpha=SHADE, linewidth=0)
    below_label = [row, bottom]  # no line strikes a name through
    axes.plot([expected, expected], below_label, color=BLUE, linewidth=1.8)
    axes.plot([rival, rival], below_label, color=ORANGE, linewidth=1.8, linestyle="--")
    reach = [
        [_reach(measured.median - measured.low)],
        [_reach(measured.high - measured.median)],
    ]
    middle = max(measured.median, axes.get_xlim()[0])  # 0 has no place on a log axis
    style = {"fmt": "o", "color": INK, "markersize": 5.5, "capsize": 3, "zorder": 3}
    axes.errorbar([middle], [row + 0.2], xerr=reach, **style)
    axes.annotate(
        _shorten(label),
        (0.01, row - 0.2),
        xycoords=("axes fraction", "data"),
        va="center",
        fontsize=9.5,
        fontweight="bold" if label.startswith("this machine: ") else "normal",
        parse_math=False,
    )


def _span(name: str, runs: Sequence[Run]) -> tuple[float, float]:
    """The axis: every mark and every end of an interval that there is, with a margin."""
    places = [value for run in runs for value in run.expected[name]]
    for run in runs:
        measured = run.quantities[name].measured
        places += [measured.median, measured.low, measured.high]
    found = [place for place in places if isfinite(place) and place > 0]
    return min(found) / MARGIN, max(found) * MARGIN


def _sparse_ticks(axis: Any, low: float, high: float) -> None:
    """Few on a wide axis, enough on a narrow one."""
    digits = {1e3: (1,), 30: (1, 3), 6: (1, 2, 5), 0: (1, 1.5, 2, 3, 4, 5, 6, 8)}
    _decade_ticks(axis, next(each for fold, each in digits.items() if high / low > fold))


def _spoken_panels(panels: Mapping[str, Sequence[Run]], names: Mapping[str, str]) -> str:
    sentences = []
    for name, runs in panels.items():
        parts = [
            f"{names[run.machine['slug']]}, {format_interval(run.quantities[name].measured)} where "
            f"the claim expects {_short(run.expected[name][0])} and its rival "
            f"{_short(run.expected[name][1])}"
            for run in runs
        ]
        sentences.append(f"{name}: {'; '.join(parts)}.")
    return " ".join(sentences)


def stands_apart(mine: Interval, others: Sequence[Interval]) -> Interval | None:
    """The nearest of the others if `mine` overlaps none of them; None if it overlaps one.

    An interval without ends can not tell, and neither can no other one: None."""
    known = [each for each in others if isfinite(each.low) and isfinite(each.high)]
    if not known or not (isfinite(mine.low) and isfinite(mine.high)):
        return None
    if any(mine.low <= each.high and each.low <= mine.high for each in known):
        return None
    return min(known, key=lambda each: max(each.low - mine.high, mine.low - each.high))


def _shorten(label: str) -> str:
    return label if len(label) <= LONGEST_LABEL else label[: LONGEST_LABEL - 1] + "…"


def _short(value: float) -> str:
    return format_significant(value, 2)
