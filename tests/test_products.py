"""The choice of a product, with invented times: the choice is a rule, times are the machine's."""

import json
import random

import pytest
import torch
from torch.nn import functional

from prefill_decode import products
from prefill_decode.kernels import kernels
from prefill_decode.products import (
    ALL_ROWS,
    LEAST_ROWS,
    MOST_TURNS,
    TURNS,
    FastestProducts,
    fastest_products,
    find_fastest,
    onednn_has,
    onednn_product,
)


class Invented:
    """Kernels that multiply nothing; who is the fastest is said in advance."""

    path = products.Path("kernels-invented.so")

    def product(self, weight, rows):
        return None


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(products, "MATRIX", (6, 4))


class QuietLoad:
    """Nobody else works, or somebody does."""

    others_work = False

    def took_more_than(self, spare_cores):
        return self.others_work


@pytest.fixture
def alone(small, monkeypatch, tmp_path):
    """Ask as a new process would, in a folder of its own and with nobody beside it."""
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(products, "OtherLoad", QuietLoad)
    return products._choice_on_cpu.__wrapped__


def times_are(monkeypatch, noise=0.0, **seconds) -> None:
    """Every way takes as long as is said here, or as a function of the rows says; each time up to
    `noise` of it more or less."""
    dice = random.Random(0)

    def turn_s(ways, names, rows):
        found = {}
        for name in names:
            if name in ways:
                said = seconds[name.split()[-1 if name == "the kernel" else 0]]
                time_s = said(rows) if callable(said) else said
                found[name] = time_s * dice.uniform(1 - noise, 1 + noise)
        return found

    monkeypatch.setattr(products, "_turn_s", turn_s)


def found(dtype, compiled):
    """What is the fastest, without a doubt."""
    fastest, doubts = find_fastest(dtype, compiled)
    assert doubts == []
    return fastest


def test_the_kernel_is_used_up_to_the_last_length_at_which_it_won(small, monkeypatch):
    slow_beyond_24 = lambda rows: 1.0 if rows <= 24 else 3.0  # noqa: E731
    times_are(monkeypatch, torch=3.0, oneDNN=2.0, packed=2.0, kernel=slow_beyond_24)
    assert found(torch.float32, Invented()) == FastestProducts(24, True, False)
    times_are(monkeypatch, torch=1.0, oneDNN=2.0, packed=2.0, kernel=3.0)
    assert found(torch.float32, Invented()) == FastestProducts(LEAST_ROWS, False, False)
    times_are(monkeypatch, torch=3.0, oneDNN=2.0, packed=2.0, kernel=1.0)
    assert found(torch.float32, Invented()).most_kernel_rows == ALL_ROWS


def test_a_second_copy_must_be_worth_its_memory(small, monkeypatch):
    for packed, worth_it in [(1.0, True), (1.85, False)]:
        times_are(monkeypatch, torch=3.0, oneDNN=2.0, packed=packed, kernel=2.0)
        assert found(torch.float32, Invented()).packed is worth_it


def test_without_kernels_only_the_libraries_compete(small, monkeypatch):
    times_are(monkeypatch, torch=3.0, oneDNN=2.0, packed=1.0, kernel=1.0)
    assert found(torch.float32, None) == FastestProducts(0, True, True)
    assert found(torch.float64, None) == FastestProducts(0, False, False)


def test_a_clear_choice_survives_noise_and_a_close_one_among_noise_is_doubted(small, monkeypatch):
    times_are(monkeypatch, noise=0.3, torch=3.0, oneDNN=1.0, packed=2.0, kernel=9.0)
    assert found(torch.float32, Invented()) == FastestProducts(LEAST_ROWS, True, False)
    times_are(monkeypatch, noise=0.9, torch=1.0, oneDNN=1.05, packed=2.0, kernel=9.0)
    _, doubts = find_fastest(torch.float32, Invented())
    assert doubts == ["whether oneDNN wins at 256 rows"]


def test_ways_that_are_alike_are_no_doubt_because_either_will_do(small, monkeypatch):
    times_are(monkeypatch, noise=0.02, torch=1.0, oneDNN=1.0, packed=2.0, kernel=9.0)
    assert find_fastest(torch.float32, Invented())[1] == []


def test_a_comparison_that_is_not_clear_gets_more_turns_until_time_is_over(monkeypatch):
    asked = []

    def ratio():
        asked.append(len(asked))
        return 2.0 if len(asked) % 2 else 0.5

    monkeypatch.setattr(products.time, "perf_counter", lambda: 5.0)
    assert products._compared(ratio, 1.0, end_s=9.0)[1] is False
    assert len(asked) == 1 + MOST_TURNS
    asked.clear()
    assert products._compared(ratio, 1.0, end_s=4.0)[1] is False
    assert len(asked) == 1
    asked.clear()
    assert products._compared(lambda: asked.append(0) or 0.8, 1.0, end_s=9.0) == (True, True)
    assert len(asked) == 1 + TURNS


