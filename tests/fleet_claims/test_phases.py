"""What the chapter on accelerators ranks and simulates, against sums by hand."""

from dataclasses import replace

import pytest

from prefill_decode import plots
from prefill_decode.fleet_claims import phases
from prefill_decode.hardware import accelerator
from prefill_decode.roofline import step_work
from prefill_decode.simulator import Split
from prefill_decode.step import Chunk

SETTING = phases.Setting(
    "llama-3.1-8b",
    ("h100-pcie", "h20", "h200-sxm"),
    1600.0,
    (4096, 256),
    50e9,
    (2.0, 0.03),
    places=8,
    num_requests=150,
)


@pytest.fixture(scope="module")
def found():
    return phases.simulate_seeds(SETTING, range(2))


def test_a_watt_carries_what_one_step_alone_takes_over_the_power_in_print():
    name, context = "H100 PCIe", 4096 + 128
    hardware = accelerator(name).at("bfloat16")
    prompts, answers = SETTING.per_watt(name)
    prompt_s = sum(
        step_work(SETTING.model, [Chunk(2048, cached)]).least_time_s(hardware)
        for cached in (0, 2048)
    )
    assert prompts == pytest.approx(1 / prompt_s / 350, rel=1e-3)
    step_s = step_work(SETTING.model, [Chunk(1, context)] * 8).least_time_s(hardware)
    assert answers == pytest.approx(8 / step_s / 255 / 350, rel=1e-3)


def test_the_best_fleet_is_found_as_by_trying_every_count():
    best = SETTING.best(list(SETTING.rows), mixed=True)[0]
    rates = {}
    for one, other in [(a, b) for a in SETTING.rows for b in SETTING.rows if a != b]:
        for count in range(1, 20):
            for others in range(1, 20):
                power_w = count * SETTING.rows[one].power_w + others * SETTING.rows[other].power_w
                if power_w <= SETTING.power_w:
                    rates[one, other, count, others] = min(
                        count * SETTING.laws[one].prefill_per_s,
                        others * SETTING.laws[other].decode_per_s,
                    )
    assert best.rate_per_s == max(rates.values())
    place = (best.prefill, best.decode, best.split.prefill, best.split.decode)
    assert rates[place] == best.rate_per_s
    assert best.power_w <= SETTING.power_w


def test_phases_rank_parts_by_arithmetic_and_by_bandwidth_for_a_watt():
    peak = {n: row.peak_bf16_flops_per_s / row.power_w for n, row in SETTING.rows.items()}
    band = {n: row.bandwidth_bytes_per_s / row.power_w for n, row in SETTING.rows.items()}
    ours = [name for name in SETTING.ranks(0) if name in SETTING.rows]
    assert ours == sorted(peak, key=lambda name: -peak[name])
    ours = [name for name in SETTING.ranks(1) if name in SETTING.rows]
    assert ours == sorted(band, key=lambda name: -band[name])
    assert (SETTING.mixed.prefill, SETTING.mixed.decode) == ("H100 PCIe", "H20")


def test_promises_that_are_not_given_are_what_the_slowest_candidate_needs():
    made = replace(SETTING, promises_s=None).objectives
    slowest = step_work(SETTING.model, [Chunk(4096)]).least_time_s(accelerator("h20").at("bf16"))
    assert made.ttft_s == pytest.approx(3 * slowest)
    steps = [Chunk(1, 4096 + 128)] * 8
    step_s = step_work(SETTING.model, steps).least_time_s(accelerator("h100-pcie").at("bf16"))
    assert made.tpot_s == pytest.approx(1.75 * step_s, rel=1e-3)


def test_what_misses_the_promise_or_has_no_power_in_print_is_not_taken():
    assert "TPU v5e" not in SETTING.all_rows
    assert SETTING.laws["L4"].decode_per_s == 0
    assert SETTING.ranks(1)[-1] in {n for n in SETTING.all_rows if not SETTING.per_watt(n)[1]}
    with pytest.raises(ValueError, match="lacks one: take another"):
        _ = replace(SETTING, candidates=("tpu-v5e",)).rows


def test_without_whole_workers_the_gain_is_of_sums_of_joules():
    names = list(SETTING.rows)
    joules = {n: [1 / each for each in SETTING.per_watt(n)] for n in names}
    pair = min(joules[a][0] + joules[b][1] for a in names for b in names)
    assert SETTING.gain_of_many(names) == pytest.approx(min(map(sum, joules.values())) / pair - 1)


def test_a_load_of_one_phase_leaves_a_pair_only_its_prefill_workers(found):
    counts = {"H100 PCIe": 4, "H20": 4, "H200 SXM": 2}
    best = max(counts[name] * SETTING.laws[name].prefill_per_s for name in counts)
    pair = SETTING.mixed.split.prefill * SETTING.laws[SETTING.mixed.prefill].prefill_per_s
    assert SETTING.one_phase == pytest.approx(pair / best)
    assert found.figures()[phases.ONE_PHASE].median == pytest.approx(pair / best, rel=0.15)


def test_every_figure_is_simulated_and_the_turn_is_as_by_the_law(found):
    turn = phases.TURN.format("H20", "H100 PCIe")
    assert set(found.figures()) == {turn, phases.GAIN, phases.ONE_PHASE}
    assert found.figures()[turn].median == pytest.approx(SETTING.turn, rel=0.5)
    again = phases.simulate_seeds(SETTING, range(2))
    assert again.figures() == found.figures()


def test_a_loss_is_no_gain_and_no_law_of_gain_divides_by_nothing(found):
    worse = replace(found, mixed_per_s=[0.5 * rate for rate in found.mixed_per_s])
    assert worse.figures()[phases.GAIN].median == 0
    prompts_alone = phases.other_loads(SETTING, [(4096, 8)])[0]
    assert prompts_alone.gain <= 0
    assert replace(worse, setting=prompts_alone).figures()[phases.GAIN].median == 0


def test_the_figure_and_the_tables_say_what_was_found(found):
    figure = plots.ranks_by_phase(SETTING)
    assert "By answers: H20," in figure.alt
    assert "H100 PCIe" in str(plots.candidates_table(SETTING))
    assert str(SETTING.mixed) in str(plots.fleets_table(SETTING))
    assert str(SETTING.rivals[1]).endswith("whole")
    assert str(SETTING.rivals[1]) in str(plots.power_table(found))
    assert "4096 + 256" in str(plots.loads_table([SETTING]))


def test_a_choice_is_told_as_counts_of_parts():
    assert str(phases.Choice("A", "B", Split(2, 5), 1.0, 1.0)) == "2 A + 5 B"
    assert str(phases.Choice("A", "A", Split(2, 5), 1.0, 1.0)) == "2 + 5 A"
    assert str(phases.Choice("A", "A", Split(whole=4), 1.0, 1.0)) == "4 A, whole"
