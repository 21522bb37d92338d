"""Values: the types of options. What is out of range is refused with the rule and what came."""

import argparse
from collections.abc import Callable
from math import inf, nan
from pathlib import Path

LARGEST_TOLERANCE = 10.0  # eleven-fold: beyond it no gate is left
LARGEST_RATE_PER_S = 1e5
LARGEST_BURSTINESS = 100.0  # Azure's code trace has 13
LEAST_GIGABYTES, MOST_GIGABYTES = 1e-6, 1e6
MOST_STREAMS = 10_000  # each a connection
MOST_REQUESTS = 1_000_000  # that a run plans
MOST_TOKENS = 1_000_000  # of a prompt or an answer
LARGEST_SEED = 2**63 - 1
LARGEST_PORT = 65_535
LARGEST_COUNT = 10**9
MOST_TIMES = 999  # that anything is repeated


def seconds(text: str) -> float:
    return _number(text, lambda s: 0 <= s < inf, "must be a number of seconds from 0 on")


def positive_seconds(text: str) -> float:
    return _number(text, lambda s: 0 < s < inf, "must be a positive number of seconds")


def positive_whole_seconds(text: str) -> int:
    return max(1, round(positive_seconds(text)))


def gigabytes(text: str) -> float:
    rule = "must be a positive number of gigabytes, below a million"
    return _number(text, lambda gb: LEAST_GIGABYTES <= gb < MOST_GIGABYTES, rule)


def tolerance(text: str) -> float:
    rule = f"a tolerance is a positive share such as 0.10, below {LARGEST_TOLERANCE}"
    return _number(text, lambda share: 0 < share < LARGEST_TOLERANCE, rule)


def rate(text: str) -> float:
    rule = f"a rate is a positive number of requests/s, up to {LARGEST_RATE_PER_S:g}"
    return _number(text, lambda per_s: 0 < per_s <= LARGEST_RATE_PER_S, rule)


def burstiness(text: str) -> float:
    rule = f"a coefficient of variation is a number from 0 to {LARGEST_BURSTINESS:g}"
    return _number(text, lambda cv: 0 <= cv <= LARGEST_BURSTINESS, rule)


def share(text: str) -> float:
    return _number(text, lambda value: 0 < value <= 1, "a share lies above 0, up to 1")


def port(text: str) -> int:
    return _whole_number(text, 0, LARGEST_PORT)


def times(text: str) -> int:
    return _whole_number(text, 0, MOST_TIMES)


def count(text: str) -> int:
    return _whole_number(text, 0, LARGEST_COUNT)


def positive_count(text: str) -> int:
    return _whole_number(text, 1, LARGEST_COUNT)


def streams(text: str) -> int:
    return _whole_number(text, 1, MOST_STREAMS)


def requests(text: str) -> int:
    return _whole_number(text, 1, MOST_REQUESTS)


def tokens(text: str) -> int:
    return _whole_number(text, 1, MOST_TOKENS)


def seed(text: str) -> int:
    return _whole_number(text, 0, LARGEST_SEED)


def name(text: str) -> str:
    if not text.strip() or not text.isprintable():
        raise argparse.ArgumentTypeError(f"must be a printable text, not empty; got {text!r:.60}")
    return text


def folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("must be a folder; got an empty text")
    path = Path(text)
    try:
        is_something_else = path.exists() and not path.is_dir()
    except OSError as error:
        raise argparse.ArgumentTypeError(f"must be a folder; {error.strerror}") from error
    if is_something_else:
        raise argparse.ArgumentTypeError(f"must be a folder, no such folder: {text!r} is a file")
    return path


def _number(text: str, is_allowed: Callable[[float], bool], rule: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not is_allowed(value):
        raise argparse.ArgumentTypeError(f"{rule}; got {text!r:.60}")
    return value


def _whole_number(text: str, least: int, most: int) -> int:
    digits = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    if not (digits and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(
            f"must be a whole number from {least} to {most}; got {text!r:.60}"
        )
    return int(text)
