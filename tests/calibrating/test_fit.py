"""A fit finds the calibration that times were made with, and says how far it lies from others."""

from dataclasses import replace

import numpy as np
import pytest

from prefill_decode import hf_config
from prefill_decode.calibrating import StepTime, design, fit_calibration, residuals, rows_of
from prefill_decode.calibrating.fit import nonnegative_least_squares
from prefill_decode.hardware import Hardware
from prefill_decode.roofline import step_work
from prefill_decode.simulator import Calibration, Prices
from prefill_decode.step import Chunk

MACHINE = Hardware("made up", "float32", 2e11, 2.2e10, "by hand")
MODEL = hf_config.get("laptop-254m").with_dtype("float32").with_layers(4)
EPISODES = [one for one in design() if not one.idle_s]
ROWS = rows_of(EPISODES)
TWO_SHARES = Calibration(0.7, 0.8, 0.3, 0.6, 2e-4, 3e-5, "made up")
BY_ROWS = replace(
    TWO_SHARES,
    product_compute_share=1.0,
    product_bandwidth_share=1.0,
    product_rows=tuple(ROWS),
    product_shares=tuple(0.5 + 0.04 * (i * 7 % 10) for i in range(len(ROWS))),
    attention_by_chunk=True,
    chunk_s=4e-4,
)
NUMBERS = (
    "attention_compute_share",
    "attention_bandwidth_share",
    "step_s",
    "sequence_s",
    "chunk_s",
)


def made(truth, noise=0.0, seed=0):
    """Times of every episode's step under a calibration, each off by a factor of its own."""
    dice, prices = np.random.default_rng(seed), Prices(MODEL, MACHINE, truth)
    steps = []
    for one in EPISODES:
        off = float(np.exp(noise * dice.normal()))
        host_s = truth.step_s + truth.sequence_s * len(one.chunks)
        time_s = prices.step_s_by_roofline(one.middle)
        steps.append(StepTime(one.name, one.kind, one.middle, time_s * off, host_s * off))
    return steps


def test_a_fit_finds_two_shares_of_products_and_the_rest():
    found = fit_calibration(made(TWO_SHARES), MODEL, MACHINE)
    for name in ("product_compute_share", "product_bandwidth_share", *NUMBERS):
        assert getattr(found, name) == pytest.approx(getattr(TWO_SHARES, name), rel=1e-6)


def test_a_fit_finds_the_shares_at_every_number_of_rows():
    found = fit_calibration(made(BY_ROWS), MODEL, MACHINE, ROWS)
    assert found.product_shares == pytest.approx(BY_ROWS.product_shares, rel=1e-6)
    for name in NUMBERS:
        assert getattr(found, name) == pytest.approx(getattr(BY_ROWS, name), rel=1e-6)


@pytest.mark.parametrize("rows", [(), ROWS], ids=["two shares", "by rows"])
def test_a_fit_counts_the_rows_that_an_engine_fills_up(rows):
    truth = replace(BY_ROWS if rows else TWO_SHARES, exact_rows=3, rows_together=40)
    found = fit_calibration(made(truth), MODEL, MACHINE, rows, filling=(3, 40))
    assert (found.exact_rows, found.rows_together) == (3, 40)
    assert found.attention_compute_share == pytest.approx(truth.attention_compute_share, rel=1e-6)
    exact = fit_calibration(made(truth), MODEL, MACHINE, rows)
    worst = [
        max(r.worst for r in residuals(made(truth), c, MODEL, MACHINE)) for c in (found, exact)
    ]
    assert worst[0] < 1e-6
    assert worst[1] > 0.01


def test_an_engine_at_the_roofline_has_shares_of_1_and_no_host():
    found = fit_calibration(made(Calibration()), MODEL, MACHINE)
    shares = [found.product_compute_share, found.product_bandwidth_share]
    assert [*shares, found.attention_bandwidth_share] == pytest.approx([1.0] * 3, rel=1e-9)
    assert (found.step_s, found.sequence_s) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_no_fit_promises_more_than_a_ceiling():
    """Steps twice as fast as the roofline: the ceilings were measured too low."""
    steps = [replace(step, time_s=step.time_s / 2) for step in made(Calibration())]
    found = fit_calibration(steps, MODEL, MACHINE, ROWS)
    assert {found.attention_compute_share, *found.product_shares} == {1.0}
    worst = residuals(steps, found, MODEL, MACHINE)
    assert all(each.worst_signed > 0.9 for each in worst)


