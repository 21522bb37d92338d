"""Prose of the chapters: what a test needs to read it apart from formulas, code and links."""

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat

from tests.conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
FORMULA = re.compile(r"\$\$.*?\$\$|\$[^$]*\$", re.DOTALL)
LABEL = re.compile(r"\$\$ \(([a-z-]+)\)")
REFERENCE = re.compile(r"\{eq\}`([^`]+)`")


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
