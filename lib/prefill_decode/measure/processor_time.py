"""Processor time: what this process and others have used, with all their children.

Ignores: children that ended between two looks; processes of other machines."""

import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from math import nan

import psutil


def processor_time_s(pids: Iterable[int]) -> float:
    """Processor seconds of this process, of these and of all their children."""
    return time.process_time() + sum(map(_family_s, pids))


def process_time_of_s(pid: int) -> float:
    """Processor seconds of one process, without its children. Linux tells them to the nanosecond,
    others as finely as they count. NaN for one that has ended."""
    try:
        if sys.platform == "linux":
            return time.clock_gettime(_clock_of(pid))
        used = psutil.Process(pid).cpu_times()
    except (OSError, psutil.Error):
        return nan
    return float(used.user + used.system)


def _clock_of(pid: int) -> int:
    """Linux numbers the clocks of other processes so (clock_getcpuclockid(3))."""
    return ~pid << 3 | 2


def _family_s(pid: int) -> float:
    total_s = 0.0
    with suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.Error):
                used = process.cpu_times()
                total_s += used.user + used.system
    return total_s
