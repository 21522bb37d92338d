"""Peak memory: the most of the host's memory that this process has held.

Counts: pages that lay in memory, those shared with other processes included. Ignores: processes
that this one started, and an accelerator's own memory. On Linux it is the kernel's high-water mark
of this program, since getrusage(2) there also counts what the process held before it became it."""

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
RESIDENT_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024


def peak_memory_bytes() -> int:
    if STATUS.exists():
        for line in STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024  # proc(5): in kB, which are KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RESIDENT_UNIT_BYTES
