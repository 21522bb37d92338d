"""Pace figures: how long a pair of workers and a whole one take for loads that lean, alone and
together, and how busy either of the pair was.

As everywhere in the book, predictions are diamonds and lines, measurements are points, the title is
the finding."""

from typing import Any

from prefill_decode.fleet_claims.pace import (
    LEANING,
    LOADS,
    PAIR,
    PLACES,
    REQUESTS,
    TOGETHER,
    WAYS,
    WHOLE,
    Found,
    Plan,
)
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import SEEN, Text, format_interval, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.units import MS, format_seconds, format_significant

SPLIT_OF = 8  # workers, for the law's best split
NOT_APPLICABLE = "—"
BARS = {"prefill": (0.3, BLUE), "decode": (-0.3, ORANGE)}  # above and below a load's place


def pace_plan_table(plan: Plan) -> Text:
    """What is expected of every load before any of them has run."""
    rows = []
    for load in LOADS:
        rows.append(
            (
                load,
                *_of_endless(plan, load),
                format_seconds(plan.simulated_s[PAIR, load]),
                format_seconds(plan.busy_s["prefill", load]),
                format_seconds(plan.busy_s["decode", load]),
                format_significant(plan.idle(load)),
                format_seconds(plan.simulated_s[WHOLE, load]),
            )
        )
    header = (
        "load",
        "prompt, answer tokens",
        "balance, P / D",
        f"best of {SPLIT_OF}, P : D",
        f"{PAIR}, simulated",
        "prefill worker busy",
        "decode worker busy",
        "idle share",
        f"{WHOLE}, simulated",
    )
    found = plan.calibrated
    errors = max(each.median for each in found.residuals)
    closing = (
        f"{REQUESTS} requests of each load, all at once; {PLACES} may decode at a time. Two "
        f"workers that do both, side by side, would take {format_seconds(plan.two_whole_s)} for "
        f"both loads. Step times are of {found.num_rounds} rounds on one thread; the fit errs by "
        f"{errors:.1%} in the median of its worst kind of step."
    )
    return Text(table(header, rows) + f"\n\n{closing}\n")


def _of_endless(plan: Plan, load: str) -> tuple[str, str, str]:
    if load == TOGETHER:
        return (NOT_APPLICABLE,) * 3
    law, (prompt, answer) = plan.laws[load], plan.lengths[load]
    prefill, decode = law.best(SPLIT_OF)
    return f"{prompt}, {answer}", format_significant(law.ratio), f"{prefill} : {decode}"


def pace_table(found: Found) -> Text:
    """What every load took either way, beside what was simulated."""
    plan, rows = found.plan, []
    for way in WAYS:
        for load in LOADS:
            rows.append(
                (
                    f"{way}: {load}",
                    format_interval_s(found.time_s(way, load)),
                    format_seconds(plan.simulated_s[way, load]),
                    format_interval(found.over_simulated(way, load)),
                    format_interval(found.idle(load)) if way == PAIR else NOT_APPLICABLE,
                    format_significant(plan.idle(load)) if way == PAIR else NOT_APPLICABLE,
                )
            )
    header = (
        "way and load",
        f"time, {SEEN}",
        "simulated",
        f"{SEEN} / simulated",
        f"idle share, {SEEN}",
        "simulated",
    )
    added = "; ".join(
        f"{way} {format_interval(found.extra(way))}, simulated "
        f"{format_significant(plan.extra(way))}"
        for way in WAYS
    )
    closing = f"A second load adds, of the time of one: {added}. {timer_says(found.times)}"
    return Text(table(header, rows) + f"\n\n{closing}\n")


def loads_together(found: Found) -> Figure:
    """The time of each load either way, with the busy time of both workers of the pair, and where
    both loads would end if work were work."""
    middle_s = {(way, load): found.time_s(way, load).median for way in WAYS for load in LOADS}
    pair, whole = (format_significant(1 + found.extra(way).median, 2) for way in WAYS)
    title = f"Both loads: {pair} × the time of one for the pair, {whole} × for one worker"
    with canvas() as figure:
        figure.set_figheight(figure.get_figheight() * 1.1)
        panels = figure.subplots(2, 1, sharex=True, height_ratios=(1.25, 1))
        for axes, way in zip(panels, WAYS, strict=True):
            _draw_way(axes, found, way, sum(middle_s[way, load] for load in LEANING) / MS)
        widest = max(sum(middle_s[way, load] for load in LEANING) for way in WAYS) / MS
        panels[0].set_xlim(0, 1.12 * widest)
        panels[-1].set_xlabel("time until the last token (ms)")
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        return as_figure(figure, f"{title}. {_spoken(found)}")


def _draw_way(axes: Any, found: Found, way: str, alone_ms: float) -> None:
    places = {load: -number for number, load in enumerate(LOADS)}
    for load, place in places.items():
        if way == PAIR:
            for phase, (shift, color) in BARS.items():
                busy_ms = found.busy_s(phase, load).median / MS
                axes.barh(place + shift, busy_ms, 0.22, color=color, alpha=0.75, linewidth=0)
        measured = found.time_s(way, load)
        ends = [[measured.median - measured.low], [measured.high - measured.median]]
        axes.errorbar(
            [measured.median / MS],
            [place],
            xerr=[[each / MS for each in side] for side in ends],
            fmt="o",
            color=INK,
            markersize=5.5,
            capsize=3,
            zorder=3,
        )
        foreseen_ms = found.plan.simulated_s[way, load] / MS
        axes.plot(foreseen_ms, place, "D", markersize=8, markerfacecolor="none",
                  markeredgecolor=INK)  # fmt: skip
    last = places[TOGETHER]
    axes.plot([alone_ms] * 2, [last - 0.45, last + 0.45], color=INK, alpha=0.6, linestyle="--")
    axes.set_yticks(list(places.values()), labels=list(places))
    axes.set_ylim(last - 0.55, 0.55)
    if way == PAIR:
        axes.set_title("pair, and how long its workers computed", fontsize=10.5)
        _name_bars(axes, found)
        axes.annotate("one after\nthe other", (alone_ms, last + 0.45), (-3, 0),
                      textcoords="offset points", ha="right", va="top", fontsize=9)  # fmt: skip
    else:
        axes.set_title(f"{way}, on one thread as each of the pair", fontsize=10.5)


def _name_bars(axes: Any, found: Found) -> None:
    """Each beside its bar of the load that leans to it."""
    for (phase, (shift, color)), load in zip(BARS.items(), LEANING, strict=True):
        place = (found.busy_s(phase, load).median / MS, shift - LOADS.index(load))
        axes.annotate(f"{phase} worker", place, (4, 0), textcoords="offset points", va="center",
                      color=color, fontsize=9.5)  # fmt: skip


def _spoken(found: Found) -> str:
    told = [
        f"{way}, {load}: measured {format_interval_s(found.time_s(way, load))}, simulated "
        f"{format_seconds(found.plan.simulated_s[way, load])}"
        for way in WAYS
        for load in LOADS
    ]
    return "; ".join(told) + "."