def test_noise_moves_a_fit_no_further_than_fits_of_other_noise():
    """The truth lies within the range of fits to 60 draws, and their median close to it."""
    found = [fit_calibration(made(BY_ROWS, 0.03, seed), MODEL, MACHINE, ROWS) for seed in range(60)]
    for place, share in enumerate(BY_ROWS.product_shares):
        values = sorted(one.product_shares[place] for one in found)
        assert values[0] <= share <= values[-1]
        assert np.median(values) == pytest.approx(share, rel=0.02)


def test_residuals_name_the_step_that_fits_worst_of_each_kind():
    steps = made(BY_ROWS)
    slow = next(i for i, step in enumerate(steps) if step.kind == "mixed")
    steps[slow] = replace(steps[slow], time_s=1.25 * steps[slow].time_s)
    found = {each.kind: each for each in residuals(steps, BY_ROWS, MODEL, MACHINE)}
    assert found.keys() == {"prefill", "prefix", "decode", "mixed"}
    assert found["mixed"].worst_step == steps[slow].name
    assert found["mixed"].worst_signed == pytest.approx(1 / 1.25 - 1)
    assert found["mixed"].median == pytest.approx(0.0, abs=1e-9)
    assert found["decode"].worst == pytest.approx(0.0, abs=1e-9)
    assert sum(each.count for each in found.values()) == len(EPISODES)


def test_two_shares_cannot_describe_products_that_a_table_can():
    steps = made(BY_ROWS)
    plain = fit_calibration(steps, MODEL, MACHINE)
    table = fit_calibration(steps, MODEL, MACHINE, ROWS)
    worst = [max(r.worst for r in residuals(steps, c, MODEL, MACHINE)) for c in (plain, table)]
    assert worst[0] > 0.05
    assert worst[1] < 1e-6


def test_weights_decide_between_steps_that_contradict_each_other():
    steps = made(TWO_SHARES)
    slower = [replace(s, time_s=2 * s.time_s, host_s=2 * s.host_s) for s in steps]
    weights = [1e6] * len(steps) + [1e-6] * len(steps)
    found = fit_calibration([*steps, *slower], MODEL, MACHINE, weights=weights)
    assert found.product_bandwidth_share == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("seed", range(30))
def test_nonnegative_least_squares_is_the_librarys(seed):
    from scipy.optimize import nnls

    dice = np.random.default_rng(seed)
    matrix = dice.normal(size=(dice.integers(3, 30), dice.integers(1, 12)))
    if seed % 3 == 0:
        matrix[:, 0] = 0.0
    target = dice.normal(size=len(matrix))
    found = nonnegative_least_squares(matrix, target)
    assert found.min() >= 0
    least = np.linalg.norm(matrix @ nnls(matrix, target)[0] - target)
    assert np.linalg.norm(matrix @ found - target) == pytest.approx(least, rel=1e-9, abs=1e-12)


def test_times_that_cannot_be_are_refused():
    for time_s, host_s in ((0.0, 0.0), (-1.0, 0.0), (1.0, -0.1), (1.0, 1.0), (float("nan"), 0.0)):
        with pytest.raises(ValueError, match="a positive time"):
            StepTime("a", "decode", (Chunk(1),), time_s, host_s)
    with pytest.raises(ValueError, match="at least 4 unlike steps"):
        fit_calibration(made(TWO_SHARES)[:3], MODEL, MACHINE)


def test_the_design_spreads_over_both_sides_of_every_ceiling():
    assert ROWS[0] == 1
    assert ROWS[-1] == 512
    binds = {
        (one.kind, step_work(MODEL, one.middle).weights.limited_by(MACHINE)) for one in EPISODES
    }
    assert {("decode", "bandwidth"), ("prefill", "compute"), ("mixed", "compute")} <= binds


def test_a_design_needs_room_for_a_prompt_beside_two_sequences():
    small = design(most_rows=32, most_sequences=2, long_context=128)
    assert max(sum(c.new_tokens for c in one.chunks) for one in small) <= 64
    for wrong in ((8, 64, 1024), (512, 1, 1024), (512, 64, 8)):
        with pytest.raises(ValueError, match="a prompt beside two sequences"):
            design(*wrong)
