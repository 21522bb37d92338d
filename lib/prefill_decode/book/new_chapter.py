"""New chapter: a claim's notebook as a skeleton that runs, in its place among the others.

The skeleton measures two steps and judges one prediction, so that whoever fills it in changes
something that works. Every place that wants words or another choice says TODO; the tests of the
notebooks refuse to publish one."""

import json
import os
import re
from pathlib import Path

from prefill_decode.book.project import Project
from prefill_decode.results import write_all_atomically

SKELETON = Path(__file__).with_name("skeleton.ipynb")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
LONGEST_NAME, LONGEST_TITLE = 60, 120  # a name fits a line of code


def new_chapter(
    project: Project, claim: str, after: str | None = None, title: str | None = None
) -> list[Path]:
    """Write the notebook of `claim`, put it into _toc.yml behind the chapter `after` (the last),
    and turn its neighbours' links to it. The files written, the notebook first.

    ValueError, with nothing written, for a name that is no claim's or is taken, or for a title
    that would break its page."""
    _check_name(project, claim)
    title = claim.replace("_", " ").capitalize() if title is None else title
    _check_title(title)
    chapters = project.chapters()
    if not chapters:
        raise ValueError(f"{project.root / '_toc.yml'}: a claim follows a chapter; it has none")
    before = chapters[-1] if after is None else project.chosen([after], "--after")[0]
    following = chapters[chapters.index(before) + 1 :][:1]
    link = _link(title, claim)
    neighbours = [("Before", before), *(("Next", name) for name in following)]
    written = {
        project.notebook(claim): _skeleton(project, claim, title, neighbours),
        project.root / "_toc.yml": _toc_with(project, claim, before),
        project.notebook(before): _turned(project.notebook(before), "Next", link),
    }
    for name in following:
        written[project.notebook(name)] = _turned(project.notebook(name), "Before", link)
    write_all_atomically({path: text.encode("utf-8") for path, text in written.items()})
    return list(written)


def _check_name(project: Project, claim: str) -> None:
    if not NAME.fullmatch(claim) or len(claim) > LONGEST_NAME:
        raise ValueError(
            "a claim's name is a sentence in small letters joined by _, such as "
            f"decode_is_serial, of at most {LONGEST_NAME}; got {claim!r:.100}"
        )
    if os.path.lexists(project.notebook(claim)):  # a link that leads nowhere is there, too
        raise ValueError(f"{project.notebook(claim)} is there already: choose another name")


def _check_title(title: str) -> None:
    """It becomes a heading, the words of links and a cell of tables."""
    plain = title.isprintable() and not set(title) & set("[]<>|`\\")
    if not plain or title != title.strip() or not 0 < len(title) <= LONGEST_TITLE:
        raise ValueError(
            f"a title is one printable line of 1 to {LONGEST_TITLE} characters, without [ ] < > | "
            f"` and backslash or spaces around it; got {title!r:.140}"
        )


def _link(title: str, chapter: str) -> str:
    return f"[{title[:1].lower()}{title[1:]}]({chapter}.ipynb)"


def _skeleton(project: Project, claim: str, title: str, neighbours: list[tuple[str, str]]) -> str:
    links = [f"{word}: {_link(project.title(name), name)}." for word, name in neighbours]
    text = SKELETON.read_text(encoding="utf-8")
    given = {"CLAIM_TITLE": title, "CLAIM_NAME": claim, "NEIGHBOURS": " ".join(links)}
    given["EQUATION_NAME"] = claim.replace("_", "-")
    for place in given:
        assert text.count(place) == 1, place
    places = re.compile("|".join(given))  # all at once: a title may hold the name of a place
    return places.sub(lambda found: _in_json(given[found[0]]), text)


def _toc_with(project: Project, claim: str, before: str) -> str:
    """The table of contents as it is written, with one line more."""
    path = project.root / "_toc.yml"
    line = re.compile(
        rf"^([ \t]*- file: notebooks/){re.escape(before)}[ \t]*(#[^\r\n]*)?(?=(\r?)$)", re.MULTILINE
    )
    text, count = line.subn(rf"\g<0>\g<3>\n\g<1>{claim}", _as_written(path))
    if count != 1:
        raise ValueError(
            f"{path}: a chapter stands on a line of its own, '- file: notebooks/{before}', without "
            f"quotes; got {count} such lines: write it so"
        )
    return text


def _turned(path: Path, word: str, link: str) -> str:
    """A notebook as it is written, whose link `word` leads to the new chapter. The last chapter
    has no Next yet: it gets one behind its Before."""
    text = _as_written(path)
    target = r"\[[^\]]*\]\(\w+\.ipynb\)"
    turned, count = re.subn(f"({word}: ){target}", lambda f: f[1] + _in_json(link), text)
    if not count and word == "Next":
        after = re.compile(rf"Before: {target}[^.]*\.")
        turned, count = after.subn(lambda found: f"{found[0]} Next: {_in_json(link)}.", text)
    if count != 1:
        raise ValueError(
            f"{path.name}: a chapter ends with one link '{word}: [title](NAME.ipynb)'; got "
            f"{count}: write it there, then begin the claim again"
        )
    return turned


def _as_written(path: Path) -> str:
    """A text with the ends of its lines as they are."""
    return path.read_bytes().decode("utf-8")


def _in_json(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)[1:-1]
