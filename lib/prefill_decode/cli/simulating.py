"""Simulating: the verb that asks what a fleet would do."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefill_decode.cli import values
from prefill_decode.cli.loads import (
    add_lengths,
    add_objectives,
    objectives_of,
    synthetic_requests,
    traced_requests,
)
from prefill_decode.cli.shared import (
    FINDING,
    FINE,
    RenewedLine,
    check_out,
    complain,
    print_json,
    print_last,
)
from prefill_decode.units import format_bytes, format_seconds, format_significant

if TYPE_CHECKING:
    from prefill_decode.request import Request
    from prefill_decode.serving_metrics import Objectives, Summary
    from prefill_decode.simulator import Fleet, Outcome, Predicted
    from prefill_decode.statistics import Percentile

FITS = 16
SHARES_OF_RATE = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # that a figure tries
REQUESTS = 1000  # where their number is not given
FLAGS = ("model", "accelerator", "instances", "devices", "policy", "most_tokens_per_step")
GOODPUT = "goodput_per_s"
LATENCIES = (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("ITL", "itl_s"), ("stall", "stall_s"))


def simulate(options: argparse.Namespace) -> int:
    """What a fleet would do with requests: predicted latencies, goodput and use."""
    from prefill_decode.simulator import near_saturation
    from prefill_decode.simulator import simulate as play

    _check_drawings(options)
    objectives = objectives_of(options)
    fleet = _fleet(options)
    requests, trace = _requests(options)
    if options.figure is not None:
        _span_s(requests)  # before the simulation, not after it
    line = RenewedLine(sys.stderr)
    try:
        outcome = play(
            fleet,
            requests,
            progress=lambda arrived: line.show(f"{arrived} of {len(requests)} requests"),
        )
        if len(outcome.failures) == len(requests):
            complain(f"no request fits the fleet: {outcome.failures[0]}")
            return FINDING
        around = _under_fits(fleet, requests, objectives, options.fits, line)
    finally:
        line.end()
    summary = outcome.summary(objectives)
    warning = near_saturation(outcome)
    if options.json:
        told = {**_report(outcome), "summary": summary.as_dict(), "trace": trace}
        print_json({**told, "near_saturation": warning, "fits": _fits_report(summary, around)})
    else:
        print_last("\n".join(_lines(outcome, summary, around, warning)))
    if options.figure is not None:
        _draw(options.figure, fleet, requests, objectives)
    if options.timeline is not None:
        _draw_longest_gap(options.timeline, outcome)
    return FINE


def _check_drawings(options: argparse.Namespace) -> None:
    check_out("--figure", options.figure)
    check_out("--timeline", options.timeline)
    if options.figure is not None and options.figure == options.timeline:
        raise ValueError(f"--figure and --timeline are two files; got {options.figure} for both")


def _under_fits(
    fleet: "Fleet",
    requests: Sequence["Request"],
    objectives: "Objectives",
    most_fits: int,
    line: RenewedLine,
) -> list[dict[str, float]]:
    from prefill_decode.simulator import simulate_fits

    def figures(outcome: "Outcome") -> dict[str, float]:
        return _figures(outcome.summary(objectives))

    def again(done: int) -> None:
        line.show(f"{done // len(requests)} fits simulated again")

    return simulate_fits(fleet, requests, figures, most_fits, again)


def _figures(summary: "Summary") -> dict[str, float]:
    """Every latency's percentiles by their names, and the goodput."""
    found = {
        f"{field} {each.name}": each.value
        for _, field in LATENCIES
        for each in getattr(summary, field)
    }
    return {**found, GOODPUT: summary.goodput_per_s}


def _fits_report(summary: "Summary", around: Sequence[dict[str, float]]) -> dict[str, Any] | None:
    """The interval of every figure by the fits of the calibrations; null without."""
    from math import isfinite

    from prefill_decode.simulator import intervals

    if not around:
        return None
    found = intervals(_figures(summary), around)
    told = {
        name: {k: v if isfinite(v) else None for k, v in vars(each).items()}
        for name, each in found.items()
    }
    return {"count": len(around), "intervals": told}


