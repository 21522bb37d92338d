"""What is offered arrives: every byte, in the blocks that were named, and in no others."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode.kv_transfer import (
    DeadlinePassed,
    Expired,
    Offer,
    Reader,
    Refused,
    TransferError,
)
from prefill_decode.kv_transfer import exporter as exporting
from tests.kv_transfer.pools import (
    KEY,
    LANES,
    LAYERS,
    Reading,
    copied,
    holds,
    make_pool,
    name_of,
    sides,
    unchanged,
    until,
)

BLOCKS, TARGETS = [7, 8, 9, 2, 30, 31, 0], [1, 5, 6, 7, 20, 3, 4]
every_lane = pytest.mark.parametrize(("kind", "lane"), LANES)


@every_lane
@pytest.mark.parametrize("key", [None, KEY])
def test_blocks_arrive_where_they_are_wanted_and_nowhere_else(tmp_path, kind, lane, key):
    with sides(tmp_path, kind, lane, key) as both:
        before = copied(both.target)
        for turn in range(3):
            offer = both.exporter.offer(f"turn {turn}", BLOCKS, layers_ready=LAYERS)
            moved = both.reader.read(offer, TARGETS, 10.0)
            assert holds(both.target, TARGETS, copied(both.source), BLOCKS)
            assert unchanged(both.target, before, TARGETS)
            assert moved.moved_bytes == len(BLOCKS) * 2 * LAYERS * 256
            assert moved.lane == name_of(kind, lane)
            assert both.ended(offer.transfer_id, "released")
            for region in both.source.regions:
                region += 1
        assert len(both.ends.told) == 3


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(),
    block_bytes=st.sampled_from([1, 7, 64, 1000, 5000]),
    frame_bytes=st.sampled_from([1, 100, 4096, 2**19]),
    route=st.sampled_from(LANES),
)
def test_any_two_tables_do(tmp_path_factory, data, block_bytes, frame_bytes, route):
    tables = st.lists(st.integers(0, 15), min_size=1, max_size=16, unique=True)
    blocks = data.draw(tables)
    targets = data.draw(st.permutations(range(16)))[: len(blocks)]
    frame_bytes = max(frame_bytes, block_bytes // 10)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exporting, "FRAME_BYTES", frame_bytes)
        source, target = make_pool(16, block_bytes, 1), make_pool(16, block_bytes, 2)
        before = copied(target)
        folder = tmp_path_factory.mktemp("any")
        with sides(folder, *route, source=source, target=target) as both:
            offer = both.exporter.offer("any", blocks, layers_ready=LAYERS)
            both.reader.read(offer, targets, 10.0)
        assert holds(target, targets, copied(source), blocks)
        assert unchanged(target, before, targets)


@every_lane
def test_more_pieces_than_one_call_may_have_arrive(tmp_path, kind, lane):
    num_blocks = 5000
    source, target = make_pool(num_blocks, 8, 1), make_pool(num_blocks, 8, 2)
    blocks = list(range(0, num_blocks, 2))
    targets = list(range(num_blocks - 1, 0, -2))
    with sides(tmp_path, kind, lane, source=source, target=target) as both:
        offer = both.exporter.offer("many", blocks, layers_ready=LAYERS)
        both.reader.read(offer, targets, 30.0)
    assert holds(target, targets, copied(source), blocks)


@every_lane
def test_a_layer_is_read_once_it_is_ready_and_not_before(tmp_path, kind, lane):
    """The owner writes a layer, says so, and the reader has it before the next is written."""
    with sides(tmp_path, kind, lane) as both:
        before = copied(both.target)
        offer = both.exporter.offer("layers", BLOCKS)
        reading = Reading(both, offer, TARGETS, 30.0)
        for layer in range(LAYERS):
            assert all(
                np.array_equal(both.target.regions[region], before[region])
                for region in range(2 * layer, 2 * LAYERS)
            )
            for region in both.source.regions[2 * layer : 2 * layer + 2]:
                region[BLOCKS] = 100 + layer
            both.exporter.layers_ready("layers", layer + 1)
            last = both.target.regions[2 * layer + 1]
            assert until(lambda last=last, layer=layer: bool((last[TARGETS] == 100 + layer).all()))
        reading.join()
        assert reading.error is None
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)
        assert reading.moved.first_byte_s < reading.moved.seconds


@every_lane
def test_a_part_of_an_offer_may_be_read(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        whole = both.exporter.offer("part", BLOCKS, layers_ready=LAYERS)
        part = Offer(
            whole.transfer_id,
            whole.address,
            whole.incarnation,
            whole.blocks[3:],
            whole.generations[3:],
        )
        both.reader.read(part, TARGETS[3:], 10.0)
        assert holds(both.target, TARGETS[3:], copied(both.source), BLOCKS[3:])
        assert both.ended("part", "released")


@every_lane
def test_many_readers_read_at_once(tmp_path, kind, lane):
    num = 8
    source = make_pool(8 * num, 2000, 1)
    target = make_pool(8 * num, 2000, 2)
    with sides(tmp_path, kind, lane, source=source, target=target) as both:
        readers = [Reader(both.exporter.address, target, lane=lane) for _ in range(num)]
        tables = [list(range(8 * i, 8 * i + 8)) for i in range(num)]
        turned = [tables[-1 - i] for i in range(num)]
        offers = [both.exporter.offer(f"{i}", tables[i]) for i in range(num)]
        threads = [
            threading.Thread(target=reader.read, args=(offer, table, 30.0))
            for reader, offer, table in zip(readers, offers, turned, strict=True)
        ]
        for thread in threads:
            thread.start()
        for layer in range(LAYERS):
            for i in range(num):
                both.exporter.layers_ready(f"{i}", layer + 1)
        for thread in threads:
            thread.join()
        for i in range(num):
            assert both.ended(f"{i}", "released")
        for reader in readers:
            reader.close()
    for table, blocks in zip(turned, tables, strict=True):
        assert holds(target, table, copied(source), blocks)


def test_targets_that_do_not_fit_are_refused_before_anything_is_asked(tmp_path):
    with sides(tmp_path) as both:
        offer = both.exporter.offer("x", [1, 2], layers_ready=LAYERS)
        for targets in ([1], [1, 1], [1, 99], [1, 2, 3]):
            with pytest.raises(ValueError, match="block"):
                both.reader.read(offer, targets, 1.0)
        both.reader.read(offer, [2, 1], 10.0)


def test_an_offer_is_made_once_and_of_blocks_that_are_there(tmp_path):
    with sides(tmp_path) as both:
        both.exporter.offer("x", [1], layers_ready=LAYERS)
        with pytest.raises(ValueError, match="offered once"):
            both.exporter.offer("x", [2])
        both.exporter.withdraw("x")
        assert both.ended("x", "withdrawn")
        with pytest.raises(ValueError, match="offered once"):
            both.exporter.offer("x", [2])
        for blocks in ([32], [-1], [3, 3], []):
            with pytest.raises(ValueError, match="blocks are"):
                both.exporter.offer("y", blocks)
        assert both.ends.told == [("x", "withdrawn")]


@every_lane
def test_a_withdrawn_offer_ends_its_readers_at_once(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        offer = both.exporter.offer("gone", BLOCKS, layers_ready=1)
        reading = Reading(both, offer, TARGETS, 30.0)
        assert until(lambda: holds(both.target, TARGETS, copied(both.source), BLOCKS) is False)
        both.exporter.fail("gone", "the prefill did not go well")
        reading.join(5.0)
        assert isinstance(reading.error, Expired)
        assert "did not go well" in str(reading.error)
        assert both.ended("gone", "withdrawn")
        with pytest.raises(Expired, match="did not go well"):  # and who comes later hears it too
            both.reader.read(offer, TARGETS, 10.0)
        good = both.exporter.offer("next", BLOCKS, layers_ready=LAYERS)
        both.reader.read(good, TARGETS, 10.0)


@every_lane
def test_a_lease_expires_and_its_end_is_told_once(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        offer = both.exporter.offer("slow", BLOCKS, lease_s=0.2)
        with pytest.raises(Expired, match="time has passed"):
            both.reader.read(offer, TARGETS, 10.0)
        assert both.ended("slow", "expired")
        both.exporter.withdraw("slow")
        both.exporter.layers_ready("slow", LAYERS)
        with pytest.raises(Expired):
            both.reader.read(offer, TARGETS, 10.0)
        both.exporter.close()
        assert both.ends.told == [("slow", "expired")]


@every_lane
def test_a_deadline_ends_a_read_and_leaves_the_lease(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        offer = both.exporter.offer("late", BLOCKS, layers_ready=1)
        with pytest.raises(DeadlinePassed):
            both.reader.read(offer, TARGETS, 0.2)
        assert both.ends.told == []
        both.exporter.layers_ready("late", LAYERS)
        both.reader.read(offer, TARGETS, 10.0)
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)
        assert both.ended("late", "released")


@every_lane
def test_an_aborted_read_ends_and_writes_no_more(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        offer = both.exporter.offer("stop", BLOCKS, layers_ready=1)
        reading = Reading(both, offer, TARGETS, 30.0)
        assert until(
            lambda: np.array_equal(both.target.regions[1][TARGETS], both.source.regions[1][BLOCKS])
        )
        both.reader.abort("another")
        reading.join(0.1)
        assert reading.is_alive()
        both.reader.abort()
        reading.join(5.0)
        assert "aborted" in str(reading.error)
        before = copied(both.target)
        both.exporter.layers_ready("stop", LAYERS)
        assert unchanged(both.target, before, [])
        with pytest.raises(TransferError, match="aborted"):
            both.reader.read(offer, TARGETS, 10.0)
        other = both.exporter.offer("other", [1], layers_ready=LAYERS)
        both.reader.abort("early")
        both.reader.read(other, [1], 10.0)
        early = both.exporter.offer("early", [1], layers_ready=LAYERS)
        with pytest.raises(TransferError, match="aborted"):
            both.reader.read(early, [1], 10.0)


@every_lane
def test_a_block_with_a_new_holder_is_not_taken_for_the_old_one(tmp_path, kind, lane):
    with sides(tmp_path, kind, lane) as both:
        stale = both.exporter.offer("stale", BLOCKS, layers_ready=LAYERS)
        both.source.generations[BLOCKS[2]] += 1
        with pytest.raises(Expired, match="holder"):
            both.reader.read(stale, TARGETS, 10.0)
        during = both.exporter.offer("during", BLOCKS, layers_ready=1)
        reading = Reading(both, during, TARGETS, 30.0)
        assert until(
            lambda: np.array_equal(both.target.regions[1][TARGETS], both.source.regions[1][BLOCKS])
        )
        both.source.generations[BLOCKS[-1]] += 1
        both.exporter.layers_ready("during", LAYERS)
        reading.join(5.0)
        assert isinstance(reading.error, Expired)
        again = both.exporter.offer("again", BLOCKS, layers_ready=LAYERS)
        both.reader.read(again, TARGETS, 10.0)
        assert holds(both.target, TARGETS, copied(both.source), BLOCKS)


def test_a_lane_that_cannot_be_had_is_refused_and_auto_takes_the_other(tmp_path):
    """A paced link is one that nobody may pass by."""
    with sides(tmp_path, lane="cma", pace_bytes_per_s=1e9) as both:
        offer = both.exporter.offer("x", [1], layers_ready=LAYERS)
        with pytest.raises(Refused, match="memory"):
            both.reader.read(offer, [1], 10.0)
    with sides(tmp_path, lane="auto", pace_bytes_per_s=1e9) as both:
        offer = both.exporter.offer("x", [1], layers_ready=LAYERS)
        assert both.reader.read(offer, [1], 10.0).lane == "unix"
