"""What the chapter on placement expects and simulates, against chances drawn by hand."""

import random
from dataclasses import replace
from math import inf
from statistics import fmean

import pytest

from prefill_decode import plots
from prefill_decode.fleet_claims import placement
from prefill_decode.hardware import accelerator
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk

SETTING = placement.Setting(
    "llama-3.1-8b", "h100-sxm", 4, 4, 512, (500, 1500), 0.5, num_conversations=24
)


@pytest.fixture(scope="module")
def found():
    return placement.simulate_seeds(SETTING, range(2))


def test_the_law_of_chance_is_what_turns_dealt_at_random_find():
    dice = random.Random(7)
    hits = prompts = 0
    for _ in range(4000):
        held = [512] * 4  # of one conversation, by worker
        for turn in range(4):
            prompt = 512 + 1000 * (turn + 1) + 60 * turn
            worker = dice.randrange(4)
            hits += held[worker]
            prompts += prompt
            held[worker] = (prompt + 60) // 16 * 16
    assert SETTING.law(4).hit_rate == pytest.approx(hits / prompts, rel=0.02)


def test_where_the_conversation_goes_on_only_the_question_is_new():
    hardware = accelerator("h100-sxm").at("bfloat16")
    prompts = [512 + 1000 * (turn + 1) + 60 * turn for turn in range(4)]
    held = [512, *((prompt + 60) // 16 * 16 for prompt in prompts[:-1])]
    times_s = [
        step_work(SETTING.model, [Chunk(prompt - known, known)]).least_time_s(hardware)
        for prompt, known in zip(prompts, held, strict=True)
    ]
    law = SETTING.law(1)
    assert law.hit_rate == pytest.approx(sum(held) / sum(prompts))
    assert law.prefill_s == pytest.approx(fmean(times_s))


def test_the_rate_keeps_workers_as_busy_as_asked():
    assert SETTING.rate_per_s * SETTING.law(4).prefill_s == pytest.approx(0.5 * 4)


def test_hits_come_near_the_law_and_chasing_them_sends_all_to_one(found):
    assert found.of(placement.ROUND_ROBIN, "hit_rate").median == pytest.approx(
        SETTING.law(4).hit_rate, rel=0.2
    )
    assert found.of(placement.AWARE, "hit_rate").median < SETTING.law(1).hit_rate
    assert found.of(placement.CHASING, "busiest").median == 4
    assert found.of(placement.ROUND_ROBIN, "busiest").median == 1


def test_nothing_is_found_where_nothing_is_shared(found):
    assert {seen.hit_rate for each in found.alone.values() for seen in each} == {0}


def test_the_routing_of_the_claim_is_that_slack_of_the_sweep(found):
    assert found.seen[placement.AWARE] == found.by_slack[placement.AT_HAND]
    assert found.seen[placement.CHASING] == found.by_slack[inf]
    again = placement.simulate_seeds(SETTING, range(2))
    assert again.figures() == found.figures()


def test_the_figure_and_the_tables_say_what_was_found(found):
    figure = plots.ttft_against_slack(found)
    assert "slack ∞" in figure.alt
    assert "the busiest worker has 4.0 times the mean" in figure.alt
    known = replace(found, num_seeds=2)
    assert len(str(plots.placement_table(known)).splitlines()) == 2 + len(placement.ROUTINGS)
    assert "aiconfigurator" in str(plots.conversations_table(SETTING))
    assert "| 16 |" in str(plots.fleet_sizes_table(SETTING, [2, 16]))
    assert "at any of 4 workers alike" in str(plots.placement_laws_table(SETTING))
