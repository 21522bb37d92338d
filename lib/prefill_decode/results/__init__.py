"""Results: what was measured, on disk, under book/results.

CLAIM/MACHINE.json is a record, a claim's newest result on a kind of machine; history/CLAIM/
MACHINE.jsonl holds every run in short, baseline/CLAIM/MACHINE.jsonl the pinned ones.
"""

from prefill_decode.results.checks import DATE_FORMAT, STEP_PREFIXES, interval_of
from prefill_decode.results.files import LARGEST_FILE_BYTES, write_all_atomically, write_atomically
from prefill_decode.results.record import (
    Record,
    load,
    load_all,
    make_record,
    make_simulated_record,
    stored_interval,
)
from prefill_decode.results.runs import (
    Run,
    accept,
    append,
    baselines,
    history,
    read_runs,
    run_of,
    same_host,
    same_kind,
)
from prefill_decode.results.store import default_folder, find_checkout, save

__all__ = [
    "DATE_FORMAT",
    "LARGEST_FILE_BYTES",
    "STEP_PREFIXES",
    "Record",
    "Run",
    "accept",
    "append",
    "baselines",
    "default_folder",
    "find_checkout",
    "history",
    "interval_of",
    "load",
    "load_all",
    "make_record",
    "make_simulated_record",
    "read_runs",
    "run_of",
    "same_host",
    "same_kind",
    "save",
    "stored_interval",
    "write_all_atomically",
    "write_atomically",
]