@pytest.mark.skipif(not onednn_has(torch.float32), reason="torch was built without oneDNN")
def test_a_turn_times_every_way_there_is_once_on_copies_that_differ(small, monkeypatch):
    calls = []
    ways = products._ways(torch.float32, Invented())
    for name in ways.by_name:
        note = lambda some, copy, name=name: calls.append((name, len(some), copy))  # noqa: E731
        monkeypatch.setitem(ways.by_name, name, note)
    for _ in range(2):
        turn_s = products._turn_s(ways, ("torch", "packed oneDNN", "another"), 8)
        assert set(turn_s) == {"torch", "packed oneDNN"}
    assert [rows for _, rows, _ in calls] == [8] * 4
    assert [name for name, _, _ in calls[:2]] == [name for name, _, _ in calls[:1:-1]]
    assert calls[0][2] != calls[1][2]


def test_what_was_found_is_kept_and_what_is_damaged_is_found_again(alone, monkeypatch, tmp_path):
    asked = []

    def find(dtype, compiled):
        asked.append(dtype)
        return FastestProducts(len(asked), by_onednn=False, packed=False), []

    monkeypatch.setattr(products, "find_fastest", find)
    assert alone(torch.float32, 2, None) == alone(torch.float32, 2, None)
    assert alone(torch.float64, 2, None) != alone(torch.float32, 2, None)
    assert len(asked) == 2
    (file,) = tmp_path.iterdir()
    key = "torch.float32, 2 threads"
    for damaged in ["", "[]", "{", '{"a": 1}', json.dumps({key: {"most_kernel_rows": "x"}})]:
        file.write_text(damaged)
        assert alone(torch.float32, 2, None).not_kept is None
    assert len(asked) == 7
    assert json.loads(file.read_text())[key] == {
        "most_kernel_rows": 7,
        "by_onednn": False,
        "packed": False,
    }


def test_a_choice_in_doubt_or_made_beside_other_load_serves_but_is_not_kept(
    alone, monkeypatch, tmp_path
):
    fastest = FastestProducts(6, False, False)
    doubts = ["whether the kernel wins at 8 rows"]
    monkeypatch.setattr(products, "find_fastest", lambda dtype, compiled: (fastest, doubts))
    choice = alone(torch.float32, 2, None)
    assert choice.fastest == fastest
    assert "too much to tell whether the kernel wins at 8 rows" in choice.not_kept
    monkeypatch.setattr(products, "find_fastest", lambda dtype, compiled: (fastest, []))
    monkeypatch.setattr(QuietLoad, "others_work", True)
    assert "other programs took the cores" in alone(torch.float32, 2, None).not_kept
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(QuietLoad, "others_work", False)
    assert alone(torch.float32, 2, None).not_kept is None
    assert list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_only_the_time_to_find_it_again(
    alone, monkeypatch, tmp_path
):
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path / "absent")
    choice = alone(torch.float32, 2, None)
    assert choice.fastest.most_kernel_rows == 0
    assert choice.not_kept is not None


@pytest.mark.parametrize(
    ("fastest", "words"),
    [
        (FastestProducts(0, False, False), "torch"),
        (FastestProducts(2, True, False), "kernel to 2 rows, oneDNN"),
        (FastestProducts(24, True, True), "kernel to 24 rows, oneDNN, packed oneDNN"),
        (FastestProducts(ALL_ROWS, False, False), "kernel, else torch"),
    ],
)
def test_a_choice_is_told_in_words(fastest, words):
    assert fastest.words == words


def test_accelerators_have_no_choice():
    assert fastest_products("cuda", torch.bfloat16) == FastestProducts(0, False, False)


@pytest.mark.skipif(not onednn_has(torch.float32), reason="torch was built without oneDNN")
@pytest.mark.parametrize("bias", [None, torch.ones(6)])
def test_onednns_product_is_the_product(bias):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 4, generator=generator)
    weight = torch.randn(6, 4, generator=generator)
    expected = functional.linear(rows, weight, bias)
    torch.testing.assert_close(onednn_product(rows, weight, bias), expected)
    torch.testing.assert_close(onednn_product(rows, products.packed(weight), bias), expected)


def test_this_machine_can_choose_for_every_dtype(small):
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        compiled = kernels() if dtype in products.DTYPES else None
        assert find_fastest(dtype, compiled)[0].most_kernel_rows >= 0
