"""Shared: exit codes, and what several verbs do alike."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefill_decode.book import Project


FINE, FINDING, UNUSABLE, INTERRUPTED = 0, 1, 2, 130


def project_of(options: argparse.Namespace) -> "Project":
    from prefill_decode.book import find_project

    return find_project(Path.cwd(), options.results, options.build)


def warn(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"prefill-decode: {problem}", file=sys.stderr)


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
