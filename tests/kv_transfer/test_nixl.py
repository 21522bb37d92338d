"""NIXL's lane beside what every lane must do, which the other tests here try on it too."""

import sys
import time
from importlib.util import find_spec

import numpy as np
import pytest

from prefill_decode.disaggregated.launch import Fleet
from prefill_decode.kv_transfer import DeadlinePassed, PeerLost, Reader, Refused, TransferError
from prefill_decode.kv_transfer import exporter as exporting
from prefill_decode.kv_transfer import nixl as through
from prefill_decode.kv_transfer import reader as reading
from tests.kv_transfer.pools import (
    KEY,
    LAYERS,
    Reading,
    copied,
    holds,
    num_descriptors,
    sides,
    unchanged,
    until,
)

BLOCKS, TARGETS = [7, 8, 9, 2, 30, 31, 0], [1, 5, 6, 7, 20, 3, 4]
installed = pytest.mark.skipif(not find_spec("nixl_cu12"), reason="nixl-cu12 is not installed")
TCP = through.Fabric("tcp", "TLS=tcp,NET_DEVICES=lo", "peer", needs_owner=True)
EMULATED = through.Fabric("shm", "TLS=posix", "none", needs_owner=False)


@pytest.fixture
def by(monkeypatch):
    """Another way for both sides."""

    def take(fabric):
        for module in (exporting, reading):
            monkeypatch.setattr(module, "fabric_of", lambda connection: fabric)

    return take


def test_where_it_is_not_installed_both_sides_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nixl_cu12", None)
    monkeypatch.setattr(through, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps nixl-cu12"):
        Fleet(1, 1, "tiny", vocab_size=9, num_blocks=9, transfer="nixl")
    with pytest.raises(Refused, match="pip install --no-deps nixl-cu12"):
        through.Agent(through.SHM, [np.zeros(8, np.uint8)])


@pytest.mark.parametrize("lent", [False, True])
def test_an_owner_that_cannot_lend_refuses_and_goes_on(tmp_path, monkeypatch, lent):
    monkeypatch.setitem(sys.modules, "nixl_cu12", None)
    with sides(tmp_path, nixl=lent) as both:
        both.reader.lane = "nixl"
        words = "not installed" if lent else "does not lend its memory"
        offer = both.exporter.offer("x", [0], layers_ready=LAYERS)
        with pytest.raises(Refused, match=words):
            both.reader.read(offer, [1], 10.0)
        both.reader.lane = "auto"
        both.reader.read(offer, [1], 10.0)
        assert both.ended("x", "released")


@pytest.mark.parametrize("name", through.OVERRIDING)
def test_an_environment_that_would_choose_the_way_is_refused(monkeypatch, name):
    monkeypatch.setenv(name, "all")
    with pytest.raises(Refused, match=f"{name} in the environment"):
        through.Agent(through.SHM, [np.zeros(8, np.uint8)])


def test_another_host_is_read_by_rdma_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setattr(through, "is_local", lambda connection: False)
    monkeypatch.setattr(through, "RDMA_DEVICES", tmp_path / "none")
    with pytest.raises(Refused, match="needs an RDMA device"):
        through.fabric_of(None)
    monkeypatch.setattr(through, "RDMA_DEVICES", tmp_path)
    (tmp_path / "mlx5_0").mkdir()
    assert through.fabric_of(None).lane == "nixl/rdma"


@pytest.mark.parametrize("seed", range(20))
def test_pieces_are_cut_alike_on_both_sides(seed):
    dice = np.random.default_rng(seed)
    cuts = [np.r_[0, np.sort(dice.choice(np.arange(1, 50), 9, False)), 50] for _ in range(2)]
    sides_ = [np.stack([1000 * dice.permutation(10) + 7, np.diff(cut)], 1) for cut in cuts]
    pairs = through._paired(*(side.astype(np.uint64) for side in sides_))
    assert np.array_equal(pairs[0][:, 1], pairs[1][:, 1])
    for side, pieces in zip(sides_, pairs, strict=True):
        said = [at + n for at, length in side.tolist() for n in range(length)]
        assert said == [at + n for at, length, _ in pieces.tolist() for n in range(length)]


FORGERIES = {
    "nothing": lambda said: None,
    "no place": lambda said: said | {"reached_at": ""},
    "no hexadecimal": lambda said: said | {"reached_at": "zz"},
    "cut short": lambda said: said | {"reached_at": said["reached_at"][:-40]},
    "half": lambda said: (
        said | {"reached_at": said["reached_at"][: len(said["reached_at"]) // 4 * 2]}
    ),
    "zeros": lambda said: said | {"reached_at": "00" * 400},
    "too few regions": lambda said: said | {"regions_at": said["regions_at"][1:]},
    "below zero": lambda said: said | {"generations_at": -8},
    "beyond 64 bits": lambda said: said | {"regions_at": [2**70] * len(said["regions_at"])},
    "another proof": lambda said: said | {"proof": "00" * 32},
    "proof outside": lambda said: said | {"proof_at": 4096},
    "proof elsewhere": lambda said: said | {"proof_at": said["regions_at"][0]},
}


@installed
@pytest.mark.parametrize("forgery", FORGERIES)
def test_memory_that_is_not_as_the_owner_says_is_refused_and_both_go_on(
    tmp_path, monkeypatch, forgery
):
    describe = through.Lent.describe
    with sides(tmp_path, lane="nixl", key=KEY) as both:
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        before = copied(both.target)
        with monkeypatch.context() as patched:
            forge = FORGERIES[forgery]
            patched.setattr(through.Lent, "describe", lambda *asked: forge(describe(*asked)))
            with pytest.raises(Refused):
                both.reader.read(offer, TARGETS, 10.0)
        assert unchanged(both.target, before, [])
        both.reader.read(offer, TARGETS, 10.0)
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)


@installed
def test_over_tcp_both_sides_have_a_key_or_it_is_refused(tmp_path):
    with sides(tmp_path, "tcp", "nixl") as both:
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(Refused, match="proved the key"):
            both.reader.read(offer, TARGETS, 10.0)
    with sides(tmp_path, "tcp", "nixl", KEY) as both:
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        assert both.reader.read(offer, TARGETS, 10.0).lane == "nixl/shm"
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)


@installed
def test_nothing_beside_the_pool_can_be_read(tmp_path, monkeypatch):
    describe = through.Lent.describe
    secret = np.full(2**16, 7, np.uint8)

    def elsewhere(*asked):
        said = describe(*asked)
        return said | {"regions_at": [secret.ctypes.data] * len(said["regions_at"])}

    with sides(tmp_path, lane="nixl") as both:
        before = copied(both.target)
        monkeypatch.setattr(through.Lent, "describe", elsewhere)
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(PeerLost):
            both.reader.read(offer, TARGETS, 10.0)
        assert unchanged(both.target, before, [])


@installed
def test_an_owner_that_is_no_more_is_not_reached(tmp_path, monkeypatch):
    describe = through.Lent.describe
    gone = through.Agent(through.SHM, [np.zeros(8, np.uint8)])
    stale = gone.reached_at().hex()
    gone.close()
    with sides(tmp_path, lane="nixl") as both:
        monkeypatch.setattr(
            through.Lent, "describe", lambda *asked: describe(*asked) | {"reached_at": stale}
        )
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(Refused):
            both.reader.read(offer, TARGETS, 10.0)


@installed
def test_a_read_that_would_need_the_owner_is_not_taken_for_one_sided(tmp_path, by, monkeypatch):
    monkeypatch.setattr(through, "PROOF_S", 0.3)
    by(EMULATED)
    with sides(tmp_path, lane="nixl") as both:
        offer = both.exporter.offer("x", BLOCKS, layers_ready=LAYERS)
        with pytest.raises(Refused, match=r"nothing could be read by nixl/shm within 0\.3 s"):
            both.reader.read(offer, TARGETS, 10.0)


@installed
def test_reads_that_take_their_time_are_waited_for(tmp_path, by):
    """Over UCX's TCP, the owner's agent moved on as for RDMA: whole, and layer after layer."""
    by(TCP)
    with sides(tmp_path, lane="nixl") as both:
        offer = both.exporter.offer("whole", BLOCKS, layers_ready=LAYERS)
        assert both.reader.read(offer, TARGETS, 10.0).lane == "nixl/tcp"
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)
        layered = both.exporter.offer("layers", BLOCKS)
        under_way = Reading(both, layered, TARGETS[::-1], 10.0)
        for count in range(1, LAYERS + 1):
            for region in both.source.regions[2 * count - 2 : 2 * count]:
                region += 1
            both.exporter.layers_ready("layers", count)
            time.sleep(0.02)
        under_way.join()
        assert under_way.error is None
        assert holds(both.target, TARGETS[::-1], copied(both.source), BLOCKS)
        assert both.ended("layers", "released")


