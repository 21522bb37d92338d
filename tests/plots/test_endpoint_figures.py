"""Endpoint figures name every engine, and set least beside measured."""

from dataclasses import replace
from xml.etree import ElementTree

import pytest

from prefill_decode import plots
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk

TTFT = {name: {n: f"{name}: TTFT {n}" for n in (64, 512)} for name in ("ours", "vllm")}
AT = [(1, 64), (1, 512), (8, 64)]
ITL = {name: {at: f"{name}: ITL {at}" for at in AT} for name in ("ours", "vllm")}


@pytest.fixture
def seen(timings, tiny_model, ceilings):
    """Ten rounds in which vllm takes 1.5 times as long as ours."""
    ours = {64: 0.2, 512: 1.6, (1, 64): 0.040, (1, 512): 0.042, (8, 64): 0.060}
    raw_s = dict(timings.raw_s)
    for name, factor in (("ours", 1.0), ("vllm", 1.5)):
        raw_s |= {TTFT[name][n]: (ours[n] * factor,) * 10 for n in (64, 512)}
        raw_s |= {ITL[name][at]: (ours[at] * factor,) * 10 for at in AT}
    works = {TTFT["ours"][n]: step_work(tiny_model, [Chunk(n)]) for n in (64, 512)}
    works |= {ITL["ours"][at]: step_work(tiny_model, [Chunk(1, at[1])] * at[0]) for at in AT}
    return replace(timings, raw_s=raw_s), TTFT, ITL, works, ceilings


def of_ours(seen):
    times, ttft, itl, *rest = seen
    return (times, {"ours": ttft["ours"]}, {"ours": itl["ours"]}, *rest)


def test_the_shapes_of_every_engine_are_told(seen):
    figure = plots.shapes_of_engines(*seen)
    assert figure.alt.startswith("8 x prompt: 8.0 x wait. 8 x streams: 1.5 x gap. ours, ")
    assert (
        "ours, time to first token by tokens in the prompt: 64: 200 ms, 512: 1.60 s" in figure.alt
    )
    assert "vllm, gap between tokens by streams at once: 1: 60.0 ms, 8: 90.0 ms" in figure.alt
    words = " ".join(ElementTree.fromstring(figure.svg).itertext())
    assert {"ours", "vllm"} <= set(words.split())
    assert words.count("least time") == words.count("rival") == 2


def test_engines_of_different_shapes_share_a_title_that_names_the_range(seen):
    times = seen[0]
    slow = {"vllm: ITL (8, 64)": (0.24,) * 10}  # four times its gap alone
    figure = plots.shapes_of_engines(replace(times, raw_s=times.raw_s | slow), *seen[1:])
    assert "8 x streams: 1.5 to 4.0 x gap." in figure.alt


def test_one_engine_needs_no_legend(seen):
    figure = plots.shapes_of_engines(*of_ours(seen))
    assert "ours" not in " ".join(ElementTree.fromstring(figure.svg).itertext())


def test_the_table_has_a_column_for_each_engine_and_the_least_before_them(seen):
    text = plots.shapes_table(*seen).markdown
    assert "| seen by a client | least | ours | vllm |" in text
    least_s = seen[3]["ours: TTFT 512"].least_time_s(seen[4].during(seen[0]))
    row = next(line for line in text.splitlines() if line.startswith("| TTFT, prompt of 512"))
    cells = [cell.strip() for cell in row.split("|")[2:5]]
    assert cells[1:] == ["1.60 [1.60, 1.60] s", "2.40 [2.40, 2.40] s"]
    assert cells[0] == plots.tables.format_seconds(least_s)
    assert "| ITL, 8 streams after 64 |" in text
    assert "10 rounds" in text


def test_an_unstable_time_is_marked(seen):
    times = seen[0]
    shaken = times.raw_s | {"vllm: ITL (8, 64)": (0.05, 0.1) * 5}
    text = plots.shapes_table(replace(times, raw_s=shaken), *seen[1:]).markdown
    row = next(line for line in text.splitlines() if line.startswith("| ITL, 8 streams"))
    assert row.count("(unstable)") == 1
