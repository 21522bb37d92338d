"""Other load: processor time that others took while something here was timed.

Counts:  busy time of the processors that this process may use, stolen time included, less its own.
Ignores: processors that are not this process's to use; less than a clock tick or two."""

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

OTHERS_TOLERATED_CORES = 0.10
TOPOLOGY = Path("/sys/devices/system/cpu")
CLOCK_TICK_S = 0.01  # the system counts processor time in ticks of this length


def allowed_cpus() -> list[int]:
    """Logical processors this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        return list(range(os.cpu_count() or 1))


def cores_first(cpus: Sequence[int]) -> list[int]:
    """These logical processors, one of every core before the second of any; in their order where
    the system does not tell which share a core (only Linux does)."""
    rank: dict[int, int] = {}
    met: Counter[str] = Counter()
    for cpu in cpus:
        core = _siblings(cpu)
        rank[cpu], met[core] = met[core], met[core] + 1
    return sorted(cpus, key=lambda cpu: rank[cpu])


def _siblings(cpu: int) -> str:
    try:
        return (TOPOLOGY / f"cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


class OtherLoad:
    """Processor time that others, or the hypervisor, took since this was made.

    `own_s` gives the processor time of what is being timed, which is not others'."""

    def __init__(self, own_s: Callable[[], float] | None = None) -> None:
        self.own_s = own_s or time.process_time
        self.started_s = time.perf_counter()
        self.others_s = self._others_s()

    def took_more_than(self, spare_cores: float) -> bool:
        elapsed_s = time.perf_counter() - self.started_s
        tolerated_s = (max(0.0, spare_cores) + OTHERS_TOLERATED_CORES) * elapsed_s
        return self._others_s() - self.others_s > tolerated_s + 2 * CLOCK_TICK_S

    def _others_s(self) -> float:
        """Busy seconds of the processors this process may use, less its own."""
        every = psutil.cpu_times(percpu=True)
        mine = [every[cpu] for cpu in allowed_cpus() if cpu < len(every)]
        fields = ("user", "nice", "system", "irq", "softirq", "steal")
        busy_s = sum(getattr(cpu, field, 0.0) for cpu in mine for field in fields)
        return float(busy_s - self.own_s())
