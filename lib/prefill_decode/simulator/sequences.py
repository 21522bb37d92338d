"""Sequences: a request on an instance, as the scheduler knows it, and the segments of its answer.

A segment is what an answer got on one instance without losing its cache: perhaps a first token at
a time of its own, then one in every turn of the instance from `since_turn` on.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import nan

from prefill_decode.request import Request
from prefill_decode.scheduling import SequenceState

NO_SEGMENT = -1


@dataclass(slots=True, eq=False)
class Served(SequenceState):
    index: int = 0  # of the request
    since_turn: int = NO_SEGMENT
    first_s: float = nan  # of the segment, if its first token came at no turn
    source: "Served | None" = None  # whose blocks, at another instance, hold its cache
    sender: int = -1  # that instance
    taker: int = -1  # the place among the instances that decode of the one that goes on with it


MOST_BLOCKS = 2**40  # of a prompt


class Contents:
    """Names for what the blocks of prompts hold: equal for equal beginnings, at one block size. A
    name is a number, made of those of the chain of pieces that its block ends in and of the block.
    """

    def __init__(self) -> None:
        self._chains: dict[tuple[int, int, int], int] = {}

    def of(self, request: Request, block_tokens: int) -> list[Hashable]:
        """Of the first full blocks, as far as the request says what they hold."""
        pieces: Sequence[tuple[int, int]] = request.pieces
        if request.answer is not None:
            pieces = (*pieces, (request.answer, request.output_tokens))
        names: list[Hashable] = []
        chain = tokens = 0
        for text, length in pieces:
            key = (chain, text, length)
            chain = self._chains.setdefault(key, len(self._chains) + 1)
            tokens += length
            first = chain * MOST_BLOCKS
            names += range(first + len(names), first + tokens // block_tokens)
        return names
