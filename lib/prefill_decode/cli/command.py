"""Command: one command from its words to its exit code."""

import io
import signal
import sys
from collections.abc import Sequence

from prefill_decode.cli.parser import make_parser
from prefill_decode.cli.shared import FINE, INTERRUPTED, UNUSABLE, complain, drop_output


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code. What a user did wrong is a sentence, never a traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as Ctrl-C does
    _prepare_streams()
    options = make_parser().parse_args(arguments)
    code = FINE
    try:
        code = int(options.verb(options))
        sys.stdout.flush()
        return code
    except ValueError as error:
        complain(error)
        return UNUSABLE
    except ModuleNotFoundError as error:
        print(
            f"prefill-decode: this command needs {error.name}, which is not installed; "
            "run make book, or pip install 'prefill-decode[book]'",
            file=sys.stderr,
        )
        return UNUSABLE
    except BrokenPipeError:  # the reader, such as head, has seen enough
        drop_output()
        return code  # the verb's own, once it has ended: a regression stays one
    except OSError as error:
        complain(error)
        return UNUSABLE
    except KeyboardInterrupt:
        print("prefill-decode: interrupted; what had finished is kept", file=sys.stderr)
        return INTERRUPTED


def _prepare_streams() -> None:
    """A stream that was closed swallows what is printed, and one that lacks a letter escapes it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, io.StringIO())
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
