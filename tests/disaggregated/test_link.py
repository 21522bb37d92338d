import os
import signal
import threading
from importlib.util import find_spec

import numpy as np
import psutil
import pytest

from prefill_decode.disaggregated import link
from prefill_decode.disaggregated.link import COPY, LARGE_BYTES, LinkRunner, Load
from prefill_decode.kv_transfer import Reader, Refused
from prefill_decode.measure import interleave

LOADS = [Load(8), Load(2**17), Load(2**20), Load(2**20, scattered=True)]


@pytest.fixture(scope="module")
def runner():
    runner = LinkRunner(LOADS, ("unix", "tcp"))
    yield runner
    runner.close()


def test_loads_are_pairs_of_small_blocks_or_of_large_ones():
    assert Load(8).num_blocks == 1
    assert Load(2**16).block_bytes == 4
    assert Load(2**20).block_bytes == LARGE_BYTES
    assert Load(2**20).num_blocks == 8
    assert [Load(n).repeats for n in (8, 2**20, 2**27)] == [20, 5, 1]
    assert Load(2**20, scattered=True).name == "1.05 MB in blocks"
    for wrong in (0, 7, 2 * LARGE_BYTES + 8):
        with pytest.raises(ValueError, match="take a multiple"):
            Load(wrong)


def test_every_transport_moves_every_load_and_notes_its_time(runner):
    runner.noted_s.clear()
    for step in runner.steps.values():
        step()
    moved = {runner.name(one, load) for one in ("unix", "tcp") for load in LOADS}
    copied = {runner.name(COPY, load) for load in LOADS[1:3]}
    assert set(runner.noted_s) == moved | copied
    assert all(len(times) == 1 and times[0] > 0 for times in runner.noted_s.values())
    assert runner.missing == {}


def test_what_is_there_afterwards_is_what_was_offered(runner):
    runner._read("unix", Load(2**20))
    for region, source in zip(
        runner._pools[LARGE_BYTES].regions, runner._sources[LARGE_BYTES], strict=True
    ):
        assert np.array_equal(region[:8], source[:8])


def test_other_bytes_than_those_offered_stop_it(runner, monkeypatch):
    wrong = [source ^ 1 for source in runner._sources[LARGE_BYTES]]
    monkeypatch.setitem(runner._sources, LARGE_BYTES, wrong)
    with pytest.raises(RuntimeError, match="other bytes came"):
        runner._check("tcp", Load(2**20))


def test_timings_hold_the_loads_in_the_place_of_their_sums(runner, machine):
    runner.noted_s.clear()
    times = interleave(runner.steps | {"else": lambda: None}, machine, 0.001, 0, runner.own_s)
    seen = runner.seen(times)
    assert set(seen.raw_s) == {"else", *runner.noted_s}
    assert len(seen.times_s(runner.name("tcp", Load(8)))) >= 6


def test_a_transport_that_this_machine_lacks_is_named_with_its_reason(monkeypatch):
    def refuse(self, *words):
        if self.lane == "cma":
            raise Refused("the kernel forbids it")
        return read(self, *words)

    read = Reader.read
    monkeypatch.setattr(Reader, "read", refuse)
    runner = LinkRunner([Load(8)], ("unix", "tcp", "cma"))
    runner.close()
    assert runner.transports == ["unix", "tcp"]
    assert runner.missing == {"cma": "the kernel forbids it"}


def test_nixl_is_measured_where_it_is_installed_and_else_missing():
    runner = LinkRunner(LOADS, ("nixl",))
    try:
        for step in runner.steps.values():
            step()
    finally:
        runner.close()
    if find_spec("nixl_cu12"):
        assert set(runner.noted_s) >= {runner.name("nixl", load) for load in LOADS}
    else:
        assert "--no-deps nixl-cu12" in runner.missing["nixl"]


def test_a_lender_that_is_killed_is_an_error_and_leaves_nothing_here():
    LinkRunner([Load(8)], ("unix",)).close()
    before = threading.active_count(), psutil.Process().num_fds()
    runner = LinkRunner([Load(8)], ("unix",))
    os.kill(runner.lender.process.pid, signal.SIGKILL)
    try:
        with pytest.raises(ConnectionError, match="ended with code -9"):
            next(iter(runner.steps.values()))()
    finally:
        runner.close()
    assert (threading.active_count(), psutil.Process().num_fds()) == before


def test_the_command_measures_large_transfers_and_a_paged_one():
    assert max(load.num_bytes for load in link.LOADS) == link.PAGED.num_bytes == 2**27
    assert min(load.num_bytes for load in link.LOADS) == 8
