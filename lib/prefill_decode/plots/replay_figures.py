"""Replay figures: what an engine made of requests, against what each story says of them.

As everywhere in the book, predictions are lines, measurements are points, the title is the finding:
the line is where what was measured equals what was foreseen."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from prefill_decode.fleet_claims.foreseeing import (
    CHECKS,
    COMPARED,
    JUDGED,
    LOADS,
    MEASURED,
    OWN_STEPS,
    ROOFLINE,
    SIMULATED,
    Found,
    Plan,
    Wait,
)
from prefill_decode.fleet_claims.loads import MEAN_TTFT
from prefill_decode.plots.figures import _decade_ticks
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import SEEN, Text, format_interval, format_interval_s, table
from prefill_decode.plots.tables import closing as timer_says
from prefill_decode.units import MS, format_seconds, format_significant

HEADROOM = 1.8  # of the axis, for words above all points


def plan_table(plan: Plan) -> Text:
    """What every story says of the loads, before any request has been replayed."""
    rows = []
    for name, load in LOADS.items():
        for figure in COMPARED:
            rows.append(
                (
                    f"{name}: {figure}",
                    _range(load.prompt_tokens),
                    _range(load.output_tokens),
                    format_significant(plan.rates_per_s[name]),
                    format_seconds(plan.mean_s(name, figure, SIMULATED)),
                    format_seconds(plan.mean_s(name, figure, OWN_STEPS)),
                    format_seconds(plan.mean_s(name, figure, ROOFLINE)),
                    format_significant(plan.over_simulated(name, figure)),
                    "yes" if (name, figure) in JUDGED else "no",
                )
            )
    header = (
        "load: figure",
        "prompt tokens",
        "answer tokens",
        "requests/s",
        SIMULATED,
        OWN_STEPS,
        ROOFLINE,
        f"{OWN_STEPS} / {SIMULATED}",
        "judged",
    )
    found = plan.calibrated
    closing = (
        f"{plan.num_requests} requests in a replay. Step times are of {found.num_rounds} rounds "
        f"in which no request took part; {_errs(plan)}."
    )
    return Text(table(header, rows) + f"\n\n{closing}\n")


def replays_table(found: Found) -> Text:
    """What was measured in the replays, beside what every story says of the same requests."""
    compared = [(name, figure) for name in LOADS for figure in COMPARED]
    rows = [
        (
            f"{name}: {figure}",
            format_interval_s(found.time_s(name, figure, MEASURED)),
            format_seconds(found.time_s(name, figure, SIMULATED).median),
            *(
                format_interval(found.ratio(name, figure, story))
                for story in (SIMULATED, OWN_STEPS, ROOFLINE)
            ),
            str(found.ratio(name, figure).n),
        )
        for name, figure in [*compared, *((check, MEAN_TTFT) for check in CHECKS)]
    ]
    header = (
        "load: figure",
        SEEN,
        SIMULATED,
        *(f"{SEEN} / {story}" for story in (SIMULATED, OWN_STEPS, ROOFLINE)),
        "n",
    )
    return Text(table(header, rows) + f"\n\n{timer_says(found.times)}\n")


def waits_of_requests(found: Found) -> Figure:
    """TTFT of every request, measured against foreseen: by the simulator, and by own steps."""
    waits = found.waits()
    by_simulator = [wait.simulated_s for wait in waits]
    by_own_steps = [wait.own_steps_s for wait in waits]
    measured = [wait.measured_s for wait in waits]
    near, far = _miss(measured, by_simulator), _miss(measured, by_own_steps)
    title = f"Simulated waits miss by {near:.0%}, own steps by {far:.0%}"
    with canvas() as figure:
        figure.set_figheight(figure.get_figheight() * 1.15)
        axes = figure.subplots()
        every = [*measured, *by_simulator, *by_own_steps]
        ends = (min(every) / MS / 1.4, max(every) / MS * 1.4)
        axes.plot(ends, ends, color=INK, alpha=0.5)
        _cloud(axes, by_own_steps, measured, ORANGE, "^")
        _cloud(axes, by_simulator, measured, BLUE, "o")
        axes.set(
            xscale="log", yscale="log", xlim=ends, ylim=(ends[0], HEADROOM * ends[1]), title=title
        )
        axes.set_xlabel("TTFT foreseen (ms)")
        axes.set_ylabel("TTFT measured (ms)")
        for axis in (axes.xaxis, axes.yaxis):
            _decade_ticks(axis, (1, 3))
        _corner(axes, 0.02, 0.98, "▲ by its own steps alone,\n    as if nobody else came", ORANGE)
        _corner(axes, 0.98, 0.02, "● by the simulator", BLUE)
        return as_figure(
            figure, f"{title}, in the median, of requests' TTFT. {_spoken_waits(waits)}"
        )


def _cloud(
    axes: Any, foreseen_s: Sequence[float], measured_s: Sequence[float], color: str, mark: str
) -> None:
    x, y = ([each / MS for each in values] for values in (foreseen_s, measured_s))
    axes.plot(x, y, mark, color=color, markersize=4, alpha=0.6, markeredgewidth=0)


def _corner(axes: Any, x: float, y: float, words: str, color: str) -> None:
    left, top = x < 0.5, y > 0.5
    axes.text(
        x,
        y,
        words,
        transform=axes.transAxes,
        ha="left" if left else "right",
        va="top" if top else "bottom",
        color=color,
        fontsize=9.5,
    )


def _miss(measured_s: Sequence[float], foreseen_s: Sequence[float]) -> float:
    """|foreseen / measured - 1|, the median over requests."""
    pairs = zip(foreseen_s, measured_s, strict=True)
    return median(abs(foreseen / measured - 1) for foreseen, measured in pairs)


def _spoken_waits(waits: Sequence[Wait]) -> str:
    said = []
    for name in LOADS:
        own = [wait for wait in waits if wait.load == name]
        middle = [
            format_seconds(median(each))
            for each in (
                [wait.measured_s for wait in own],
                [wait.simulated_s for wait in own],
                [wait.own_steps_s for wait in own],
            )
        ]
        said.append(
            f"{name}, {len(own)} requests: measured {middle[0]}, simulated {middle[1]}, by own "
            f"steps {middle[2]}"
        )
    return f"Median TTFT of each load: {'; '.join(said)}."


def _errs(plan: Plan) -> str:
    errors = [each.median for each in plan.calibrated.residuals]
    return f"the fit errs by {max(errors):.1%} in the median of its worst kind of step"


def _range(tokens: tuple[int, int]) -> str:
    return f"{tokens[0]} to {tokens[1]}"
