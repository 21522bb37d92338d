"""What the chapter on undifferentiated serving expects and simulates, against arithmetic by hand
and against the tokens of single requests."""

from dataclasses import replace
from math import exp
from statistics import fmean, median

import pytest

from prefill_decode import plots
from prefill_decode.fleet_claims import undifferentiated as served
from prefill_decode.fleet_claims.ways import ALL_IN_ONE, APART, CHUNKED, ONE_PIECE, WITH_LAW
from prefill_decode.hardware import accelerator
from prefill_decode.roofline import step_work
from prefill_decode.serving_metrics import stall_s, ttft_s
from prefill_decode.simulator import Split, at_rate, simulate
from prefill_decode.step import Chunk

SETTING = served.Setting("llama-3.1-8b", "h100-sxm", 4, (2048, 64), 512, None, 16, 120)
H100 = accelerator("h100-sxm").at("bfloat16")


@pytest.fixture(scope="module")
def found():
    return served.simulate_seeds(SETTING, range(2))


def least_s(*chunks: Chunk) -> float:
    """By the roofline, products and attention each on their own."""
    work = step_work(SETTING.model, chunks)
    return work.least_time_s(H100)


def test_steps_cost_what_the_roofline_says():
    assert SETTING.prefill_s == pytest.approx(least_s(Chunk(2048)), rel=1e-3)
    streams = [Chunk(1, 2080)] * 5
    assert SETTING.decode_s(5) == pytest.approx(least_s(*streams), rel=1e-3)
    assert SETTING.decode_s(5) < SETTING.decode_s(5.5) < SETTING.decode_s(6)
    piece = Chunk(507, 2048 - 507)
    assert SETTING.chunk_s(5) == pytest.approx(least_s(piece, *streams), rel=1e-3)


def test_promises_that_are_not_given_lie_between_a_piece_and_a_prompt():
    most = SETTING.objectives
    assert most.ttft_s == pytest.approx(8 * SETTING.prefill_s)
    assert most.stall_s**2 == pytest.approx(
        SETTING.chunk_s(16) * (SETTING.prefill_s + SETTING.decode_s(1))
    )
    given = replace(SETTING, promises_s=(1.0, 0.5)).objectives
    assert (given.ttft_s, given.stall_s) == (1.0, 0.5)
    assert SETTING.promise(0) == most
    held = SETTING.promise(2).stall_s
    assert held == pytest.approx(2.5 * SETTING.prefill_s + SETTING.decode_s(16))


def test_what_one_piece_carries_at_most_is_a_prompt_and_its_share_of_steps():
    own_s = SETTING.prefill_s + 63 / 16 * SETTING.decode_s(16)
    assert SETTING.capacities_per_s[ONE_PIECE] == pytest.approx(4 / own_s)
    assert SETTING.work_ratio(CHUNKED) > 1
    assert SETTING.rate_per_s == pytest.approx(0.9 * min(SETTING.capacities_per_s.values()))


def test_batches_are_as_large_as_little_says():
    rate = 0.5 * SETTING.rate_per_s
    batch = SETTING.batch(ONE_PIECE, rate)
    free = 1 - rate / 4 * SETTING.prefill_s
    assert batch == pytest.approx(rate / 4 * 63 * SETTING.decode_s(batch) / free)
    assert SETTING.batch(ONE_PIECE, 1e6) == 16  # places


def test_one_piece_keeps_a_strict_gap_while_fewer_come_than_there_are_workers():
    rate = SETTING.within_per_s(ONE_PIECE, SETTING.objectives)
    arrivals = rate * 63 * SETTING.decode_s(SETTING.batch(ONE_PIECE, rate))
    terms = (1, arrivals, arrivals**2 / 2, arrivals**3 / 6)
    assert exp(-arrivals) * sum(terms) == pytest.approx(0.9, abs=1e-3)
    patient = SETTING.promise_of(10.0)
    assert SETTING.within_per_s(ONE_PIECE, patient) == pytest.approx(
        SETTING.capacities_per_s[ONE_PIECE], rel=1e-3
    )


