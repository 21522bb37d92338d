"""Layers figure: boxes in the layers they belong to, and what imports what as arrows down."""

from collections.abc import Mapping, Sequence
from html import escape

from prefill_decode.plots.rows import Item, Layout, lay_out
from prefill_decode.plots.svg import BLUE, ORANGE, Figure

WIDTH, LETTER, PADDING = 344.0, 6.1, 14.0  # units that are pixels on a narrow phone
BOX, BETWEEN, LABEL = 24.0, 20.0, 15.0


def layers_figure(
    layers: Sequence[tuple[str, Sequence[Sequence[str]]]],
    arrows: Mapping[str, set[str]],
    marked: set[str],
    title: str,
) -> Figure:
    """`layers` from the top, each with its rows of boxes from the top; boxes in `marked` have an
    outline of their own. An arrow leads from what imports to what is imported."""
    rows = [row for _, rows_of_layer in layers for row in rows_of_layer]
    widths = {box: LETTER * len(box) + PADDING for row in rows for box in row}
    layout = lay_out(rows, arrows, widths, WIDTH)
    bands, tops = _heights(layers)
    height = bands[-1][2]
    parts = [
        *(_band(*band, layout.width) for band in bands),
        *(_line(link, layout, tops, rows) for link in layout.links),
        *(
            _box(box, layout.centers[box, number], tops[number], widths[box], box in marked)
            for number, row in enumerate(rows)
            for box in row
        ),
    ]
    told = "; ".join(f"{box} to {_listed(targets)}" for box, targets in arrows.items() if targets)
    alt = f"{title}. Arrows lead from {told}."
    opening = (
        f'<svg role="img" aria-label="{escape(alt, quote=True)}" '
        f'viewBox="0 0 {layout.width:.0f} {height:.0f}" xmlns="http://www.w3.org/2000/svg" '
        'font-size="11.5">'
    )
    return Figure("\n".join([opening, *parts, "</svg>"]), alt)


def _heights(
    layers: Sequence[tuple[str, Sequence[Sequence[str]]]],
) -> tuple[list[tuple[str, float, float]], list[float]]:
    """Every layer's name, top and bottom; and the top of every row's boxes."""
    bands, tops, y = [], [], 0.0
    for name, rows in layers:
        start = y
        y += LABEL
        for _ in rows:
            tops.append(y)
            y += BOX + BETWEEN
        y -= BETWEEN - 8.0
        bands.append((name, start, y))
        y += 8.0
    return bands, tops


def _band(name: str, top: float, bottom: float, width: float) -> str:
    return (
        f'<rect x="0" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}" rx="6" '
        'fill="currentColor" fill-opacity="0.06"/>'
        f'<text x="6" y="{top + 12:.1f}" fill="currentColor" font-size="10.5">{escape(name)}</text>'
    )


def _box(name: str, center: float, top: float, width: float, marked: bool) -> str:
    color = ORANGE if marked else BLUE
    return (
        f'<rect x="{center - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" height="{BOX}" '
        f'rx="4" fill="{color}" fill-opacity="0.1" stroke="{color}"/>'
        f'<text x="{center:.1f}" y="{top + BOX / 2 + 4:.1f}" text-anchor="middle" '
        f'fill="currentColor">{escape(name)}</text>'
    )


def _line(
    link: tuple[Item, Item], layout: Layout, tops: Sequence[float], rows: Sequence[Sequence[str]]
) -> str:
    """From the lower edge of a box, or of the gap above, to the next row, through it if that is a
    gap, else with a head."""
    (box, upper), (target, lower) = link
    x, end = layout.centers[box, upper], layout.centers[target, lower]
    y, top = tops[upper] + BOX, tops[lower]
    middle = (y + top) / 2
    arrives = target in rows[lower]
    path = f"M{x:.1f} {y:.1f}C{x:.1f} {middle:.1f} {end:.1f} {middle:.1f} {end:.1f} {top:.1f}"
    path += "" if arrives else f"V{top + BOX:.1f}"
    drawn = f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.6"/>'
    head = f'<path d="M{end:.1f} {top:.1f}l-3 -6h6z" fill="currentColor"/>'
    return drawn + (head if arrives else "")


def _listed(targets: set[str]) -> str:
    *most, last = sorted(targets)
    return f"{', '.join(most)} and {last}" if most else last
