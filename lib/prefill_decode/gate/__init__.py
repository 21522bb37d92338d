"""Gate: holds runs of today's code against earlier ones and says what became worse.

`compare` judges, a `Report` says it to people and machines, `read_source` finds the runs.
"""

from prefill_decode.gate.judging import compare, same_machine
from prefill_decode.gate.report import Report, Row, VerdictRow, confirm
from prefill_decode.gate.sources import Source, code_of, pins_of, read_sources

__all__ = [
    "Report",
    "Row",
    "Source",
    "VerdictRow",
    "code_of",
    "compare",
    "confirm",
    "pins_of",
    "read_sources",
    "same_machine",
]
