"""Machine: what a number was measured on, in enough detail not to pool it with unlike ones.

Counts:  the cores this process may really use (affinity and cgroup quota), the last-level cache
         as the system reports it, instruction sets, versions of what does the arithmetic.
         Machines whose speed should be equal are of one kind; a host is one of them, known by a
         mark that does not reveal its id. Virtual machines cloned with one id share the mark.
Ignores: clock speed and memory speed, which virtual machines hide; the measured ceilings stand
         for them."""

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.metadata import version
from math import inf
from pathlib import Path
from typing import Any

import psutil

from prefill_decode.other_load import allowed_cpus
from prefill_decode.units import GIB

DEVICES = ("cpu", "cuda", "mps")
UNKNOWN_CACHE_BYTES = 32e6  # stands in where the system does not say: a large laptop's
# More than any processor on sale has for each core: a machine that reports more is a slice of a
# larger host, shows the host's whole cache and shares it with neighbours.
MOST_CACHE_BYTES_PER_CORE = 16 * 2**20
INSTRUCTION_SETS = (  # that decide how fast products and reads are, as Linux writes them
    *("avx", "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    *("neon", "asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "sme"),
)
CPU_INFO = Path("/proc/cpuinfo")
MACHINE_ID = Path("/etc/machine-id")
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
EXPERT = "IOPlatformExpertDevice"  # holds a Mac's id
HOST_NAMESPACE = "prefill-decode: a host\n"  # the mark is of no use to who knows the id's own hash
LONGEST_NAME = 80  # of a processor, in a file's name


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
    instruction_sets: tuple[str, ...] | None = None
    kernels: str = "torch only"  # or "compiled"
    cpu_family_model_stepping: str | None = None
    accelerator_driver: str | None = None
    host: str | None = None

    @property
    def kind(self) -> str:
        """A mark that machines share whose speed should be equal."""
        return kind_of(asdict(self))

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
        """A name for files: the processor, on a CPU how many cores, and a mark of its kind.

        The mark keeps machines apart whose processors have the same name, as virtual ones often do.
        """
        name = self.device_name[:LONGEST_NAME]
        if self.device == "cpu":
            name += f" {self.cores} core{'s' if self.cores > 1 else ''}"
        return re.sub(r"[^a-z0-9]+", "-", f"{name} {self.kind[:4]}".lower()).strip("-")

    @property
    def title(self) -> str:
        """A name for people."""
        if self.device == "cpu":
            return f"{self.device_name}, {self.cores} cores"
        return self.device_name

    def as_dict(self) -> dict[str, Any]:
        """What a record holds of it, as JSON has it."""
        sets = None if self.instruction_sets is None else list(self.instruction_sets)
        names = {"kind": self.kind, "slug": self.slug, "title": self.title}
        return {**asdict(self), "instruction_sets": sets, **names}


def kind_of(machine: Mapping[str, Any]) -> str:
    """16 hex digits of everything in a machine's description that decides its speed.

    Versions do not count: they may be changed on the same machine. Memory counts in whole GiB,
    because the kernel keeps a varying part of it."""
    names = ("device", "device_name", "cpu_name", "cpu_family_model_stepping", "instruction_sets")
    counts = ("cores", "threads", "last_level_cache_bytes", "system")
    decisive = [machine[name] for name in (*names, *counts)]
    decisive.append(round(machine["memory_bytes"] / GIB))
    return sha256(json.dumps(decisive).encode()).hexdigest()[:16]


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
        instruction_sets=_instruction_sets(chosen),
        kernels=_kernels(chosen),
        cpu_family_model_stepping=_cpu_family_model_stepping(_read(CPU_INFO)),
        accelerator_driver=_accelerator_driver(chosen),
        host=_host(),
    )


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


def _instruction_sets(device: str) -> tuple[str, ...] | None:
    """The CPU's, and of a CUDA device its compute capability; None where the system is silent."""
    if platform.system() == "Darwin":
        found = _darwin_instruction_sets(_output("sysctl", "hw.optional"))
    else:
        found = _linux_instruction_sets(_read(CPU_INFO))
    if device == "cuda":
        import torch

        major, minor = torch.cuda.get_device_capability()
        found = (*(found or ()), f"sm_{major}{minor}")
    return found


def _linux_instruction_sets(cpu_info: str) -> tuple[str, ...] | None:
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", cpu_info, re.MULTILINE)
    if found is None:
        return None
    flags = set(found.group(1).split())
    return tuple(name for name in INSTRUCTION_SETS if name in flags)


def _darwin_instruction_sets(listing: str) -> tuple[str, ...] | None:
    """From lines such as `hw.optional.arm.FEAT_BF16: 1`, in Linux' words."""
    present = set(
        re.findall(r"^hw\.optional\.(?:arm\.)?(?:FEAT_)?(\w+): 1$", listing, re.MULTILINE)
    )
    if not present:
        return None
    words = {"avx1_0": "avx", "avx2_0": "avx2", "AdvSIMD": "asimd", "DotProd": "asimddp"}
    found = {words.get(name, name.lower()) for name in present}
    return tuple(name for name in INSTRUCTION_SETS if name in found)


def _cpu_family_model_stepping(cpu_info: str) -> str | None:
    """Numbers joined by "/", on ARM the implementer, part, variant and revision; None unknown."""
    for keys in (
        ("cpu family", "model", "stepping"),
        ("CPU implementer", "CPU part", "CPU variant", "CPU revision"),
    ):
        found = [re.search(rf"^{key}\s*:\s*(\S+)$", cpu_info, re.MULTILINE) for key in keys]
        values = [match.group(1) for match in found if match]
        if len(values) == len(keys):
            return "/".join(values)
    if platform.system() == "Darwin":
        values = [_sysctl(f"machdep.cpu.{key}") for key in ("family", "model", "stepping")]
        return "/".join(values) if all(values) else None
    return None


def _kernels(device: str) -> str:
    """Compiles them where nobody has yet, once a machine: what is measured next needs them."""
    from prefill_decode import kernels

    return "compiled" if device == "cpu" and kernels.why_not() is None else "torch only"


def products_of(device: str, dtype: str) -> str:
    """How the engine multiplies with weights of this dtype here, in words."""
    import torch

    from prefill_decode.products import fastest_products

    return fastest_products(device, getattr(torch, dtype)).words


def _accelerator_driver(device: str) -> str | None:
    if device == "mps":
        return platform.mac_ver()[0] or None
    if device != "cuda":
        return None
    found = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _read(NVIDIA_DRIVER))
    return found.group(1) if found else None


def _host() -> str | None:
    """16 hex digits that are this host's alone and do not reveal its id; None where unknown."""
    if platform.system() == "Darwin":
        found = re.search(r'"IOPlatformUUID" = "([^"]+)"', _output("ioreg", "-rd1", "-c", EXPERT))
        machine_id = found.group(1) if found else ""
    else:
        machine_id = _read(MACHINE_ID)
    if machine_id in ("", "uninitialized"):
        return None
    return sha256((HOST_NAMESPACE + machine_id).encode()).hexdigest()[:16]


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
    return _output("sysctl", "-n", key)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()