def _draw(
    path: Path, fleet: "Fleet", requests: Sequence["Request"], objectives: "Objectives"
) -> None:
    """Goodput against the rate of the same requests, around their own, as an SVG file."""
    from prefill_decode.plots import goodput_against_rate
    from prefill_decode.results import write_atomically
    from prefill_decode.simulator import at_rate
    from prefill_decode.simulator import simulate as play

    rates = [share * (len(requests) - 1) / _span_s(requests) for share in SHARES_OF_RATE]
    summaries = [play(fleet, at_rate(requests, rate)).summary(objectives) for rate in rates]
    figure = goodput_against_rate(dict(zip(rates, summaries, strict=True)))
    write_atomically(path, figure.standalone() + "\n")


def _span_s(requests: Sequence["Request"]) -> float:
    span_s = max(r.arrival_s for r in requests) - min(r.arrival_s for r in requests)
    if not span_s > 0:
        raise ValueError(
            "a figure of goodput needs requests that arrive at more than one moment; got "
            f"{len(requests)} at one: give more, or leave --figure out"
        )
    return span_s


def _draw_longest_gap(path: Path, outcome: "Outcome") -> None:
    """What an instance did around the longest wait between two tokens, as an SVG file."""
    from prefill_decode.plots import timeline_of_gap
    from prefill_decode.results import write_atomically
    from prefill_decode.simulator import longest_gap

    write_atomically(path, timeline_of_gap(longest_gap(outcome)).standalone() + "\n")


def _fleet(options: argparse.Namespace) -> "Fleet":
    from prefill_decode.simulator import fleet_of, read_fleet

    given = {name: getattr(options, name) for name in FLAGS if getattr(options, name) is not None}
    if options.fleet is not None:
        if given or options.calibration is not None:
            raise ValueError(
                "a fleet comes from a file or from flags, not from both; got --fleet and "
                f"{', '.join('--' + name.replace('_', '-') for name in given) or '--calibration'}"
            )
        return read_fleet(options.fleet)
    if options.calibration is not None:
        given["calibration"] = str(options.calibration)
    elif options.model is None or options.accelerator is None:
        raise ValueError(
            "give --fleet FILE, or --model and --accelerator, or a --calibration of this machine"
        )
    return fleet_of({"pool": [{"name": "fleet", **given}]}, Path())


def _requests(options: argparse.Namespace) -> tuple[Sequence["Request"], dict[str, Any] | None]:
    """The requests, and what became of a trace's rows."""
    if options.trace is not None:
        return traced_requests(options)
    if options.spread or options.max_model_len is not None or options.duration is not None:
        raise ValueError("--spread, --max-model-len and --duration are for --trace, not given")
    if options.rate is None:
        raise ValueError("give --trace FILE, or --rate R for synthetic requests")
    number = options.requests or REQUESTS
    return synthetic_requests(options, options.rate, number, options.seed), None


def _report(outcome: "Outcome") -> dict[str, Any]:
    return {
        "calibrations": {p.name: p.calibration.source for p in outcome.fleet.pools},
        "num_devices": outcome.fleet.num_devices,
        "duration_s": outcome.duration_s,
        "output_tokens": int(outcome.tokens.sum()),
        "output_tokens_per_s": outcome.tokens.sum() / outcome.duration_s,
        "preemptions": outcome.num_preemptions,
        "reused_tokens": outcome.num_reused_tokens,
        "moved_bytes": outcome.moved_bytes,
        "instances": [vars(use) for use in outcome.uses],
        "failures": _counted(outcome.failures.values()),
    }


def _counted(messages: Any) -> list[dict[str, Any]]:
    from collections import Counter

    return [{"message": m, "count": n} for m, n in Counter(messages).most_common()]


