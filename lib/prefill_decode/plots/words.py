"""Words: labels in a figure, placed where they touch neither each other nor a point nor a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from prefill_decode.statistics import Interval

Place = tuple[float, float]
Box = tuple[float, float, float, float]  # left, bottom, right, top; in points

MARK = 7.0  # points from a mark's middle within which no words stand
STEP, RINGS = 5.0, 14  # points farther from the mark with each ring that is tried
SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1), (0, 1), (0, -1), (1, 0), (-1, 0))
ALIGNED = {1: ("left", "bottom"), -1: ("right", "top"), 0: ("center", "center")}


@dataclass(frozen=True)
class Words:
    """A label and the place, in data, that it belongs to."""

    words: str
    x: float
    y: float
    color: str


def place_words(
    axes: Any, labels: Sequence[Words], lines: Sequence[Sequence[Place]], font_size: float = 9.5
) -> None:
    """Draw every label near its place, where nothing stands yet: the nearest of many places, on one
    side or the other. `lines` are polylines in data. Where all is taken, the last place tried."""
    figure = axes.figure
    figure.draw_without_rendering()  # limits and layout are settled
    to_points = 72 / figure.dpi
    taken: list[Box] = [
        (x - MARK, y - MARK, x + MARK, y + MARK)
        for x, y in ([_at(axes, label.x, label.y, to_points) for label in labels])
    ]
    drawn = [[_at(axes, x, y, to_points) for x, y in line] for line in lines]
    left, bottom, right, top = (each * to_points for each in axes.bbox.extents)
    for label in labels:
        note, box = None, (0.0, 0.0, 0.0, 0.0)
        for offset, side in _tried():
            if note is not None:
                note.remove()
            note = _annotate(axes, label, offset, side, font_size)
            low_x, low_y, high_x, high_y = (
                each * to_points for each in note.get_window_extent().extents
            )
            box = (low_x, low_y, high_x, high_y)
            inside = left < low_x and bottom < low_y and high_x < right and high_y < top
            crossed = any(crosses(line, box) for line in drawn)
            if inside and not crossed and not any(overlap(box, other) for other in taken):
                break
        taken.append(box)


def uprights(
    places: Sequence[float], measured: Sequence[Interval], unit: float
) -> list[list[Place]]:
    """The lines that points with their intervals take; a missing bound ends at the median."""
    ends = [
        [bound if isfinite(bound) else each.median for bound in (each.low, each.high)]
        for each in measured
    ]
    return [[(x, end / unit) for end in pair] for x, pair in zip(places, ends, strict=True)]


def overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def crosses(line: Sequence[Place], box: Box) -> bool:
    """Whether a polyline passes through a box."""
    return any(_clipped(start, end, box) for start, end in pairwise(line))


def _clipped(start: Place, end: Place, box: Box) -> bool:
    """Liang and Barsky: what of a segment lies within each pair of sides, as shares of it."""
    first, last = 0.0, 1.0
    for axis in (0, 1):
        length = end[axis] - start[axis]
        low, high = box[axis] - start[axis], box[axis + 2] - start[axis]
        if length == 0:
            if low > 0 or high < 0:
                return False
            continue
        enter, leave = sorted((low / length, high / length))
        first, last = max(first, enter), min(last, leave)
    return first <= last


def _tried() -> Iterator[tuple[Place, Place]]:
    """Offsets in points, nearest first, and the side of the place that they lie on."""
    for ring in range(RINGS):
        away = MARK + 1 + ring * STEP
        for across, up in SIDES:
            short = 1.0 if 0 in (across, up) else 0.7
            yield (across * away * short, up * away * short), (across, up)


def _annotate(axes: Any, label: Words, offset: Place, side: Place, font_size: float) -> Any:
    return axes.annotate(
        label.words,
        (label.x, label.y),
        offset,
        textcoords="offset points",
        ha=ALIGNED[int(side[0])][0],
        va=ALIGNED[int(side[1])][1],
        color=label.color,
        fontsize=font_size,
    )


def _at(axes: Any, x: float, y: float, to_points: float) -> Place:
    across, up = axes.transData.transform((x, y))
    return across * to_points, up * to_points
