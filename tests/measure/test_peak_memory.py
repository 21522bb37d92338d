"""Peak memory, told by processes that hold a known number of bytes."""

import subprocess
import sys

import psutil

from prefill_decode.measure import peak_memory, peak_memory_bytes

# The file alone: what the package imports would be the larger part of a small process.
TOLD = f"import runpy; print(runpy.run_path({peak_memory.__file__!r})['peak_memory_bytes']())"
LARGE_BYTES = 200 * 2**20


def told_after(code):
    """What a fresh process says of itself after `code`."""
    command = [sys.executable, "-c", f"{code}\n{TOLD}"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_memory_that_was_given_back_still_counts():
    little, held = told_after(""), told_after(f"held = b'1' * {LARGE_BYTES}; del held")
    assert 0.9 * LARGE_BYTES < held - little < 1.2 * LARGE_BYTES


def test_a_process_does_not_count_what_the_one_that_started_it_holds():
    held = b"1" * LARGE_BYTES
    assert told_after("") < LARGE_BYTES < peak_memory_bytes()
    del held


def test_a_process_has_held_at_least_what_it_holds_now():
    assert 0.9 * psutil.Process().memory_info().rss < peak_memory_bytes()
