"""The command `prefill-decode`: arguments only; every verb is a few calls into the library.

Exit codes: 0 fine, 1 a finding (a chapter that failed, a machine that will lie, a regression), 2
unusable input.
"""

from prefill_decode.cli.command import main

__all__ = ["main"]