def _lines(
    outcome: "Outcome",
    summary: "Summary",
    around: Sequence[dict[str, float]],
    warning: str | None,
) -> list[str]:
    from prefill_decode.simulator import intervals

    ranges = intervals(_figures(summary), around)
    rate = format_significant(float(outcome.tokens.sum()) / outcome.duration_s)
    lines = [
        f"predicted, not measured; {_sources(outcome)}",
        f"{summary.num_requests} requests in {format_seconds(outcome.duration_s)} on "
        f"{outcome.fleet.num_devices} devices: {rate} output tokens/s, "
        f"{summary.num_failed} refused",
    ]
    for name, field in LATENCIES:
        percentiles: tuple[Percentile, ...] = getattr(summary, field)
        for each in percentiles:
            found = ranges[f"{field} {each.name}"]
            by_fits = f"; by {len(around)} fits {_range(found)}" if found.low <= found.high else ""
            lines.append(f"{name:6}{each.text(format_seconds)}{by_fits}")
    good = summary.share_good
    lines.append(
        f"goodput {format_significant(summary.goodput_per_s)} requests/s, "
        f"{good.count} of {good.of} within the objectives"
    )
    lines += _use_lines(outcome)
    if warning is not None:
        lines.append(f"near saturation, where small errors grow: {warning}")
    for failure in _counted(outcome.failures.values())[:3]:
        lines.append(f"refused {failure['count']} times: {failure['message']}")
    return lines


def _range(found: "Predicted") -> str:
    return f"{format_seconds(found.low)} to {format_seconds(found.high)}"


def _sources(outcome: "Outcome") -> str:
    told = dict.fromkeys(pool.calibration.source for pool in outcome.fleet.pools)
    return f"step times from {', '.join(told)}"


def _use_lines(outcome: "Outcome") -> list[str]:
    lines = []
    for pool in outcome.fleet.pools:
        uses = [use for use in outcome.uses if use.pool == pool.name]
        shares = [use.busy_share for use in uses]
        lines.append(
            f"{pool.name}: {len(uses)} x {pool.hardware.name}, busy {min(shares):.0%} to "
            f"{max(shares):.0%} of the time, {sum(use.preemptions for use in uses)} preemptions, "
            f"{sum(use.reused_tokens for use in uses)} prompt tokens found in caches"
        )
    if outcome.moved_bytes:
        lines.append(f"caches moved: {format_bytes(outcome.moved_bytes)}")
    return lines


def add_simulate(added: argparse.ArgumentParser) -> None:
    added.add_argument("--fleet", type=Path, metavar="FILE", help="a fleet in TOML; or these:")
    added.add_argument("--model", metavar="CONFIG|NAME")
    added.add_argument("--accelerator", metavar="NAME")
    added.add_argument("--instances", type=values.positive_count, metavar="N", help="(1)")
    added.add_argument(
        "--devices", type=values.positive_count, metavar="N", help="of each instance (1)"
    )
    added.add_argument("--policy", metavar="NAME", help="of the scheduler (chunked)")
    added.add_argument(
        "--most-tokens-per-step", type=values.positive_count, metavar="N", help="(512)"
    )
    added.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="as `calibrate` writes it, with the machine and its model; without: the roofline",
    )
    added.add_argument(
        "--fits",
        type=values.times,
        default=FITS,
        metavar="N",
        help=f"of the calibration, at most, that are simulated for intervals ({FITS})",
    )
    load = added.add_mutually_exclusive_group()
    load.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="arrivals and lengths, as bench, and the prefixes that Mooncake's hash_ids share",
    )
    load.add_argument("--rate", type=values.rate, metavar="R", help="synthetic requests/s")
    added.add_argument("--spread", action="store_true", help="with --trace: a coarse clock's ticks")
    added.add_argument("--max-model-len", type=values.positive_count, metavar="N")
    added.add_argument("--duration", type=values.positive_seconds, metavar="SECONDS")
    added.add_argument(
        "--requests", type=values.requests, metavar="N", help=f"at most (synthetic: {REQUESTS})"
    )
    add_lengths(added)
    added.add_argument("--seed", type=values.seed, default=0, help="of everything drawn (0)")
    add_objectives(added)
    added.add_argument(
        "--figure", type=Path, metavar="FILE.svg", help="draw goodput around this rate, too"
    )
    added.add_argument(
        "--timeline", type=Path, metavar="FILE.svg", help="draw what surrounds the longest gap, too"
    )
    added.add_argument("--json", action="store_true")
