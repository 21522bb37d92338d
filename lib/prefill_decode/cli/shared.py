"""Shared: exit codes, and what several verbs do alike."""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefill_decode.book import Project


FINE, FINDING, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def project_of(options: argparse.Namespace) -> "Project":
    from prefill_decode.book import find_project

    return find_project(Path.cwd(), options.results, options.build)


def project_with_records(options: argparse.Namespace) -> "Project":
    """The project, for a verb that reads records: a folder that the user names must be there."""
    project = project_of(options)
    if options.results is not None and not project.results.is_dir():
        raise ValueError(f"no such folder: {options.results}; records lie in book/results")
    return project


def check_out(option: str, path: Path | None) -> None:
    """A file that cannot be written is known before the work, not after it."""
    if path is None:
        return
    try:  # a device would be replaced by a file, and so would a link, such as /dev/stdout
        usable = not path.is_symlink() and (path.is_file() or not path.exists())
        if usable:
            tempfile.TemporaryFile(dir=path.parent).close()
    except (OSError, ValueError):  # ValueError: a null character
        usable = False
    if not usable:
        raise ValueError(
            f"{option} is a file in a folder that can be written to, no link, device or folder; "
            f"got {str(path)!r:.200}"
        )


def checked_key(key: str | None, where: str) -> str | None:
    """An API key that a header can hold. ValueError naming `where` it came from, without it."""
    if key is not None and (not key.isascii() or not key.isprintable() or " " in key or not key):
        raise ValueError(
            f"an API key must be printable ASCII without spaces, and not empty; {where} has another"
        )
    return key


def printable(text: str) -> str:
    """Text in which no name of a file begins a line, moves the cursor or breaks strict JSON."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


def complain(error: object) -> None:
    """Say what is wrong, on stderr; only the first line begins with the command's name."""
    told = "\n    ".join(printable(line) for line in str(error).split("\n"))
    print(f"prefill-decode: {told}", file=sys.stderr)


def warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"prefill-decode: {printable(problem)}", file=sys.stderr)


class RenewedLine:
    """How far a verb is: on a terminal a line that takes the place of the last, else nothing."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._shown = file, ""

    def show(self, text: str) -> None:
        if self._file.isatty():
            self._file.write(f"\r{text:<{len(self._shown)}}")
            self._file.flush()
            self._shown = text

    def end(self) -> None:
        if self._shown:
            self._file.write("\n")


def print_last(text: str) -> None:
    """Print what a verb ends with. A reader that has seen enough, such as head, ends the printing
    and not the verb, whose exit code is still to come."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """What is still to be written goes nowhere: nobody reads it any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(document: Any) -> None:
    print_last(json.dumps(document, indent=1, allow_nan=False))
