"""Fleet figures: what was simulated of fleets on data-sheet hardware, beside the roofline's law.

As everywhere in the book, predictions are lines and the title is the finding. Points are simulated,
with intervals over seeds."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prefill_decode.fleet_claims.pools import BALANCED, LEANING, Found, Load, Setting
from prefill_decode.plots.figures import _decade_ticks, _points
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, table
from prefill_decode.plots.words import Words, place_words
from prefill_decode.serving_metrics import Summary
from prefill_decode.simulator import Split
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.units import format_bytes, format_seconds, format_si, format_significant


def fleet_table(setting: Setting) -> Text:
    """The worker that the fleet is made of, as its data sheet has it, and what is promised."""
    pool, most = setting.workers.decode, setting.objectives
    rows = [
        ("model", f"{setting.model.name} in {setting.model.dtype}"),
        ("worker", f"{setting.hardware.name}, one device"),
        ("matrix peak, dense", format_si(setting.hardware.peak_flops_per_s, "FLOP/s")),
        ("bandwidth", format_si(setting.hardware.bandwidth_bytes_per_s, "B/s")),
        ("link", format_si(setting.workers.transfer.bandwidth_bytes_per_s, "B/s")),
        ("source", setting.hardware.source),
        ("workers in all", str(setting.num_workers)),
        ("sequences that a worker decodes at a time, at most", str(setting.places)),
        ("tokens that fit in a worker's cache", str(pool.num_blocks * pool.block_tokens)),
        ("weights", format_bytes(setting.model.weight_bytes)),
        ("TTFT, TPOT at most", f"{format_seconds(most.ttft_s)}, {format_seconds(most.tpot_s)}"),
    ]
    return Text(table(("what", "from a data sheet, or chosen"), rows))


def pool_laws_table(setting: Setting) -> Text:
    """What the roofline says of every load, before anything is simulated."""
    rows = []
    for name, load in setting.loads.items():
        law, split = setting.laws[name], setting.best_by_law(name)
        rows.append(
            (
                name,
                format_significant(setting.lean(load)),
                format_significant(law.prefill_per_s),
                format_significant(law.decode_per_s),
                str(law.batch),
                format_significant(law.ratio, 2),
                str(split),
                format_significant(law.rate_per_s(split.prefill, split.decode)),
            )
        )
    header = (
        "load",
        "prompt / output tokens",
        "requests/s of a prefill worker",
        "of a decode worker",
        "its batch",
        "P / D in balance",
        "best whole split",
        "its requests/s",
    )
    return Text(table(header, rows))


def elsewhere_table(settings: Sequence[Setting]) -> Text:
    """The best whole split of every load on other accelerators, by the law. The load of equal work
    is another one on each, and left out."""
    loads = [name for name in settings[0].loads if name != BALANCED]
    rows = [
        (
            each.hardware.name,
            *(
                f"{each.best_by_law(name)} ({format_significant(each.laws[name].ratio, 2)})"
                if each.laws[name].batch
                else "promise broken"
                for name in loads
            ),
        )
        for each in settings
    ]
    return Text(table(("best split, and P / D in balance", *loads), rows))


def pools_table(found: Found) -> Text:
    """The best split of every load, and its rate beside those of other ways to use the workers."""
    rows = []
    for name in found.setting.loads:
        rate = median_interval(found.rates_per_s[name])
        swapped, whole = (
            format_interval(median_interval(rates[name])) if name in LEANING else ""
            for rates in (found.swapped_per_s, found.whole_per_s)
        )
        split, wins = _usual(found.best[name])
        device = format_significant(rate.median / found.setting.num_workers)
        rows.append(
            (
                name,
                str(found.setting.best_by_law(name)),
                f"{split} ({wins} of {found.num_seeds})",
                format_interval(rate),
                device,
                swapped,
                whole,
            )
        )
    header = (
        "load",
        "best by the law",
        "best, simulated (seeds)",
        "its requests/s, 95%",
        "of a device",
        "with the other's split",
        "all workers whole",
    )
    return Text(table(header, rows))


def pools_map(found: Found) -> Figure:
    """Prefill workers for each decode worker against prompt tokens for each output token."""
    first, last = (_usual(found.best[name])[0] for name in reversed(LEANING))
    title = f"From {first} to {last}: the split follows the load"
    with canvas() as figure:
        draw_map(figure, found).set_title(title)
        return as_figure(figure, f"{title}. {_spoken_map(found)}")


def draw_map(figure: Any, found: Found) -> Any:
    """The map's axes, without a title."""
    setting, axes = found.setting, figure.subplots()
    path = setting.path()
    ends = (path[0][0] / 2.2, path[-1][0] * 2.2)
    axes.plot(*zip(*path, strict=True), color=BLUE)
    axes.axhline(1, color=ORANGE, linestyle="--")
    for name, load in setting.loads.items():
        _points(axes, [setting.lean(load)], [found.ratio(name)], 1, _ink(load))
    axes.set(xscale="log", yscale="log", xlim=ends, title=" ")  # a title takes its room
    axes.set_xlabel("prompt tokens for each output token")
    axes.set_ylabel("prefill : decode workers")
    _decade_ticks(axes.xaxis, (1, 3))
    splits = [Split(p, setting.num_workers - p) for p in range(1, setting.num_workers)]
    ratios = [split.ratio for split in splits]
    axes.set_ylim(min(ratios) / 2.2, max(ratios) * 2.2)
    axes.yaxis.set_ticks(ratios, labels=[str(split) for split in splits])
    axes.yaxis.set_ticks([], minor=True)
    place_words(axes, _words_of_map(found, path), [path, [(end, 1.0) for end in ends]])
    return axes


