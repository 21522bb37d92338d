"""Slimmed pictures look the same and weigh less."""

from prefill_decode.book.pages import ROOFLINE_CLAIM, phases_figure
from prefill_decode.book.slim_svg import slim, slim_svg


def test_coordinates_are_short_and_what_is_not_painted_goes():
    svg = (
        '<svg viewBox="0 0 374.123 5"><g id="a"><g id="b"><path d="M 1 1 \nz" style="fill: none"/>'
        '</g></g><text x="10.123456" transform="rotate(-0 1 2)">0.123456</text></svg>'
    )
    assert slim_svg(svg) == '<svg viewBox="0 0 374.123 5"><text x="10.12">0.123456</text></svg>'


def test_names_that_something_refers_to_stay():
    svg = '<svg><defs><path id="m" d="M 0 0.0001"/></defs><use id="u" href="#m"/></svg>'
    assert slim_svg(svg) == '<svg><defs><path id="m" d="M 0 0"/></defs><use href="#m"/></svg>'


def test_what_paths_share_is_said_once_and_words_keep_theirs():
    path = '<path d="M 1 2" style="stroke: red"/>'
    words = '<text style="fill: #2b83c6">a</text>'
    svg = slim_svg(f"<svg>{path}{path}{words}{words}</svg>")
    assert svg.count("stroke: red") == 1
    assert svg.count('class="s') == 2
    assert svg.count(words) == 2


def test_text_around_a_picture_stays_as_it_is():
    around = '<pre>\n  d="1.23456"\n</pre>'
    assert slim(f"{around}<svg></svg>{around}") == f"{around}<svg></svg>{around}"


def test_a_figure_weighs_less_and_says_the_same(record):
    figure = phases_figure([{**record, "claim": ROOFLINE_CLAIM}]).svg
    small = slim_svg(figure)
    assert len(small) < 0.85 * len(figure)
    assert small.count("<text") == figure.count("<text")
    assert small.count("<use") == figure.count("<use")
