"""Files: strict JSON, written whole or not at all, and one writer at a time.

Strict means: UTF-8, no NaN or Infinity, no key twice, nothing nested too deeply, no number beyond
all measure, no text that could be markup. Every reader here answers anything else with a
ValueError that names the file and the reason.

Ignores: a power cut between a file's rename and the disk; a killed process loses nothing.
Locks are flock's, of Linux and macOS, and vanish with the process that holds them.
"""

import fcntl
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

LARGEST_FILE_BYTES = 20_000_000
LONGEST_TEXT = 500
DEEPEST = 32  # objects and lists inside one another
SMALLEST_NUMBER, LARGEST_NUMBER = 1e-30, 1e30
LONGEST_WAIT_S = 60.0  # for another writer; a write takes less than a second
LITTER_AGE_S = 3600.0  # no writer takes so long


def read_text(
    path: Path, most_bytes: int | None = LARGEST_FILE_BYTES, what: str = "a record"
) -> str:
    """A text file's content. ValueError for anything but readable UTF-8 of at most `most_bytes`."""
    try:
        if not path.is_file():  # a pipe would wait for its writer
            raise ValueError(f"{path}: {what} is a regular file; this is none")
        size = path.stat().st_size
        if most_bytes is not None and size > most_bytes:
            raise ValueError(f"{path}: {what} has at most {most_bytes} bytes; got {size}")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {what} is readable UTF-8 text; {error}") from error
    if not text.strip():
        raise ValueError(f"{path}: the file is empty; restore it or make {what} anew")
    return text


def parse(text: str, where: object, what: str = "a record") -> Any:
    """The value of a strict JSON text. `where` begins the sentence of a ValueError."""
    try:
        value = json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError(f"{where}: not {what}: nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{where}: not {what}: not valid JSON: {str(error)[:200]}") from error
    check_values(value, where, what)
    return value


def _refuse(token: str) -> None:
    raise ValueError(f"{token} is not a finite number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = min(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ValueError(f"key {repeated[:60]!r} appears twice in one object")
    return found


def check_values(value: Any, where: object, what: str = "a record") -> None:
    """Nothing that JSON cannot hold, no number beyond all measure, no text that could be markup.

    Pages and tables show these values.
    """
    try:
        _check_inside(value, what.replace("a ", "the ", 1), 0)
    except ValueError as error:
        raise ValueError(f"{where}: not {what}: {error}") from error


def _check_inside(value: Any, inside: str, depth: int) -> None:
    inside = inside[:200]
    if isinstance(value, Mapping | list | tuple):
        if depth == DEEPEST:
            raise ValueError(f"nested too deeply: {inside}")
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            if isinstance(value, Mapping):
                _check_key(key, inside)
            _check_inside(inner, f"{inside}/{key}", depth + 1)
    elif isinstance(value, str):
        _check_text(value, inside)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        if value != 0 and not SMALLEST_NUMBER <= abs(value) <= LARGEST_NUMBER:
            raise ValueError(
                f"{inside}: numbers lie between {SMALLEST_NUMBER} and {LARGEST_NUMBER}; "
                f"got {_shown(value)}"
            )
    elif value is not None and not isinstance(value, bool):
        held = f"JSON holds no {type(value).__name__}; got {repr(value)[:60]}"
        raise ValueError(f"{inside}: {held}")


def _check_key(key: Any, inside: str) -> None:
    if not isinstance(key, str):
        raise ValueError(f"{inside}: keys are text; got {repr(key)[:60]}")
    _check_text(key, f"{inside}: a key")


def _check_text(text: str, inside: str) -> None:
    if len(text) > LONGEST_TEXT or any(c in "<>|`\\" or not c.isprintable() for c in text):
        raise ValueError(
            f"{inside}: text is printable, has up to {LONGEST_TEXT} characters and is without "
            f"< > | ` and backslash; got {text[:60]!r}"
        )


def _shown(number: float) -> str:
    """A number in a sentence, be it too long for Python to print."""
    if isinstance(number, int) and number.bit_length() > 200:
        return f"a whole number of {number.bit_length()} bits"
    return str(number)


def canonical(value: Any) -> str:
    """The one JSON text of a value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, content: bytes) -> None:
    write_all_atomically({path: content})


def write_all_atomically(contents: Mapping[Path, bytes]) -> None:
    """Write files whole, and none before every one is on the disk: a full disk changes nothing.

    ValueError for a path that is something else already: a device would be gone, for everyone."""
    for path in contents:
        if path.exists() and not path.is_file():
            raise ValueError(f"{path}: only a file can be written anew; this is none: name a file")
    written: dict[Path, str] = {}
    try:
        for path, content in contents.items():
            handle, written[path] = tempfile.mkstemp(
                dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp"
            )
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(written[path], 0o644)
        for path, name in written.items():
            os.replace(name, path)
    except BaseException:
        for name in written.values():
            Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def only_writer(results: Path) -> Iterator[None]:
    """Waits until no other process writes below `results`, which is made where it is missing.

    ValueError for a lock that is no regular file, or that another one holds for a minute."""
    results.mkdir(parents=True, exist_ok=True)
    path = results / ".lock"
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        raise ValueError(f"{path}: a lock is a regular file; this is none: remove it")
    with open(path, "ab") as lock:
        _take(lock, path)
        yield


def _take(lock: IO[bytes], path: Path) -> None:
    end_s = time.monotonic() + LONGEST_WAIT_S
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end_s:
                raise ValueError(
                    f"{path}: another process has held this lock for {LONGEST_WAIT_S:g} s: "
                    "wait until it has ended, or end it, and try again"
                ) from None
        time.sleep(0.01)


def remove_litter(folder: Path) -> None:
    """Removes what a writer left behind that was killed long ago."""
    for path in folder.glob(".*.tmp"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > LITTER_AGE_S:
                path.unlink()
