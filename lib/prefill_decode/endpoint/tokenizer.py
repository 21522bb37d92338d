"""Tokenizer: text to token ids and back, also while the ids still arrive.

A folder with a tokenizer.json brings its own. Random weights have none to bring: they get bytes,
and words of no language for the ids that bytes leave over, so that what they write can be read.

Ignores: what only tokenizer_config.json says about added tokens and a first token (tokenizer.json
         says it again, in all but old folders); models of sentencepiece without a tokenizer.json.
Source:  the tokenizers package; stop ids as in transformers' generation.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from prefill_decode.endpoint.chat_template import ChatTemplate, Messages, plain_chat

NUM_BYTES = 256
BEGIN, END_OF_TEXT, END_OF_TURN = 256, 257, 258  # of ByteTokenizer
FIRST_WORD = 259
HALF = "\ufffd"  # what stands for bytes that are no character, or not yet


class Tokenizer(Protocol):
    vocab_size: int  # of the model: ids from 0 to one below it
    stop_ids: frozenset[int]  # which end an answer
    byte_ids: frozenset[int]  # of single bytes whose run is decoded as a whole, if there are such
    name: str

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens; bytes that are no UTF-8 become U+FFFD."""

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds after others; nothing for a special token."""

    def chat(self, messages: Messages) -> list[int]:
        """The prompt of a conversation, ready for the answer. ValueError if it cannot be one."""


class ByteTokenizer:
    """Ids 0 to 255 are bytes, 256 begins a chat, 257 ends a text, 258 ends a turn, and each id
    above is a word of its own. Text becomes bytes alone, so it can spell no special token."""

    def __init__(self, vocab_size: int) -> None:
        if vocab_size < FIRST_WORD:
            raise ValueError(
                f"bytes and the special tokens need a vocabulary of {FIRST_WORD} or more; got "
                f"{vocab_size}: take a larger one, or a folder with a tokenizer.json"
            )
        self.vocab_size = vocab_size
        self.stop_ids = frozenset({END_OF_TEXT, END_OF_TURN})
        self.byte_ids: frozenset[int] = frozenset()
        self.name = "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < NUM_BYTES:
            return bytes([token_id])
        return b"" if token_id < FIRST_WORD else f" {_word(token_id - FIRST_WORD)}".encode()

    def chat(self, messages: Messages) -> list[int]:
        ids = [BEGIN]
        for message in messages:
            ids += [*self.encode(f"{message['role']}: {message['content']}"), END_OF_TURN]
        return [*ids, *self.encode("assistant:")]


class FolderTokenizer:
    """The tokenizer of a Hugging Face folder; a special token spelled out in text is that token.

    `vocab_size` is the model's, which may have more rows than there are tokens: such ids have no
    text. ValueError names the file that is missing or wrong."""

    def __init__(self, folder: Path, vocab_size: int | None = None) -> None:
        file = folder / "tokenizer.json"
        self._tokenizer = _read_tokenizer(file)
        self._decoders = _decoder_types(json.loads(self._tokenizer.to_str())["decoder"])
        config = _object(folder / "tokenizer_config.json")
        special = self._special_tokens(config)
        largest = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_size = largest + 1 if vocab_size is None else vocab_size
        if largest >= self.vocab_size:
            raise ValueError(
                f"{file}: token ids must be below the model's vocabulary of {self.vocab_size}; "
                f"got {largest}"
            )
        self.stop_ids = self._stop_ids(folder, special.get("eos_token"))
        self.byte_ids = self._byte_ids()
        self.name = folder.resolve().name
        self._unwritten = {
            token_id
            for token_id, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        source = _template_source(folder, config)
        self._template = None if source is None else ChatTemplate(source, special)

    def encode(self, text: str) -> list[int]:
        return self._encode(text, special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token_bytes(self, token_id: int) -> bytes:
        token = self._tokenizer.id_to_token(token_id)
        if token is None or token_id in self._unwritten:
            return b""
        if token_id in self.byte_ids:
            return bytes([int(token[3:5], 16)])
        if "ByteLevel" in self._decoders and all(char in BYTE_OF_CHAR for char in token):
            return bytes(BYTE_OF_CHAR[char] for char in token)
        once = self.decode([token_id])  # perhaps without the space that begins it
        return self.decode([token_id, token_id])[len(once) :].encode()

    def chat(self, messages: Messages) -> list[int]:
        if self._template is None:
            return self.encode(plain_chat(messages))
        return self._encode(self._template.render(messages), special_tokens=False)

    def _encode(self, text: str, special_tokens: bool) -> list[int]:
        whole = text.encode("utf-8", "replace").decode()  # halves of surrogate pairs are no text
        return list(self._tokenizer.encode(whole, add_special_tokens=special_tokens).ids)

    def _special_tokens(self, config: Mapping[str, Any]) -> dict[str, str]:
        """bos_token, eos_token and their kin, as a template may name them."""
        given = {name: _content(value) for name, value in config.items()}
        return {name: text for name, text in given.items() if text and name.endswith("_token")}

    def _stop_ids(self, folder: Path, eos_token: str | None) -> frozenset[int]:
        found: set[int] = set()
        for name in ("generation_config.json", "config.json"):
            given = _object(folder / name).get("eos_token_id")
            ids = given if isinstance(given, list) else [] if given is None else [given]
            if not all(type(one) is int and 0 <= one < self.vocab_size for one in ids):
                raise ValueError(
                    f"{folder / name}: eos_token_id must be one or more token ids below "
                    f"{self.vocab_size}; got {given!r:.60}"
                )
            found.update(ids)
        of_text = self._tokenizer.token_to_id(eos_token) if eos_token else None
        return frozenset(found if of_text is None else found | {of_text})

    def _byte_ids(self) -> frozenset[int]:
        if "ByteFallback" not in self._decoders:
            return frozenset()
        ids = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(NUM_BYTES))
        return frozenset(token_id for token_id in ids if token_id is not None)


class Detokenizer:
    """The text of an answer while its tokens arrive: the pieces join to what `decode` makes of all.

    A decoder may drop the space before its first token, so new tokens are decoded behind the last
    ones that were shown. Text is held back while it ends in U+FFFD, which a later byte may mend,
    and while the last token is a byte of a run that is decoded as a whole."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._ids: list[int] = []  # those shown last, then those held back
        self._num_shown = 0
        self._shown = ""  # what the first of them decode to without the rest
        self._text = ""  # what all of them decode to
        self._in_run = False

    def push(self, token_id: int) -> str:
        """What can be shown now: often the token's text, sometimes nothing, sometimes more."""
        text = self.tokenizer.decode([*self._ids, token_id])
        if text == self._text and not self.tokenizer.token_bytes(token_id):
            return ""  # a special token: without text ever, and no end of a run of bytes
        self._ids.append(token_id)
        silent, self._text = text == self._text, text
        self._in_run = token_id in self.tokenizer.byte_ids or (self._in_run and silent)
        return "" if self._in_run or self._text.endswith(HALF) else self._show()

    def finish(self) -> str:
        """What was held back, as it is."""
        return self._show()

    def _show(self) -> str:
        piece = self._text[len(self._shown) :]
        if piece:
            self._ids = self._ids[self._num_shown :]
            self._num_shown = len(self._ids)
            self._shown = self._text = self.tokenizer.decode(self._ids)
        return piece


