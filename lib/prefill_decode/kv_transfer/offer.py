"""Offer: a prompt's blocks in one process, for another to read.

Names blocks by index, never by address: the owner checks what it is asked for. The generations say
in which use each block was offered, so that a block with a new holder is never taken for the old
one."""

from dataclasses import asdict, dataclass
from typing import Any

MOST_ID = 200  # characters
MOST_BLOCKS = 2**20


@dataclass(frozen=True)
class Offer:
    transfer_id: str  # the same on all sides
    address: str  # "unix:PATH" or "tcp:HOST:PORT", where its owner answers
    incarnation: str  # of the owner: one that was started again offers nothing of before
    blocks: tuple[int, ...]
    generations: tuple[int, ...]  # one for each block

    def __post_init__(self) -> None:
        if not 0 < len(self.transfer_id) <= MOST_ID:
            raise ValueError(
                f"a transfer has an id of 1 to {MOST_ID} characters; got {self.transfer_id!r:.80}"
            )
        if len(self.blocks) != len(self.generations) or not 0 < len(self.blocks) <= MOST_BLOCKS:
            raise ValueError(
                f"an offer has 1 to {MOST_BLOCKS} blocks, each with its generation; got "
                f"{len(self.blocks)} and {len(self.generations)}"
            )
        if not all(type(n) is int and n >= 0 for n in (*self.blocks, *self.generations)):
            raise ValueError("blocks and generations are counts; got others")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, read: Any) -> "Offer":
        """ValueError for anything that `to_json` did not write."""
        try:
            words = (read["transfer_id"], read["address"], read["incarnation"])
            blocks, generations = tuple(read["blocks"]), tuple(read["generations"])
        except (TypeError, KeyError):
            raise ValueError(f"this is no offer: {read!r:.200}") from None
        if len(read) != 5 or not all(isinstance(word, str) for word in words):
            raise ValueError(f"this is no offer: {read!r:.200}")
        return cls(*words, blocks, generations)
