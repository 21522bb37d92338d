"""Fresh runs of one chapter, made up with a known spread."""

from dataclasses import replace
from math import exp, log, nan

import numpy as np
import pytest

from prefill_decode.change import Quantity
from prefill_decode.paired.chapter_spread import (
    MOST_CHOICES,
    chapter_spread,
    comparable,
    made_worse,
)
from prefill_decode.paired.sessions import KeptRun
from prefill_decode.statistics import Interval


def run_of(**medians):
    def quantity(name, median):
        measured = Interval(median, median * exp(-0.04), median * exp(0.04), 20, 0.95)
        return Quantity(measured, "s" if name == "time" else "1", "lower")

    held = {name: quantity(name, value) for name, value in medians.items()}
    return KeptRun("a_claim", held, "2026-12-01T00:00:00Z", "a digest")


def runs_with_spread(spread, count=8, seed=0):
    logs = np.random.default_rng(seed).normal(0, spread, (count, 2))
    return [run_of(time=float(exp(a)), ratio=float(exp(b))) for a, b in logs]


def test_the_spread_between_runs_stands_beside_their_own_half_width():
    logs = [0.0, 0.1, 0.3]
    found = chapter_spread([run_of(time=exp(x)) for x in logs], 0.10, 0)
    assert (found["claim"], found["runs"]) == ("a_claim", 3)
    assert found["spread"]["time"]["between_runs"] == pytest.approx(np.std(logs, ddof=1))
    assert found["spread"]["time"]["half_width"] == pytest.approx(0.04)
    assert found["rates"] == {}  # three runs are no base and another


def test_how_often_one_runs_interval_covers_another_is_counted_over_ordered_pairs():
    found = chapter_spread([run_of(time=exp(x)) for x in (0.0, 0.03, 0.06)], 0.10, 0)
    assert found["covers_another_run"] == pytest.approx(4 / 6)


def test_quiet_runs_raise_no_alarm_and_a_wide_spread_some():
    quiet = chapter_spread(runs_with_spread(0.01), 0.10, 0)["rates"]
    assert quiet["equal records"]["count"] == 0
    assert quiet["equal records"]["of"] == quiet["planted 10% records"]["of"] == 8 * 35
    assert quiet["equal records"]["low"] is quiet["planted 10% records"]["high"] is None
    wide = chapter_spread(runs_with_spread(0.4), 0.10, 0)["rates"]
    assert wide["equal records"]["count"] > 0


def test_ten_percent_is_seldom_caught_on_records_and_twofold_would_be(monkeypatch):
    runs = runs_with_spread(0.01)
    assert chapter_spread(runs, 0.10, 0)["rates"]["planted 10% records"]["share"] < 0.5
    monkeypatch.setattr("prefill_decode.paired.chapter_spread.PLANTED", 1.0)
    assert chapter_spread(runs, 0.10, 0)["rates"]["planted 10% records"]["share"] == 1.0


def test_many_choices_are_drawn_and_the_same_ones_for_a_seed():
    runs = runs_with_spread(0.2, count=16)
    found = [chapter_spread(runs, 0.10, seed) for seed in (0, 0)]
    assert found[0] == found[1]
    assert found[0]["rates"]["equal records"]["of"] == MOST_CHOICES


@pytest.mark.parametrize(("better", "sign"), [("lower", 1), ("higher", -1)])
def test_worse_is_longer_or_less_as_the_direction_has_it(better, sign):
    before = Quantity(Interval(2.0, 1.0, 4.0, 9, 0.95), "1", better)
    after = made_worse(before, 0.10).measured
    assert log(after.median / 2.0) == pytest.approx(sign * log(1.1))
    assert (after.low / after.median, after.high / after.median) == pytest.approx((0.5, 2.0))


def test_only_positive_quantities_with_an_interval_in_every_run_are_compared():
    runs = [run_of(time=1.0, ratio=2.0, zero=0.0, gone=1.0) for _ in range(3)]
    unknown = replace(runs[0].quantities["ratio"], measured=Interval(2.0, nan, nan, 3))
    runs[1] = replace(runs[1], quantities={**runs[1].quantities, "ratio": unknown})
    runs[2] = replace(runs[2], quantities={k: runs[2].quantities[k] for k in ("time", "zero")})
    assert comparable(runs) == ["time"]


def test_runs_of_two_chapters_are_refused_and_one_run_says_nothing():
    assert chapter_spread([run_of(time=1.0)], 0.10, 0) is None
    with pytest.raises(ValueError, match="runs of one chapter are compared; got a_claim, b_claim"):
        chapter_spread([run_of(time=1.0), replace(run_of(time=1.0), claim="b_claim")], 0.10, 0)
