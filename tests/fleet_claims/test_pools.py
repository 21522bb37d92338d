"""What the chapter on pools simulates, on a small load, and what it draws of it."""

from dataclasses import replace

import pytest

from prefill_decode import plots
from prefill_decode.fleet_claims import pools, seeds_for
from prefill_decode.fleet_claims.queue import error_over_single_steps, wait_over_closed_form
from prefill_decode.hardware import accelerator
from prefill_decode.roofline import step_work
from prefill_decode.simulator import Calibration, Split, at_rate, fleet_of_split, law_of
from prefill_decode.step import Chunk

SETTING = pools.Setting("llama-3.1-8b", "h100-sxm", 4, (2048, 16), (256, 64), (0.2, 0.007), 8, 200)


@pytest.fixture(scope="module")
def found():
    return pools.simulate_seeds(SETTING, range(2))


def test_the_number_of_seeds_follows_the_budget_alone():
    assert [len(seeds_for(budget_s, 0)) for budget_s in (1, 10, 36, 120)] == [6, 6, 6, 20]
    assert seeds_for(1, 7).start == 7
    with pytest.raises(ValueError, match="positive number of seconds"):
        seeds_for(0, 0)


def test_the_balanced_load_is_one_that_the_law_asks_equal_workers_for():
    load = SETTING.loads[pools.BALANCED]
    longer = replace(load, output_tokens=load.output_tokens - 1)
    assert SETTING.laws[pools.BALANCED].ratio <= 1 < SETTING.law(longer).ratio
    assert SETTING.best_by_law(pools.BALANCED) == Split(2, 2)


def test_the_law_of_a_swapped_split_is_that_of_its_slower_pool():
    law = SETTING.laws[pools.PROMPT_HEAVY]
    own, other = (SETTING.best_by_law(name) for name in pools.LEANING)
    assert (own.prefill > own.decode, other.prefill < other.decode) == (True, True)
    expected = min(other.prefill * law.prefill_per_s, other.decode * law.decode_per_s) / min(
        own.prefill * law.prefill_per_s, own.decode * law.decode_per_s
    )
    assert SETTING.swapped_by_law(pools.PROMPT_HEAVY) == pytest.approx(expected)


def test_along_the_path_the_law_turns_from_decode_to_prefill():
    path = SETTING.path(5)
    assert path[0][0] == 256 / 64
    assert path[-1][0] == 2048 / 16
    ends = (pools.OUTPUT_HEAVY, pools.PROMPT_HEAVY)
    for (_, ratio), name in zip((path[0], path[-1]), ends, strict=True):
        load = SETTING.loads[name].requests(1, 0)
        own = law_of(SETTING.workers.prefill, SETTING.workers.decode, load, SETTING.objectives)
        assert ratio == own.ratio


def test_promises_that_are_not_given_are_multiples_of_the_roofline():
    made = replace(SETTING, promises_s=None)
    hardware = accelerator("h100-sxm").at("bfloat16")
    prompt_s = step_work(made.model, [Chunk(2048)]).least_time_s(hardware)
    step_s = step_work(made.model, [Chunk(1, 256 + 32)] * 8).least_time_s(hardware)
    assert made.objectives.ttft_s == pytest.approx(8 * prompt_s)
    assert made.objectives.tpot_s == pytest.approx(1.4 * step_s, rel=1e-3)


def test_other_accelerators_are_held_to_the_same_promises():
    names = [each.accelerator for each in SETTING.elsewhere(["h200-sxm", "h20", "tpu-v5e"])]
    assert names == ["h200-sxm"]  # no link in print, no room for the weights
    other = SETTING.elsewhere(["h200-sxm"])[0]
    assert other.objectives == SETTING.objectives
    name = pools.OUTPUT_HEAVY
    assert other.laws[name].decode_per_s > SETTING.laws[name].decode_per_s
    assert "H200 SXM" in str(plots.elsewhere_table([other]))


def test_every_figure_of_the_claim_is_simulated_and_again_the_same(found):
    again = pools.simulate_seeds(SETTING, range(2))
    assert again.figures() == found.figures()
    names = {pools.SPLIT.format(name) for name in (*pools.LEANING, pools.BALANCED)}
    names |= {pools.SWAPPED.format(name) for name in pools.LEANING}
    assert set(found.figures()) == names | {pools.WAIT, pools.SINGLE_STEPS}


def test_the_swapped_rate_is_of_the_same_requests_and_no_more(found):
    for name in pools.LEANING:
        for swapped, own in zip(found.swapped_per_s[name], found.rates_per_s[name], strict=True):
            assert 0 < swapped < own


def test_the_wait_of_one_prefill_worker_is_that_of_m_d_1_whatever_a_prompt_takes():
    worker = SETTING.workers.prefill
    slow = replace(worker, calibration=Calibration(step_s=1.0, source="by hand"))
    for seed in (1, 2):
        ratio = wait_over_closed_form(worker, 2048, seed)
        assert 0.8 < ratio < 1.25
        assert wait_over_closed_form(slow, 2048, seed) == pytest.approx(ratio, rel=1e-6)


def test_runs_of_steps_end_when_single_steps_do():
    requests = at_rate(SETTING.loads[pools.OUTPUT_HEAVY].requests(60, 3), 100.0)
    assert error_over_single_steps(fleet_of_split(SETTING.workers, Split(2, 2)), requests) < 1e-9


def test_the_map_and_the_tables_say_what_was_found(found):
    figure = plots.pools_map(found)
    assert figure.alt.startswith("From 1:3 to 3:1: the split follows the load")
    assert "equal work" in figure.alt
    table = str(plots.pools_table(found))
    assert len(table.splitlines()) == 2 + len(SETTING.loads)
    assert "3:1 (2 of 2)" in table
    assert "aiconfigurator" in str(plots.fleet_table(SETTING))
    assert f"| {SETTING.laws[pools.PROMPT_HEAVY].batch} |" in str(plots.pool_laws_table(SETTING))
