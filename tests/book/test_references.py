"""The bibliography: every source can be found, and is one that the book uses."""

import re

import nbformat
import pytest
from pybtex.database import parse_file

from tests.conftest import ROOT

ENTRIES = parse_file(ROOT / "book" / "references.bib").entries
CITED = re.compile(r"\{cite(?::[a-z]+)?\}`([^`]+)`")


def cited_keys():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "book").glob("*.md")]
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        texts += [cell.source for cell in cells if cell.cell_type == "markdown"]
    found = [key for text in texts for key in CITED.findall(text)]
    return {key.strip() for keys in found for key in keys.split(",")}


@pytest.mark.parametrize("key", list(ENTRIES))
def test_a_source_has_an_author_a_year_and_a_doi_or_an_address(key):
    fields = ENTRIES[key].fields
    assert ENTRIES[key].persons["author"]
    assert re.fullmatch(r"\d{4}", fields["year"])
    assert fields["title"]
    if "doi" in fields:
        assert re.fullmatch(r"10\.\d{4,9}/\S+", fields["doi"])
    else:
        assert re.fullmatch(r"https://[^\s/]+\.[^\s/]+/\S*", fields["url"])


def test_every_source_that_is_cited_stands_there_and_no_other():
    assert cited_keys() == set(ENTRIES)