@installed
@pytest.mark.parametrize("ending", ["deadline", "abort"])
def test_a_read_that_hangs_ends_with_its_agent(tmp_path, by, monkeypatch, ending):
    by(TCP)
    with sides(tmp_path, lane="nixl") as both:
        both.reader.read(both.exporter.offer("x", [0], layers_ready=LAYERS), [0], 10.0)
        before, descriptors = copied(both.target), num_descriptors()
        peer = both.reader._peer
        with monkeypatch.context() as patched:
            patched.setattr(through.Lent, "move_on", lambda *asked: None)
            time.sleep(0.05)
            offer = both.exporter.offer("y", BLOCKS, layers_ready=LAYERS)
            under_way = Reading(both, offer, TARGETS, 0.5 if ending == "deadline" else 30.0)
            if ending == "abort":
                time.sleep(0.2)
                both.reader.abort("y")
            under_way.join(10.0)
            assert isinstance(under_way.error, TransferError)
            assert isinstance(under_way.error, DeadlinePassed) == (ending == "deadline")
            assert peer.memory._agent._agent is None
            assert unchanged(both.target, before, TARGETS)
            assert until(lambda: num_descriptors() < descriptors)


@installed
def test_readers_come_and_go_and_leave_nothing(tmp_path):
    with sides(tmp_path, lane="nixl") as both:
        found = []
        for turn in range(3):
            reader = Reader(both.exporter.address, both.target, lane="nixl")
            offer = both.exporter.offer(f"turn {turn}", BLOCKS, layers_ready=LAYERS)
            assert reader.read(offer, TARGETS, 10.0).lane == "nixl/shm"
            reader.close()
            assert until(lambda: len(both.exporter._readers) == 0)
            found.append(num_descriptors())
    assert found[0] == found[-1]
