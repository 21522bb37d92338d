"""Machine: what a number was measured on, in enough detail not to pool it with unlike ones.

Counts:  the cores this process may really use (affinity and cgroup quota), the last-level cache
         as the system reports it, versions of what does the arithmetic.
Ignores: clock speed and memory speed, which virtual machines hide; the measured ceilings stand
         for them."""

import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

DEVICES = ("cpu", "cuda", "mps")
UNKNOWN_CACHE_BYTES = 32e6  # stands in where the system does not say: a large laptop's


@dataclass(frozen=True)
class Machine:
    device: str  # cpu, cuda or mps
    device_name: str  # of the processor that does the arithmetic
    cpu_name: str
    cores: int  # that this process may use, rounded down, at least 1
    threads: int  # that torch uses on the CPU
    memory_bytes: int  # of the device
    last_level_cache_bytes: int | None
    system: str
    python: str
    torch: str
    numpy: str

    @property
    def cache_bytes(self) -> float:
        """The last-level cache, or a cautious guess where the system does not say."""
        return self.last_level_cache_bytes or UNKNOWN_CACHE_BYTES

    @property
    def slug(self) -> str:
        """A name for files: the processor and, on a CPU, how many cores of it."""
        name = self.device_name
        if self.device == "cpu":
            name += f" {self.cores} core{'s' if self.cores > 1 else ''}"
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")

    @property
    def title(self) -> str:
        """A name for people."""
        if self.device == "cpu":
            return f"{self.device_name}, {self.cores} cores"
        return self.device_name

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "slug": self.slug, "title": self.title}


def describe_machine(device: str = "auto") -> Machine:
    """This machine and the device to measure on. ValueError if it has no such device."""
    import torch

    chosen = _choose_device(device)
    cpu_name = read_cpu_name()
    return Machine(
        device=chosen,
        device_name=torch.cuda.get_device_name() if chosen == "cuda" else cpu_name,
        cpu_name=cpu_name,
        cores=effective_cores(),
        threads=torch.get_num_threads(),
        memory_bytes=_memory_bytes(chosen),
        last_level_cache_bytes=_last_level_cache_bytes(chosen),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=version("numpy"),
    )


def effective_cores() -> int:
    """Cores this process may keep busy: affinity, then the cgroup's quota, whichever is less."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        allowed = os.cpu_count() or 1
    return max(1, int(min(allowed, _cgroup_quota_cores(Path("/sys/fs/cgroup")))))


def _cgroup_quota_cores(root: Path) -> float:
    """Cores that the container's quota allows, from cgroup v2 or v1; infinite without one."""
    try:
        quota, _, period = (root / "cpu.max").read_text().strip().partition(" ")
    except OSError:
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return float("inf")
    if not quota.isdigit() or not period.isdigit():
        return float("inf")  # "max" in v2, -1 in v1: no quota
    return int(quota) / int(period)


def read_cpu_name() -> str:
    """The processor's name as the system gives it; virtual machines may shorten it."""
    if platform.system() == "Darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    name = found.group(1).strip() if found else platform.machine()
    return re.sub(r"\((?:R|TM|tm)\)", "", name)


def _last_level_cache_bytes(device: str) -> int | None:
    import torch

    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).L2_cache_size)
    if platform.system() == "Darwin":
        sizes = [
            _sysctl(f"hw.{key}") for key in ("l3cachesize", "perflevel0.l2cachesize", "l2cachesize")
        ]
        return next((int(size) for size in sizes if size), None)
    entries = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((_parse_size(path.read_text()) for path in entries), default=None)


def _parse_size(text: str) -> int:
    """'32768K' is 32 MiB in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    text = text.strip()
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _memory_bytes(device: str) -> int:
    import torch

    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    limits = [psutil.virtual_memory().total]
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroup v2, v1
        try:
            text = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        limits += [int(text)] if text.isdigit() else []
    return min(limits)


def _choose_device(device: str) -> str:
    import torch

    available = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if device == "auto":
        return next(name for name in ("cuda", "mps", "cpu") if available[name])
    if device not in available:
        raise ValueError(f"device must be auto, {', '.join(DEVICES)}; got {device!r}")
    if not available[device]:
        raise ValueError(
            f"torch finds no {device} device on this machine; use cpu, or auto to choose"
        )
    return device


def _sysctl(key: str) -> str:
    try:
        done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
