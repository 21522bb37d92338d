"""Words in a figure touch neither each other, nor marks, nor lines."""

from itertools import combinations, pairwise
from math import nan

import pytest

from prefill_decode.fleet_claims import pools
from prefill_decode.plots.fleet_figures import draw_map
from prefill_decode.plots.svg import canvas
from prefill_decode.plots.words import Words, crosses, overlap, place_words, uprights
from prefill_decode.statistics import Interval

SETTING = pools.Setting("llama-3.1-8b", "h100-sxm", 4, (4096, 32), (256, 256))


def boxes_of(axes):
    axes.figure.draw_without_rendering()
    return {note.get_text(): tuple(note.get_window_extent().extents) for note in axes.texts}


def points_on(axes, line, count=400):
    """Pixels along a polyline of data, closer than any word is high."""
    places = axes.transData.transform(line)
    found = []
    for (x, y), (to_x, to_y) in pairwise(places):
        found += [
            (x + (to_x - x) * i / count, y + (to_y - y) * i / count) for i in range(count + 1)
        ]
    return found


def touches(box, places, margin=0.0):
    return any(
        box[0] - margin <= x <= box[2] + margin and box[1] - margin <= y <= box[3] + margin
        for x, y in places
    )


@pytest.fixture(scope="module")
def found():
    """Every load's best split is the law's: where labels lie closest to the line."""
    best = {name: [SETTING.best_by_law(name)] * 6 for name in SETTING.loads}
    rates = {name: [1.0] * 6 for name in SETTING.loads}
    leaning = {name: [1.0] * 6 for name in pools.LEANING}
    return pools.Found(SETTING, 6, best, rates, leaning, leaning, [1.0] * 6, [1e-15] * 6, 1.0)


def test_no_label_of_the_map_of_pools_touches_another_or_a_line(found):
    with canvas() as figure:
        axes = draw_map(figure, found)
        boxes = boxes_of(axes)
        assert set(SETTING.loads) < set(boxes)
        for one, other in combinations(boxes, 2):
            assert not overlap(boxes[one], boxes[other]), (one, other)
        low, high = axes.get_xlim()
        lines = {"law": SETTING.path(), "1:1": [(low, 1.0), (high, 1.0)]}
        marks = axes.transData.transform(
            [(SETTING.lean(load), found.ratio(name).median) for name, load in SETTING.loads.items()]
        )
        inside = axes.bbox.extents
        for words, box in boxes.items():
            for name, line in lines.items():
                assert not touches(box, points_on(axes, line)), (words, name)
            assert not touches(box, marks, margin=3), words
            assert inside[0] <= box[0] <= box[2] <= inside[2], words
            assert inside[1] <= box[1] <= box[3] <= inside[3], words


def test_words_keep_off_a_point_and_its_interval():
    measured = [Interval(5.0, 2.0, 9.0, 10), Interval(5.0, nan, nan, 1)]
    lines = uprights([1, 2], measured, 10.0)
    assert lines == [[(1, 0.2), (1, 0.9)], [(2, 0.5), (2, 0.5)]]
    with canvas() as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 3), ylim=(0, 1))
        place_words(axes, [Words("a label that is long", 1.2, 0.3, "black")], lines)
        (box,) = boxes_of(axes).values()
        assert not touches(box, points_on(axes, lines[0]))


def test_words_at_one_place_lie_beside_each_other():
    with canvas() as figure:
        axes = figure.subplots()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        place_words(axes, [Words(f"label {i}", 0.5, 0.5, "black") for i in range(4)], [])
        boxes = boxes_of(axes)
        assert len(boxes) == 4
        assert not any(overlap(one, other) for one, other in combinations(boxes.values(), 2))


def test_a_line_crosses_a_box_that_it_passes_through_and_no_other():
    box = (0.0, 0.0, 2.0, 1.0)
    assert crosses([(-1, 0.5), (3, 0.5)], box)
    assert crosses([(1, -1), (1, 0.5)], box)
    assert crosses([(-1, -1), (1, 0.9)], box)
    assert not crosses([(-1, 0.5), (-0.5, 3), (3, 3)], box)
    assert not crosses([(-1, 0.8), (0.5, 2.5)], box)  # past a corner
    assert not crosses([(3, -1), (3, 2)], box)
