"""History figures: one quantity of one chapter on one machine, run after run.

A page holds hundreds of them, so they are written here as a few paths each, about 2 kB for 60 runs,
and not drawn by matplotlib, which takes ten times that. Points are medians with the interval of
their run, the band is the baseline, the marks at the bottom are the verdicts; book.css holds their
strokes. Absolute times are those of the newest run's host alone: another host is another speed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, isfinite, log, log10, nan
from statistics import median

from prefill_decode.plots.svg import BLUE, Figure
from prefill_decode.plots.tables import SIGNS, format_interval, format_interval_s
from prefill_decode.results import Run, same_host
from prefill_decode.statistics import Interval
from prefill_decode.units import counted, format_significant, seconds_unit

MOST_RUNS = 60
LEAST_RUNS = 2  # fewer make a sentence, not a figure
WIDTH, HEIGHT = 360, 132  # of the picture; text of 11 stays readable on a phone
LEFT, RIGHT, TOP, BOTTOM = 44, 350, 8, 92  # of the plotted part
MARKS_AT, DATES_AT = 108, 126
DATE_WIDTH, MARK_WIDTH = 70, 11
LINEAR_UP_TO = 3.0  # fold; a wider axis is logarithmic


@dataclass(frozen=True)
class Axis:
    """Where a value lies between the bottom and the top of the plot."""

    low: float
    high: float

    @property
    def is_log(self) -> bool:
        return 0 < self.low * LINEAR_UP_TO < self.high

    def place(self, value: float) -> float:
        if self.is_log:
            share = log(max(value, self.low) / self.low) / log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(BOTTOM - share * (BOTTOM - TOP), 1)

    def ticks(self) -> list[float]:
        """Two to five round numbers."""
        if self.is_log:
            return _log_ticks(self.low, self.high)
        step = _round_up((self.high - self.low) / 4)
        first = ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, floor(self.high / step + 1e-9) + 1)]


def holding(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs that measured the quantity, oldest first; of one that does not travel, those on
    the newest run's host."""
    held = sorted((run for run in runs if name in run.quantities), key=lambda run: run.date)
    return [run for run in held if run is held[-1] or _comparable(run, held[-1], name)]


def _comparable(run: Run, newest: Run, name: str) -> bool:
    return newest.quantities[name].travels or same_host(run.machine, newest.machine)


def comparable_baseline(
    runs: Sequence[Run], name: str, pinned: Sequence[Run] = ()
) -> Interval | None:
    """The baseline that the newest run may be held against; None if there is none."""
    newest = holding(runs, name)[-1]
    return baseline_of([run for run in pinned if _comparable(run, newest, name)], name)


def baseline_of(pinned: Sequence[Run], name: str) -> Interval | None:
    """The median of the pinned runs' medians, from their lowest to their highest end; None if no
    pinned run holds the quantity."""
    found = [run.quantities[name].measured for run in pinned if name in run.quantities]
    if not found:
        return None
    low = min((each.low for each in found if isfinite(each.low)), default=nan)
    high = max((each.high for each in found if isfinite(each.high)), default=nan)
    return Interval(median(each.median for each in found), low, high, len(found))


def history_finding(runs: Sequence[Run], name: str, pinned: Sequence[Run] = ()) -> str:
    """Where the newest run lies, against the baseline or else against the runs before it, and how
    many runs are left out because another host timed them."""
    left_out = sum(name in run.quantities for run in runs) - len(holding(runs, name))
    finding = _finding(runs, name, pinned)
    return f"{finding}; {counted(left_out, 'run')} on other hosts left out" if left_out else finding


