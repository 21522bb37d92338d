"""Rows: places for boxes that stand in rows and for the arrows that lead down between them.

An arrow that passes a row gets a gap there, shared by all arrows of its box, so that no line runs
behind a box. Rows are sorted by the places of what they are tied to, again and again, and the order
with the fewest crossings is kept.

Source: Sugiyama, Tagawa and Toda, "Methods for visual understanding of hierarchical system
structures" (1981): gaps as boxes without width, and sorting by mean places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

Item = tuple[str, int]  # a box, and the row in which it, or a gap for its arrows, stands
SWEEPS = 12
GAP, MARGIN = 9.0, 6.0


@dataclass(frozen=True)
class Layout:
    centers: Mapping[Item, float]  # from the left edge
    links: Sequence[tuple[Item, Item]]  # from a row to the next one down
    width: float


def lay_out(
    rows: Sequence[Sequence[str]],
    arrows: Mapping[str, set[str]],
    widths: Mapping[str, float],
    least_width: float,
) -> Layout:
    """`rows` from the top. ValueError for an arrow that does not lead down."""
    row_of = {box: number for number, row in enumerate(rows) for box in row}
    links = _links(row_of, arrows)
    order = [[(box, number) for box in row] for number, row in enumerate(rows)]
    for item in sorted({item for link in links for item in link} - {i for r in order for i in r}):
        order[item[1]].append(item)
    wide = {
        item: widths[item[0]] if row_of[item[0]] == item[1] else 0.0 for r in order for item in r
    }
    width = max(least_width, *(_tight(row, wide) for row in order))
    order = _with_few_crossings(order, links)
    return Layout(_centers(order, links, wide, width), links, width)


def _links(row_of: Mapping[str, int], arrows: Mapping[str, set[str]]) -> list[tuple[Item, Item]]:
    found: dict[tuple[Item, Item], None] = {}
    for box, targets in arrows.items():
        for target in sorted(targets):
            first, last = row_of[box], row_of[target]
            if first >= last:
                raise ValueError(f"arrows lead down; {target} does not stand below {box}")
            steps = [*((box, row) for row in range(first, last)), (target, last)]
            found |= dict.fromkeys(pairwise(steps))
    return list(found)


def _tight(row: Sequence[Item], wide: Mapping[Item, float]) -> float:
    return sum(wide[item] + GAP for item in row) - GAP + 2 * MARGIN


def _with_few_crossings(
    order: list[list[Item]], links: Sequence[tuple[Item, Item]]
) -> list[list[Item]]:
    best, fewest = order, _crossings(order, links)
    for sweep in range(SWEEPS):
        numbers = range(len(order)) if sweep % 2 == 0 else reversed(range(len(order)))
        order = [list(row) for row in order]
        for number in numbers:
            places = _places(order)
            tied = _tied(links, towards_top=sweep % 2 == 0)
            row = order[number]
            order[number] = sorted(row, key=lambda item: _mean(tied.get(item), places, item))
        if (count := _crossings(order, links)) < fewest:
            best, fewest = order, count
    return best


def _places(order: Sequence[Sequence[Item]]) -> dict[Item, float]:
    return {item: (i + 0.5) / len(row) for row in order for i, item in enumerate(row)}


def _tied(links: Sequence[tuple[Item, Item]], towards_top: bool) -> dict[Item, list[Item]]:
    tied: dict[Item, list[Item]] = {}
    for upper, lower in links:
        one, other = (lower, upper) if towards_top else (upper, lower)
        tied.setdefault(one, []).append(other)
    return tied


def _mean(tied: Sequence[Item] | None, places: Mapping[Item, float], item: Item) -> float:
    return sum(places[each] for each in tied) / len(tied) if tied else places[item]


def _crossings(order: Sequence[Sequence[Item]], links: Sequence[tuple[Item, Item]]) -> int:
    places = _places(order)
    return sum(
        (places[a] - places[c]) * (places[b] - places[d]) < 0
        for (a, b), (c, d) in combinations(links, 2)
        if a[1] == c[1]
    )


def _centers(
    order: Sequence[Sequence[Item]],
    links: Sequence[tuple[Item, Item]],
    wide: Mapping[Item, float],
    width: float,
) -> dict[Item, float]:
    """Each as near to what it is tied to as its neighbours in the row and the edges allow."""
    centers = {item: place * width for item, place in _places(order).items()}
    above, below = _tied(links, towards_top=True), _tied(links, towards_top=False)
    for _ in range(2 * SWEEPS):
        for row in order:
            wanted = [
                _mean(above.get(item, []) + below.get(item, []), centers, item) for item in row
            ]
            centers |= zip(row, _apart(wanted, [wide[item] for item in row], width), strict=True)
    return centers


def _apart(wanted: Sequence[float], widths: Sequence[float], width: float) -> list[float]:
    """Centers in this order, nothing overlapping and everything inside."""
    placed: list[float] = []
    edge = MARGIN
    for center, wide in zip(wanted, widths, strict=True):
        placed.append(max(center, edge + wide / 2))
        edge = placed[-1] + wide / 2 + GAP
    edge = width - MARGIN
    for i in reversed(range(len(placed))):
        placed[i] = min(placed[i], edge - widths[i] / 2)
        edge = placed[i] - widths[i] / 2 - GAP
    return placed
