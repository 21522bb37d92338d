"""Crossover figures: every shape's tipping point, measured against predicted, and its tables.

On the diagonal the ceilings were right, on the dashed line one constant would have been."""

from collections.abc import Mapping, Sequence
from typing import Any

from prefill_decode.crossover_map import Sweep, best_constant, mean_log_error
from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.figures import _decade_ticks, _reach
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, closing, format_interval, format_interval_s, table
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.units import format_bytes, format_significant

COLORS = (BLUE, INK)  # the first dtype's, the second's; vermilion is the rival's
MARKS = ("o", "s")
MARGIN = 1.6  # of the axes beyond the outermost points


def crossover_map(sweeps: Sequence[Sweep], measured: Mapping[str, Sequence[float]]) -> Figure:
    """Measured against predicted crossovers, one point a sweep, with the best constant.

    `measured` holds the crossovers of every round by the name of a sweep."""
    found = {sweep.name: median_interval(measured[sweep.name]) for sweep in sweeps}
    middles = [interval.median for interval in found.values()]
    constant = best_constant(middles)
    title = f"From {_short(min(middles))} to {_short(max(middles))} sequences on one device"
    with canvas() as figure:
        axes = figure.subplots()
        places = [sweep.predicted for sweep in sweeps] + middles
        span = (min(places) / MARGIN, max(places) * MARGIN)
        axes.plot(span, span, color=INK, alpha=0.5)
        axes.axhline(constant, color=ORANGE, linestyle="--")
        for dtype, color, mark in zip(_dtypes(sweeps), COLORS, MARKS, strict=False):
            _draw(axes, [s for s in sweeps if s.model.dtype == dtype], found, color, mark)
        axes.set(xscale="log", yscale="log", xlim=span, ylim=span, title=title)
        axes.set(xlabel="predicted crossover (sequences)", ylabel="measured (sequences)")
        for axis in (axes.xaxis, axes.yaxis):
            _decade_ticks(axis)
        _label_lines(axes, span, constant)
        axes.legend(loc="upper left", frameon=False)
        return as_figure(figure, f"{title}. {_spoken_map(sweeps, found, constant)}")


def sweeps_table(sweeps: Sequence[Sweep]) -> Text:
    """Each sweep's shape, what is shared, what each sequence brings, and the prediction."""
    rows = [
        (
            sweep.name,
            str(sweep.model.num_layers),
            format_bytes(sweep.model.weight_bytes_read),
            format_bytes(sweep.model.kv_bytes(sweep.context_tokens)),
            ", ".join(map(str, sweep.batch_sizes)),
            format_significant(sweep.predicted),
        )
        for sweep in sweeps
    ]
    header = ("sweep", "layers", "weights", "cache of a sequence", "batches", "crossover")
    return Text(table(header, rows))


def sweeps_times_table(
    sweeps: Sequence[Sweep], times: Timings, ceilings: Mapping[str, Ceilings]
) -> Text:
    """Measured crossovers beside predicted ones, and the share of the possible that steps reach.

    `ceilings` go by dtype. The shares are those of the smallest and of the largest batch."""
    rows = []
    for sweep in sweeps:
        first, *_, last = sweep.works.items()
        own = ceilings[sweep.model.dtype]
        shares = [f"{own.reached(work, name, times).median:.0%}" for name, work in (first, last)]
        measured = median_interval(sweep.measured(times.times_s))
        unstable = any(times.is_unstable(name) for name in sweep.works)
        rows.append(
            (
                f"{sweep.name} (unstable)" if unstable else sweep.name,
                format_significant(sweep.predicted),
                format_interval(measured),
                format_interval_s(times.time_s(first[0])),
                shares[0],
                format_interval_s(times.time_s(last[0])),
                shares[1],
            )
        )
    header = (
        "sweep",
        "predicted",
        "measured, 95%",
        "one sequence",
        "least / time",
        "largest batch",
        "least / time",
    )
    return Text(table(header, rows) + "\n\n" + closing(times))


def _draw(
    axes: Any, sweeps: Sequence[Sweep], found: Mapping[str, Interval], color: str, mark: str
) -> None:
    intervals = [found[sweep.name] for sweep in sweeps]
    below = [_reach(interval.median - interval.low) for interval in intervals]
    above = [_reach(interval.high - interval.median) for interval in intervals]
    axes.errorbar(
        [sweep.predicted for sweep in sweeps],
        [interval.median for interval in intervals],
        yerr=[below, above],
        fmt=mark,
        color=color,
        markersize=6,
        capsize=3,
        zorder=3,
        label=sweeps[0].model.dtype,
    )


def _label_lines(axes: Any, span: tuple[float, float], constant: float) -> None:
    low = (span[0] * constant) ** 0.5  # between the lowest points and the middle ones
    axes.annotate(
        "as the ceilings predict", (low, low), (8, -3), textcoords="offset points", va="top"
    )
    axes.annotate(
        f"best single constant: {_short(constant)}",
        (span[0], constant),
        (4, 4),
        textcoords="offset points",
        color=ORANGE,
    )


def _spoken_map(sweeps: Sequence[Sweep], found: Mapping[str, Interval], constant: float) -> str:
    points = [
        f"{sweep.name}: predicted {_short(sweep.predicted)}, measured "
        f"{_short(found[sweep.name].median)}"
        for sweep in sweeps
    ]
    middles = [found[sweep.name].median for sweep in sweeps]
    predicted = [sweep.predicted for sweep in sweeps]
    errors = mean_log_error(middles, predicted), mean_log_error(middles, [constant] * len(middles))
    return (
        f"Crossovers in sequences, {'; '.join(points)}. The best single constant is "
        f"{_short(constant)}; its mean log error is {errors[1]:.2f}, that of the ceilings' "
        f"prediction {errors[0]:.2f}."
    )


def _dtypes(sweeps: Sequence[Sweep]) -> list[str]:
    return list(dict.fromkeys(sweep.model.dtype for sweep in sweeps))


def _short(value: float) -> str:
    return format_significant(value, 2)
