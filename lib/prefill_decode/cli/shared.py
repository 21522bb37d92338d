"""Shared: exit codes, and what several verbs do alike."""

import argparse
import json
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


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))
