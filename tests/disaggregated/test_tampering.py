import psutil
import pytest

from prefill_decode.disaggregated import tampering
from prefill_decode.disaggregated.lender import Lender
from prefill_decode.disaggregated.link import LARGE_BYTES, lend_memory
from prefill_decode.disaggregated.tampering import NUM_BLOCKS, flips_noticed


def test_every_bit_that_is_turned_over_is_noticed():
    assert flips_noticed(seed=3, tries=8) == [1.0] * 8


@pytest.fixture(scope="module")
def lender():
    lender = Lender(lend_memory, {LARGE_BYTES: NUM_BLOCKS}, 0)
    yield lender, lender.hear()[f"unix {LARGE_BYTES}"].removeprefix("unix:")
    lender.close()


def offer(lender):
    return lender.ask(f"unix {LARGE_BYTES}", list(range(NUM_BLOCKS)))


def test_a_transfer_that_nobody_touches_passes_the_relay(lender):
    process, path = lender
    assert not tampering._is_noticed(path, offer(process), None)


def test_a_bit_beyond_the_end_is_no_bit(lender):
    process, path = lender
    assert not tampering._is_noticed(path, offer(process), 8 * 2**30)


def test_the_relay_leaves_no_thread_and_no_descriptor(lender):
    process, path = lender
    tampering._is_noticed(path, offer(process), None)
    me = psutil.Process()
    before = me.num_threads(), me.num_fds()
    for bit in (None, 8 * 200_000):
        tampering._is_noticed(path, offer(process), bit)
    assert (me.num_threads(), me.num_fds()) == before
