"""Did you mean: the nearest known name, for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """ "; did you mean NAME?" for the nearest known name; empty when none is near."""
    near = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""
