"""One request's life: the times are the record's, and the words say what is drawn."""

import re

import pytest

from prefill_decode.plots.request_figures import MOST_STEPS, Life, life_of, request_life


def point(step, new, cached, sequences=1, median=0.2):
    chunks = [[new, cached, sequences]]
    return {
        "step": step,
        "chunks": chunks,
        "new_tokens": new * sequences,
        "sequences": sequences,
        "time_s": {"median": median},
    }


DECODE = point("decode x1", 1, 128)
PREFILLS = [point(f"prefill {n}", n, 0, median=n / 1000) for n in (1, 64, 512)]
RAW = {"decode x1": [0.04, 0.05, 0.06, 0.05], "decode x8": [1.0] * 4}
QUIET = [False] * 4


def test_the_prompt_is_the_one_nearest_to_the_decodes_context():
    life = life_of([*PREFILLS, DECODE], RAW, QUIET)
    assert (life.prompt_tokens, life.context_tokens, life.prefill_s) == (64, 128, 0.064)
    assert life.decode_s == (0.04, 0.05, 0.06, 0.05)
    assert life.token_s == 0.05
    assert life.tokens_for_the_prompt == pytest.approx(64 / 50)


def test_disturbed_rounds_are_left_out_unless_too_few_would_remain():
    raw = {"decode x1": [0.04] * 6 + [0.09] * 2}
    few, enough = [False] * 5 + [True] * 3, [False] * 6 + [True] * 2
    assert life_of([*PREFILLS, DECODE], raw, enough).decode_s == (0.04,) * 6
    assert len(life_of([*PREFILLS, DECODE], raw, few).decode_s) == 8


def test_batches_and_prompts_on_a_cache_are_no_request_alone():
    batch, later = point("decode x8", 1, 128, sequences=8), point("piece", 64, 64)
    assert life_of([*PREFILLS, batch], RAW, QUIET) is None
    assert life_of([later, DECODE], RAW, QUIET) is None
    assert life_of([], RAW, QUIET) is None


def test_only_so_many_tokens_are_drawn_as_a_phone_tells_apart():
    raw = {"decode x1": [0.04] * 100}
    assert len(life_of([*PREFILLS, DECODE], raw, [False] * 100).decode_s) == MOST_STEPS


def test_the_figure_says_its_finding_and_draws_a_tick_for_every_token():
    figure = request_life(Life(128, 128, 0.2, (0.04,) * 6), "Here")
    assert figure.alt.startswith("Reading 128 tokens takes as long as writing 5.0, on Here.")
    assert "takes 200 ms and brings the first token; then 6 decode steps" in figure.alt
    for words in ("first token after 200 ms", "then one every 40.0 ms", "began (ms)"):
        assert words in figure.svg
    ticks = re.search(r"LineCollection_1.*?</g>", figure.svg, re.DOTALL)[0]
    assert ticks.count("<path") == 7  # the first token is the prefill's
