"""Runs of steps priced in closed form are the single steps of the real scheduler, priced one by one
by the roofline: the same tokens at the same times."""

from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prefill_decode.hardware import Hardware
from prefill_decode.request import Request
from prefill_decode.roofline import step_work
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import Objectives, summarize
from prefill_decode.simulator import Calibration, Fleet, Pool, Transfer, simulate
from prefill_decode.step import Chunk
from tests.simulator.random_fleets import DENSE, drawn

CHIP = Hardware("chip", "bfloat16", 1e12, 1e11, "by hand")
CLOSE = {"rel": 1e-9, "abs": 1e-12}


def one(model=DENSE, hardware=CHIP, **options):
    return Pool("one", model, hardware, options.pop("num_blocks", 1000), **options)


def same_outcome(fast, slow):
    assert fast.failures == slow.failures
    assert [use.preemptions for use in fast.uses] == [use.preemptions for use in slow.uses]
    assert [use.reused_tokens for use in fast.uses] == [use.reused_tokens for use in slow.uses]
    assert [use.steps for use in fast.uses] == [use.steps for use in slow.uses]
    for left, right in zip(fast.records(), slow.records(), strict=True):
        assert left.event_times_s == pytest.approx(right.event_times_s, **CLOSE)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**48))
def test_skipping_steps_changes_no_time_by_more_than_rounding(seed):
    fleet, requests = drawn(seed)
    same_outcome(simulate(fleet, requests), simulate(fleet, requests, step_by_step=True))


def test_the_fleets_drawn_reach_preemption_prefixes_transfers_and_refusals():
    preemptions = reused = moved = refused = routed = 0
    for seed in range(60):
        fleet, requests = drawn(seed)
        found = simulate(fleet, requests)
        preemptions += found.num_preemptions
        reused += found.num_reused_tokens
        moved += found.moved_bytes > 0
        refused += len(found.failures)
        routed += fleet.routing == "prefix_aware" and len(found.uses) > 1
    assert min(preemptions, reused, moved, refused, routed) >= 10


