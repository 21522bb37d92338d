"""Replies: pieces of answers as OpenAI's JSON, whole or as events of a stream.

An event carries the text of one piece and so as many tokens as begin in it; the end of an answer
is an event of its own, without text.

Counts:  usage: each prompt once, however many answers it has; every token of every answer, also
         one without text. Usage within a stream is of what has been sent so far, all answers
         together.
Ignores: cached_tokens: the engine does not say which request found its prompt in the cache.
Source:  OpenAI's API reference, "Completions" and "Chat", streaming included.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from prefill_decode.endpoint.answers import Piece, PlacedToken
from prefill_decode.endpoint.errors import ApiError
from prefill_decode.endpoint.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0  # JSON has no minus infinity
DONE = b"data: [DONE]\n\n"
ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)  # dumps would make one each time

Json = dict[str, Any]


def event(document: Json) -> bytes:
    """One server-sent event."""
    return b"data: " + ENCODER.encode(document).encode() + b"\n\n"


def error_events(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body()) + DONE


@dataclass
class Replies:
    """The JSON of one HTTP request's answers."""

    kind: Literal["completion", "chat"]
    reply_id: str
    created: int
    model: str
    tokenizer: Tokenizer
    prompt_tokens: int
    logprobs: bool
    usage_always: bool = False
    usage_at_end: bool = False
    sent_tokens: int = field(default=0, init=False)

    def whole(self, pieces: Iterable[Piece], num_answers: int) -> Json:
        """The reply to a request that does not stream."""
        by_answer: list[list[Piece]] = [[] for _ in range(num_answers)]
        for piece in pieces:
            by_answer[piece.index].append(piece)
            self.sent_tokens += piece.num_tokens
        word = "text_completion" if self.kind == "completion" else "chat.completion"
        choices = [self._choice(self._joined(answer)) for answer in by_answer]
        return {**self._envelope(word), "choices": choices, "usage": self._usage()}

    def opening(self, num_answers: int) -> bytes:
        """What a stream begins with, before any token: in a chat, who speaks."""
        if self.kind == "completion":
            return b""
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(num_answers)
        ]
        return b"".join(event(self._chunk([choice])) for choice in choices)

    def events(self, pieces: Sequence[Piece]) -> bytes:
        return b"".join(self._event(piece) for piece in pieces)

    def ending(self) -> bytes:
        if not self.usage_at_end:
            return DONE
        return event({**self._chunk([]), "usage": self._usage()}) + DONE

    def _event(self, piece: Piece) -> bytes:
        self.sent_tokens += piece.num_tokens
        return event(self._chunk([self._choice(piece, streamed=True)]))

    def _chunk(self, choices: list[Json]) -> Json:
        word = "text_completion" if self.kind == "completion" else "chat.completion.chunk"
        chunk = {**self._envelope(word), "choices": choices}
        if self.usage_always:
            chunk["usage"] = self._usage()
        elif self.usage_at_end:
            chunk["usage"] = None
        return chunk

    def _envelope(self, word: str) -> Json:
        return {"id": self.reply_id, "object": word, "created": self.created, "model": self.model}

    def _usage(self) -> Json:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.sent_tokens,
            "total_tokens": self.prompt_tokens + self.sent_tokens,
        }

    def _joined(self, pieces: Sequence[Piece]) -> Piece:
        return Piece(
            index=pieces[0].index,
            text="".join(piece.text for piece in pieces),
            placed=tuple(placed for piece in pieces for placed in piece.placed),
            num_tokens=sum(piece.num_tokens for piece in pieces),
            finish_reason=pieces[-1].finish_reason,
        )

    def _choice(self, piece: Piece, streamed: bool = False) -> Json:
        choice: Json = {"index": piece.index, "finish_reason": piece.finish_reason}
        choice["logprobs"] = self._logprobs(piece.placed) if self.logprobs else None
        if self.kind == "completion":
            return {**choice, "text": piece.text}
        if streamed:
            return {**choice, "delta": {"content": piece.text} if piece.text else {}}
        message = {"role": "assistant", "content": piece.text, "refusal": None}
        return {**choice, "message": message}

    def _logprobs(self, tokens: Sequence[PlacedToken]) -> Json:
        if self.kind == "chat":
            return {"content": [self._chat_logprob(placed) for placed in tokens], "refusal": None}
        return {
            "tokens": [self._name(placed.token.token_id) for placed in tokens],
            "token_logprobs": [_finite(placed.token.logprob) for placed in tokens],
            "top_logprobs": [self._best(placed) for placed in tokens],
            "text_offset": [placed.offset for placed in tokens],
        }

    def _best(self, placed: PlacedToken) -> dict[str, float]:
        """The likeliest tokens by name, best first; of two with the same name the likelier."""
        worst_first = reversed(placed.token.top_logprobs)
        named = {self._name(token_id): _finite(logprob) for token_id, logprob in worst_first}
        return dict(reversed(named.items()))

    def _chat_logprob(self, placed: PlacedToken) -> Json:
        token = placed.token
        top = [self._one_logprob(*pair) for pair in token.top_logprobs]
        return {**self._one_logprob(token.token_id, token.logprob), "top_logprobs": top}

    def _one_logprob(self, token_id: int, logprob: float | None) -> Json:
        in_bytes = list(self.tokenizer.token_bytes(token_id))
        return {"token": self._name(token_id), "logprob": _finite(logprob), "bytes": in_bytes}

    def _name(self, token_id: int) -> str:
        """A token's text; its bytes, as OpenAI writes them, where they are no whole characters."""
        in_bytes = self.tokenizer.token_bytes(token_id)
        try:
            return in_bytes.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in in_bytes)


def _finite(logprob: float | None) -> float:
    assert logprob is not None, "the engine was asked for log-probabilities"
    return max(logprob, LEAST_LOGPROB)
