"""Way figures: the same requests served with and without a policy for the phases, simulated beside
closed forms; and what real workers did of the same, from a record that was measured.

Lines are closed forms, points are simulated, with intervals over seeds."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from prefill_decode.fleet_claims.undifferentiated import (
    HELD,
    SHARES,
    Found,
    Seen,
    for_service,
)
from prefill_decode.fleet_claims.ways import (
    APART,
    CHUNKED,
    ONE_PIECE,
    WAYS,
    WITH_LAW,
    Setting,
)
from prefill_decode.plots.figures import _decade_ticks, _log_range, _reach
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, format_interval_s, table
from prefill_decode.results import Record, default_folder, load_all
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.units import MS, format_seconds, format_significant

LOOKS = {ONE_PIECE: (ORANGE, "o"), CHUNKED: (BLUE, "s"), APART: (INK, "^")}
MEASURED_BY = "disaggregation_removes_the_stall"
RATIOS = {  # of what that chapter times: numerator, denominator
    "worst gap, one piece / chunked": ("one piece: worst gap", "chunked: worst gap"),
    "worst gap, one piece / apart": ("one piece: worst gap", "apart: worst gap"),
    "TTFT, one piece / chunked": ("one piece: TTFT", "chunked: TTFT"),
    "TTFT, one piece / apart": ("one piece: TTFT", "apart: TTFT"),
}


def devices_table(setting: Setting) -> Text:
    """The devices as their data sheet has them, the load, and what is promised."""
    prompt, output = setting.load
    most = setting.objectives
    rows = [
        ("model", f"{setting.model.name} in {setting.model.dtype}"),
        ("devices, a worker each", f"{setting.num_workers} x {setting.hardware.name}"),
        ("source", setting.hardware.source),
        ("tokens of a prompt, of an answer", f"{prompt}, {output}"),
        ("sequences that a worker decodes at a time, at most", str(setting.places)),
        ("chunked: tokens of a step, at most", str(setting.chunk_tokens)),
        ("apart: prefill to decode workers", str(setting.split)),
        ("least prefill of a prompt", format_seconds(setting.prefill_s)),
        ("TTFT at most", format_seconds(most.ttft_s)),
        ("largest gap at most", format_seconds(most.stall_s)),
    ]
    return Text(table(("what", "from a data sheet, or chosen"), rows))


def ways_laws_table(setting: Setting) -> Text:
    """What closed forms say of every way, before anything is simulated."""
    rate = setting.rate_per_s
    rows = [
        (
            way,
            format_significant(setting.capacities_per_s[way] / setting.num_workers),
            format_seconds(setting.ttft_s(way, rate)),
            format_seconds(setting.gap_s(way, rate)),
            format_significant(_law_of_a_device(setting, way, 0)),
        )
        for way in WITH_LAW
    ]
    header = (
        "way",
        "requests/s of a device, at most",
        "mean TTFT",
        "largest gap of an answer, median",
        "requests/s of a device within the gap that is promised",
    )
    told = (
        "TTFT and gap, by the laws, where "
        f"{format_significant(rate / setting.num_workers)} requests/s come for each device."
    )
    return Text(table(header, rows) + f"\n\n{told}\n")


def ways_elsewhere_table(settings: Sequence[Setting]) -> Text:
    """The predictions on other accelerators, by the laws."""
    rows = []
    for each in settings:
        numbers = (
            *(each.gap_ratio(way) for way in (CHUNKED, APART)),
            each.one_line,
            each.prompts_first,
            *(each.within_ratio(way) for way in (CHUNKED, APART)),
        )
        rows.append((each.hardware.name, *(format_significant(number) for number in numbers)))
    header = (
        "by the laws",
        "gap, one piece / chunked",
        "gap, one piece / apart",
        "TTFT, one piece / chunked, one line",
        "TTFT, prompts first",
        "within, chunked / one piece",
        "within, apart / one piece",
    )
    return Text(table(header, rows))


def ways_seen_table(found: Found) -> Text:
    """All three numbers of every way, simulated, at the rate at which they are compared."""
    rows = [
        (
            way,
            format_interval_s(found.of(way, "ttft_s")),
            format_interval_s(found.of(way, "gap_s")),
            format_interval(found.of_a_device_per_s(way)) if way in WITH_LAW else "",
        )
        for way in WAYS
    ]
    header = (
        "simulated, 95%",
        "mean TTFT",
        "largest gap of an answer, median",
        "requests/s of a device within the objectives",
    )
    return Text(table(header, rows))


def services_of_ways_table(found: Found) -> Text:
    """TTFT and gaps of requests with the lengths of published services."""
    rows = []
    for name, by_way in found.services.items():
        rate = for_service(found.setting, name).rate_per_s / found.setting.num_workers
        rows += [
            (
                f"{name}: {way}",
                format_significant(rate),
                format_interval_s(_interval(seen, "ttft_s")),
                format_interval_s(_interval(seen, "gap_s")),
            )
            for way, seen in by_way.items()
        ]
    header = (
        "simulated, 95%",
        "requests/s that come for each device",
        "mean TTFT",
        "largest gap of an answer, median",
    )
    return Text(table(header, rows))


def ways_measured_table(results_dir: str | Path | None = None) -> Text:
    """What real workers did of the same on machines that measured it, one prompt among streams;
    from the records there, by default those of this checkout."""
    folder = default_folder() if results_dir is None else Path(results_dir)
    mine = [record for record in load_all(folder)[0] if record["claim"] == MEASURED_BY]
    if not mine:
        return Text("No machine here has measured these ways on real workers.")
    rows = [
        (f"{record['machine']['title']}, {record['model']['name']}", *_ratios(record))
        for record in mine
    ]
    return Text(table(("measured on real workers, 95%", *RATIOS), rows))


def numbers_against_rate(found: Found) -> Figure:
    """TTFT above, the largest gap below, against the rate that comes, for three ways."""
    setting = found.setting
    title = _title_of_numbers(found)
    with canvas() as figure:
        figure.set_figheight(5.2)
        above, below = figure.subplots(2, 1, sharex=True)
        for axes, name in ((above, "ttft_s"), (below, "gap_s")):
            for way in WITH_LAW:
                _numbers(axes, found, way, name)
            axes.axvline(setting.rate_per_s / setting.num_workers, color=INK, alpha=0.4, ls=":")
            axes.set(yscale="log")
            _decade_ticks(axes.yaxis, (1, 3))
        above.set_ylabel("mean TTFT (ms)")
        below.set_ylabel("largest gap (ms)")
        below.set_xlabel("requests/s that come for each device")
        above.legend(loc="upper left", frameon=False, labelcolor="linecolor", fontsize=9.5)
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        return as_figure(figure, f"{title}. {_spoken_numbers(found)}")


def rate_against_gap(found: Found) -> Figure:
    """What a device carries within the objectives, against the gap that is promised."""
    setting = found.setting
    gaps_s = [setting.promise(held).stall_s for held in HELD]
    title = _title_of_rates(found)
    with canvas() as figure:
        axes = figure.subplots()
        for way in WITH_LAW:
            color, marker = LOOKS[way]
            law = [_law_at(setting, way, gap_s) for gap_s in _grid(gaps_s)]
            axes.plot([gap_s / MS for gap_s in _grid(gaps_s)], law, color=color, ls=_line(way))
            rates = [found.of_a_device_per_s(way, held) for held in HELD]
            _errorbar(axes, [gap_s / MS for gap_s in gaps_s], rates, 1, color, marker, way)
        axes.set(xscale="log", yscale="log", title=title)
        axes.set_xlabel("largest gap that is promised (ms)")
        axes.set_ylabel("requests/s of a device")
        _decade_ticks(axes.xaxis, (1, 2, 5))
        _decade_ticks(axes.yaxis, (1, 3))
        axes.legend(loc="lower right", frameon=False, labelcolor="linecolor", fontsize=9.5)
        return as_figure(figure, f"{title}. {_spoken_rates(found)}")


def _numbers(axes: Any, found: Found, way: str, name: str) -> None:
    setting, (color, marker) = found.setting, LOOKS[way]
    law_s = setting.ttft_s if name == "ttft_s" else setting.gap_s
    last = setting.capacities_per_s[way] / setting.rate_per_s
    grid = [share for share in _log_range(SHARES[0], SHARES[-1], 30) if share < last]
    places = [share * setting.rate_per_s for share in grid]
    known = [(rate, law_s(way, rate)) for rate in places]
    known = [(rate, value_s) for rate, value_s in known if isfinite(value_s)]
    devices = setting.num_workers
    axes.plot(
        [rate / devices for rate, _ in known],
        [value_s / MS for _, value_s in known],
        color=color,
        ls=_line(way),
    )
    rates = [share * setting.rate_per_s / devices for share in SHARES]
    seen = [found.of(way, name, share) for share in SHARES]
    _errorbar(axes, rates, seen, MS, color, marker, way)


def _errorbar(
    axes: Any,
    places: Sequence[float],
    seen: Sequence[Interval],
    unit: float,
    color: str,
    marker: str,
    name: str,
) -> None:
    below, above = (
        [_reach(length) / unit for length in lengths]
        for lengths in (
            [each.median - each.low for each in seen],
            [each.high - each.median for each in seen],
        )
    )
    middles = [each.median / unit for each in seen]
    axes.errorbar(
        places, middles, yerr=[below, above], fmt=marker, color=color, markersize=5.5, capsize=3,
        zorder=3, label=name,
    )  # fmt: skip


def _line(way: str) -> str:
    return {ONE_PIECE: "-", CHUNKED: "--", APART: "-."}[way]


def _grid(gaps_s: Sequence[float]) -> list[float]:
    return _log_range(gaps_s[0], gaps_s[-1] * 1.1, 40)


def _law_of_a_device(setting: Setting, way: str, held: int) -> float:
    return setting.within_per_s(way, setting.promise(held)) / setting.num_workers


def _law_at(setting: Setting, way: str, gap_s: float) -> float:
    objectives = setting.promise_of(gap_s)
    return setting.within_per_s(way, objectives) / setting.num_workers


def _ratios(record: Record) -> list[str]:
    """Of the rounds that nothing disturbed."""
    raw_s: Mapping[str, Sequence[float]] = record["timings"]["raw_s"]
    quiet = [not disturbed for disturbed in record["timings"]["disturbed"]]
    quiet = quiet if any(quiet) else [True] * len(quiet)
    sides = [
        [
            [time_s for time_s, counts in zip(raw_s[name], quiet, strict=True) if counts]
            for name in of
        ]
        for of in RATIOS.values()
    ]
    return [format_interval(ratio_interval(over, under)) for over, under in sides]


def _title_of_numbers(found: Found) -> str:
    waits, gaps = (
        {way: found.of(way, name).median for way in WITH_LAW} for name in ("ttft_s", "gap_s")
    )
    first, longest = min(waits, key=waits.__getitem__), max(gaps, key=gaps.__getitem__)
    if first == longest:
        return f"{first.capitalize()}: earliest first tokens, longest gaps"
    return f"{first.capitalize()} is first, {longest} has the longest gaps"


def _title_of_rates(found: Found) -> str:
    least = min(WITH_LAW, key=lambda way: found.of_a_device_per_s(way).median)
    ahead = [
        held
        for held in HELD
        if found.of_a_device_per_s(least, held).median
        > min(found.of_a_device_per_s(way, held).median for way in WITH_LAW)
    ]
    if ahead:
        return f"{least.capitalize()} carries least, until gaps may be long"
    return f"{least.capitalize()} carries least, whatever the gap"


def _spoken_numbers(found: Found) -> str:
    said = []
    for way in WITH_LAW:
        parts = [
            f"{format_significant(share * found.setting.rate_per_s / found.setting.num_workers)}: "
            f"{format_seconds(found.of(way, 'ttft_s', share).median)} and "
            f"{format_seconds(found.of(way, 'gap_s', share).median)}"
            for share in SHARES
        ]
        said.append(f"{way}, {', '.join(parts)}")
    return (
        "Mean TTFT and largest gap, simulated, by the requests/s that come for each device: "
        f"{'; '.join(said)}. The dotted line is where the ways are compared."
    )


def _spoken_rates(found: Found) -> str:
    said = []
    for held in HELD:
        rates = ", ".join(
            f"{way} {format_significant(found.of_a_device_per_s(way, held).median)}"
            for way in WITH_LAW
        )
        said.append(f"{format_seconds(found.setting.promise(held).stall_s)}: {rates}")
    return (
        "Requests/s of a device within the objectives, simulated, by the largest gap that is "
        f"promised: {'; '.join(said)}."
    )


def _interval(seen: Sequence[Seen], figure: str) -> Interval:
    return median_interval([getattr(each, figure) for each in seen])
