import os

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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, float("inf")),
        ({"cpu.max": "max 100000\n"}, float("inf")),
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, float("inf")),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4.0),
    ],
)
def test_a_containers_quota_limits_the_cores(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert module._cgroup_quota_cores(tmp_path) == cores


def test_effective_cores_are_whole_and_at_least_one(monkeypatch):
    monkeypatch.setattr(module, "_cgroup_quota_cores", lambda root: 0.5)
    assert module.effective_cores() == 1


def test_cache_sizes_are_read_in_binary_units():
    assert module._parse_size("32768K\n") == 32 * 2**20
    assert module._parse_size("32M") == 32 * 2**20
    assert module._parse_size("512") == 512


def test_a_slug_is_a_file_name_and_tells_core_counts_apart(machine):
    assert machine.slug == "test-cpu-2-0-2-cores"
    one = type(machine)(**{**machine.__dict__, "cores": 1})
    assert one.slug == "test-cpu-2-0-1-core"
    gpu = type(machine)(**{**machine.__dict__, "device": "cuda", "device_name": "NVIDIA H200"})
    assert gpu.slug == "nvidia-h200"


def test_an_unknown_cache_is_replaced_by_a_cautious_guess(machine):
    assert machine.cache_bytes == 32 * 2**20
    unknown = type(machine)(**{**machine.__dict__, "last_level_cache_bytes": None})
    assert unknown.cache_bytes == module.UNKNOWN_CACHE_BYTES
