"""Machine: what a number was measured on, in enough detail not to pool it with unlike ones.

Counts:  the cores this process may really use (affinity and cgroup quota), the last-level cache
         as the system reports it, versions of what does the arithmetic.
Ignores: clock speed and memory speed, which virtual machines hide; the measured ceilings stand
         for them."""

import os
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import psutil

from prefill_decode.units import GIB

DEVICES = ("cpu", "cuda", "mps")
UNKNOWN_CACHE_BYTES = 32e6  # stands in where the system does not say: a large laptop's
# More than any processor on sale has for each core: a machine that reports more is a slice of a
# larger host, shows the host's whole cache and shares it with neighbours.
MOST_CACHE_BYTES_PER_CORE = 16 * 2**20


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
        """What a working set must dwarf: the last-level cache, where it can be these cores' own.

        A cautious guess where the system does not say. Should neighbours leave more of a host's
        cache than this counts, steps come out faster than memory allows, and the verdict is void.
        """
        reported = self.last_level_cache_bytes or UNKNOWN_CACHE_BYTES
        if self.device != "cpu":
            return reported
        return min(reported, self.cores * MOST_CACHE_BYTES_PER_CORE)

    @property
    def slug(self) -> str:
        """A name for files: the processor, on a CPU how many cores, and a mark of the rest.

        The mark keeps machines apart whose processors have the same name, as virtual ones often do.
        """
        name = self.device_name
        if self.device == "cpu":
            name += f" {self.cores} core{'s' if self.cores > 1 else ''}"
        memory_gib = round(self.memory_bytes / GIB)
        rest = (self.cpu_name, self.cores, memory_gib, self.last_level_cache_bytes, self.system)
        mark = sha256(repr(rest).encode()).hexdigest()[:4]
        return re.sub(r"[^a-z0-9]+", "-", f"{name} {mark}".lower()).strip("-")

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


def allowed_cpus() -> list[int]:
    """Logical processors this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # macOS and Windows have no affinity to ask for
        return list(range(os.cpu_count() or 1))


def effective_cores() -> int:
    """Cores this process may keep busy: affinity, physical cores, the cgroup's quota, the least."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    return max(1, int(min(len(allowed_cpus()), physical, _cgroup_quota_cores())))


def _cgroup_quota_cores(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float:
    """Cores that the quotas of this process's cgroup and of those above allow; infinite without."""
    return min((_quota_cores(folder) for folder in _cgroup_folders(root, membership)), default=inf)


def _cgroup_folders(root: Path, membership: Path) -> list[Path]:
    """Where limits of this process may stand: its own cgroup and all above, v2 and v1."""
    folders = {root, root / "cpu", root / "memory"}
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        base = root / controllers if controllers else root
        inner = base / path.strip("/")
        folders |= {inner, *(p for p in inner.parents if p.is_relative_to(root))}
    return sorted(folders)


def _quota_cores(folder: Path) -> float:
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    if not quota:  # v1
        quota = _read(folder / "cpu.cfs_quota_us")
        period = _read(folder / "cpu.cfs_period_us")
    if not quota.isdigit() or not period.isdigit():
        return inf  # "max" in v2, -1 in v1: no quota
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


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
        keys = ("l3cachesize", "perflevel0.l2cachesize", "l2cachesize")
        sizes = [_sysctl(f"hw.{key}") for key in keys]
        return next((int(size) for size in sizes if size), None)
    return _linux_cache_bytes(Path("/sys/devices/system/cpu"), allowed_cpus())


def _linux_cache_bytes(folder: Path, cpus: Sequence[int]) -> int | None:
    """All last-level caches of these processors together: large chips have several."""
    caches: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
            level, size = _read(index / "level"), _read(index / "size")
            if level.isdigit() and size:
                caches[int(level), _read(index / "shared_cpu_list")] = _parse_size(size)
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None


def _parse_size(text: str) -> int:
    """'32768K' is 32 MiB in bytes."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def _memory_bytes(device: str) -> int:
    import torch

    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    limits = [psutil.virtual_memory().total]
    for folder in _cgroup_folders(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")):
        for name in ("memory.max", "memory.limit_in_bytes"):  # v2, v1
            text = _read(folder / name)
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