def _finding(runs: Sequence[Run], name: str, pinned: Sequence[Run]) -> str:
    mine = holding(runs, name)
    *before, last = [run.quantities[name].measured for run in mine]
    shown = shown_value(last, mine[-1].quantities[name].unit)
    baseline = comparable_baseline(runs, name, pinned)
    if baseline is not None:
        return f"{name}: now {shown}, {_against(last.median, baseline.median)} the baseline"
    if not before:
        return f"{name}: {shown} in one run"
    earlier = median(each.median for each in before)
    words = "the run before" if len(before) == 1 else f"the median of {len(before)} earlier runs"
    return f"{name}: now {shown}, {_against(last.median, earlier)} {words}"


def history_figure(
    runs: Sequence[Run], name: str, pinned: Sequence[Run] = (), most: int = MOST_RUNS
) -> Figure:
    """The quantity's last `most` runs in order. ValueError below two runs that hold it."""
    mine = holding(runs, name)[-most:]
    if len(mine) < LEAST_RUNS:
        raise ValueError(f"a history needs {LEAST_RUNS} runs or more; got {len(mine)} of {name!r}")
    baseline = comparable_baseline(runs, name, pinned)
    measured = [run.quantities[name].measured for run in mine]
    axis = _axis(measured, baseline)
    unit = mine[-1].quantities[name].unit
    finding = history_finding(runs, name, pinned)
    alt = f"{finding}. {_spoken(mine, name, baseline, unit)}"
    parts = [
        _scale(axis, unit),
        _band(axis, baseline),
        _settings(mine),
        _bars(axis, measured),
        _marks([run.outcome for run in mine]),
        _dates([run.date[:10] for run in mine]),
    ]
    opening = f'<svg role="img" aria-label="{escape(alt)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return Figure(opening + "".join(parts) + "</svg>", alt)


def shown_value(measured: Interval, unit: str) -> str:
    return format_interval_s(measured) if unit == "s" else format_interval(measured)


def _axis(measured: Sequence[Interval], baseline: Interval | None) -> Axis:
    intervals = [*measured, *([baseline] if baseline else [])]
    ends = [end for each in intervals for end in (each.low, each.median, each.high)]
    known = [end for end in ends if isfinite(end)]
    low, high = min(known), max(known)
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(max(low - pad, low * 0.9), high + pad)


def _scale(axis: Axis, unit: str) -> str:
    ticks = axis.ticks()
    factor, word = seconds_unit(max(ticks)) if unit == "s" else (1.0, "")
    lines = "".join(f"M{LEFT} {axis.place(tick)}H{RIGHT}" for tick in ticks)
    words = "".join(
        f'<text x="{LEFT - 5}" y="{axis.place(tick) + 4:g}">{tick / factor:.4g}</text>'
        for tick in ticks
    )
    named = f'<text x="{LEFT - 5}" y="{MARKS_AT}">{word}</text>' if word else ""
    return f'<path class="grid" d="{lines}"/><g class="scale">{words}{named}</g>'


def _band(axis: Axis, baseline: Interval | None) -> str:
    if baseline is None:
        return ""
    middle, wide = axis.place(baseline.median), RIGHT - LEFT
    line = f'<path class="baseline" style="stroke:{BLUE}" d="M{LEFT} {middle}h{wide}"/>'
    if not (isfinite(baseline.low) and isfinite(baseline.high)):
        return line
    top, bottom = axis.place(baseline.high), axis.place(baseline.low)
    box = f'x="{LEFT}" y="{top}" width="{wide}" height="{bottom - top:.1f}"'
    return f'<rect class="band" fill="{BLUE}" {box}/>{line}'


def _settings(runs: Sequence[Run]) -> str:
    """A dotted line before each run whose setting is not that of the run before it."""
    places = _places(len(runs))
    changed = [i for i, (a, b) in enumerate(pairwise(runs), 1) if a.setting != b.setting]
    lines = "".join(f"M{(places[i - 1] + places[i]) / 2:.1f} {TOP}V{BOTTOM}" for i in changed)
    return f'<path class="setting" d="{lines}"/>' if lines else ""


