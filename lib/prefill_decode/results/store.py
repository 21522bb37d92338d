"""Store: RESULTS/CLAIM/MACHINE.json, one claim's newest result on one kind of machine each.

A record is written first and its run is then added to the history, by one writer at a time. A
writer killed in between leaves a record whose run is missing; the next one adds that first.
"""

import json
from contextlib import suppress
from pathlib import Path

from prefill_decode.results.checks import check_record
from prefill_decode.results.files import (
    LARGEST_FILE_BYTES,
    only_writer,
    remove_litter,
    write_atomically,
)
from prefill_decode.results.record import Record, check_place, load
from prefill_decode.results.runs import append_alone, history_path, run_of


def save(record: Record, results_dir: str | Path | None = None) -> Path:
    """Write a record to RESULTS_DIR/CLAIM/MACHINE.json and its run to the history there; by
    default into this checkout's book/results.

    Each file appears whole or not at all. ValueError, with nothing written, if the record is not
    valid."""
    folder = Path(results_dir) if results_dir is not None else default_folder()
    check_record(record, folder)
    claim, slug = record["claim"], record["machine"]["slug"]
    path: Path = folder / claim / f"{slug}.json"
    text = json.dumps(record, indent=1, allow_nan=False) + "\n"
    if len(text) > LARGEST_FILE_BYTES:
        raise ValueError(
            f"{path}: a record has at most {LARGEST_FILE_BYTES} bytes; got {len(text)}"
        )
    run = run_of(record)
    with only_writer(folder):
        for place in (path, history_path(folder, claim, slug)):
            place.parent.mkdir(parents=True, exist_ok=True)
            remove_litter(place.parent)
        with suppress(ValueError):  # nothing to keep of an earlier record that is none
            earlier = load(path)
            check_place(path, earlier["claim"], earlier["machine"]["slug"])
            append_alone(folder, run_of(earlier))
        write_atomically(path, text)
        append_alone(folder, run)
    return path


def find_checkout(start: Path) -> Path | None:
    """The checkout of the book that holds `start`; None outside of one."""
    for folder in (start, *start.parents):
        if (folder / "_toc.yml").is_file() and (folder / "notebooks").is_dir():
            return folder
    return None


def default_folder() -> Path:
    """book/results of the checkout that holds the current folder; ./results outside of one."""
    checkout = find_checkout(Path.cwd())
    return checkout / "book" / "results" if checkout else Path.cwd() / "results"
