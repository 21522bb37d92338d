"""What the chapters' prose keeps to: known symbols, numbered laws; and what reads it."""

import pytest

from tests.conftest import ROOT
from tests.prose import (
    LABEL,
    NOTEBOOKS,
    REFERENCE,
    markdown_of,
    symbols_of,
    typed_numbers,
)

TEXTS = {path.stem: markdown_of(path) for path in NOTEBOOKS}
LABELS = {label: name for name, cells in TEXTS.items() for label in LABEL.findall("\n".join(cells))}


@pytest.fixture(params=TEXTS, ids=str)
def chapter(request) -> str:
    return request.param


@pytest.mark.parametrize(
    "prose",
    [
        "It took 41.8 ms.",
        "about 3 times as long",
        "a share of 80 %",
        "8 sequences",
        "at 2048 tokens",
        "- 2 of them",
        "The cost is 3 GB.",
        "some twenty milliseconds",
        "five percent",
    ],
)
def test_a_typed_result_is_found(prose):
    assert typed_numbers(prose)


@pytest.mark.parametrize(
    "prose",
    [
        "**Cost.** One device, about 3 GB of memory.",
        "1. In float32, `8` of $n = 16$ tokens and\n$$\nx = 2\n$$ (eq-two)",
        "a 95 % interval, [M/D/1](page2.html), {cite:t}`orca2022`, section 3 (1961)",
        "eight times the tokens",
    ],
)
def test_formulas_names_and_definitions_may_have_numbers(prose):
    assert not typed_numbers(prose)


def test_every_symbol_stands_in_the_table_of_symbols(chapter):
    page = (ROOT / "book" / "how_to_read.md").read_text(encoding="utf-8")
    known = set(symbols_of(page[page.index("## Symbols") :]))
    assert {"P", "W", "B", "t_p", "\\alpha"} <= known
    used = set(symbols_of("\n".join(TEXTS[chapter])))
    assert used <= known, used - known


def test_symbols_are_read_out_of_formulas_alone():
    text = r"Let $t_p$ be $\max(W, LHD)$, and $$\frac{\text{a word}}{B_{\text{half}}} + o_i$$ C"
    assert set(symbols_of(text)) == {"t_p", "W", "L", "H", "D", "B", "o_i"}


def test_a_law_is_numbered_where_it_predicts(chapter):
    prediction = next(cell for cell in TEXTS[chapter] if "## Prediction" in cell)
    assert LABEL.findall(prediction)


def test_no_two_formulas_of_the_book_bear_one_label():
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")]
    texts = [*pages, *("\n".join(cells) for cells in TEXTS.values())]
    labels = [label for text in texts for label in LABEL.findall(text)]
    assert len(labels) > len(TEXTS)
    assert sorted(labels) == sorted(set(labels))
    assert {label for text in texts for label in REFERENCE.findall(text)} <= set(labels)


def test_whoever_refers_to_a_law_of_another_chapter_links_that_chapter(chapter):
    """A number alone does not say where it leads."""
    for cell in TEXTS[chapter]:
        for label in REFERENCE.findall(cell):
            home = LABELS[label]
            assert home == chapter or f"({home}.ipynb)" in cell, label


def test_chapters_use_one_anothers_laws():
    across = {
        (name, LABELS[label])
        for name, cells in TEXTS.items()
        for label in REFERENCE.findall("\n".join(cells))
        if LABELS[label] != name
    }
    assert len({user for user, _ in across}) >= len(TEXTS) / 2