def _bars(axis: Axis, measured: Sequence[Interval]) -> str:
    bars, dots = [], []
    for x, each in zip(_places(len(measured)), measured, strict=True):
        dots.append(f"M{x:g} {axis.place(each.median):g}h0")  # a round cap of no length is a dot
        if isfinite(each.low) and isfinite(each.high):
            bars.append(f"M{x:g} {axis.place(each.high):g}V{axis.place(each.low):g}")
    return f'<path class="bars" d="{"".join(bars)}"/><path class="dots" d="{"".join(dots)}"/>'


def _marks(outcomes: Sequence[str]) -> str:
    """Every run's verdict; where they stand too close, a tick only where it has room."""
    places = _places(len(outcomes))
    shown = [i for i, outcome in enumerate(outcomes) if outcome != "supported"]
    for i, outcome in enumerate(outcomes):
        if outcome == "supported" and all(abs(places[i] - places[j]) >= MARK_WIDTH for j in shown):
            shown.append(i)
    shown.sort()
    x = " ".join(f"{places[i]:g}" for i in shown)
    words = "".join(SIGNS[outcomes[i]] for i in shown)
    return f'<text class="marks" x="{x}" y="{MARKS_AT}">{words}</text>'


def _dates(dates: Sequence[str]) -> str:
    """The first run's date and the last one's, and others where they have room and are new."""
    places, last = _places(len(dates)), len(dates) - 1
    shown = [0]
    for i in range(1, last):
        # The first label begins at its run and the last ends at its own: half a label more each.
        from_before = places[i] - places[shown[-1]] - (DATE_WIDTH / 2 if shown == [0] else 0)
        to_last = places[last] - places[i] - DATE_WIDTH / 2
        if min(from_before, to_last) >= DATE_WIDTH and dates[i] not in (
            dates[shown[-1]],
            dates[last],
        ):
            shown.append(i)
    if dates[last] != dates[0]:
        shown.append(last)
    anchors = {0: "start", last: "end"}
    words = "".join(
        f'<text x="{places[i]:g}" y="{DATES_AT}" text-anchor="{anchors.get(i, "middle")}">'
        f"{escape(dates[i])}</text>"
        for i in shown
    )
    return f'<g class="dates">{words}</g>'


def _places(count: int) -> list[float]:
    inset = 8
    step = (RIGHT - LEFT - 2 * inset) / max(1, count - 1)
    return [round(LEFT + inset + step * i, 1) for i in range(count)]


def _spoken(runs: Sequence[Run], name: str, baseline: Interval | None, unit: str) -> str:
    medians = [run.quantities[name].measured.median for run in runs]
    counts = Counter(run.outcome for run in runs)
    verdicts = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    low, high = (_value(value, unit) for value in (min(medians), max(medians)))
    pinned = f" The baseline is {shown_value(baseline, unit)}." if baseline else ""
    return (
        f"{len(runs)} runs from {runs[0].date[:10]} to {runs[-1].date[:10]}, with medians from "
        f"{low} to {high}; {verdicts}.{pinned}"
    )


def _value(value: float, unit: str) -> str:
    factor, word = seconds_unit(value) if unit == "s" else (1.0, "")
    return f"{format_significant(value / factor)} {word}".rstrip()


def _against(value: float, other: float) -> str:
    """Such as "4% above"; "level with" where rounding leaves nothing."""
    if other == 0:
        return "level with" if value == 0 else "above"
    percent = round(100 * (value / other - 1))
    return (
        "level with" if percent == 0 else f"{abs(percent)}% {'above' if percent > 0 else 'below'}"
    )


def _round_up(step: float) -> float:
    """The next of 1, 2, 5, 10, ..."""
    power = 10.0 ** floor(log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * (1 - 1e-9))


def _log_ticks(low: float, high: float) -> list[float]:
    found: list[float] = []
    for digits in ((1, 2, 5), (1, 3), (1,)):
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        found = [d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high]
        if len(found) <= 5:
            break
    return found[:: ceil(len(found) / 5)] if found else [low, high]
