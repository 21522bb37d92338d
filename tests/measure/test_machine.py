import os
import re
from dataclasses import replace

import pytest

from prefill_decode.measure import describe_machine
from prefill_decode.measure import machine as module


def test_this_machine_is_described_with_what_tells_it_from_others():
    here = describe_machine("cpu")
    assert here.device == "cpu"
    assert 1 <= here.cores <= os.cpu_count()
    assert here.memory_bytes > 10**8
    assert here.device_name == here.cpu_name != ""
    assert {"slug", "title", "torch", "python", "threads"} <= here.as_dict().keys()


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="no cuda device"):
        describe_machine("cuda")
    with pytest.raises(ValueError, match="device must be auto"):
        describe_machine("tpu")


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "member", "cores"),
    [
        ({}, "", float("inf")),
        ({"cpu.max": "max 100000\n"}, "0::/\n", float("inf")),
        ({"cpu.max": "150000 100000\n"}, "", 1.5),
        ({"a/b/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3.0),
        ({"a/cpu.max": "200000 100000\n", "a/b/cpu.max": "max 100000"}, "0::/a/b\n", 2.0),
        ({"other/cpu.max": "100000 100000\n"}, "0::/a\n", float("inf")),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, "", float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "", 4.0),
    ],
)
def test_the_least_quota_above_this_process_limits_the_cores(tmp_path, files, member, cores):
    write(tmp_path / "root", files)
    write(tmp_path, {"membership": member})
    assert module._cgroup_quota_cores(tmp_path / "root", tmp_path / "membership") == cores


def test_effective_cores_are_physical_whole_and_at_least_one(monkeypatch):
    monkeypatch.setattr(module, "allowed_cpus", lambda: list(range(16)))
    monkeypatch.setattr(module, "_cgroup_quota_cores", lambda: float("inf"))
    monkeypatch.setattr(module.psutil, "cpu_count", lambda logical: 16 if logical else 8)
    assert module.effective_cores() == 8
    monkeypatch.setattr(module, "_cgroup_quota_cores", lambda: 2.5)
    assert module.effective_cores() == 2
    monkeypatch.setattr(module, "_cgroup_quota_cores", lambda: 0.5)
    assert module.effective_cores() == 1


def test_the_last_level_caches_of_all_allowed_processors_add_up(tmp_path):
    for cpu, shared in [(0, "0-1"), (1, "0-1"), (2, "2-3"), (3, "2-3")]:
        folder = f"cpu{cpu}/cache"
        write(
            tmp_path,
            {
                f"{folder}/index2/level": "2",
                f"{folder}/index2/size": "512K",
                f"{folder}/index2/shared_cpu_list": str(cpu),
                f"{folder}/index3/level": "3\n",
                f"{folder}/index3/size": "32768K\n",
                f"{folder}/index3/shared_cpu_list": shared,
            },
        )
    assert module._linux_cache_bytes(tmp_path, [0, 1, 2, 3]) == 64 * 2**20
    assert module._linux_cache_bytes(tmp_path, [0, 1]) == 32 * 2**20
    assert module._linux_cache_bytes(tmp_path / "nowhere", [0]) is None


def test_cache_sizes_are_read_in_binary_units():
    assert module._parse_size("32768K") == 32 * 2**20
    assert module._parse_size("32M") == 32 * 2**20
    assert module._parse_size("512") == 512


def test_a_slug_is_a_file_name_and_tells_unlike_machines_apart(machine):
    assert re.fullmatch(r"test-cpu-2-0-2-cores-[0-9a-f]{4}", machine.slug)
    slugs = {
        machine.slug,
        replace(machine, cores=1).slug,
        replace(machine, memory_bytes=32 * 2**30).slug,
        replace(machine, last_level_cache_bytes=2**20).slug,
    }
    assert len(slugs) == 4
    assert replace(machine, memory_bytes=machine.memory_bytes + 10**6).slug == machine.slug
    assert replace(machine, torch="3.0").slug == machine.slug  # a version is no machine
    gpu = replace(machine, device="cuda", device_name="NVIDIA H200")
    assert gpu.slug.startswith("nvidia-h200-")
    assert gpu.title == "NVIDIA H200"


def test_an_unknown_cache_is_replaced_by_a_cautious_guess(machine):
    assert machine.cache_bytes == 32 * 2**20
    unknown = type(machine)(**{**machine.__dict__, "last_level_cache_bytes": None})
    assert unknown.cache_bytes == module.UNKNOWN_CACHE_BYTES


def test_the_cache_of_a_large_host_is_not_taken_for_two_cores_own(machine):
    """Seen: a virtual machine of two cores that reports the 300 MiB of its host."""
    slice_of_host = replace(machine, cores=2, last_level_cache_bytes=300 * 2**20)
    assert slice_of_host.cache_bytes == 32 * 2**20
    gpu = replace(slice_of_host, device="cuda", last_level_cache_bytes=50 * 2**20)
    assert gpu.cache_bytes == 50 * 2**20
