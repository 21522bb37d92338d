"""Answers: from an answer's tokens to the text that a client may see, cut exactly at stop strings.

A token is not a piece of text: it may end inside a character, and its text may begin a stop string
that later tokens complete or give up. Text is held back until it is certain, and tokens with it:
a piece carries as many tokens as begin in its text, so that counting what came counts tokens.

Counts:  every sampled token up to the end of the answer, the one that ended it included.
Ignores: tokens sampled after a stop string was complete, before the engine heard of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefill_decode.endpoint.tokenizer import Detokenizer
from prefill_decode.engine.answering import SampledToken

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class PlacedToken:
    """A token, and where in the answer's text its own begins."""

    token: SampledToken
    offset: int


@dataclass(frozen=True)
class Piece:
    """What became certain at once: text, the tokens in it, or the end of an answer."""

    index: int
    text: str
    placed: tuple[PlacedToken, ...]  # those that begin in the text
    num_tokens: int
    finish_reason: FinishReason | None = None


class StopScanner:
    """Text up to the first stop string to be complete, wherever the pieces of the text end.

    Of several that are complete at the same character, the longest counts."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = stops
        self.held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Text that is certain to come before any stop string."""
        held = self.held + text
        starts = [(held.find(stop), len(stop)) for stop in self.stops]
        ends = [(start + length, start) for start, length in starts if start >= 0]
        if ends:
            self.found, self.held = True, ""
            return held[: min(ends)[1]]
        certain = len(held) - max((_overlap(held, stop) for stop in self.stops), default=0)
        self.held = held[certain:]
        return held[:certain]

    def finish(self) -> str:
        """What no stop string will take any more."""
        text, self.held = self.held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """The most characters at the end of `text` that begin `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)


class Answer:
    """One answer while it grows."""

    def __init__(self, index: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.ended = False
        self.num_tokens = 0
        self.last_time_s: float | None = None
        self._detokenizer = detokenizer
        self._scanner = StopScanner(stops)
        self._held: list[PlacedToken] = []
        self._told_tokens = 0
        self._told_letters = 0
        self._known_letters = 0  # those held back included

    def push(self, token: SampledToken) -> list[Piece]:
        """What the next token makes certain: at most a piece of text and the end."""
        self.num_tokens += 1
        text = self._text_of(token)
        ready = self._scanner.push(text)
        self._known_letters += len(text)
        reason = token.finish_reason
        if self._scanner.found:
            reason = "stop"
        elif reason is not None:
            ready += self._scanner.finish()
        self.ended = reason is not None
        pieces = [self._piece(ready)] if ready else []
        if reason is not None:
            rest = self.num_tokens - self._told_tokens
            pieces.append(Piece(self.index, "", (), rest, reason))
        return pieces

    def _text_of(self, token: SampledToken) -> str:
        """The text it completes. A stop token has none of its own; the last ends what is open."""
        if token.finish_reason == "stop":
            return self._detokenizer.finish()
        self._held.append(PlacedToken(token, self._known_letters))
        text = self._detokenizer.push(token.token_id)
        return text if token.finish_reason is None else text + self._detokenizer.finish()

    def _piece(self, text: str) -> Piece:
        self._told_letters += len(text)
        begun = [placed for placed in self._held if placed.offset < self._told_letters]
        del self._held[: len(begun)]
        self._told_tokens += len(begun)
        return Piece(self.index, text, tuple(begun), len(begun))