def test_lines_that_are_not_steady_have_no_mean_wait():
    for way in WITH_LAW:
        assert SETTING.ttft_s(way, 1.01 * SETTING.capacities_per_s[way]) == float("inf")
    quiet = SETTING.ttft_s(ONE_PIECE, 1e-6)
    assert quiet == pytest.approx(SETTING.prefill_s + SETTING.decode_s(1) / 2, rel=1e-3)


def test_ways_are_the_same_devices_with_other_steps():
    fleets = {way: SETTING.fleet(way) for way in (ONE_PIECE, ALL_IN_ONE, CHUNKED, APART)}
    assert {fleet.num_devices for fleet in fleets.values()} == {4}
    assert {fleet.routing for fleet in fleets.values()} == {"round_robin"}
    policies = [fleets[way].pools[0].settings.policy for way in (ONE_PIECE, ALL_IN_ONE, CHUNKED)]
    assert policies == ["prefill_first", "decode_first", "chunked"]
    assert SETTING.split == Split(
        fleets[APART].pools[0].instances, fleets[APART].pools[1].instances
    )


def test_what_is_seen_is_what_the_tokens_of_each_request_say(found):
    requests = at_rate(served._Seed(SETTING, 1).requests, SETTING.rate_per_s)
    records = list(simulate(SETTING.fleet(CHUNKED), requests).records())[30:]
    seen = found.seen[CHUNKED][served.AT_HAND][1]
    assert seen.ttft_s == pytest.approx(fmean(map(ttft_s, records)))
    assert seen.gap_s == pytest.approx(median(map(stall_s, records)))


def test_the_laws_foresee_gaps_and_first_tokens(found):
    for way in WITH_LAW:
        for share in (0.5, served.AT_HAND):
            rate = share * SETTING.rate_per_s
            seen = found.of(way, "gap_s", share).median
            assert seen == pytest.approx(SETTING.gap_s(way, rate), rel=0.35), (way, share)
            waited = found.of(way, "ttft_s", share).median
            assert waited == pytest.approx(SETTING.ttft_s(way, rate), rel=0.35), (way, share)


def test_a_single_phase_shows_no_difference_and_steps_can_be_taken_one_by_one(found):
    figures = found.figures()
    assert figures[served.PROMPTS_ALONE].median == pytest.approx(1, abs=0.05)
    assert figures[served.ANSWERS_ALONE].median == pytest.approx(1, abs=0.05)
    assert figures[served.SINGLE_STEPS].median < 1e-9


def test_the_same_seeds_find_the_same(found):
    assert served.simulate_seeds(SETTING, range(2)).figures() == found.figures()


def test_a_service_is_served_at_the_rate_of_its_mean_lengths():
    code = served.for_service(SETTING, "azure-code")
    assert code.load[0] > 20 * code.load[1]
    assert code.objectives.stall_s == SETTING.objectives.stall_s
    assert code.rate_per_s != SETTING.rate_per_s


def test_other_accelerators_have_promises_of_their_own():
    names = [each.accelerator for each in SETTING.elsewhere(["h200-sxm", "h20", "tpu-v5e"])]
    assert names == ["h200-sxm"]  # no link in print, no room for the weights
    assert SETTING.elsewhere(["a100-sxm-80"])[0].objectives.ttft_s > SETTING.objectives.ttft_s


def test_figures_and_tables_say_what_was_found(found):
    numbers, rates = plots.numbers_against_rate(found), plots.rate_against_gap(found)
    assert "one piece" in numbers.alt
    assert numbers.alt.count(" and ") >= len(WITH_LAW) * len(served.SHARES)
    assert "by the largest gap that is promised" in rates.alt
    assert "| all in one |" in str(plots.ways_seen_table(found))
    assert "azure-code: apart" in str(plots.services_of_ways_table(found))
    assert "aiconfigurator" in str(plots.devices_table(SETTING))
    assert len(str(plots.ways_laws_table(SETTING)).splitlines()) == 2 + len(WITH_LAW) + 2
    assert "H100 SXM" in str(plots.ways_elsewhere_table([SETTING]))
