"""JSON body: a request's bytes, counted while they come, and the one document they must hold.

Python's reader takes more than JSON is: NaN, a key twice (the last wins), half a surrogate pair,
UTF-16. Where two readers could see two documents, or a text could not be encoded again, this one
refuses."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from prefill_decode.endpoint.errors import ApiError


async def read_body(
    chunks: AsyncIterator[bytes], announced: str | None, most_bytes: int, most_s: float
) -> bytes:
    """A request's body. ApiError 413 once it is too large, 408 if it takes too long."""
    if announced is not None and announced.isdecimal() and int(announced[:20]) > most_bytes:
        raise _too_large(most_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(most_s):
            async for chunk in chunks:
                body += chunk
                if len(body) > most_bytes:
                    raise _too_large(most_bytes)
    except TimeoutError:
        raise ApiError(408, f"the body must arrive within {most_s:g} seconds") from None
    return bytes(body)


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(413, f"a body may have {most_bytes} bytes; this one has more")


def parse_json(body: bytes) -> Any:
    """The document. ApiError 400 for anything that is not exactly one JSON document."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _no_json(f"byte {error.start} is not UTF-8") from None
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
    except json.JSONDecodeError as error:
        raise _no_json(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _no_json("it is nested too deeply") from None
    except ValueError:  # Python refuses to convert thousands of digits
        raise _no_json("a number has too many digits") from None
    if "\\u" in text:
        _check_texts(document)
    return document


def _no_json(reason: str) -> ApiError:
    return ApiError(400, f"the body must be one JSON document: {reason}", code="invalid_json")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise _no_json(f"an object has the key {ascii(twice)[:60]} twice")
    return found


def _constant(word: str) -> NoReturn:
    raise _no_json(f"{word} is no JSON number")


def _check_texts(document: Any) -> None:
    """No half of a surrogate pair and no NUL: neither is a character that a text can have."""
    left = [document]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [*value.keys(), *value.values()]
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str):
            if "\0" in value:
                raise _no_json("a text has the character NUL")
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise _no_json("a text has half of a surrogate pair")
