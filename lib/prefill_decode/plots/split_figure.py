"""Split figure: what every whole-worker split of a fleet carries, beside the roofline's bound.

Points are simulated, with intervals over seeds; the line is the law, made before them."""

from prefill_decode.plots.figures import _points, _spoken
from prefill_decode.plots.svg import BLUE, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import format_interval
from prefill_decode.simulator import Search
from prefill_decode.units import format_significant


def rate_against_split(found: Search) -> Figure:
    """Requests/s of a device against the split; whole workers, where they were tried, as the
    dashed line to beat."""
    apart = [each for each in found.found if not each.split.whole]
    whole = [each for each in found.found if each.split.whole]
    labels = [str(each.split) for each in apart]
    places = list(range(len(apart)))
    best = found.best
    most = format_significant(best.of_a_device_per_s.median)
    title = f"Best: {best.split}, {most} requests/s of a device"
    with canvas() as figure:
        axes = figure.subplots()
        bounds = [each.law_per_s / each.num_devices for each in apart]
        axes.plot(places, bounds, color=BLUE)
        _points(axes, places, [each.of_a_device_per_s for each in apart], 1)
        top = max(places, key=lambda place: bounds[place])
        axes.annotate("roofline", (top, bounds[top]), (-12, 0), color=BLUE, ha="right",
                      textcoords="offset points")  # fmt: skip
        for each in whole:
            rate = each.of_a_device_per_s
            axes.axhline(rate.median, color=ORANGE, linestyle="--")
            axes.annotate("whole workers", (-0.5, rate.median), (4, 4), color=ORANGE,
                          textcoords="offset points")  # fmt: skip
        axes.set(title=title, ylabel="requests/s of a device")
        axes.set_xlabel("prefill : decode workers")
        axes.set_ylim(bottom=0)
        axes.set_xlim(-0.5, len(apart) - 0.5)
        step = -(-len(places) // 9)  # as many labels as fit
        axes.set_xticks(places[::step], labels=labels[::step])
        told = [format_interval(each.of_a_device_per_s) for each in apart]
        rival = "".join(
            f" Whole workers: {format_interval(each.of_a_device_per_s)}." for each in whole
        )
        return as_figure(
            figure, f"{title}. Simulated requests/s of a device: {_spoken(labels, told)}.{rival}"
        )
