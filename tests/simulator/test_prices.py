"""A price in closed form is the roofline's, at the shares of a calibration; and a calibration
survives the disk."""

import json
import random
from dataclasses import replace

import pytest

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware
from prefill_decode.roofline import step_work
from prefill_decode.simulator import Calibration, Prices, read_calibration, write_calibration
from prefill_decode.step import Chunk
from tests.simulator.random_fleets import MODELS

CHIP = Hardware("chip", "bfloat16", 3e12, 1e11, "by hand")
ENGINE = Calibration(0.7, 0.8, 0.4, 0.6, 1e-3, 1e-5, "by hand")
BY_ROWS = replace(
    ENGINE,
    product_rows=(1, 4, 32, 300),
    product_shares=(0.9, 0.5, 0.7, 0.8),
    attention_by_chunk=True,
    chunk_s=2e-5,
)
FILLED = replace(BY_ROWS, exact_rows=8, rows_together=16)
FILLED_SHARES = replace(ENGINE, exact_rows=2, rows_together=64)
ENGINES = {
    "two shares": ENGINE,
    "by rows": BY_ROWS,
    "filled": FILLED,
    "filled shares": FILLED_SHARES,
}
SHIPPED = [hf_config.get(name) for name in ("llama-3.1-8b", "deepseek-v3", "mixtral-8x7b")]


@pytest.mark.parametrize("model", [*MODELS, *SHIPPED], ids=lambda model: model.name)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_a_step_costs_what_its_operations_do(model, engine):
    dice = random.Random(1)
    prices = Prices(model, CHIP, engine)
    for _ in range(60):
        chunks = [
            Chunk(dice.choice([1, 1, 7, 300]), dice.choice([0, 1, 50, 4000]), dice.random() < 0.7)
            for _ in range(dice.randint(1, 5))
        ]
        contexts = [dice.randint(1, 5000) for _ in range(dice.randint(0, 40))]
        decodes = [Chunk(1, context) for context in contexts]
        told = prices.step_s([(None, chunk) for chunk in chunks], len(decodes), sum(contexts))
        assert told == pytest.approx(prices.step_s_by_roofline([*decodes, *chunks]), rel=1e-10)


@pytest.mark.parametrize("model", [*MODELS, *SHIPPED], ids=lambda model: model.name)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES.keys())
def test_a_run_of_decodes_costs_the_sum_of_its_steps(model, engine):
    prices = Prices(model, CHIP, engine)
    contexts = [3, 900, 17, 17, 1]
    first_s, growth_s = prices.decodes(5, sum(contexts))
    for step in range(6):
        chunks = [Chunk(1, context + step) for context in contexts]
        expected_s = prices.step_s_by_roofline(chunks)
        assert first_s + step * growth_s == pytest.approx(expected_s, rel=1e-10)


def test_the_roofline_is_the_price_of_an_engine_that_wastes_nothing():
    model = SHIPPED[0]
    step = [Chunk(1, 700), Chunk(512, 0)]
    prices = Prices(model, CHIP, Calibration())
    least_s = step_work(model, step).least_time_s(CHIP)
    assert prices.step_s([(None, chunk) for chunk in step]) == pytest.approx(least_s, rel=1e-12)


def test_a_model_with_windows_is_refused():
    with pytest.raises(ValueError, match="layers with a window"):
        Prices(hf_config.get("gpt-oss-20b"), CHIP, ENGINE)


def test_a_calibration_comes_back_from_disk(tmp_path):
    path = tmp_path / "engine.json"
    for engine in (ENGINE, BY_ROWS, FILLED, replace(BY_ROWS, fits=(ENGINE, BY_ROWS))):
        write_calibration(path, engine)
        assert read_calibration(path) == engine


def test_a_calibration_of_version_1_is_still_read(tmp_path):
    path = tmp_path / "old.json"
    names = ("product_compute_share", "product_bandwidth_share", "attention_compute_share")
    names += ("attention_bandwidth_share", "step_s", "sequence_s", "source")
    told = {"version": 1, **{name: getattr(ENGINE, name) for name in names}}
    path.write_text(json.dumps(told))
    assert read_calibration(path) == ENGINE
    path.write_text(json.dumps({**told, "product_rows": [1]}))
    with pytest.raises(ValueError, match="unknown"):
        read_calibration(path)


def test_a_calibration_of_version_2_is_still_read(tmp_path):
    path = tmp_path / "old.json"
    write_calibration(path, replace(BY_ROWS, fits=(ENGINE,)))
    told = json.loads(path.read_text())
    for each in (told, *told["fits"]):
        del each["exact_rows"], each["rows_together"]
    path.write_text(json.dumps({**told, "version": 2}))
    assert read_calibration(path) == replace(BY_ROWS, fits=(ENGINE,))
    path.write_text(json.dumps(told))
    with pytest.raises(ValueError, match="missing"):
        read_calibration(path)


