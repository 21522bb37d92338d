"""Doctor: what on this machine will make numbers lie, and the mend.

Looks only; changes nothing but the cache folder, where kernels are compiled and the fastest product
is kept first. Each check returns a finding or nothing. What nobody can mend on this machine is a
note, not a finding: it belongs beside the numbers and keeps no one from measuring.
"""

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import psutil

from prefill_decode.measure.machine import Machine
from prefill_decode.units import GB, format_bytes

BUSY_CORES = 0.2
LEAST_AVAILABLE_BYTES = 4 * GB
CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Finding:
    problem: str
    mend: str


def examine(machine: Machine, watch_s: float = 1.0, cpu_folder: Path = CPU_FOLDER) -> list[Finding]:
    """Everything found, after watching the cores for `watch_s` seconds."""
    checks = [
        _busy_cores(watch_s),
        _stolen_time(watch_s),
        _swap_in_use(),
        _little_memory(),
        _on_battery(),
        _power_saving(cpu_folder),
        _throttled(cpu_folder),
        _too_many_threads(machine),
        _debug_build(),
        _cache_unknown(machine),
        _without_kernels(machine),
        _without_kept_products(machine),
    ]
    return [finding for finding in checks if finding is not None]


def notes(machine: Machine) -> list[str]:
    """What cannot be mended on this machine and may still void or worsen results, in sentences."""
    found = [_slice_of_a_host(machine), _kernels_for_another_system(machine)]
    return [note for note in found if note is not None]


def _busy_cores(watch_s: float) -> Finding | None:
    busy_cores = sum(psutil.cpu_percent(interval=watch_s, percpu=True)) / 100
    if busy_cores <= BUSY_CORES:
        return None
    return Finding(
        f"other programs keep {busy_cores:.1f} cores busy",
        "close them: a step that waits for a core measures the neighbour",
    )


def _stolen_time(watch_s: float) -> Finding | None:
    stolen = getattr(psutil.cpu_times_percent(interval=watch_s), "steal", 0.0)
    if stolen < 1:
        return None
    return Finding(
        f"the hypervisor takes {stolen:.0f} % of the cores for other machines",
        "run at a quieter hour, or on a machine of your own",
    )


def _swap_in_use() -> Finding | None:
    before = psutil.swap_memory()
    if before.total == 0 or before.percent < 20:
        return None
    return Finding(
        f"{format_bytes(before.used)} of swap are in use",
        "close programs until memory suffices: a weight read from disk is no bandwidth",
    )


def _little_memory() -> Finding | None:
    available = psutil.virtual_memory().available
    if available >= LEAST_AVAILABLE_BYTES:
        return None
    return Finding(
        f"only {format_bytes(available)} of memory are free",
        f"free {format_bytes(LEAST_AVAILABLE_BYTES)}, or choose a smaller model with -p "
        f"model_name=...",
    )


def _on_battery() -> Finding | None:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None or battery.power_plugged in (True, None):
        return None
    return Finding("the machine runs on its battery", "plug it in: on battery the clock is lowered")


def _power_saving(cpu_folder: Path) -> Finding | None:
    governors = {
        path.read_text().strip() for path in cpu_folder.glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    if "powersave" not in governors or _driver_adapts(cpu_folder):
        return None
    return Finding(
        "the clock governor is powersave",
        "choose performance: sudo cpupower frequency-set --governor performance",
    )


def _driver_adapts(cpu_folder: Path) -> bool:
    """Intel's and AMD's own drivers call their ordinary adaptive mode powersave."""
    path = cpu_folder / "cpu0" / "cpufreq" / "scaling_driver"
    return path.exists() and path.read_text().strip() in ("intel_pstate", "amd-pstate-epp")


def _throttled(cpu_folder: Path) -> Finding | None:
    paths = cpu_folder.glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    throttled = sum(int(path.read_text()) for path in paths)
    if throttled == 0:
        return None
    return Finding(
        f"the cores were throttled for heat {throttled} times since start-up",
        "let it cool, clear the vents, and compare a run now with one an hour later",
    )


def _too_many_threads(machine: Machine) -> Finding | None:
    if machine.threads <= machine.cores:
        return None
    return Finding(
        f"torch uses {machine.threads} threads on {machine.cores} cores",
        f"set OMP_NUM_THREADS={machine.cores}: threads that share a core wait for one another",
    )


def _debug_build() -> Finding | None:
    if not (sysconfig.get_config_var("Py_DEBUG") or hasattr(sys, "gettotalrefcount")):
        return None
    return Finding(
        "this Python is a debug build", "use a release build: this one is several times slower"
    )


def _cache_unknown(machine: Machine) -> Finding | None:
    if machine.last_level_cache_bytes is not None:
        return None
    return Finding(
        "the system does not say how large the last-level cache is",
        "the book assumes 32 MB; on a larger one choose a larger model with -p model_name=...",
    )


def _without_kernels(machine: Machine) -> Finding | None:
    reason = _why_no_kernels(machine)
    if reason is None or sys.platform != "linux":
        return None
    return Finding(
        f"decode runs without compiled kernels, and more slowly ({reason})",
        "install a C++ compiler that works, such as g++; CXX names another",
    )


def _without_kept_products(machine: Machine) -> Finding | None:
    """Chooses them where nobody has yet, for the dtype of most chapters."""
    import torch

    from prefill_decode.products import choice_of_products

    reason = choice_of_products(machine.device, torch.float32).not_kept
    if reason is None:
        return None
    return Finding(
        f"no choice of the fastest product is kept ({reason}), so that each run guesses anew",
        "close other programs and run doctor again until it is kept",
    )


def _kernels_for_another_system(machine: Machine) -> str | None:
    reason = _why_no_kernels(machine)
    if reason is None or sys.platform == "linux":
        return None
    return f"decode runs without compiled kernels, and more slowly ({reason})"


def _why_no_kernels(machine: Machine) -> str | None:
    """Compiles them where nobody has yet. Torch is needed here only, hence the import."""
    from prefill_decode import kernels

    return kernels.why_not() if machine.device == "cpu" else None


def _slice_of_a_host(machine: Machine) -> str | None:
    reported = machine.last_level_cache_bytes
    if reported is None or machine.cache_bytes >= reported:
        return None
    return (
        f"this is a slice of a larger host: {format_bytes(machine.cache_bytes)} of its "
        f"{format_bytes(reported)} of last-level cache are counted as these cores'; where the "
        "neighbours leave more, steps come out faster than memory allows, and a verdict is void"
    )
