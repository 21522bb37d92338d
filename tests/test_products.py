"""The choice of a product, with invented times: the choice is a rule, times are the machine's."""

import json

import pytest
import torch
from torch.nn import functional

from prefill_decode import products
from prefill_decode.kernels import kernels
from prefill_decode.products import (
    ALL_ROWS,
    LEAST_ROWS,
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


def times_are(monkeypatch, **seconds: float) -> None:
    """Every way takes as long as is said here, or as a function of the rows says."""

    def least(ways):
        found = []
        for way in ways:
            name = NAMES[way.func]
            rows = len(way.args[0])
            found.append(seconds[name](rows) if callable(seconds[name]) else seconds[name])
        return found

    monkeypatch.setattr(products, "_least_times_s", least)


class Named(dict):
    """Finds a way's name by what it would call."""

    def __getitem__(self, way):
        constants = " ".join(way.__code__.co_names) + " " + " ".join(way.__code__.co_freevars)
        if "product" in constants and "compiled" in constants:
            return "kernel"
        if "blocks" in constants:
            return "packed"
        return "onednn" if "onednn_product" in constants else "torch"


NAMES = Named()


def test_the_kernel_is_used_up_to_the_last_length_at_which_it_won(small, monkeypatch):
    slow_beyond_24 = lambda rows: 1.0 if rows <= 24 else 3.0  # noqa: E731
    times_are(monkeypatch, torch=3.0, onednn=2.0, packed=2.0, kernel=slow_beyond_24)
    assert find_fastest(torch.float32, Invented()) == FastestProducts(24, True, False)
    times_are(monkeypatch, torch=1.0, onednn=2.0, packed=2.0, kernel=3.0)
    assert find_fastest(torch.float32, Invented()) == FastestProducts(LEAST_ROWS, False, False)
    times_are(monkeypatch, torch=3.0, onednn=2.0, packed=2.0, kernel=1.0)
    assert find_fastest(torch.float32, Invented()).most_kernel_rows == ALL_ROWS


def test_a_second_copy_must_be_worth_its_memory(small, monkeypatch):
    for packed, worth_it in [(1.0, True), (1.85, False)]:
        times_are(monkeypatch, torch=3.0, onednn=2.0, packed=packed, kernel=2.0)
        assert find_fastest(torch.float32, Invented()).packed is worth_it


def test_without_kernels_only_the_libraries_compete(small, monkeypatch):
    times_are(monkeypatch, torch=3.0, onednn=2.0, packed=1.0, kernel=1.0)
    assert find_fastest(torch.float32, None) == FastestProducts(0, True, True)
    assert find_fastest(torch.float64, None) == FastestProducts(0, False, False)


def test_the_least_of_several_times_decides(monkeypatch):
    """The first way takes 5 s once and then 1 s, the second 2 s: by a clock that they move."""
    clock = [0.0]
    monkeypatch.setattr(products.time, "perf_counter", lambda: clock[0])
    takes = iter([5.0])

    def first(copy: int) -> None:
        clock[0] += next(takes, 1.0)

    def second(copy: int) -> None:
        clock[0] += 2.0

    assert products._least_times_s([first, second]) == [1.0, 2.0]


def test_what_was_found_is_kept_and_what_is_damaged_is_found_again(small, monkeypatch, tmp_path):
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path)
    found = []

    def find(dtype, compiled):
        found.append(dtype)
        return FastestProducts((len(found) + 1) // 2, by_onednn=False, packed=False)

    monkeypatch.setattr(products, "find_fastest", find)
    ask = products._fastest_on_cpu.__wrapped__
    assert ask(torch.float32, 2, None) == ask(torch.float32, 2, None)
    assert ask(torch.float64, 2, None) != ask(torch.float32, 2, None)
    assert len(found) == 4  # each is found twice
    (file,) = tmp_path.iterdir()
    key = "torch.float32, 2 threads"
    for damaged in ["", "[]", "{", '{"a": 1}', json.dumps({key: {"most_kernel_rows": "x"}})]:
        file.write_text(damaged)
        ask(torch.float32, 2, None)
    assert len(found) == 14
    assert json.loads(file.read_text())[key] == {
        "most_kernel_rows": 7,
        "by_onednn": False,
        "packed": False,
    }


def test_what_comes_out_otherwise_the_second_time_is_not_kept(small, monkeypatch, tmp_path):
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path)
    answers = iter([FastestProducts(rows, False, False) for rows in (4, 6)])
    monkeypatch.setattr(products, "find_fastest", lambda dtype, compiled: next(answers))
    assert products._fastest_on_cpu.__wrapped__(torch.float32, 2, None).most_kernel_rows == 6
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_costs_only_the_time_to_find_it_again(
    small, monkeypatch, tmp_path
):
    monkeypatch.setattr(products, "cache_folder", lambda: tmp_path / "absent")
    found = products._fastest_on_cpu.__wrapped__(torch.float32, 2, None)
    assert found.most_kernel_rows == 0


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
        assert find_fastest(dtype, compiled).most_kernel_rows >= 0