def test_what_is_no_calibration_is_refused_by_its_file_and_rule(tmp_path):
    path = tmp_path / "engine.json"
    write_calibration(path, ENGINE)
    good = json.loads(path.read_text())
    wrong = [
        ("[]", "JSON object of version 1 to 3"),
        ("{", "engine.json"),
        (json.dumps({**good, "version": 4}), "version 1 to 3"),
        (json.dumps({**good, "version": True}), "version 1 to 3"),
        (json.dumps({**good, "product_rows": [2], "product_shares": [1.0]}), "rise from 1"),
        (json.dumps({**good, "product_rows": [1, 1], "product_shares": [1, 1]}), "rise from 1"),
        (json.dumps({**good, "product_rows": [1], "product_shares": []}), "rise from 1"),
        (json.dumps({**good, "product_rows": [1], "product_shares": [1.5]}), "at most 1"),
        (json.dumps({**good, "product_rows": 1}), "is a list"),
        (json.dumps({**good, "attention_by_chunk": 1}), "true or false"),
        (json.dumps({**good, "idle_s": [1.0]}), "times above 0 that rise"),
        (json.dumps({**good, "idle_s": [0.0], "wake_s": [1.0]}), "times above 0 that rise"),
        (json.dumps({**good, "idle_s": [1.0], "wake_s": [-1.0]}), "times above 0 that rise"),
        (json.dumps({**good, "chunk_s": -1.0}), "0 or more"),
        (json.dumps({**good, "exact_rows": -1}), "whole number from 0"),
        (json.dumps({**good, "rows_together": 0}), "whole number from 1"),
        (json.dumps({**good, "rows_together": 1.5}), "whole number from 1"),
        (json.dumps({**good, "fits": [3]}), "list of calibrations"),
        (json.dumps({**good, "fits": [{**good, "fits": [good]}]}), "no fits of its own"),
        (json.dumps({**good, "step": 1}), "unknown"),
        (json.dumps({k: v for k, v in good.items() if k != "step_s"}), "missing"),
        (json.dumps({**good, "step_s": -1}), "0 or more"),
        (json.dumps({**good, "step_s": True}), "0 or more"),
        (json.dumps({**good, "product_compute_share": 1.1}), "at most 1"),
        (json.dumps({**good, "source": 3}), "source is a text"),
    ]
    for text, why in wrong:
        path.write_text(text)
        with pytest.raises(ValueError, match=why):
            read_calibration(path)


def test_no_share_beyond_a_ceiling_and_no_time_before_zero():
    for wrong in ({"attention_compute_share": 0}, {"sequence_s": float("nan")}):
        with pytest.raises(ValueError, match=r"attention_compute_share|sequence_s"):
            replace(ENGINE, **wrong)


def test_products_by_rows_are_never_below_their_floor_and_pass_through_the_table():
    model = SHIPPED[0]
    layers = replace(BY_ROWS, step_s=0.0, sequence_s=0.0, chunk_s=0.0)
    alone = replace(layers, attention_compute_share=1.0, attention_bandwidth_share=1.0)
    for rows in (*range(1, 40), 299, 300, 301, 5000):
        step = [Chunk(rows, 0, False)]
        work = step_work(model, step)
        products_s = Prices(model, CHIP, alone).step_s_by_roofline(step)
        products_s -= work.attention.least_time_s(CHIP)
        stretch = products_s / work.weights.least_time_s(CHIP)
        assert stretch >= 1
        if rows in BY_ROWS.product_rows:
            share = BY_ROWS.product_shares[BY_ROWS.product_rows.index(rows)]
            assert stretch == pytest.approx(1 / share, rel=1e-9)
        if rows > 300:
            assert stretch == pytest.approx(1 / 0.8, rel=1e-9)
    between = (Prices(model, CHIP, alone), [Chunk(18, 0, False)])
    middle = between[0].step_s_by_roofline(between[1])
    work = step_work(model, between[1])
    expected_s = work.weights.least_time_s(CHIP) * (1 / 0.5 + 1 / 0.7) / 2
    assert middle == pytest.approx(expected_s + work.attention.least_time_s(CHIP), rel=1e-9)


def test_attention_by_chunk_waits_for_each_chunk():
    model = SHIPPED[0]
    step = [Chunk(1, 3000), Chunk(512, 0)]
    apart = Calibration(attention_by_chunk=True)
    found = Prices(model, CHIP, apart).step_s_by_roofline(step)
    attention_s = sum(step_work(model, [one]).attention.least_time_s(CHIP) for one in step)
    assert found == pytest.approx(step_work(model, step).weights.least_time_s(CHIP) + attention_s)
    assert found > step_work(model, step).least_time_s(CHIP)


@pytest.mark.parametrize(("rows", "run"), [(2, 2), (8, 8), (9, 16), (16, 16), (17, 32), (300, 304)])
def test_the_products_of_a_filled_step_cost_what_the_rows_cost_that_run(rows, run):
    """Both prompts ask for one token; attention and the output matrix see no row of zeros."""
    layers = replace(FILLED, attention_compute_share=1.0, attention_bandwidth_share=1.0)
    prices, plain = (
        Prices(SHIPPED[0], CHIP, one) for one in (layers, replace(layers, exact_rows=999))
    )

    def products_s(told, count):
        step = [Chunk(count, 40)]
        attention_s = step_work(SHIPPED[0], step).attention.least_time_s(CHIP)
        return told.step_s_by_roofline(step) - attention_s

    assert products_s(prices, rows) == pytest.approx(products_s(plain, run), rel=1e-9)
