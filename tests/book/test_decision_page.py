"""The closing page: its numbers by hand, and its commands as the command itself reads them."""

import re
import shlex
from dataclasses import replace

import pytest

from prefill_decode.book import decision_page, find_project
from prefill_decode.book.decision_page import Example, decision_parts, held_parts
from prefill_decode.book.pages import fill
from prefill_decode.cli.parser import make_parser
from tests.conftest import ROOT

PAGE = (ROOT / "book" / "what_follows.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def parts():
    return decision_parts()


def test_the_room_is_that_of_weights_and_caches_by_hand(parts):
    """Llama-3.1-8B: 32 layers of 8 KV heads of 128, 8.03e9 weights of 2 bytes; 80 GiB."""
    token = 2 * 32 * 8 * 128 * 2
    weights = 2 * 8_030_261_248
    tokens = 4096 + 256
    assert parts["room-token"] == f"{token / 1e3:.0f} kB"
    assert parts["room-weights"] == f"{weights / 1e9:.1f} GB"
    assert parts["room-request"] == f"{tokens * token / 1e6:.0f} MB"
    assert parts["room-sequences"] == str(int((80 * 2**30 - weights) // (tokens * token)))
    assert parts["move-bytes"] == f"{4096 * token / 1e6:.0f} MB"


def test_the_floors_are_the_bytes_and_the_arithmetic_by_hand(parts):
    token_s = (15.0e9 + (4096 + 128) * 131072) / 3.35e12
    assert float(parts["floor-tpot"].removesuffix(" ms")) == pytest.approx(1e3 * token_s, rel=0.01)
    attention = 2 * 32 * 32 * 128 * 4096**2
    prompt_s = (2 * 6.98e9 * 4096 + attention) / 989e12
    found = float(parts["floor-ttft"].removesuffix(" ms"))
    assert found == pytest.approx(1e3 * prompt_s, rel=0.02)
    rate = 8 * 4096 * 131072 / (found / 1e3)
    assert float(parts["move-link"].removesuffix(" Gb/s")) == pytest.approx(rate / 1e9, rel=0.01)


def test_a_piece_shortens_the_gap_and_lengthens_the_wait(parts):
    whole, cut = (float(parts[f"stall-{way}"].removesuffix(" ms")) for way in ("whole", "cut"))
    assert cut < whole / 2
    assert float(parts["stall-wait"].removesuffix("%")) > 0


def test_an_accelerator_of_unknown_memory_and_links_makes_a_page_too(monkeypatch):
    known = decision_page.accelerator
    bare = replace(known("h100-sxm"), capacity_bytes=None, link_bytes_per_s=None)
    monkeypatch.setattr(decision_page, "accelerator", lambda name: bare)
    parts = decision_page._room(Example()) | decision_page._move(Example())
    assert parts["room-sequences"] == "an unknown number of"
    assert (parts["move-own"], parts["move-share"]) == ("unknown", "unknown")


def test_a_claims_record_is_told_in_a_few_words(record):
    refuted = {**record, "verdict": {"outcome": "refuted", "reason": "r"}}
    claim = record["claim"]
    name = f"held-{claim.replace('_', '-')}"
    two = held_parts([claim], [refuted, record])[name]
    assert two == "supported on 1 and refuted on 1 of 2 machines"
    assert held_parts([claim], [record])[name] == "supported on 1 machine"
    assert held_parts([claim], [refuted, refuted])[name] == "refuted on 2 machines"
    assert held_parts([claim], [])[name] == "not run yet"


def test_every_command_of_the_page_is_one_that_the_command_takes(parts):
    held = held_parts(find_project(ROOT).chapters(), [])
    text = fill(PAGE, parts | held).replace(" \\\n ", "")
    lines = re.findall(r"^prefill-decode (.+)$", text, re.MULTILINE)
    assert len(lines) == 6
    for line in lines:
        make_parser().parse_args(shlex.split(line))
