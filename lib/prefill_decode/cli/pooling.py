"""Pooling: the verb that asks how many workers of which accelerator each phase should have."""

import argparse
import re
from collections.abc import Sequence
from itertools import product
from math import isnan
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
from prefill_decode.cli.shared import FINDING, FINE, check_out, complain, print_json, print_last
from prefill_decode.units import GIGABIT, format_seconds, format_significant

if TYPE_CHECKING:
    from prefill_decode.request import Request
    from prefill_decode.simulator import Found, Search, Workers
    from prefill_decode.statistics import Interval

SEEDS = 6
MOST_WORKERS = 64
TIMES_FULL = 5  # requests for each place in the batches of all workers: a queue then shows
FEWEST_TIMES_FULL = 3
FEWEST_REQUESTS = 500
FEW_WINS = 0.75  # of the seeds: below, the best split is not the clear one


def pools(options: argparse.Namespace) -> int:
    """The best whole-worker split into prefill and decode for a load and its objectives."""
    from prefill_decode.simulator import search, splits_of

    check_out("--figure", options.figure)
    objectives = objectives_of(options)
    first, last = options.workers
    kinds = _kinds(options)
    load, seeds = _load(options)
    searches: list[tuple[Workers, Search]] = []
    for number, workers in product(range(first, last + 1), kinds):
        splits = splits_of(number, whole=workers.whole is not None)
        given = (splits, load, objectives, seeds, options.share, options.rate)
        searches.append((workers, search(workers, *given)))
    best = max(searches, key=lambda each: each[1].best.of_a_device_per_s.median)
    if options.json:
        report = [_report(*each) for each in searches]
        print_json({"searches": report, "best": searches.index(best), "asked": _asked(options)})
    else:
        print_last("\n".join(_lines(searches, best, options)))
    if options.figure is not None:
        _draw(options.figure, best[1])
    if best[1].best.rate_per_s.median == 0:
        complain("no split answers so large a share within the objectives, at any rate")
        return FINDING
    return FINE


def _draw(path: Path, found: "Search") -> None:
    """What each split of the best fleet carries, as an SVG file."""
    from prefill_decode.plots import rate_against_split
    from prefill_decode.results import write_atomically

    write_atomically(path, rate_against_split(found).standalone() + "\n")


def _kinds(options: argparse.Namespace) -> list["Workers"]:
    """Workers of every pair of accelerators; where both are one, whole workers are the rival."""
    from prefill_decode.simulator import datasheet_workers

    common = options.accelerator or []
    prefill = options.prefill_accelerator or common
    decode = options.decode_accelerator or common
    if not prefill or not decode:
        raise ValueError(
            "a search needs accelerators for both phases: give --accelerator, or "
            "--prefill-accelerator and --decode-accelerator"
        )
    link = None if options.link is None else options.link * GIGABIT
    parts: dict[str, Any] = (
        {} if options.calibration is None else {"calibration": str(options.calibration)}
    )
    return [
        datasheet_workers(
            options.model,
            a,
            b,
            whole=a if a == b else None,
            devices=options.devices,
            most_sequences=options.most_sequences,
            most_tokens_per_step=options.most_tokens_per_step,
            link_bytes_per_s=link,
            **parts,
        )
        for a, b in product(dict.fromkeys(prefill), dict.fromkeys(decode))
    ]


def _load(options: argparse.Namespace) -> tuple[Any, Sequence[int]]:
    """The maker of requests by seed, and the seeds. A trace has no dice but those that spread its
    clock's ticks."""
    first = options.seed
    if options.trace is None:
        if options.spread or options.max_model_len is not None or options.duration is not None:
            raise ValueError("--spread, --max-model-len and --duration are for --trace, not given")
        places = options.workers[1] * options.most_sequences
        number = options.requests or max(FEWEST_REQUESTS, TIMES_FULL * places)

        def drawn(seed: int) -> Sequence["Request"]:
            return synthetic_requests(options, 1.0, number, seed)

        return drawn, range(first, first + options.seeds)
    options.seed = first
    found, _ = traced_requests(options)
    return lambda seed: found, [first]


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    return {"rate_per_s": options.rate, "share_good": options.share, "workers": options.workers}


def _report(workers: "Workers", found: "Search") -> dict[str, Any]:
    return {
        "prefill_accelerator": workers.prefill.hardware.name,
        "decode_accelerator": workers.decode.hardware.name,
        "law": {
            "prefill_per_s": found.law.prefill_per_s,
            "decode_per_s": found.law.decode_per_s,
            "batch": found.law.batch,
            "ratio": found.law.ratio,
        },
        "num_seeds": found.num_seeds,
        "num_requests": found.num_requests,
        "best": str(found.best.split),
        "best_for_seeds": found.wins,
        "splits": [_split_report(each) for each in found.found],
    }


def _split_report(each: "Found") -> dict[str, Any]:
    return {
        "split": str(each.split),
        "prefill_workers": each.split.prefill,
        "decode_workers": each.split.decode,
        "whole_workers": each.split.whole,
        "num_devices": each.num_devices,
        "rates_per_s": list(each.rates_per_s),
        "rate_per_s": _interval_report(each.rate_per_s),
        "of_a_device_per_s": _interval_report(each.of_a_device_per_s),
        "law_per_s": each.law_per_s,
        "busy_share": each.busy,
    }


def _interval_report(interval: "Interval") -> dict[str, float | None]:
    ends = {"median": interval.median, "low": interval.low, "high": interval.high}
    return {name: None if isnan(value) else value for name, value in ends.items()}


