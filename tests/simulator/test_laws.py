"""Laws that hold for every queue, and for every machine, however the simulator is built.

More of anything is never slower where a step's makeup does not depend on time. Where it does, it
may be: a faster step can end just before a request comes that a slower one would have taken along
(Graham's anomalies), so those laws are not asked of batches into which requests trickle.
"""

from dataclasses import replace
from math import factorial, sqrt
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from prefill_decode.hardware import Hardware
from prefill_decode.request import Request
from prefill_decode.roofline import step_work
from prefill_decode.scheduling import ROUTINGS, SchedulerSettings
from prefill_decode.simulator import Calibration, Fleet, Pool, Transfer, simulate
from prefill_decode.step import Chunk
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals
from tests.simulator.random_fleets import DENSE, drawn

FREE = Hardware("free", "bfloat16", 1e40, 1e40, "a machine on which only the host takes time")
STEP_S = 1e-3
RUNS = 20


def queue(places):
    """Every step takes STEP_S, whatever is in it."""
    settings = SchedulerSettings("chunked", 4096, places)
    cost = Calibration(step_s=STEP_S, source="by hand")
    return Fleet((Pool("queue", DENSE, FREE, 10**5, settings=settings, calibration=cost),))


def mean_wait_s(fleet, requests, skipped):
    """From arrival to the beginning of the step that brings the first token."""
    found = simulate(fleet, requests)
    arrivals_s = np.array([request.arrival_s for request in requests])
    return float((found.first_s - STEP_S - arrivals_s)[skipped:].mean())


def interval(samples):
    """Of their mean, 99.9 %."""
    reach = stats.t.ppf(0.9995, len(samples) - 1) * stdev(samples) / sqrt(len(samples))
    return fmean(samples) - reach, fmean(samples) + reach


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_place_and_equal_requests_wait_as_in_m_d_1(load):
    waits_s = []
    for seed in range(RUNS):
        arrivals_s = poisson_arrivals(load / STEP_S, 4000, seed)
        lengths = fixed_lengths(1, 4000)
        waits_s.append(mean_wait_s(queue(1), make_requests(arrivals_s, lengths, lengths), 400))
    low, high = interval(waits_s)
    assert low <= load * STEP_S / (2 * (1 - load)) <= high
    assert high - low < 0.2 * fmean(waits_s)


@pytest.mark.parametrize(("places", "load"), [(1, 0.6), (4, 0.8)])
def test_some_places_and_geometric_answers_wait_as_in_m_m_k(places, load):
    """Answers of many steps are as good as exponential; half a step is lost to its boundary."""
    mean_tokens, waits_s = 400, []
    service_s = mean_tokens * STEP_S
    offered = places * load
    for seed in range(RUNS):
        dice = np.random.default_rng(seed)
        number = 4000
        arrivals_s = poisson_arrivals(offered / service_s, number, seed)
        outputs = dice.geometric(1 / mean_tokens, number).tolist()
        requests = make_requests(arrivals_s, fixed_lengths(1, number), outputs)
        waits_s.append(mean_wait_s(queue(places), requests, 400))
    low, high = interval(waits_s)
    terms = [offered**n / factorial(n) for n in range(places)]
    last = offered**places / factorial(places) / (1 - load)
    expected_s = last / (sum(terms) + last) * service_s / (places * (1 - load))
    assert low - STEP_S <= expected_s <= high
    assert high - low < 0.4 * fmean(waits_s)


@pytest.mark.parametrize("seed", range(40))
def test_no_token_comes_sooner_than_the_roofline_of_its_request_alone(seed):
    fleet, requests = drawn(seed)
    found = simulate(fleet, requests)
    reused = found.num_reused_tokens > 0
    for record in found.records():
        if record.failure:
            continue
        prompt = record.request.prompt_tokens
        times_s = (record.request.arrival_s, *record.event_times_s)
        for index, gap_s in enumerate(np.diff(times_s)):
            first = 1 if reused else prompt
            chunk = Chunk(first) if index == 0 else Chunk(1, prompt + index - 1)
            least_s = min(
                step_work(pool.model, [chunk]).least_time_s(pool.ceilings) for pool in fleet.pools
            )
            assert gap_s >= least_s * (1 - 1e-9)


def burst(seed):
    fleet, requests = drawn(seed)
    pools = tuple(pool for pool in fleet.pools if pool.role == "both")[:1]
    if not pools:
        pools = (replace(fleet.pools[0], role="both"),)
    alone = replace(fleet, pools=(replace(pools[0], instances=1),))
    return alone, [replace(request, arrival_s=0.0) for request in requests]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("better", ["peak_flops_per_s", "bandwidth_bytes_per_s"])
def test_a_faster_machine_answers_a_burst_no_later(seed, better):
    fleet, requests = burst(seed)
    (pool,) = fleet.pools
    faster = replace(pool.hardware, **{better: 1.7 * getattr(pool.hardware, better)})
    quick = simulate(replace(fleet, pools=(replace(pool, hardware=faster),)), requests)
    for slow, fast in zip(simulate(fleet, requests).records(), quick.records(), strict=True):
        assert np.all(
            np.array(fast.event_times_s) <= np.array(slow.event_times_s) * (1 + 1e-12) + 1e-15
        )


@pytest.mark.parametrize("seed", range(30))
def test_a_free_transfer_is_no_worse_where_each_pool_serves_one_at_a_time(seed):
    """And where no cache overtakes another on the link, as a shorter one does: with it, answers
    change places, and who was overtaken gains from a slow link."""
    fleet, requests = drawn(seed)
    requests = [Request(r.request_id, r.arrival_s, 50, r.output_tokens) for r in requests]
    settings = SchedulerSettings("chunked", 64, 1)
    pools = tuple(
        replace(fleet.pools[0], name=role, role=role, instances=1, settings=settings, reuse=False)
        for role in ("prefill", "decode")
    )
    apart = replace(fleet, pools=pools, transfer=Transfer(1e7, 1e-3))
    free = replace(apart, transfer=Transfer())
    dear, cheap = simulate(apart, requests), simulate(free, requests)
    ok = ~np.isnan(dear.first_s)
    assert np.array_equal(ok, ~np.isnan(cheap.first_s))
    assert np.all(cheap.first_s[ok] <= dear.first_s[ok] + 1e-12)
    assert np.all(cheap.last_s[ok] <= dear.last_s[ok] + 1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_fleet_and_requests_give_the_same_times_to_the_last_bit(seed):
    (fleet, requests), (again, likewise) = drawn(seed), drawn(seed)
    first, second = simulate(fleet, requests), simulate(again, likewise)
    assert np.array_equal(first.first_s, second.first_s, equal_nan=True)
    assert np.array_equal(first.last_s, second.last_s, equal_nan=True)


def test_policies_are_compared_on_the_same_requests():
    """Nothing that is drawn is drawn in the simulator, so every policy meets the same dice."""
    fleet, requests = drawn(3)
    for routing in ROUTINGS:
        found = simulate(replace(fleet, routing=routing), requests)
        assert [record.request for record in found.records()] == requests


def test_twice_the_requests_one_after_another_take_the_same_steps_twice():
    fleet = Fleet((Pool("one", DENSE, FREE, 1000, calibration=Calibration(step_s=STEP_S)),))
    first = [Request(str(i), 0.0, 50, 20) for i in range(5)]
    later = [replace(request, arrival_s=100.0) for request in first]
    found = simulate(fleet, [*first, *later])
    assert found.last_s[5:] == pytest.approx(found.last_s[:5] + 100.0)
    (use,) = found.uses
    assert use.steps == 40