@pytest.mark.parametrize("seed", range(30))
def test_tokens_and_requests_are_conserved(seed):
    fleet, requests = drawn(seed)
    found = simulate(fleet, requests)
    for index, record in enumerate(found.records()):
        assert record.request is requests[index]
        answered = 0 if record.failure else requests[index].output_tokens
        assert len(record.event_times_s) == answered == found.tokens[index]
        if answered:
            assert record.event_times_s[0] == pytest.approx(found.first_s[index], rel=1e-15)
            assert record.event_times_s[-1] == pytest.approx(found.last_s[index], rel=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_the_summary_is_that_of_the_records(seed):
    fleet, requests = drawn(seed)
    found = simulate(fleet, requests)
    if len(found.failures) == len(requests):
        pytest.skip("no token came")
    medians = (found.summary().as_dict()[name]["p50"]["value"] or inf
               for name in ("ttft_s", "tpot_s", "stall_s"))  # fmt: skip
    objectives = Objectives(*(median * (1 + 1e-9) for median in medians))  # rounding decides none
    told = found.summary(objectives).as_dict()
    expected = summarize(found.records(), found.duration_s, objectives).as_dict()
    for name in expected:
        assert_alike(told[name], expected[name], name)


def assert_alike(told, expected, name):
    if isinstance(expected, dict):
        assert told.keys() == expected.keys()
        for key in expected:
            assert_alike(told[key], expected[key], f"{name} {key}")
    elif isinstance(expected, float) and not isinstance(expected, bool):
        assert told == pytest.approx(expected, rel=2e-3), name
    else:
        assert told == expected, name


def test_a_request_alone_takes_the_roofline_of_its_steps():
    found = simulate(Fleet((one(),)), [Request("a", 2.0, 100, 4)])
    steps = [[Chunk(100)], [Chunk(1, 100)], [Chunk(1, 101)], [Chunk(1, 102)]]
    times_s, now_s = [], 2.0
    for step in steps:
        now_s += step_work(DENSE, step).least_time_s(CHIP)
        times_s.append(now_s)
    assert found.record(0).event_times_s == pytest.approx(times_s, **CLOSE)


def test_a_step_after_an_idle_time_begins_late_and_one_after_another_step_does_not():
    """Late in proportion up to 2 s; the engine has idled for ever before its first request."""
    waking = Calibration(idle_s=(2.0,), wake_s=(0.5,))
    requests = [Request("a", 5.0, 100, 2), Request("b", 7.0, 100, 1)]
    found = simulate(Fleet((one(calibration=waking),)), requests)
    prompt_s = step_work(DENSE, [Chunk(100)]).least_time_s(CHIP)
    decode_s = step_work(DENSE, [Chunk(1, 100)]).least_time_s(CHIP)
    first, last = found.record(0).event_times_s
    assert first == pytest.approx(5.5 + prompt_s)
    assert last == pytest.approx(first + decode_s)
    late_s = 0.5 * (7.0 - last) / 2.0
    assert found.record(1).event_times_s == pytest.approx((7.0 + late_s + prompt_s,))


def test_a_cache_travels_as_long_as_its_bytes_and_the_others_on_the_link_say():
    """Two prompts at two prefill instances end together; one link for both, or one each."""
    latency_s, bandwidth = 0.5, 1e6
    kv_s = 100 * DENSE.kv_bytes(1) / bandwidth
    requests = [Request("a", 0.0, 100, 2), Request("b", 0.0, 100, 2)]
    decode_s = step_work(DENSE, [Chunk(1, 100)]).least_time_s(CHIP)
    for shared, times in ((False, 1), (True, 2)):
        pools = (
            Pool("p", DENSE, CHIP, 1000, 2, "prefill"),
            Pool("d", DENSE, CHIP, 1000, 2, "decode"),
        )
        fleet = Fleet(pools, transfer=Transfer(bandwidth, latency_s, shared))
        found = simulate(fleet, requests)
        for record in found.records():
            first, second = record.event_times_s
            assert first == pytest.approx(step_work(DENSE, [Chunk(100)]).least_time_s(CHIP))
            assert second - first == pytest.approx(times * kv_s + latency_s + decode_s)


def test_a_prefill_instance_holds_blocks_until_the_cache_has_left():
    pools = (
        Pool("p", DENSE, CHIP, 100, role="prefill", block_tokens=1),
        Pool("d", DENSE, CHIP, 1000, role="decode"),
    )
    kv_s = 100 * DENSE.kv_bytes(1) / 1e6
    requests = [Request("a", 0.0, 100, 1 + 1), Request("b", 0.0, 100, 2)]
    found = simulate(Fleet(pools, transfer=Transfer(1e6)), requests)
    prompt_s = step_work(DENSE, [Chunk(100)]).least_time_s(CHIP)
    assert found.first_s == pytest.approx([prompt_s, 2 * prompt_s + kv_s])


def test_a_cache_leaves_when_blocks_are_reserved_for_it_and_not_before():
    """Two prompts are read side by side; the decode instance has blocks for one of them, so the
    second cache stays where it is, and holds up a third prompt, until the first answer has ended.
    """
    room = {"block_tokens": 10, "settings": SchedulerSettings("chunked", 128, 8)}
    pools = (
        Pool("p", DENSE, CHIP, 11, 2, "prefill", **room),
        Pool("d", DENSE, CHIP, 11, 1, "decode", **room),
    )
    kv_s = 100 * DENSE.kv_bytes(1) / 1e6
    requests = [Request(name, 0.0, 100, 3) for name in "abc"]
    found = simulate(Fleet(pools, "round_robin", transfer=Transfer(1e6)), requests)
    prompt_s = step_work(DENSE, [Chunk(100)]).least_time_s(CHIP)
    steps_s = [step_work(DENSE, [Chunk(1, 100 + i)]).least_time_s(CHIP) for i in range(2)]
    answer_s = kv_s + sum(steps_s)  # blocks for the next only when this one has its last token
    left_s = [prompt_s + kv_s, prompt_s + answer_s + kv_s]  # the caches of a and b
    third_s = left_s[0] + prompt_s  # c waits for the blocks of a
    expected = [
        [prompt_s, left_s[0] + steps_s[0], prompt_s + answer_s],
        [prompt_s, left_s[1] + steps_s[0], prompt_s + 2 * answer_s],
        [third_s, prompt_s + 2 * answer_s + kv_s + steps_s[0], prompt_s + 3 * answer_s],
    ]
    for record, times_s in zip(found.records(), expected, strict=True):
        assert record.event_times_s == pytest.approx(times_s, **CLOSE)


def test_a_cache_that_travels_has_a_place_where_it_goes():
    """With one place and blocks to spare the second cache waits for the place, too; with two it
    travels beside the first and they decode together."""
    kv_s = 100 * DENSE.kv_bytes(1) / 1e6
    prompt_s = step_work(DENSE, [Chunk(100)]).least_time_s(CHIP)
    requests = [Request("a", 0.0, 100, 2), Request("b", 0.0, 100, 2)]
    alone_s = step_work(DENSE, [Chunk(1, 100)]).least_time_s(CHIP)
    both_s = step_work(DENSE, [Chunk(1, 100), Chunk(1, 100)]).least_time_s(CHIP)
    first_s = prompt_s + kv_s + alone_s
    expected = {1: [first_s, first_s + kv_s + alone_s], 2: 2 * [prompt_s + kv_s + both_s]}
    for places, ends_s in expected.items():
        settings = SchedulerSettings("chunked", 64, places)
        pools = (
            Pool("p", DENSE, CHIP, 1000, 2, "prefill"),
            Pool("d", DENSE, CHIP, 1000, 1, "decode", settings=settings),
        )
        found = simulate(Fleet(pools, "round_robin", transfer=Transfer(1e6)), requests)
        assert found.last_s == pytest.approx(ends_s, **CLOSE)


def test_what_fits_nowhere_fails_and_the_rest_is_served():
    pool = one(num_blocks=4, settings=SchedulerSettings("chunked", 64, 4))
    found = simulate(Fleet((pool,)), [Request("a", 0.0, 100, 5), Request("b", 0.0, 10, 5)])
    assert "must fit in the cache" in found.record(0).failure
    assert len(found.record(1).event_times_s) == 5
    with pytest.raises(ValueError, match="nothing fits"):
        simulate(Fleet((pool,)), [Request("a", 0.0, 100, 5)]).summary()
    with pytest.raises(ValueError, match="at least one request"):
        simulate(Fleet((pool,)), [])
