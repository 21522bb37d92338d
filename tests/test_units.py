from math import nan

import pytest

from prefill_decode.units import (
    counted,
    format_bytes,
    format_seconds,
    format_si,
    format_significant,
)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.03123, "0.0312"),
        (4.564, "4.56"),
        (155.4, "155"),
        (3684, "3684"),
        (9.996, "10.0"),
        (99.96, "100"),
        (0, "0"),
        (0.000123, "0.000123"),
        (3.7e-15, "3.70e-15"),
        (-1e-12, "-1.00e-12"),
        (-2.5, "-2.50"),
        (nan, "unknown"),
    ],
)
def test_three_digits_are_shown_and_an_exponent_only_where_zeros_would_hide_them(value, shown):
    assert format_significant(value) == shown


@pytest.mark.parametrize(
    ("time_s", "shown"),
    [
        (2.5, "2.50 s"),
        (0.0418, "41.8 ms"),
        (0.9999, "1.00 s"),
        (2e-5, "20.0 µs"),
        (3e-9, "3.00 ns"),
    ],
)
def test_a_time_is_shown_in_the_unit_that_suits_it(time_s, shown):
    assert format_seconds(time_s) == shown


def test_one_of_a_thing_is_singular():
    assert [counted(n, "KV head") for n in (0, 1, 2)] == ["0 KV heads", "1 KV head", "2 KV heads"]


def test_bytes_are_decimal_and_rates_carry_their_prefix():
    assert format_bytes(886_046_720) == "886 MB"
    assert format_si(155e9, "FLOP/s") == "155 GFLOP/s"
    assert format_si(999.6e9, "FLOP/s") == "1.00 TFLOP/s"
    assert format_bytes(nan) == "unknown"
