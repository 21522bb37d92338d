"""A term is linked once a page, in prose, and nowhere else."""

import re

import nbformat
import pytest

from prefill_decode.book.glossary import Term, link_terms, read_terms
from tests.conftest import ROOT

PAGE = """# Glossary

(term-batch)=
batch
: Sequences.

(term-ttft)=
TTFT, time to first token
: A time.
"""
TERMS = [
    Term("term-batch", ("batch",)),
    Term("term-ttft", ("TTFT", "time to first token")),
    Term("term-prefill", ("prefill",)),
    Term("term-chunked", ("chunked prefill",)),
    Term("term-cache", ("KV cache",)),
    Term("term-latency", ("latency",)),
]


def linked(text):
    return link_terms(text, TERMS, set())


def test_the_page_of_the_glossary_names_its_terms():
    assert read_terms(PAGE) == TERMS[:2]
    assert read_terms("# Nothing\n") == []


@pytest.mark.parametrize("again", ["(term-batch)=\nlot\n: x\n", "(term-lot)=\nbatch\n: x\n"])
def test_a_term_that_is_defined_twice_is_refused(again):
    with pytest.raises(ValueError, match="twice"):
        read_terms(PAGE + "\n" + again)


def test_only_the_first_use_is_linked():
    assert linked("A batch, a batch.") == "A [batch](#term-batch), a batch."
    seen = {"term-batch"}
    assert link_terms("A batch.", TERMS, seen) == "A batch."
    assert link_terms("A prefill.", TERMS, seen) == "A [prefill](#term-prefill)."
    assert seen == {"term-batch", "term-prefill"}


def test_two_names_of_one_term_are_linked_once():
    assert linked("TTFT is time to first token") == "[TTFT](#term-ttft) is time to first token"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Batches wait.", "Batches"),
        ("two batches", "batches"),
        ("**Prefill** reads", "Prefill"),
        ("all latencies", "latencies"),
        ("the KV caches", "KV caches"),
        ("the KV\ncache", "KV\ncache"),
        ("a batch.", "batch"),
    ],
)
def test_plurals_and_beginnings_of_sentences_are_the_same_word(text, words):
    assert re.search(rf"\[{words}\]\(#term-", linked(text))


@pytest.mark.parametrize(
    "text",
    [
        "ttft",
        "Kv cache",
        "BATCH",
        "batching",
        "prefill-only",
        "pre-batch",
        "batch_size",
        "batch.py",
    ],
)
def test_other_words_are_left_alone(text):
    assert linked(text) == text


def test_the_longest_name_wins():
    text = "Chunked prefill and prefill."
    assert linked(text) == "[Chunked prefill](#term-chunked) and [prefill](#term-prefill)."


@pytest.mark.parametrize(
    "text",
    [
        "# A batch\n",
        "### A batch\n",
        "| batch | x |\n",
        "`batch`",
        "``a ` batch``",
        "{ref}`a batch <x>`",
        "[a batch](x.md)",
        "[a [batch] here](x.md)",
        "![a batch](x.svg)",
        "[x](batch.md)",
        "[batch][1]",
        "$batch$",
        "$\\text{a batch}$",
        "$$\nbatch\n$$",
        "$$\nx\n$$ (batch)",
        "```text\nbatch\n```",
        "````\n```\nbatch\n```\n````",
        "```{admonition} batch\nbatch\n```",
        ":::{div} batch\nbatch\n:::",
        "(batch)=\n",
        "batch\n: what it is\n",
        '<b class="batch">x</b>',
        "<div>\nbatch\n\nbatch\n</div>",
        "<https://x.org/batch>",
        "https://x.org/batch",
        "<!-- batch -->",
    ],
)
def test_nothing_but_prose_is_touched(text):
    assert linked(text) == text
    assert linked(f"{text}\n\nA batch.") == f"{text}\n\nA [batch](#term-batch)."


def test_prose_between_two_prices_is_no_formula():
    assert linked("from $5 a batch to $6") == "from $5 a [batch](#term-batch) to $6"


# Words of titles, and of what the command prints.
ELSEWHERE = {
    *("term-handover", "term-lease", "term-preemption", "term-prefix-cache", "term-utilization"),
}


def pages_and_chapters():
    for path in sorted((ROOT / "book").glob("*.md")):
        if path.name != "glossary.md":
            yield path.name, path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = nbformat.read(path, as_version=4).cells
        yield path.name, "\n\n".join(c.source for c in cells if c.cell_type == "markdown")


def test_links_are_all_that_is_added_and_every_term_of_the_book_is_used():
    terms = read_terms((ROOT / "book" / "glossary.md").read_text(encoding="utf-8"))
    assert len(terms) >= 40
    used = set()
    for name, text in pages_and_chapters():
        seen: set[str] = set()
        linked_text = link_terms(text, terms, seen)
        assert re.sub(r"\[([^\[\]]+)\]\(#term-[\w-]+\)", r"\1", linked_text) == text, name
        assert linked_text.count("](#term-") == len(seen), name
        used |= seen
    assert {term.anchor for term in terms} - used <= ELSEWHERE
