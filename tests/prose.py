"""Prose of the chapters: what a test needs to read it apart from formulas, code and links."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)
LABEL = re.compile(r"\$\$ \(([a-z0-9-]+)\)")
REFERENCE = re.compile(r"\{eq\}`([^`]+)`")
# What a digit in prose may be, besides a result.
KINDS = [
    r"^\*\*Cost\.\*\*.*$",  # an estimate for who has not run the chapter; the strip has the run's
    r"^\d\. ",  # an exercise, and its solution
    r"\bb?float\d+",  # a dtype
    r"\b[A-Z][\w/]*-?\d[\w.-]*",  # a name: P99, M/D/1, Llama-3.1-8B
    r"\bsection \d",
    r"\((?:19|20)\d\d\)",  # the year of a source
    r"95 %",  # every interval's, by definition
]
COUNTS = "two|three|four|five|six|seven|eight|nine|ten|twenty|thirty|fifty|hundred|thousand"
UNITS = r"(?:milli|micro|nano)?seconds?|minutes?|(?:giga|mega|kilo)?(?:bytes?|bits?)|percent|watts?"
MEASURED_WORDS = re.compile(rf"\b(?:{COUNTS})[ -](?:{UNITS})\b(?! (?:each|a weight))")


def markdown_of(path: Path) -> list[str]:
    cells = nbformat.read(path, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "markdown"]


def without_formulas_code_and_targets(text: str) -> str:
    """Prose as it is read: no formulas, no code and roles, no targets of links."""
    text = LABEL.sub("$$", text)
    text = FORMULA.sub("", text)
    text = re.sub(r"(\{[a-z:]+\})?`[^`]*`", "", text)
    return re.sub(r"\]\([^)]*\)", "]", text)


def symbols_of(text: str) -> Iterator[str]:
    """Every letter that stands for something in the formulas of `text`, with its index if that is
    a letter, too."""
    for formula in FORMULA.findall(text):
        formula = re.sub(r"\\(text|begin|end)\{[^}]*\}", "", formula)
        formula = re.sub(r"\\(?!alpha|beta)[a-zA-Z]+", " ", formula)
        yield from re.findall(r"(\\[a-z]+|[A-Za-z](?:_[A-Za-z]\b)?)", formula)


def typed_numbers(markdown: str) -> list[str]:
    """Digits of no permitted kind, and quantities with a unit in words."""
    prose = without_formulas_code_and_targets(markdown)
    in_words = MEASURED_WORDS.findall(prose)
    for kind in KINDS:
        prose = re.sub(kind, "", prose, flags=re.MULTILINE)
    return re.findall(r"\d[\d.,]*", prose) + in_words
