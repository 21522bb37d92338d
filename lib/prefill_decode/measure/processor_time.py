"""Processor time: what this process and others have used, with all their children.

Ignores: children that ended between two looks; processes of other machines."""

import time
from collections.abc import Iterable
from contextlib import suppress

import psutil


def processor_time_s(pids: Iterable[int]) -> float:
    """Processor seconds of this process, of these and of all their children."""
    return time.process_time() + sum(map(_family_s, pids))


def _family_s(pid: int) -> float:
    total_s = 0.0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                used = process.cpu_times()
                total_s += used.user + used.system
    return total_s
