"""What README, CONTRIBUTING and the pages tell a reader to type is what the command takes."""

import re
import shlex
from argparse import _SubParsersAction

import pytest

from prefill_decode.cli.parser import make_parser
from tests.conftest import ROOT

PATHS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md")),
    *(ROOT / "benchmarks").glob("*.md"),
    *sorted((ROOT / "book").glob("*.md")),
]
FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^ *(?:\.venv/bin/)?prefill-decode (.+)$", re.MULTILINE)


def commands_of(text):
    """The words of each command in the shell's fences; those that a page fills in are left out."""
    for fence in FENCE.findall(text):
        for line in COMMAND.findall(fence.replace("\\\n", " ")):
            if "<!--" not in line:
                yield shlex.split(line, comments=True)


COMMANDS = [(path.name, words) for path in PATHS for words in commands_of(path.read_text())]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda each: " ".join(each)[:60])
def test_a_command_on_a_page_is_one_that_the_parser_takes(page, words):
    make_parser().parse_args(words)


def test_the_readme_names_every_verb():
    verbs = next(a for a in make_parser()._actions if isinstance(a, _SubParsersAction)).choices
    named = {words[0] for page, words in COMMANDS if page == "README.md"}
    assert set(verbs) <= named


def test_how_to_run_it_has_the_book_of_one_chapter_and_the_beginning_of_another():
    shown = {words[0]: words[1:] for page, words in COMMANDS if page == "run_it.md"}
    chapters = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    (chapter,) = shown["book"]
    name, after, neighbour = shown["new"]
    assert {chapter, neighbour} <= chapters
    assert (name in chapters, after) == (False, "--after")


def test_a_command_that_is_none_is_refused():
    lines = ["prefill-decode doctor --json  # words", ".venv/bin/prefill-decode doctor -x"]
    right, wrong = commands_of("\n".join(["```sh", *lines, "```"]))
    make_parser().parse_args(right)
    with pytest.raises(SystemExit):
        make_parser().parse_args(wrong)
