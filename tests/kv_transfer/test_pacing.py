"""A paced link takes as long as its bytes do, in all and no matter who sends them."""

import threading
import time

import pytest

from prefill_decode.kv_transfer.pacing import Pace
from tests.kv_transfer.pools import LAYERS, copied, holds, make_pool, sides


@pytest.mark.parametrize("speed", [0, -1.0, float("inf"), float("nan")])
def test_a_link_has_a_speed(speed):
    with pytest.raises(ValueError, match="speed above zero"):
        Pace(speed)


def test_all_that_send_share_one_link():
    """A bound from below, which no busy machine can break: a link is never faster."""
    pace = Pace(1e6)
    began = time.monotonic()
    threads = [
        threading.Thread(target=lambda: [pace.wait_for(5000) for _ in range(10)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 4 * 10 * 5000 / 1e6 - 0.01


def test_pieces_are_small_on_a_slow_link_and_smooth_on_a_fast_one():
    assert Pace(1000.0).piece_bytes == 4096
    assert Pace(125e6).piece_bytes == 625_000


def test_blocks_go_over_a_paced_link_whole(tmp_path):
    """Blocks larger than a piece, and a time that is at least that of their bytes."""
    source, target = make_pool(16, 10_000, 1), make_pool(16, 10_000, 2)
    blocks, targets = [1, 2, 7], [9, 8, 3]
    with sides(tmp_path, source=source, target=target, pace_bytes_per_s=1e6) as both:
        offer = both.exporter.offer("x", blocks, layers_ready=LAYERS)
        moved = both.reader.read(offer, targets, 30.0)
    assert holds(target, targets, copied(source), blocks)
    assert moved.seconds >= moved.moved_bytes / 1e6 - 0.01
    assert moved.wire_bytes < 1.02 * moved.moved_bytes


def test_a_link_that_was_idle_begins_with_nothing_saved():
    pace = Pace(1e6)
    pace.wait_for(1)
    for _ in range(2):
        time.sleep(0.02)
        began = time.monotonic()
        pace.wait_for(3000)
        assert time.monotonic() - began >= 0.003


def test_a_transfer_saves_nothing_of_what_the_last_one_was_late_by(monkeypatch):
    """As where a busy machine wakes the sender late, and the next transfer begins at once."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def late(wait_s):
        clock[0] += wait_s + 0.001

    monkeypatch.setattr(time, "sleep", late)
    pace = Pace(1e6)
    pace.begin()
    pace.wait_for(3000)
    pace.wait_for(3000)
    assert clock[0] == pytest.approx(100.007)  # the first millisecond was made up for
    pace.begin()
    pace.wait_for(3000)
    assert clock[0] == pytest.approx(100.011)  # and the second was not


def test_every_transfer_begins_anew_on_a_paced_link(tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(Pace, "begin", lambda pace: begun.append(pace.bytes_per_s))
    source, target = make_pool(16, 10_000, 1), make_pool(16, 10_000, 2)
    with sides(tmp_path, source=source, target=target, pace_bytes_per_s=1e7) as both:
        for count in (1, 2):
            offer = both.exporter.offer(f"x{count}", [1, 2], layers_ready=LAYERS)
            both.reader.read(offer, [3, 4], 30.0)
            assert begun == [1e7] * count
