"""Placement figures: what a slack for the sake of a cache gives and takes, simulated, beside the
law of where a prompt's beginning is held."""

from collections.abc import Sequence
from math import inf
from typing import Any

from prefill_decode.fleet_claims.placement import (
    AT_HAND,
    AWARE,
    ROUND_ROBIN,
    ROUTINGS,
    Found,
    Seen,
    Setting,
)
from prefill_decode.plots.figures import _decade_ticks, _plain_ticks, _points
from prefill_decode.plots.svg import INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.tables import Text, format_interval, format_interval_s, table
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.units import MS, format_seconds, format_significant


def conversations_table(setting: Setting) -> Text:
    """The fleet, its hardware and what is asked of it."""
    questions = " to ".join(str(n) for n in setting.question_tokens)
    answers = " to ".join(str(n) for n in setting.answer_tokens)
    rows = [
        ("model", f"{setting.model.name} in {setting.model.dtype}"),
        ("workers, each for both phases", f"{setting.num_workers} x {setting.hardware.name}"),
        ("source", setting.hardware.source),
        ("tokens that fit in a cache", str(setting.pool.num_blocks * setting.pool.block_tokens)),
        ("conversations, turns of each", f"{setting.num_conversations}, {setting.turns}"),
        ("tokens of the system prompt, the same for all", str(setting.system_tokens)),
        ("new tokens of a question, of an answer", f"{questions}, {answers}"),
        ("between two questions of a conversation, mean", format_seconds(setting.think_s)),
        (
            "requests/s, while as many conversations end as begin",
            format_significant(setting.rate_per_s),
        ),
    ]
    return Text(table(("what", "from a data sheet, or chosen"), rows))


def placement_laws_table(setting: Setting) -> Text:
    """What the law says of placements, before anything is simulated."""
    laws = {
        "where the conversation goes on": setting.law(1),
        f"at any of {setting.num_workers} workers alike": setting.law(setting.num_workers),
    }
    rows = [
        (name, f"{law.hit_rate:.1%}", format_seconds(law.prefill_s)) for name, law in laws.items()
    ]
    header = ("placement", "prompt tokens found in caches", "mean least prefill of the rest")
    one = setting.rate_per_s * setting.law(1).prefill_s
    told = (
        f"If every request went to one worker, its prefills alone would take "
        f"{format_significant(one, 2)} times the time that there is."
    )
    return Text(table(header, rows) + f"\n\n{told}\n")


def fleet_sizes_table(setting: Setting, sizes: Sequence[int]) -> Text:
    """What locality saves by the law, in fleets of several sizes."""
    kept, rows = setting.law(1), []
    for size in sizes:
        law = setting.law(size)
        less = format_significant(law.prefill_s / kept.prefill_s)
        rows.append((str(size), f"{law.hit_rate:.1%}", f"{kept.hit_rate:.1%}", less))
    header = (
        "workers",
        "prompt tokens found, any worker alike",
        "where the conversation goes on",
        "prefill, first over second",
    )
    return Text(table(header, rows))


def placement_table(found: Found) -> Text:
    """Every routing: hits, TTFT, and how unequal the workers' shares are."""
    rows = []
    for way in ROUTINGS:
        slack = "" if way.routing != "prefix_aware" else _slack(way.slack)
        rows.append(
            (
                way.name,
                slack,
                _share(found.of(way.name, "hit_rate")),
                format_interval_s(found.of(way.name, "ttft_s")),
                format_interval(found.of(way.name, "busiest")),
            )
        )
    header = (
        "routing",
        "slack, requests",
        "prompt tokens found in caches, 95%",
        "mean TTFT",
        "busiest worker's requests / mean",
    )
    return Text(table(header, rows))


def ttft_against_slack(found: Found) -> Figure:
    """Mean TTFT and the busiest worker's share of requests, against the slack."""
    slacks = list(found.by_slack)
    waits, busiest = (
        [_interval(found.by_slack[slack], figure) for slack in slacks]
        for figure in ("ttft_s", "busiest")
    )
    plain = found.of(ROUND_ROBIN, "ttft_s").median
    best = min(zip(waits, slacks, strict=True), key=lambda pair: pair[0].median)[1]
    title = f"A slack of {_slack(best)} serves best, no limit worst"
    if waits[-1].median < plain:
        title = f"A slack of {_slack(best)} serves best"
    places = range(len(slacks))
    with canvas() as figure:
        figure.set_figheight(4.4)
        above, below = figure.subplots(2, 1, sharex=True)
        _points(above, list(places), waits, MS)
        above.axhline(plain / MS, color=ORANGE, linestyle="--")
        above.annotate("round-robin", (places[0], plain / MS), (0, 4), color=ORANGE,
                       textcoords="offset points")  # fmt: skip
        above.set(yscale="log", ylabel="mean TTFT (ms)")
        _decade_ticks(above.yaxis, (1, 3))
        _points(below, list(places), busiest, 1)
        _bounds(below, found.setting.num_workers)
        below.set_xticks(list(places), labels=[_slack(slack) for slack in slacks])
        below.set_xlabel("slack: requests that a worker with a hit may have more")
        figure.suptitle(title, x=0.02, ha="left", fontsize=11.5, fontweight="bold")
        return as_figure(figure, f"{title}. {_spoken_slacks(found)}")


def _bounds(axes: Any, workers: int) -> None:
    axes.set(yscale="log", ylabel="busiest / mean")
    axes.axhline(workers, color=INK, alpha=0.4, linestyle=":")
    axes.annotate("all at one worker", (0, workers), (0, -4), va="top",
                  textcoords="offset points")  # fmt: skip
    axes.set_ylim(0.85, workers * 1.25)
    _plain_ticks(axes.yaxis, [2**power for power in range(workers.bit_length())])


def _spoken_slacks(found: Found) -> str:
    said = []
    for slack, seen in found.by_slack.items():
        wait, busiest = _interval(seen, "ttft_s"), _interval(seen, "busiest")
        said.append(
            f"slack {_slack(slack)}: {format_seconds(wait.median)}, the busiest worker has "
            f"{format_significant(busiest.median, 2)} times the mean"
        )
    plain = format_seconds(found.of(ROUND_ROBIN, "ttft_s").median)
    aware = format_seconds(found.of(AWARE, "ttft_s").median)
    return (
        f"Mean TTFT and requests of the busiest worker, {'; '.join(said)}. Round-robin takes "
        f"{plain}; {AWARE} with a slack of {_slack(AT_HAND)}, {aware}."
    )


def _interval(seen: list[Seen], figure: str) -> Interval:
    return median_interval([getattr(each, figure) for each in seen])


def _share(interval: Interval) -> str:
    return f"{interval.median:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def _slack(slack: float) -> str:
    return "∞" if slack == inf else f"{slack:g}"