def _words_of_map(found: Found, path: Sequence[tuple[float, float]]) -> list[Words]:
    setting = found.setting
    loads = [
        Words(name, setting.lean(load), found.ratio(name).median, _ink(load))
        for name, load in setting.loads.items()
    ]
    return [
        *loads,
        Words("1:1 for every load", path[0][0], 1, ORANGE),
        Words("both pools busy,\nby the roofline", *path[3 * len(path) // 5], BLUE),
    ]


def goodput_against_rate(summaries: Mapping[float, Summary]) -> Figure:
    """Requests/s that are answered within the objectives, against the rate at which they come.

    One simulation for each rate; intervals are those of the share that is good, and take requests
    for independent."""
    rates = sorted(summaries)
    goodputs = [_goodput(summaries[rate], rate) for rate in rates]
    best, at = max((each.median, rate) for each, rate in zip(goodputs, rates, strict=True))
    title = f"{format_significant(best)} requests/s within the objectives at most"
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot([0, rates[-1]], [0, rates[-1]], color=BLUE)
        _points(axes, rates, goodputs, 1)
        axes.annotate("if all were", (rates[-2], rates[-2]), (-6, 2), color=BLUE, ha="right",
                      textcoords="offset points", va="bottom")  # fmt: skip
        axes.set(title=title, xlabel="requests/s that come", ylabel="requests/s in time")
        axes.set_ylim(0, max(rates[-1] * 0.75, best) * 1.1)
        told = ", ".join(
            f"{format_significant(rate)}: {format_significant(each.median)}"
            for rate, each in zip(rates, goodputs, strict=True)
        )
        return as_figure(
            figure,
            f"{title}, at {format_significant(at)} that come. Simulated goodput by the rate at "
            f"which requests come, requests/s: {told}.",
        )


def _goodput(summary: Summary, rate_per_s: float) -> Interval:
    share = summary.share_good
    middle, low, high = (rate_per_s * each for each in (share.share, share.low, share.high))
    return Interval(middle, low, high, share.of)


def _ink(load: Load) -> str:
    return INK if load.service is None else BLUE


def _spoken_map(found: Found) -> str:
    said = []
    for name, load in found.setting.loads.items():
        split, wins = _usual(found.best[name])
        said.append(
            f"{name}, {format_significant(found.setting.lean(load), 2)} prompt tokens for each "
            f"output token: {split} is best for {wins} of {found.num_seeds} seeds, the roofline "
            f"balances at {format_significant(found.setting.laws[name].ratio, 2)}"
        )
    return f"Best split of {found.setting.num_workers} workers by load: {'; '.join(said)}."


def _usual(splits: Sequence[Split]) -> tuple[Split, int]:
    return Counter(splits).most_common(1)[0]
