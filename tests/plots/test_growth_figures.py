"""Growth figures: each names its finding, and the finding is the one that the numbers hold."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from prefill_decode import plots
from prefill_decode.batching import Line
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk


def words(figure) -> str:
    return " ".join(ElementTree.fromstring(figure.svg).itertext())


@pytest.fixture
def times(timings):
    """Ten rounds of steps that take (3 n + n^2 / 100) and, in the same rounds, lines in n."""
    laws = {f"prompt {n}": 3e-6 * n + 1e-8 * n**2 for n in (100, 300, 600)}
    laws |= {f"{h} heads, {n}": 0.010 + 1e-6 * h * n for h in (1, 4) for n in (100, 300, 600)}
    return replace(timings, raw_s=timings.raw_s | {name: (t,) * 10 for name, t in laws.items()})


def test_the_time_of_a_prompt_token_is_stated_with_the_balance_of_the_fit(
    times, tiny_model, ceilings
):
    steps = {n: f"prompt {n}" for n in (100, 300, 600)}
    works = {name: step_work(tiny_model, [Chunk(n)]) for n, name in steps.items()}
    figure = plots.time_of_each_prompt_token(times, steps, works, ceilings, [(3e-6, 1e-8)] * 10)
    assert figure.alt.startswith("Per token, 600 cost 2.25 times as much as 100")
    assert "as much again at 300 tokens" in figure.alt
    assert "fit without attention" in words(figure)


def test_a_fit_without_a_square_has_no_balance(times, tiny_model, ceilings):
    steps = {n: f"prompt {n}" for n in (100, 300, 600)}
    works = {name: step_work(tiny_model, [Chunk(n)]) for n, name in steps.items()}
    figure = plots.time_of_each_prompt_token(times, steps, works, ceilings, [(3e-6, -1e-9)] * 10)
    assert "as much again at no length" in figure.alt


def test_the_slopes_of_two_models_are_compared(times, tiny_model, ceilings):
    steps = {h: {n: f"{h} heads, {n}" for n in (100, 300, 600)} for h in (1, 4)}
    models = {h: replace(tiny_model, num_kv_heads=h) for h in steps}
    works = {steps[h][n]: step_work(models[h], [Chunk(1, n)]) for h in steps for n in steps[h]}
    fits = {h: [(0.010, 1e-6 * h)] * 10 for h in steps}
    figure = plots.time_against_context(times, steps, works, ceilings, fits)
    title = "A cached token costs 4.00 times as much with 4 KV heads as with 1"
    assert figure.alt.startswith(title)
    assert "least, 4 KV heads" in words(figure)
    assert "least, 1 KV head</text>" in figure.svg
    assert "600: 12.4 ms" in figure.alt


def test_the_slots_that_make_tokens_are_counted():
    lengths = [1, 3, 2]
    schedules = {
        "static": Line("static", tuple(lengths), 2).schedule(),
        "continuous": Line("continuous", tuple(lengths), 2).schedule(),
    }
    figure = plots.batches_step_by_step(schedules, 2)
    assert "Steps for the same tokens: static 5, continuous 3" in figure.alt
    assert "with static batching 60% of the slots make one" in figure.alt  # 6 tokens in 10 slots
    assert "continuous: 100% of the slots make a token" in words(figure)


def test_the_prefills_share_of_the_time_to_first_token_stands_in_a_table(timings):
    table = plots.first_token_table(timings, {"decode x8": "read"})  # 12 to 12.9 ms, 5 ms of it
    assert "prefill's share" in table.markdown
    assert "| decode x8 | 12.4 [12.1, 12.8] ms | 5.00 [5.00, 5.00] ms | 0.5984" in table.markdown
