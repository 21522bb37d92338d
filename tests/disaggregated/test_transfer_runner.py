import psutil
import pytest

from prefill_decode.disaggregated import transfer_runner as transfer
from prefill_decode.disaggregated.handover_runner import factor_apart
from prefill_decode.disaggregated.link import LARGE_BYTES
from prefill_decode.disaggregated.transfer_runner import TransferRunner, loads_around
from prefill_decode.measure import describe_machine, interleave
from tests.conftest import TINY

PAIR = 2 * LARGE_BYTES


def test_loads_lie_around_the_cache_in_whole_blocks_and_the_held_one_is_none_of_them():
    held, fitted = loads_around(4 * 2**20)
    assert held.num_bytes == 4 * 2**20
    assert [load.num_bytes for load in fitted] == [8, 2**19, 2**21, 2**23]
    held, fitted = loads_around(1000)  # less than a pair of blocks
    assert held.num_bytes == PAIR
    assert [load.num_bytes for load in fitted] == [8, 2 * PAIR]


@pytest.mark.parametrize(
    ("found", "expected", "factor"),
    [(2.0, 1.0, 2.0), (1.0, 2.0, 2.0), (0.0, 0.0, 1.0), (0.0, 1.0, 1e4), (1.0, 0.0, 1e4)],
)
def test_two_times_are_so_many_fold_apart_and_none_is_next_to_nothing(found, expected, factor):
    assert factor_apart(found, expected) == pytest.approx(factor)


@pytest.fixture(scope="module")
def run():
    """A whole run of a model so small that only its own overheads take time."""
    runner = TransferRunner(TINY, 100, threads=1, device="cpu", seed=1)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def timed(run):
    machine = describe_machine("cpu")
    return run.seen(interleave(run.steps, machine, 0.001, 0, run.own_s))


def test_every_quantity_that_a_claim_may_predict_is_found(run, timed):
    found = run.found(timed)
    named = {transfer.BYTES, transfer.BREAK_EVEN, transfer.HIDDEN, transfer.WAITING, run.share}
    assert set(found) == named | set(run.misses.values())
    assert set(run.misses) >= {"unix", "tcp"}
    assert all(interval.n >= 6 for interval in found.values())


def test_the_wire_carries_the_tokens_of_the_prompt_and_little_else(run, timed):
    """100 tokens in blocks of 16: 112 move, and headers with them."""
    share = run.found(timed)[transfer.BYTES].median
    assert 1.12 <= share < 1.2


def test_a_paced_link_takes_no_less_than_its_bytes(run, timed):
    for speed, name in run.handovers.moves.items():
        assert min(timed.times_s(name)) >= run.moved_bytes / speed


def test_notes_stand_in_the_place_of_the_steps(run, timed):
    handovers = run.handovers
    names = {handovers.compute, *handovers.moves.values(), *handovers.waits.values()}
    names |= {*handovers.prefills.values()}
    names |= {name for of_one in run.names.values() for name in of_one.values()}
    assert names <= set(timed.raw_s)
    assert not any(name.startswith("all of") for name in timed.raw_s)
    assert handovers.during(timed).prefill_s == timed.time_s(handovers.compute).median
    assert run.parameters["transports"] == list(run.misses)
    assert set(run.works) == {handovers.compute}


def test_closing_ends_both_processes():
    runner = TransferRunner(TINY, 20, threads=1, device="cpu")
    pids = [runner.handovers.pid, runner.links.pid]
    assert all(map(psutil.pid_exists, pids))
    runner.close()
    assert not any(map(psutil.pid_exists, pids))
