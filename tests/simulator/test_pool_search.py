"""The search over splits, on machines where the answer is known before any simulation."""

from dataclasses import replace
from math import inf, isnan

import pytest

from prefill_decode.hardware import Hardware, accelerator
from prefill_decode.request import Request
from prefill_decode.roofline import step_work
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import Objectives, is_good
from prefill_decode.simulator import (
    Calibration,
    Pool,
    Split,
    Workers,
    at_rate,
    best_split,
    datasheet_workers,
    fleet_of_split,
    greatest_rate,
    law_of,
    search,
    share_within,
    simulate,
    splits_of,
    whole_per_s,
)
from prefill_decode.step import Chunk
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals
from tests.simulator.random_fleets import DENSE, drawn

FREE = Hardware("free", "bfloat16", 1e40, 1e40, "a machine on which only the host takes time")
STEP_S = 1e-3
PROMPT, OUTPUT = 32, 9
LATE = Objectives(ttft_s=20 * STEP_S, tpot_s=1.5 * STEP_S)


def worker(role, places, budget=4096):
    """Every step takes STEP_S, whatever is in it."""
    settings = SchedulerSettings("chunked", budget, places)
    cost = Calibration(step_s=STEP_S, source="by hand")
    return Pool(role, DENSE, FREE, 10**5, 1, role, settings=settings, calibration=cost)


def workers(places):
    """A prefill worker reads one prompt a step; a decode worker answers places / 8 of them."""
    return Workers(worker("prefill", 1, PROMPT), worker("decode", places))


def load(seed, number=300, prompt=PROMPT, output=OUTPUT):
    lengths = fixed_lengths(prompt, number), fixed_lengths(output, number)
    return make_requests(poisson_arrivals(1.0, number, seed), *lengths)


def test_equal_work_in_both_phases_is_best_shared_equally():
    found = search(workers(OUTPUT - 1), splits_of(4, whole=False), load, LATE, range(3))
    assert found.law.ratio == pytest.approx(1)
    assert (found.best.split, found.wins) == (Split(2, 2), 3)


@pytest.mark.parametrize(("places", "best"), [(3, Split(3, 1)), (1 / 3, Split(1, 3))])
def test_the_best_split_follows_the_work(places, best):
    """A decode worker that is worth three prefill workers, and the other way round."""
    slots = max(1, round(places * (OUTPUT - 1)))
    found = search(workers(slots), splits_of(4, whole=False), load, LATE, range(3))
    assert found.law.ratio == pytest.approx(slots / (OUTPUT - 1))
    assert (found.best.split, found.wins) == (best, 3)
    assert found.law.best(4) == (best.prefill, best.decode)


def test_no_split_beats_the_law_and_the_best_comes_near_it():
    """Answers so long that the step in which a cache travels, its place taken, matters little."""
    splits = [Split(1, 1), Split(2, 1)]  # bound by prefill, bound by decode
    found = search(workers(48), splits, lambda seed: load(seed, 1000, output=33), LATE, [0])
    for each in found.found:
        assert 0.8 * each.law_per_s < each.rates_per_s[0] < 1.03 * each.law_per_s


def test_a_fleet_holds_at_its_greatest_rate_and_not_beyond_it():
    fleet, requests = fleet_of_split(workers(8), Split(2, 2)), load(5)
    rate, outcome = greatest_rate(fleet, requests, LATE, guess_per_s=17.0)
    assert share_within(outcome, LATE) >= 0.9
    assert share_within(simulate(fleet, at_rate(requests, rate)), LATE) >= 0.9
    assert share_within(simulate(fleet, at_rate(requests, 1.02 * rate)), LATE) < 0.9
    other, _ = greatest_rate(fleet, requests, LATE, guess_per_s=1e5)
    assert other == pytest.approx(rate, rel=0.02)


def test_what_no_rate_can_keep_has_rate_0():
    hasty = Objectives(ttft_s=STEP_S / 2, tpot_s=1.0)
    assert greatest_rate(fleet_of_split(workers(8), Split(1, 1)), load(0), hasty, 10.0)[0] == 0


def test_the_best_split_is_found_without_the_rates_of_all():
    for seed, places in ((0, 24), (1, 8), (2, 3)):
        kinds, splits = workers(places), splits_of(4, whole=False)
        found = search(kinds, splits, load, LATE, [seed])
        split, rate = best_split(kinds, splits, load(seed), LATE, found.law)
        assert split == found.best.split
        assert rate == pytest.approx(found.best.rates_per_s[0], rel=0.02)


def test_every_split_gets_the_same_requests_and_each_seed_others():
    seen = []

    def make(seed):
        seen.append(seed)
        return load(seed)

    found = search(workers(8), splits_of(3, whole=False), make, LATE, [4, 7])
    assert seen == [4, 7]
    again = search(workers(8), splits_of(3, whole=False), load, LATE, [4, 7])
    assert found.found == again.found
    assert len({each.rates_per_s for each in found.found}) == len(found.found)


def test_goodput_at_a_rate_is_the_share_that_is_good_of_it():
    found = search(workers(8), [Split(1, 3)], load, LATE, [0], rate_per_s=500.0)
    fleet = fleet_of_split(workers(8), Split(1, 3))
    assert found.found[0].rates_per_s == (
        500.0 * share_within(simulate(fleet, at_rate(load(0), 500.0)), LATE),
    )


