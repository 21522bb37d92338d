import hashlib
import json
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
    assert {"slug", "title", "torch", "python", "threads", "kind"} <= here.as_dict().keys()
    assert here.kernels in ("compiled", "torch only")
    assert here.as_dict()["instruction_sets"] != []


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


def test_a_kind_is_of_everything_that_decides_speed_and_of_no_version(machine):
    assert re.fullmatch("[0-9a-f]{16}", machine.kind)
    assert machine.slug.endswith(machine.kind[:4])
    decisive = [
        {"device": "cuda"},
        {"device_name": "Another CPU"},
        {"cpu_name": "Another CPU"},
        {"cores": 4},
        {"threads": 1},
        {"memory_bytes": 32 * 10**9},
        {"last_level_cache_bytes": None},
        {"system": "Darwin arm64"},
        {"instruction_sets": ("avx", "avx2")},
        {"instruction_sets": ()},
        {"cpu_family_model_stepping": "6/143/8"},
    ]
    assert len({replace(machine, **fields).kind for fields in decisive} | {machine.kind}) == 12
    for fields in (
        {"python": "3.12.0"},
        {"torch": "3.0"},
        {"numpy": "3.0"},
        {"kernels": "compiled"},
        {"accelerator_driver": "570.1"},
        {"host": "0" * 16},
        {"memory_bytes": machine.memory_bytes + 10**6},
    ):
        assert replace(machine, **fields).kind == machine.kind


def test_a_machine_read_back_from_json_is_of_the_same_kind(machine):
    full = replace(machine, instruction_sets=("avx", "avx2"))
    assert module.kind_of(json.loads(json.dumps(full.as_dict()))) == full.kind


def test_a_long_name_makes_no_file_name_too_long(machine):
    assert len(replace(machine, device_name="CPU " * 100).slug) <= 100


def test_the_cpus_model_and_instruction_sets_are_read_from_the_system(monkeypatch):
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    x86 = (
        "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\n"
        "model name\t: Intel Xeon\nstepping\t: 8\n"
        "flags\t\t: fpu sse4_2 avx2 avx amx_tile avx512f amx_bf16\nbugs\t: none\n"
    )
    assert module._cpu_family_model_stepping(x86) == "6/143/8"
    sets = ("avx", "avx2", "avx512f", "amx_tile", "amx_bf16")
    assert module._linux_instruction_sets(x86) == sets
    arm = (
        "Features\t: fp asimd asimddp sve bf16\nCPU implementer\t: 0x41\n"
        "CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n"
    )
    assert module._cpu_family_model_stepping(arm) == "0x41/0xd40/0x1/1"
    assert module._linux_instruction_sets(arm) == ("asimd", "asimddp", "bf16", "sve")
    assert module._cpu_family_model_stepping("") is None
    assert module._linux_instruction_sets("") is None


def test_a_macs_instruction_sets_are_called_as_on_linux():
    apple = "hw.optional.arm.AdvSIMD: 1\nhw.optional.arm.FEAT_DotProd: 1\n"
    apple += "hw.optional.neon: 1\nhw.optional.arm.FEAT_BF16: 1\nhw.optional.arm.FEAT_SME: 0\n"
    assert module._darwin_instruction_sets(apple) == ("neon", "asimd", "asimddp", "bf16")
    intel = "hw.optional.avx1_0: 1\nhw.optional.avx2_0: 1\nhw.optional.avx512f: 0\n"
    assert module._darwin_instruction_sets(intel) == ("avx", "avx2")
    assert module._darwin_instruction_sets("") is None


def test_a_host_is_known_by_a_mark_that_does_not_reveal_its_id(tmp_path, monkeypatch):
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    monkeypatch.setattr(module, "MACHINE_ID", tmp_path / "machine-id")
    assert module._host() is None
    for unknown in ("", "uninitialized\n"):
        (tmp_path / "machine-id").write_text(unknown)
        assert module._host() is None
    marks = set()
    for known in ("0123456789abcdef" * 2, "fedcba9876543210" * 2):
        (tmp_path / "machine-id").write_text(known + "\n")
        mark = module._host()
        assert re.fullmatch("[0-9a-f]{16}", mark)
        assert mark not in known
        assert not hashlib.sha256(known.encode()).hexdigest().startswith(mark)
        marks.add(mark)
    assert len(marks) == 2
    monkeypatch.setattr(module.platform, "system", lambda: "Darwin")
    answers = {"ioreg": '    "IOPlatformUUID" = "12345678-9ABC"\n'}
    monkeypatch.setattr(module, "_output", lambda *command: answers.get(command[0], ""))
    assert re.fullmatch("[0-9a-f]{16}", module._host())
    answers.clear()
    assert module._host() is None


@pytest.mark.parametrize(
    ("text", "driver"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release\n", "570.86"),
        ("", None),
    ],
)
def test_an_accelerators_driver_is_read_from_the_system(tmp_path, monkeypatch, text, driver):
    monkeypatch.setattr(module, "NVIDIA_DRIVER", tmp_path / "version")
    (tmp_path / "version").write_text(text)
    assert module._accelerator_driver("cuda") == driver
    assert module._accelerator_driver("cpu") is None


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