def find_tokenizer(folder: Path | None, vocab_size: int) -> Tokenizer:
    """The tokenizer of a folder that has one, bytes for all else."""
    if folder is not None and (folder / "tokenizer.json").exists():
        return FolderTokenizer(folder, vocab_size)
    return ByteTokenizer(vocab_size)


def _word(number: int) -> str:
    """a, b, ..., z, aa, ab, ...: each number its own word."""
    letters = ""
    while number >= 0:
        number, letter = divmod(number, 26)
        letters = chr(ord("a") + letter) + letters
        number -= 1
    return letters


def _char_of_byte() -> dict[int, str]:
    """GPT-2's visible characters for bytes, in which tokens of a byte-level vocabulary are spelled.

    Printable ones of Latin-1 stand for themselves, the others for characters from U+0100 on."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(NUM_BYTES) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {
        byte: chr(0x100 + place) for place, byte in enumerate(hidden)
    }


BYTE_OF_CHAR = {char: byte for byte, char in _char_of_byte().items()}


def _read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(file.read_text(encoding="utf-8"))
    except Exception as error:  # the package raises this very class
        raise ValueError(f"{file}: a tokenizer must be a readable one; {error}") from error


def _decoder_types(decoder: Any) -> set[str]:
    """Names of a decoder and of those it is made of."""
    if not isinstance(decoder, Mapping):
        return set()
    inner = [_decoder_types(part) for part in decoder.get("decoders", [])]
    return {str(decoder.get("type"))}.union(*inner)


def _template_source(folder: Path, config: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    given = config.get("chat_template")
    if isinstance(given, list):
        named = {one["name"]: one["template"] for one in given if isinstance(one, Mapping)}
        given = named.get("default")
    if not isinstance(given, str | None):
        raise ValueError(
            f"{folder / 'tokenizer_config.json'}: chat_template must be a text, or a list with one "
            f"named default; got {given!r:.60}"
        )
    return given


def _content(value: Any) -> str | None:
    """The text of a special token, which a config gives plainly or as an object."""
    text = value.get("content") if isinstance(value, Mapping) else value
    return text if isinstance(text, str) else None


def _object(file: Path) -> Mapping[str, Any]:
    """The object in a JSON file, empty when there is no file."""
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file}: it must be readable JSON; {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError(f"{file}: it must hold one object; got a {type(found).__name__}")
    return found
