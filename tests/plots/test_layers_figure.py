"""Boxes in rows, arrows down between them: nothing overlaps, nothing is left out."""

import re
from itertools import pairwise

import pytest

from prefill_decode.plots.layers_figure import layers_figure
from prefill_decode.plots.rows import GAP, lay_out

ROWS = [["top"], ["left", "right"], ["low"], ["base", "other"]]
ARROWS = {"top": {"left", "right", "base"}, "left": {"low"}, "right": {"other"}, "low": {"base"}}
WIDTHS = {"top": 40.0, "left": 60.0, "right": 80.0, "low": 50.0, "base": 70.0, "other": 70.0}


def spans(layout, row):
    """From where to where everything in a row reaches, gaps for passing arrows included."""
    wide = {
        item: WIDTHS[item[0]] if item[0] in ROWS[row] else 0.0
        for item in layout.centers
        if item[1] == row
    }
    return sorted((layout.centers[i] - w / 2, layout.centers[i] + w / 2) for i, w in wide.items())


@pytest.mark.parametrize("least_width", [10.0, 300.0])
def test_nothing_in_a_row_overlaps_or_leaves_the_picture(least_width):
    layout = lay_out(ROWS, ARROWS, WIDTHS, least_width)
    for row in range(len(ROWS)):
        found = spans(layout, row)
        assert found[0][0] >= 0
        assert found[-1][1] <= layout.width
        for (_, end), (start, _) in pairwise(found):
            assert start - end >= GAP - 1e-9


def test_every_arrow_leads_from_row_to_row_to_its_box():
    layout = lay_out(ROWS, ARROWS, WIDTHS, 300.0)
    following = {}
    for upper, lower in layout.links:
        assert lower[1] == upper[1] + 1
        following.setdefault(upper, []).append(lower)
    for box, targets in ARROWS.items():
        row = next(number for number, row in enumerate(ROWS) if box in row)
        reached, todo = set(), [(box, row)]
        while todo:
            for name, number in following.get(todo.pop(), []):
                if name in ROWS[number]:
                    reached.add(name)
                else:
                    todo.append((name, number))
        assert reached == targets


def test_rows_are_sorted_so_that_lines_do_not_cross_needlessly():
    crossed = [["a", "b"], ["c", "d"]]
    layout = lay_out(crossed, {"a": {"d"}, "b": {"c"}}, dict.fromkeys("abcd", 20.0), 100.0)
    x = layout.centers
    assert (x["a", 0] - x["b", 0]) * (x["d", 1] - x["c", 1]) > 0


def test_an_arrow_that_points_up_is_refused():
    with pytest.raises(ValueError, match="lead down"):
        lay_out(ROWS, {"low": {"top"}}, WIDTHS, 300.0)


def test_the_figure_shows_every_box_once_and_says_its_arrows():
    layers = [("2 above", ROWS[:2]), ("1 below", ROWS[2:])]
    figure = layers_figure(layers, ARROWS, {"low"}, "Every import points down here")
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", figure.svg)
    assert sorted(texts) == sorted(["2 above", "1 below", *WIDTHS])
    assert figure.svg.count("#d55e00") == 2  # one box, filled and outlined
    assert figure.svg.count("l-3 -6h6z") == sum(map(len, ARROWS.values()))
    assert "top to base, left and right" in figure.alt
    assert f'aria-label="{figure.alt}"' in figure.svg
