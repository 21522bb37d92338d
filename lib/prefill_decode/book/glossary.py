"""Glossary: the book's terms, and a link to a term's entry where a page uses it first.

The page of the glossary is the only source. An entry is a target, a line of names and a definition:

    (term-ridge)=
    ridge
    : The arithmetic intensity at which ...

Counts:  whole words, with a plural s, es or ies; the longest name where several begin alike. A name
         without capitals may begin a sentence; one with capitals is matched as it stands.
Ignores: headings, names of a list of definitions, tables, fences, formulas, code, roles, links,
         HTML, and words with a hyphen, which are other words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ENTRY = re.compile(r"^\((term-[a-z0-9-]+)\)=\n(.+)\n: ", re.MULTILINE)
# What a link must not reach into: blocks first, then what stands inside a line.
KEPT = (
    r"^(?P<fence>`{3,}|~{3,}|:{3,})[^\n]*\n.*?^(?P=fence)[ \t]*$",
    r"^<(?P<tag>div|details|figure|table|svg)\b.*?</(?P=tag)>",
    r"\$\$.*?\$\$(?:[ \t]*\([\w-]+\))?",
    r"^#+[ \t][^\n]*$",  # a heading
    r"^[ \t]*\|[^\n]*$",  # a row of a table
    r"^\([\w-]+\)=$",  # a target
    r"^[^\n]+(?=\n:[ \t])",  # what a list defines
    r"<!--.*?-->",
    r"(?:\{[\w:-]+\})?(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)",  # code, or a role
    r"(?<![\\$\d])\$(?!\s)(?:\\.|[^$\\\n])+?(?<!\s)\$",
    r"!?\[(?:\\.|[^\[\]\\]|\[[^\[\]]*\])*\](?:\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|\[[^\]\n]*\])",
    r"<[A-Za-z/][^>\n]*>",  # a tag, or an address
    r"https?://\S+",
)
PROTECTED = re.compile("|".join(KEPT), re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Term:
    anchor: str
    names: tuple[str, ...]


def read_terms(page: str) -> list[Term]:
    """The glossary's entries. ValueError where a target or a name stands twice."""
    found = [
        Term(anchor, tuple(name.strip() for name in names.split(",")))
        for anchor, names in ENTRY.findall(page)
    ]
    seen = [word for term in found for word in (term.anchor, *term.names)]
    twice = sorted({word for word in seen if seen.count(word) > 1})
    if twice:
        raise ValueError(f"a term is defined once; the glossary has {', '.join(twice)} twice")
    return found


def link_terms(text: str, terms: Sequence[Term], linked: set[str]) -> str:
    """`text`, Markdown, with a link at the first use of each term whose anchor is not in `linked`,
    to which it is added."""
    anchors = {name: term.anchor for term in terms for name in term.names}
    if not anchors:
        return text
    names = re.compile("|".join(_pattern(name) for name in sorted(anchors, key=len, reverse=True)))
    pieces, place = [], 0
    for kept in PROTECTED.finditer(text):
        pieces += [_linked(text[place : kept.start()], names, anchors, linked), kept[0]]
        place = kept.end()
    return "".join([*pieces, _linked(text[place:], names, anchors, linked)])


def _linked(
    prose: str, names: re.Pattern[str], anchors: Mapping[str, str], linked: set[str]
) -> str:
    def link(found: re.Match[str]) -> str:
        anchor = anchors[_name_of(found[0], anchors)]
        if anchor in linked:
            return found[0]
        linked.add(anchor)
        return f"[{found[0]}](#{anchor})"

    return names.sub(link, prose)


def _pattern(name: str) -> str:
    """A name as a whole word, in its forms."""
    words = r"\s".join(re.escape(word) for word in name.split())
    if name == name.lower():
        words = f"[{name[0].upper()}{name[0]}]{words[1:]}"
    if name.endswith("y") and name[-2:-1] not in "aeiou":
        words = f"{words[:-1]}(?:y|ies)"
    else:
        words += "(?:es)?" if name.endswith(("s", "x", "ch", "sh")) else "s?"
    return rf"(?<![\w\-/.@#{{\\]){words}(?![\w\-/}}]|\.\w)"


def _name_of(found: str, anchors: Mapping[str, str]) -> str:
    """The name whose form was found."""
    return next(name for name in anchors if re.fullmatch(_pattern(name), found))
