"""Link report: what was found of every transport, as strict JSON and as a table.

A transport is two numbers, the start of a transfer and its rate, and a third where the bytes no
longer fit in the processor's cache. Its share of the copy is taken round by round: what a plain
copy of as many bytes took, over what the transfer took."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import Any

from prefill_decode.disaggregated.link import (
    COPY,
    MOST_OF_CACHE,
    SHORT_BYTES,
    LinkRunner,
    Load,
    Transport,
)
from prefill_decode.measure import Machine, Timings
from prefill_decode.statistics import Interval
from prefill_decode.transfer_cost import LinkFit, fit_laws
from prefill_decode.units import GB, format_bytes, format_seconds, format_significant

Found = dict[str, Any]


def fits_of(
    times: Timings, transports: Sequence[str], loads: Sequence[Load], near_bytes: float = inf
) -> dict[str, LinkFit]:
    """The law of each transport, from its loads that lie in one piece."""
    whole = [load for load in loads if not load.scattered]
    sizes = [load.num_bytes for load in whole]
    return {
        one: fit_laws(sizes, [times.times_s(LinkRunner.name(one, x)) for x in whole], near_bytes)
        for one in transports
    }


def report(
    times: Timings,
    transports: Sequence[Transport],
    loads: Sequence[Load],
    missing: Mapping[str, str],
    machine: Machine,
) -> Found:
    """All of it, as one strict JSON document: null for what is unknown."""
    near_bytes = MOST_OF_CACHE * machine.cache_bytes
    fits = fits_of(times, transports, loads, near_bytes)
    copied = [load for load in loads if not load.scattered and load.num_bytes > SHORT_BYTES]
    return {
        "machine": machine.as_dict(),
        "rounds": times.num_rounds,
        "disturbed_rounds": sum(times.disturbed),
        "duration_s": times.duration_s,
        "advice": times.advice,
        "near_bytes": near_bytes,
        "copy": [_timed(times, COPY, load) for load in copied],
        "transports": [_transport(times, one, fit, loads) for one, fit in fits.items()],
        "missing": dict(missing),
    }


def _transport(times: Timings, name: str, fit: LinkFit, loads: Sequence[Load]) -> Found:
    return {
        "transport": name,
        "start_s": _stored(fit.start_s),
        "bytes_per_s": _stored(fit.bytes_per_s),
        "far_bytes_per_s": _stored(fit.far_bytes_per_s),
        "loads": [_timed(times, name, load) for load in loads],
    }


def _timed(times: Timings, name: str, load: Load) -> Found:
    step = LinkRunner.name(name, load)
    time_s = times.time_s(step)
    found = {
        "num_bytes": load.num_bytes,
        "scattered": load.scattered,
        "time_s": _stored(time_s),
        "bytes_per_s": _stored(_rate(load.num_bytes, time_s)),
    }
    if name == COPY:
        return found
    copied = LinkRunner.name(COPY, replace(load, scattered=False))
    share = times.ratio(copied, over=step) if copied in times.raw_s else None
    return found | {"share_of_copy": None if share is None else _stored(share)}


def _rate(num_bytes: int, time_s: Interval) -> Interval:
    """The longest time gives the lowest rate."""
    middle, low, high = (num_bytes / t for t in (time_s.median, time_s.high, time_s.low))
    return replace(time_s, median=middle, low=low, high=high)


def _stored(interval: Interval) -> Found:
    ends = {"median": interval.median, "low": interval.low, "high": interval.high}
    finite = {name: end if isfinite(end) else None for name, end in ends.items()}
    return finite | {"n": interval.n}


def text(found: Found) -> str:
    """The same for people: a line for each transport, and one for each that is missing."""
    largest = max(each["num_bytes"] for each in found["copy"])
    size, near = format_bytes(largest), format_bytes(found["near_bytes"])
    header = ("transport", "8 B", "start", f"GB/s to {near}", "GB/s beyond")
    lines: list[tuple[str, ...]] = [(*header, f"{size} / copy", "in blocks / copy")]
    lines += [_line(each, largest) for each in found["transports"]]
    rates = [_shown(x["bytes_per_s"], GB) for x in found["copy"] if x["num_bytes"] == largest]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    shown += [f"{name}: missing: {reason}" for name, reason in found["missing"].items()]
    return "\n".join(
        [
            f"{found['machine']['title']}: {found['rounds']} rounds in {found['duration_s']:.0f} s",
            *shown,
            f"a plain copy of {size} in one thread: {rates[0]} GB/s",
            *found["advice"],
        ]
    )


def _line(each: Found, largest: int) -> tuple[str, ...]:
    loads = {(load["num_bytes"], load["scattered"]): load for load in each["loads"]}
    smallest = loads[min(loads)]["time_s"]["median"]
    shares = [loads.get((largest, scattered)) for scattered in (False, True)]
    return (
        each["transport"],
        format_seconds(smallest),
        format_seconds(each["start_s"]["median"]),
        _shown(each["bytes_per_s"], GB),
        _shown(each["far_bytes_per_s"], GB),
        *("" if load is None else _shown(load["share_of_copy"]) for load in shares),
    )


def _shown(stored: Found, unit: float = 1.0) -> str:
    """0.354 [0.341, 0.362]; without an interval where there are too few rounds for one."""
    ends = [stored[name] for name in ("median", "low", "high")]
    middle, low, high = (None if x is None else format_significant(x / unit) for x in ends)
    return f"{middle or 'unknown'}" + (f" [{low}, {high}]" if low and high else "")
