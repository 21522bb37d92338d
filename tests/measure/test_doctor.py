"""Each fault is planted in turn and must be found; a healthy machine must be left in peace."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from prefill_decode import kernels, products
from prefill_decode.measure import doctor, examine, notes


@pytest.fixture
def healthy(monkeypatch):
    """A quiet machine on mains power, with a compiler."""
    fake = SimpleNamespace(
        cpu_percent=lambda interval, percpu: [1.0, 0.5],
        cpu_times_percent=lambda interval: SimpleNamespace(steal=0.0),
        swap_memory=lambda: SimpleNamespace(total=8e9, used=1e8, percent=1.0),
        virtual_memory=lambda: SimpleNamespace(available=12e9),
        sensors_battery=lambda: SimpleNamespace(power_plugged=True),
    )
    monkeypatch.setattr(doctor, "psutil", fake)
    keeps = products.Choice(products.FastestProducts(2, True, False), None)
    monkeypatch.setattr(products, "choice_of_products", lambda device, dtype: keeps)
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(kernels, "why_not", lambda: None)
    return fake


def problems(machine, tmp_path):
    findings = examine(machine, watch_s=0, cpu_folder=tmp_path)
    assert all(finding.mend for finding in findings)
    return " | ".join(finding.problem for finding in findings)


def test_a_healthy_machine_has_no_findings(healthy, machine, tmp_path):
    assert problems(machine, tmp_path) == ""
    assert notes(machine) == []


@pytest.mark.parametrize(
    ("part", "value", "found"),
    [
        ("cpu_percent", lambda interval, percpu: [90.0, 30.0], "1.2 cores busy"),
        ("cpu_times_percent", lambda interval: SimpleNamespace(steal=7.0), "hypervisor takes 7 %"),
        (
            "swap_memory",
            lambda: SimpleNamespace(total=8e9, used=4e9, percent=50.0),
            "4.00 GB of swap",
        ),
        ("virtual_memory", lambda: SimpleNamespace(available=1e9), "only 1.00 GB of memory"),
        ("sensors_battery", lambda: SimpleNamespace(power_plugged=False), "battery"),
    ],
)
def test_each_planted_fault_is_named(healthy, machine, tmp_path, monkeypatch, part, value, found):
    monkeypatch.setattr(healthy, part, value)
    assert found in problems(machine, tmp_path)


def test_machines_without_swap_battery_or_steal_counters_are_fine(healthy, machine, tmp_path):
    healthy.swap_memory = lambda: SimpleNamespace(total=0, used=0, percent=0.0)
    healthy.cpu_times_percent = lambda interval: SimpleNamespace()
    healthy.sensors_battery = lambda: None
    assert problems(machine, tmp_path) == ""
    del healthy.sensors_battery
    assert problems(machine, tmp_path) == ""


def test_a_power_saving_governor_is_named_unless_its_driver_adapts(healthy, machine, tmp_path):
    folder = tmp_path / "cpu0" / "cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text("powersave\n")
    assert "powersave" in problems(machine, tmp_path)
    (folder / "scaling_driver").write_text("intel_pstate\n")
    assert problems(machine, tmp_path) == ""


def test_cores_that_were_throttled_for_heat_are_named(healthy, machine, tmp_path):
    for core in (0, 1):
        folder = tmp_path / f"cpu{core}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text("3\n")
    assert "throttled for heat 6 times" in problems(machine, tmp_path)


def test_threads_above_cores_and_an_unknown_cache_are_named(healthy, machine, tmp_path):
    crowded = type(machine)(**{**machine.__dict__, "threads": 8, "last_level_cache_bytes": None})
    found = problems(crowded, tmp_path)
    assert "8 threads on 2 cores" in found
    assert "last-level cache" in found


def test_a_debug_build_is_named(healthy, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor.sysconfig, "get_config_var", lambda name: name == "Py_DEBUG")
    assert "debug build" in problems(machine, tmp_path)


def test_a_choice_of_products_that_is_not_kept_is_named_with_its_reason(
    healthy, machine, tmp_path, monkeypatch
):
    fastest = products.FastestProducts(2, True, False)
    found = products.Choice(fastest, "other programs took the cores while products were timed")
    monkeypatch.setattr(products, "choice_of_products", lambda device, dtype: found)
    (finding,) = examine(machine, watch_s=0, cpu_folder=tmp_path)
    assert "is kept (other programs took the cores" in finding.problem
    assert "close other programs" in finding.mend


@pytest.fixture
def no_kernels(healthy, monkeypatch):
    monkeypatch.setattr(kernels, "why_not", lambda: "there is no C++ compiler: install g++")


def test_a_missing_compiler_is_named_on_a_cpu_and_no_matter_on_a_gpu(no_kernels, machine, tmp_path):
    (finding,) = examine(machine, watch_s=0, cpu_folder=tmp_path)
    assert "without compiled kernels" in finding.problem
    assert "there is no C++ compiler" in finding.problem
    assert "g++" in finding.mend
    assert problems(replace(machine, device="cuda"), tmp_path) == ""
    assert notes(machine) == []


def test_a_system_without_kernels_is_noted_because_no_compiler_mends_it(
    no_kernels, machine, tmp_path, monkeypatch
):
    monkeypatch.setattr(doctor.sys, "platform", "darwin")
    assert problems(machine, tmp_path) == ""
    (note,) = notes(machine)
    assert "without compiled kernels" in note
    assert notes(replace(machine, device="mps")) == []


def test_a_slice_of_a_host_is_noted_because_nobody_can_mend_it(healthy, machine, tmp_path):
    part = replace(machine, cores=2, last_level_cache_bytes=300 * 2**20)
    assert problems(part, tmp_path) == ""
    (note,) = notes(part)
    assert "33.6 MB of its 315 MB" in note  # 2 cores of 16 MiB each; 300 MiB
    assert "void" in note
    assert notes(replace(part, last_level_cache_bytes=None)) == []
    assert notes(replace(part, last_level_cache_bytes=2 * 16 * 2**20)) == []