def _lines(
    searches: Sequence[tuple["Workers", "Search"]],
    best: tuple["Workers", "Search"],
    options: argparse.Namespace,
) -> list[str]:
    sources = dict.fromkeys(
        pool.calibration.source for each, _ in searches for pool in (each.prefill, each.decode)
    )
    what = "greatest rate within the objectives"
    if options.rate is not None:
        what = f"goodput at {format_significant(options.rate)} requests/s"
    lines = [
        f"simulated, not measured; hardware from data sheets, step times from {', '.join(sources)}",
        f"{what}, {options.share:.0%} of requests; 95% over seeds"
        if options.rate is None
        else f"{what}; 95% over seeds",
    ]
    for workers, found in searches:
        lines += ["", *_search_lines(workers, found)]
    return [*lines, "", _advice(*best)]


def _search_lines(workers: "Workers", found: "Search") -> list[str]:
    first, second = workers.prefill.hardware.name, workers.decode.hardware.name
    names = first if first == second else f"{first} prefills, {second} decodes"
    law = found.law
    balance = f"{format_significant(law.ratio, 2)} prefill workers for each that decodes"
    step = f"batches of {law.batch} in {format_seconds(law.token_s)}"
    lines = [f"{names}: the roofline balances at {balance}, with {step}"]
    if not law.batch:
        lines = [f"{names}: not even one sequence decodes within the objectives"]
    places = law.batch * found.best.split.workers
    if found.num_requests < FEWEST_TIMES_FULL * places:
        lines.append(
            f"{found.num_requests} requests hardly fill batches of {places} in all: rates say "
            f"little; give {TIMES_FULL * places}"
        )
    rows = [("split", "requests/s", "of a device", "roofline", "busy")]
    for each in found.found:
        mark = " *" if each is found.best else ""
        shares = ", ".join(f"{name} {share:.0%}" for name, share in each.busy.items())
        bound = format_significant(each.law_per_s)
        rate, own = _shown(each.rate_per_s), format_significant(each.of_a_device_per_s.median)
        rows.append((f"{each.split}{mark}", rate, own, bound, shares))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row[1:4], widths[1:], strict=True))
        lines.append("  ".join([row[0].ljust(widths[0]), *cells, row[4]]))
    return lines


def _advice(workers: "Workers", found: "Search") -> str:
    split, seeds = found.best.split, found.num_seeds
    if split.whole:
        fleet = f"{split.whole} whole workers of {workers.prefill.hardware.name}"
    else:
        fleet = (
            f"{split.prefill} to prefill ({workers.prefill.hardware.name}), {split.decode} to "
            f"decode ({workers.decode.hardware.name})"
        )
    wins = f"best for {found.wins} of {seeds} seeds" if seeds > 1 else "of one load"
    unsure = "" if found.wins >= FEW_WINS * seeds else ": close to another, give more requests"
    return f"best of a device: {fleet}; {wins}{unsure}"


def _shown(interval: "Interval") -> str:
    middle = format_significant(interval.median)
    if isnan(interval.low):
        return middle
    return f"{middle} [{format_significant(interval.low)}, {format_significant(interval.high)}]"


def counts(text: str) -> tuple[int, int]:
    """4, or 4-8."""
    found = re.fullmatch(r"(\d{1,3})(?:-(\d{1,3}))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 2 <= first <= last <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(
            f"a number of workers from 2 to {MOST_WORKERS}, such as 8, or a range, such as 4-8; "
            f"got {text!r:.60}"
        )
    return first, last


def add_pools(added: argparse.ArgumentParser) -> None:
    added.add_argument("--model", required=True, metavar="CONFIG|NAME")
    for name, whose in (
        ("--accelerator", "of both phases"),
        ("--prefill-accelerator", "of prefill workers"),
        ("--decode-accelerator", "of decode workers"),
    ):
        added.add_argument(
            name, action="append", metavar="NAME", help=f"{whose}; repeated, all are tried"
        )
    added.add_argument("--workers", type=counts, required=True, metavar="N|N-M", help="in all")
    added.add_argument(
        "--devices", type=values.positive_count, default=1, metavar="N", help="of a worker (1)"
    )
    added.add_argument(
        "--most-sequences",
        type=values.positive_count,
        default=64,
        metavar="N",
        help="that a worker decodes at a time (64)",
    )
    added.add_argument(
        "--most-tokens-per-step",
        type=values.positive_count,
        metavar="N",
        help="of a whole worker, which reads prompts in chunks (512)",
    )
    added.add_argument(
        "--link", type=values.rate, metavar="GBIT/S", help="between workers (the accelerators')"
    )
    added.add_argument(
        "--calibration", type=Path, metavar="FILE", help="shares of the roofline (all of it)"
    )
    added.add_argument("--trace", type=Path, metavar="FILE", help="arrivals and lengths, as bench")
    added.add_argument("--spread", action="store_true", help="with --trace: a coarse clock's ticks")
    added.add_argument("--max-model-len", type=values.positive_count, metavar="N")
    added.add_argument("--duration", type=values.positive_seconds, metavar="SECONDS")
    added.add_argument(
        "--requests",
        type=values.requests,
        metavar="N",
        help=f"at most (synthetic: {TIMES_FULL} for each place in a batch)",
    )
    add_lengths(added)
    added.add_argument(
        "--rate", type=values.rate, metavar="R", help="goodput at so many requests/s instead"
    )
    added.add_argument(
        "--share",
        type=values.share,
        default=0.9,
        metavar="S",
        help="of requests that must be within the objectives (0.9)",
    )
    added.add_argument(
        "--seeds", type=values.positive_count, default=SEEDS, metavar="N", help=f"({SEEDS})"
    )
    added.add_argument("--seed", type=values.seed, default=0, help="the first (0)")
    add_objectives(added)
    added.add_argument(
        "--figure", type=Path, metavar="FILE.svg", help="draw what the best fleet's splits carry"
    )
    added.add_argument("--json", action="store_true")
