"""New chapter: a claim's notebook as a skeleton that runs, in its place among the others.

The skeleton measures two steps and judges one prediction, so that whoever fills it in changes
something that works. Every place that wants words or another choice says TODO; the tests of the
notebooks refuse to publish one."""

import json
import re
from pathlib import Path

from prefill_decode.book.project import Project
from prefill_decode.results import write_atomically

SKELETON = Path(__file__).with_name("skeleton.ipynb")
NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


def new_chapter(
    project: Project, claim: str, after: str | None = None, title: str | None = None
) -> list[Path]:
    """Write the notebook of `claim`, put it into _toc.yml behind the chapter `after` (the last),
    and turn its neighbours' links to it. The files written, the notebook first.

    ValueError, with nothing written, for a name that is no claim's or is taken."""
    _check_name(project, claim)
    chapters = project.chapters()
    before = chapters[-1] if after is None else project.chosen([after])[0]
    following = chapters[chapters.index(before) + 1 :][:1]
    title = title or claim.replace("_", " ").capitalize()
    link = _link(title, claim)
    neighbours = [("Before", before), *(("Next", name) for name in following)]
    written = {
        project.notebook(claim): _skeleton(project, claim, title, neighbours),
        project.root / "_toc.yml": _toc_with(project, claim, before),
        project.notebook(before): _turned(project.notebook(before), "Next", link),
    }
    for name in following:
        written[project.notebook(name)] = _turned(project.notebook(name), "Before", link)
    for path, text in written.items():
        write_atomically(path, text)
    return list(written)


def _check_name(project: Project, claim: str) -> None:
    if not NAME.fullmatch(claim):
        raise ValueError(
            "a claim's name is a sentence in small letters joined by _, such as "
            f"decode_is_serial; got {claim!r}"
        )
    if project.notebook(claim).exists():
        raise ValueError(f"{project.notebook(claim)} is there already: choose another name")


def _link(title: str, chapter: str) -> str:
    return f"[{title[:1].lower()}{title[1:]}]({chapter}.ipynb)"


def _skeleton(project: Project, claim: str, title: str, neighbours: list[tuple[str, str]]) -> str:
    links = [f"{word}: {_link(project.title(name), name)}." for word, name in neighbours]
    text = SKELETON.read_text(encoding="utf-8")
    given = {"CLAIM_TITLE": title, "CLAIM_NAME": claim, "NEIGHBOURS": " ".join(links)}
    given["EQUATION_NAME"] = claim.replace("_", "-")
    for place, words in given.items():
        assert text.count(place) == 1, place
        text = text.replace(place, _in_json(words))
    return text


def _toc_with(project: Project, claim: str, before: str) -> str:
    """The table of contents as it is written, with one line more."""
    path = project.root / "_toc.yml"
    line = re.compile(rf"^([ \t]*- file: notebooks/){before}[ \t]*$", re.MULTILINE)
    text, count = line.subn(rf"\g<0>\n\g<1>{claim}", path.read_text(encoding="utf-8"))
    if count != 1:
        raise ValueError(f"{path}: {before} stands on a line of its own, '- file: notebooks/...'")
    return text


def _turned(path: Path, word: str, link: str) -> str:
    """A notebook as it is written, whose link `word` leads to the new chapter. The last chapter
    has no Next yet: it gets one behind its Before."""
    text = path.read_text(encoding="utf-8")
    target = r"\[[^\]]*\]\(\w+\.ipynb\)"
    turned, count = re.subn(f"({word}: ){target}", lambda f: f[1] + _in_json(link), text)
    if not count and word == "Next":
        after = re.compile(rf"Before: {target}[^.]*\.")
        turned, count = after.subn(lambda found: f"{found[0]} Next: {_in_json(link)}.", text)
    if count != 1:
        raise ValueError(f"{path.name}: a chapter ends with one link '{word}: [title](NAME.ipynb)'")
    return turned


def _in_json(words: str) -> str:
    return json.dumps(words, ensure_ascii=False)[1:-1]