def test_requests_are_stretched_and_nothing_else_of_them_changes():
    requests = [replace(one, arrival_s=one.arrival_s + 7) for one in load(3)]
    faster = at_rate(requests, 25.0)
    assert faster[0].arrival_s == 0
    assert (len(faster) - 1) / faster[-1].arrival_s == pytest.approx(25)
    assert [replace(one, arrival_s=0) for one in faster] == [
        replace(one, arrival_s=0) for one in requests
    ]


def test_a_request_is_good_in_the_search_as_in_the_metrics():
    for seed in range(20):
        fleet, requests = drawn(seed)
        outcome = simulate(fleet, requests)
        for limits in (Objectives(2e-3, 1e-3), Objectives(2e-3, inf, 1e-3)):
            good = [is_good(record, limits) for record in outcome.records()]
            assert outcome.is_good(limits).tolist() == good


def test_the_law_is_the_roofline_of_full_steps():
    """Against step_work, chunk by chunk."""
    kinds = datasheet_workers(
        "llama-3.1-8b", "h100-sxm", "h20", most_sequences=200, link_bytes_per_s=50e9
    )
    requests = load(0, 40, 2048, 100)
    objectives = Objectives(1.0, 12e-3)
    law = law_of(kinds.prefill, kinds.decode, requests, objectives)
    model = kinds.prefill.model
    prompt = step_work(model, [Chunk(2048)])
    h100, h20 = (accelerator(name).at("bfloat16") for name in ("h100-sxm", "h20"))
    assert law.prefill_per_s == pytest.approx(1 / prompt.least_time_s(h100))
    context = 2048 + 50

    def token_s(batch):
        return step_work(model, [Chunk(1, context)] * batch).least_time_s(h20)

    assert token_s(law.batch) <= 12e-3 < token_s(law.batch + 1)
    assert law.decode_per_s == pytest.approx(law.batch / token_s(law.batch) / 99)


def test_memory_and_slots_end_a_batch_before_the_objective_does():
    kinds = datasheet_workers("llama-3.1-8b", "h100-sxm", "h100-sxm", most_sequences=40)
    loose = Objectives(1.0, 1.0)
    assert law_of(kinds.prefill, kinds.decode, load(0, 40, 512, 64), loose).batch == 40
    small = replace(kinds.decode, num_blocks=10 * 37)
    assert law_of(kinds.prefill, small, load(0, 40, 512, 128), loose).batch == 10


def test_answers_of_one_token_need_no_decode_and_hasty_ones_get_none():
    kinds = workers(8)
    assert law_of(kinds.prefill, kinds.decode, load(0, 9, 8, 1), LATE).decode_per_s == inf
    none = law_of(kinds.prefill, kinds.decode, load(0), Objectives(1.0, STEP_S / 2))
    assert (none.batch, none.decode_per_s) == (0, 0)
    assert isnan(none.token_s)


def test_a_whole_worker_reads_chunks_beside_its_decodes():
    """Eight decodes and chunks of 32 - 8 in steps that all take STEP_S."""
    whole = worker("both", 8, 32)
    long = [Request("0", 0.0, 48, 33)]  # two chunks, 32 steps for 8 answers: four for each
    assert whole_per_s(whole, long, Objectives(1.0, 1.0)) == pytest.approx(1 / (4 * STEP_S))
    short = [Request("0", 0.0, 96, 9)]  # four chunks, one step for each: the batch fills to two
    assert whole_per_s(whole, short, Objectives(1.0, 1.0)) == pytest.approx(1 / (4 * STEP_S))
    assert whole_per_s(whole, long, Objectives(1.0, STEP_S / 2)) == 0


def test_whole_workers_carry_what_their_law_says():
    kinds = datasheet_workers("llama-3.1-8b", "h100-sxm", "h100-sxm", whole="h100-sxm",
                              most_sequences=8)  # fmt: skip
    objectives = Objectives(1.0, 0.02)
    found = search(kinds, [Split(whole=1)], lambda s: load(s, 300, 2048, 64), objectives, [0])
    law = whole_per_s(kinds.whole, load(0, 2, 2048, 64), objectives)
    assert found.found[0].rates_per_s[0] == pytest.approx(law, rel=0.12)


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (lambda: splits_of(1), "a worker for each phase"),
        (lambda: fleet_of_split(workers(8), Split(whole=2)), "no whole kind"),
        (lambda: Workers(worker("decode", 8), worker("decode", 8)), "of role prefill"),
        (lambda: at_rate([Request("0", 0.0, 1, 1)], 1.0), "more than one moment"),
        (lambda: at_rate(load(0), 0.0), "positive rate"),
        (lambda: search(workers(8), [], load, LATE, [0]), "a split and a seed"),
        (lambda: search(workers(8), splits_of(2, False), load, Objectives(1.0), [0]), "TPOT"),
        (lambda: search(workers(8), splits_of(2, False), load, LATE, [0], 0.0), "above 0"),
        (
            lambda: search(workers(8), splits_of(2, False), lambda s: load(s, 2), LATE, [0]),
            "too few to show a limit",
        ),
        (lambda: datasheet_workers("llama-3.1-8b", "h20", "h20"), "no source prints the link"),
        (lambda: datasheet_workers("llama-3.1-8b", "h20", "h21"), "must be one of"),
    ],
)
def test_what_cannot_be_searched_is_refused(act, why):
    with pytest.raises(ValueError, match=why):
        act()
