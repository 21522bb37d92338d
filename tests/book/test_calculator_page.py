"""The calculator's page: what it hands its script, and the table that needs none."""

import json
import re
from dataclasses import replace
from html import unescape
from xml.etree import ElementTree

import pytest

from prefill_decode.book import calculator_page
from prefill_decode.book.calculator_page import (
    MODEL_FIELDS,
    WORKED_ACCELERATORS,
    WORKED_MODELS,
    calculator_data,
    calculator_parts,
    data_element,
    options,
    word,
    worked,
    worked_table,
)
from prefill_decode.hardware import accelerator, accelerators
from prefill_decode.hf_config import get, shipped
from tests.conftest import ROOT

PAGE = (ROOT / "book" / "calculator.md").read_text(encoding="utf-8")


def test_the_page_asks_for_every_part_that_there_is():
    assert set(re.findall(r"<!-- ([a-z-]+) -->", PAGE)) == set(calculator_parts())


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("calculator-models", [model.name for model in shipped()]),
        ("calculator-accelerators", [word(row.name) for row in accelerators()]),
    ],
)
def test_a_field_offers_everything_that_ships_and_begins_with_one_of_them(part, values):
    text = calculator_parts()[part]
    assert re.findall(r'<option value="([^"]+)"', text) == values
    assert text.count(" selected>") == 1


def test_the_word_of_an_accelerator_is_one_that_the_command_takes():
    for row in accelerators():
        assert accelerator(word(row.name)) == row


def test_words_of_an_option_cannot_become_markup():
    text = options([('a"<', "b & <c>")], "none")
    assert text == '<option value="a&quot;&lt;">b &amp; &lt;c&gt;</option>'


def test_nothing_in_the_data_can_end_their_element(monkeypatch):
    evil = replace(accelerators()[0], note="</script><script>alert(1)</script>")
    monkeypatch.setattr(calculator_page, "accelerators", lambda: [evil])
    text = data_element()
    assert text.count("<") == 2
    held = json.loads(text[text.index(">") + 1 : text.rindex("<")])
    assert held["accelerators"][0]["note"] == evil.note


def test_the_data_hold_shapes_under_the_librarys_names():
    models = {model["name"]: model for model in calculator_data()["models"]}
    assert models.keys() == {model.name for model in shipped()}
    gemma, deepseek = models["gemma-3-1b"], models["deepseek-v3"]
    assert gemma["window_layers"] == [(512, 22), (None, 4)]
    assert deepseek["latent"]["kv_rank"] == 512
    assert deepseek["num_expert_layers"] == 58  # of 61, the first three are dense
    assert all(gemma[name] == getattr(get("gemma-3-1b"), name) for name in MODEL_FIELDS)


def test_an_unknown_peak_stays_unknown():
    rows = {row["name"]: row for row in calculator_data()["accelerators"]}
    peaks = rows["A100 SXM 80GB"]["peaks_flops_per_s"]
    assert peaks == {"bfloat16": 3.12e14, "float8": None}


def test_narrow_weights_leave_the_cache_as_wide_as_it_was():
    numbers = {each["dtype"]: each for each in calculator_data()["numbers"]}
    assert numbers["int4"]["bytes_per_weight"] == 0.5
    assert numbers["int4"]["bytes_per_value"] == numbers["bfloat16"]["bytes_per_value"] == 2
    assert numbers["float8"]["bytes_per_value"] == 1
    assert [each["dtype"] for each in numbers.values() if each["experts_only"]] == ["mxfp4"]


def test_the_table_has_a_row_for_each_of_its_choices_with_a_link_to_it():
    rows = list(ElementTree.fromstring(worked_table()).iter("tr"))[1:]
    assert len(rows) == len(WORKED_MODELS) * len(WORKED_ACCELERATORS)
    link = rows[1].find(".//a")
    assert "".join(link.itertext()) == "llama-2-7b, H100 SXM"
    asked = dict(pair.split("=") for pair in unescape(link.get("href"))[1:].split("&"))
    assert asked["model"] == "llama-2-7b"
    assert asked["accelerator"] == "h100-sxm"
    for name in asked:  # each is a field of the page
        assert f'id="calculator-{name}"' in PAGE


def test_a_row_is_what_a_reader_finds_by_hand():
    ttft, tpot, token, fit, _, link = worked("llama-3.1-8b", "H100 SXM")
    token_bytes = 2 * 2 * 8 * 128 * 32  # keys and values, bytes, heads, head size, layers
    assert token == f"{token_bytes / 1e3:.0f} kB"
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    output = 4096 * 128256
    weights = matrices + 2 * output + 65 * 4096
    assert fit == f"{(80 * 2**30 - 2 * weights) // (2048 * token_bytes):,}"
    pairs = 2048 * 2049 / 2
    flops = 2 * 2048 * matrices + 2 * output + 32 * 4 * 4096 * pairs
    assert ttft == f"{flops / 989e12 * 1e3:.1f} ms"  # both parts are bound by arithmetic
    num_bytes = 2 * (matrices + output) + 16 * 2049 * token_bytes
    assert tpot == f"{num_bytes / 3.35e12 * 1e3:.2f} ms"  # and here by memory
    assert link == f"{8 * 2048 * token_bytes / (flops / 989e12) / 1e9:.1f} Gb/s"


def test_a_capacity_that_no_source_prints_is_said_to_be_unpublished(monkeypatch):
    row = replace(accelerator("L4"), capacity_bytes=None)
    monkeypatch.setattr(calculator_page, "accelerator", lambda name: row)
    assert worked("llama-3.1-8b", "L4")[3] == "not published"
