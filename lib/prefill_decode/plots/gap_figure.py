"""Gap figure: the longest gap of a simulation as a timeline, one row for each answer around it.

Everything in it is simulated: waits are lines, tokens are ticks."""

from typing import Any

from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.request import RequestRecord
from prefill_decode.simulator import LongestGap
from prefill_decode.units import MS, format_seconds

MOST_ROWS = 24


def timeline_of_gap(gap: LongestGap) -> Figure:
    """The gap, as much time before and after it, and the answers of the same instance."""
    title = f"An answer waits {format_seconds(gap.length_s)} for its next token"
    rows = sorted(_chosen(gap), key=lambda record: record.request.arrival_s)
    with canvas() as figure:
        axes = figure.subplots()
        axes.axvspan(0, gap.length_s / MS, color=INK, alpha=0.12, linewidth=0)
        for row, record in enumerate(rows):
            _draw(axes, gap, row, record)
        axes.set(title=title, ylabel="answers, the latest on top")
        axes.set_xlabel("time since the token before the gap (ms)")
        axes.set_xlim(-gap.length_s / MS, 2 * gap.length_s / MS)
        axes.set_ylim(-1, len(rows) + 1.6)
        axes.yaxis.set_ticks([])
        axes.grid(visible=False)
        for words, color, x, side in (
            ("from arrival to first token", ORANGE, 0.01, "left"),
            ("a token", BLUE, 0.99, "right"),
        ):
            axes.annotate(words, (x, 1), (0, -2), xycoords="axes fraction", color=color, ha=side,
                          va="top", textcoords="offset points")  # fmt: skip
        return as_figure(figure, f"{title}. {_spoken(gap, len(rows))}")


def _chosen(gap: LongestGap) -> list[RequestRecord]:
    """The one that waits, those that were served meanwhile or some of each stretch of them, then
    the nearest by arrival."""
    room = MOST_ROWS - 1
    served = gap.served
    known = {id(record) for record in served}
    others = [record for record in gap.beside if id(record) not in known]
    if len(served) > room:
        served = tuple(served[place * len(served) // room] for place in range(room))
    others.sort(key=lambda record: abs(record.request.arrival_s - gap.start_s))
    return [gap.waiting, *served, *others[: room - len(served)]]


def _draw(axes: Any, gap: LongestGap, row: int, record: RequestRecord) -> None:
    arrived_ms = (record.request.arrival_s - gap.start_s) / MS
    times_ms = [(time_s - gap.start_s) / MS for time_s in record.event_times_s]
    if times_ms:
        axes.plot([arrived_ms, times_ms[0]], [row, row], color=ORANGE, linewidth=2)
        axes.plot([times_ms[0], times_ms[-1]], [row, row], color=INK, linewidth=0.4, alpha=0.4)
    seen = [time for time in times_ms if -1 <= time * MS / gap.length_s <= 2]
    axes.plot(seen, [row] * len(seen), "|", color=BLUE, markersize=6, markeredgewidth=1.2)


def _spoken(gap: LongestGap, num_rows: int) -> str:
    prompts = sum(record.request.prompt_tokens for record in gap.served)
    one = len(gap.served) == 1
    read = "prompt of 1 other request" if one else f"prompts of {len(gap.served)} other requests"
    left = 1 + len(gap.beside) - num_rows
    return (
        "Simulated timeline of the instance around its longest gap. "
        f"Meanwhile the {read}, {prompts} tokens, {'gets its' if one else 'get their'} first "
        f"token; {len(gap.beside)} others were there in all"
        + (f", of which {left} are not drawn." if left else ".")
    )
