"""Changes against case H13, a second computation by scipy, and simulation of planted ones."""

from math import isnan, log, nan

import numpy
import pytest
from scipy import stats

from prefill_decode.change import Quantity, decide, judge_change, judge_pairs, judge_simulated
from prefill_decode.statistics import Interval


def runs(*medians):
    """One run for each median, each with an interval of 2 % to either side."""
    return [Interval(m, 0.98 * m, 1.02 * m, 20, 0.95) for m in medians]


def worse(fold, better):
    """A base of 1 and a current value that is `fold` times worse."""
    return runs(1.0), runs(fold if better == "lower" else 1 / fold)


H13 = {  # base, current, better, answer, must not be
    "a": ([100, 101, 99, 100, 100], [130, 131, 129, 130, 131], "higher", "improvement"),
    "b": ([100, 101, 99, 100, 100], [80, 81, 79, 80, 80], "higher", "regression"),
    "c": (
        [0.2, 0.201, 0.199, 0.2, 0.202],
        [0.26, 0.259, 0.262, 0.261, 0.26],
        "lower",
        "regression",
    ),
    "g": ([0] * 5, [3] * 5, "lower", "regression"),
    "h": ([0.2, 0.201, 0.199, 0.2, 0.2], [0.004] * 5, "lower", "improvement"),
}


@pytest.mark.parametrize("case", H13)
def test_the_cases_of_h13_that_have_two_sides_are_answered(case):
    base, current, better, answer = H13[case]
    change = judge_change(runs(*base), runs(*current), better)
    assert change.answer == answer
    assert change.suspicious == (case == "h")


def test_h13_b_and_c_are_regressions_by_one_new_run_too():
    for case in "bc":
        base, current, better, _ = H13[case]
        assert judge_change(runs(*base), runs(current[0]), better).answer == "regression"


def test_h13_g_needs_no_division():
    change = judge_change(runs(0, 0, 0, 0, 0), runs(3, 3, 3, 3, 3), "lower")
    assert isnan(change.ratio)
    assert change.reason == "rose from 0; no ratio to 0, so that any change counts"


@pytest.mark.parametrize("better", [None, "", "up", "HIGHER"])
def test_h13_i_an_unknown_direction_is_refused_everywhere(better):
    with pytest.raises(ValueError, match="direction unknown"):
        Quantity(Interval(100, 99, 101, 9), "tok/s", better)
    with pytest.raises(ValueError, match="direction unknown"):
        judge_change(runs(100), runs(50), better)
    with pytest.raises(ValueError, match="direction unknown"):
        judge_pairs([100.0] * 9, [50.0] * 9, better)
    with pytest.raises(ValueError, match="direction unknown"):
        decide(Interval(1, 0.9, 1.1, 9), better, 0.1)


def test_only_ratios_and_shares_travel_between_machines():
    assert Quantity(Interval(0.5, 0.4, 0.6, 9), "1", "higher").travels
    assert not Quantity(Interval(0.5, 0.4, 0.6, 9), "s", "lower").travels
    with pytest.raises(ValueError, match="has a unit"):
        Quantity(Interval(0.5, 0.4, 0.6, 9), "", "lower")


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_both_directions_are_mirrors(better):
    for fold, answer in [(1.5, "regression"), (1 / 1.5, "improvement")]:
        base, current = worse(fold, better)
        assert judge_change(base * 5, current * 5, better).answer == answer


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize(
    ("base", "current", "rises"),
    [((0, 0), (3,), True), ((3, 4), (0,), False), ((0, 1), (3,), True), ((3, 4), (0, 1), False)],
)
def test_a_zero_on_either_side_is_judged_without_a_ratio(base, current, rises, better):
    change = judge_change(runs(*base), runs(*current), better)
    good = rises == (better == "higher")
    assert change.answer == ("improvement" if good else "regression")
    assert change.suspicious == good  # to or from 0 is beyond 2-fold
    assert isnan(change.ratio)


@pytest.mark.parametrize("better", ["higher", "lower"])
def test_zeros_on_both_sides_are_no_change_and_mixed_ones_no_answer(better):
    assert judge_change(runs(0, 0), runs(0), better).answer == "ok"
    assert judge_change(runs(0, 2), runs(1), better).answer == "inconclusive"
    assert judge_change(runs(0, 2), runs(0), better).answer == "inconclusive"


def spread_by_hand(base, current):
    squares = sum(numpy.var(numpy.log(side)) * len(side) for side in (base, current))
    return ((4 * 0.1**2 + squares) / (4 + len(base) - 1 + len(current) - 1)) ** 0.5


@pytest.mark.parametrize("base", [[2.0], [2.0, 2.1], [1.6, 2.0, 2.9], [2.0, 2.1, 1.9, 2.0, 2.2]])
@pytest.mark.parametrize("current", [[3.0], [3.0, 2.5, 2.8]])
def test_the_interval_is_that_of_means_of_logs_under_the_shrunk_spread(base, current):
    change = judge_change(runs(*base), runs(*current), "lower")
    spread = spread_by_hand(base, current)
    error = spread * (1 / len(base) + 1 / len(current)) ** 0.5
    middle = log(stats.gmean(current) / stats.gmean(base))
    low, high = stats.norm.interval(0.99, middle, error)
    assert log(change.ratio) == pytest.approx(middle)
    assert (log(change.low), log(change.high)) == pytest.approx((low, high))


def test_the_spread_is_never_less_than_the_runs_own_intervals_say():
    wide = [Interval(m, m / 1.5, m * 1.5, 9, 0.95) for m in (1.0, 1.0, 1.0)]
    change = judge_change(wide, wide, "lower")
    error = log(1.5) / 1.96 * (2 / 3) ** 0.5
    assert log(change.high) == pytest.approx(stats.norm.interval(0.99, 0, error)[1])
    touching_0 = [Interval(m, 0, m * 1.5, 9, 0.95) for m in (1.0, 1.0, 1.0)]
    assert judge_change(touching_0, touching_0, "lower").high == pytest.approx(change.high)


def test_a_run_without_an_interval_counts_by_its_median():
    bare = [Interval(1.0, nan, nan, 3)]
    assert judge_change(bare * 5, bare, "lower") == judge_change(runs(1.0) * 5, runs(1.0), "lower")


def test_one_odd_run_among_several_new_ones_is_no_change():
    assert judge_change(runs(*[1.0] * 5), runs(2.0), "lower").answer == "regression"
    assert judge_change(runs(*[1.0] * 5), runs(2.0, 1.0, 1.0), "lower").answer == "inconclusive"


def test_one_base_run_shows_only_what_the_spread_of_runs_cannot_explain():
    assert judge_change(runs(1.0), runs(1.3), "lower").answer == "inconclusive"
    assert judge_change(runs(1.0), runs(1.6), "lower").answer == "regression"


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize(
    ("low", "middle", "high", "answer"),
    [
        (1.01, 1.06, 1.12, "regression"),
        (1.01, 1.04, 1.20, "inconclusive"),  # shown, but less than half the tolerance
        (1.01, 1.04, 1.09, "ok"),
        (0.95, 1.02, 1.09, "ok"),
        (0.95, 1.02, 1.11, "inconclusive"),
        (0.90, 0.94, 0.99, "improvement"),
        (0.90, 0.97, 0.99, "ok"),
        (0.50, 0.70, 1.05, "ok"),
        (nan, 1.5, nan, "inconclusive"),
    ],
)
def test_the_decision_rule_row_by_row(low, middle, high, answer, better):
    if better == "higher":
        low, middle, high = 1 / high, 1 / middle, 1 / low
    assert decide(Interval(middle, low, high, 9), better, 0.10)[0] == answer


def test_a_wider_tolerance_forgives_more():
    ratio = Interval(1.06, 1.01, 1.12, 9)
    assert [decide(ratio, "lower", t)[0] for t in (0.05, 0.1, 0.2)] == [
        "regression",
        "regression",
        "ok",
    ]


def test_what_cannot_be_judged_is_refused():
    with pytest.raises(ValueError, match="at least one base run"):
        judge_change([], runs(1.0), "lower")
    with pytest.raises(ValueError, match="at least one current run"):
        judge_change(runs(1.0), [], "lower")
    for wrong in (-1.0, nan, float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            judge_change(runs(1.0), [Interval(wrong, 1, 1, 9)], "lower")
    for wrong in (0, -0.1, nan, float("inf")):
        with pytest.raises(ValueError, match="tolerance is a positive share"):
            judge_change(runs(1.0), runs(1.0), "lower", wrong)
    with pytest.raises(ValueError, match="got 2 and 1"):
        judge_pairs([1.0, 2.0], [1.0], "lower")
    with pytest.raises(ValueError, match="got 0 and 0"):
        judge_pairs([], [], "lower")
    for wrong in (0.0, -1.0, nan, float("inf")):
        with pytest.raises(ValueError, match="positive finite"):
            judge_pairs([1.0] * 9, [wrong] * 9, "lower")
    for wrong in [(0, 1, 2), (1.1, 1, 1.2), (1, 2, float("inf"))]:
        with pytest.raises(ValueError, match="in order"):
            decide(Interval(wrong[1], wrong[0], wrong[2], 9), "lower", 0.1)


def test_extremes_do_not_overflow():
    change = judge_change(runs(1e-300, 1e300), runs(1.0), "lower")
    assert change.answer == "inconclusive"
    assert judge_change(runs(1e-300), runs(1e300), "lower").answer == "regression"


def test_pairs_cancel_a_drift_that_both_sides_share():
    drift = numpy.random.default_rng(5).lognormal(0, 1, 40)
    change = judge_pairs(list(drift), list(1.2 * drift), "lower")
    assert (change.answer, change.ratio) == ("regression", pytest.approx(1.2))
    assert change.low == pytest.approx(1.2)
    assert judge_pairs(list(drift), list(1.2 * drift), "higher").answer == "improvement"
    assert judge_pairs(list(drift), list(drift / 3), "lower").suspicious


def test_pairs_have_the_interval_of_a_sign_test():
    logs = numpy.random.default_rng(6).normal(0.02, 0.1, 35)
    change = judge_pairs([1.0] * 35, list(numpy.exp(logs)), "lower")
    depth = next(k for k in range(35) if 2 * stats.binom.cdf(k, 35, 0.5) > 0.01)
    assert log(change.low) == pytest.approx(sorted(logs)[depth - 1])
    assert log(change.high) == pytest.approx(sorted(logs)[35 - depth])
    assert log(change.ratio) == pytest.approx(numpy.median(logs))


def test_fewer_than_eight_pairs_decide_nothing():
    for n, answer in [(7, "inconclusive"), (8, "regression")]:
        assert judge_pairs([1.0] * n, [2.0] * n, "lower").answer == answer


def answers(num_base, spread, fold, num_current=1, repetitions=20000):
    """Simulated changes of runs whose log medians spread so much, `fold` times slower."""
    dice = numpy.random.default_rng(2026)
    base = numpy.exp(dice.normal(0, spread, (repetitions, num_base))).tolist()
    current = (fold * numpy.exp(dice.normal(0, spread, (repetitions, num_current)))).tolist()
    sides = zip(base, current, strict=True)
    return [judge_change(bare(b), bare(c), "lower") for b, c in sides]


def bare(medians):
    return [Interval(m, nan, nan, 3) for m in medians]


def share(changes, answer):
    return sum(change.answer == answer for change in changes) / len(changes)


def test_runs_that_spread_by_ten_percent_raise_a_false_alarm_less_than_once_in_a_hundred():
    equal = answers(num_base=3, spread=0.10, fold=1.0)
    assert share(equal, "regression") < 0.01
    assert share(equal, "improvement") < 0.01
    covered = sum(change.low <= 1 <= change.high for change in equal) / len(equal)
    assert 0.98 < covered < 0.99  # the spread is estimated from few runs


def test_a_loss_of_a_quarter_of_the_rate_is_caught_against_five_quiet_runs():
    assert share(answers(5, 0.02, 1 / 0.75, repetitions=2000), "regression") > 0.95


def test_a_quarter_more_time_is_caught_mostly_by_one_run_and_surely_by_three():
    one, three = (answers(5, 0.02, 1.25, n, repetitions=4000) for n in (1, 3))
    assert 0.75 < share(one, "regression") < 0.95
    assert share(three, "regression") > 0.99


@pytest.mark.parametrize("n", [8, 30, 101])
def test_pairs_under_heavy_tails_raise_a_false_alarm_less_than_once_in_a_hundred(n):
    dice = numpy.random.default_rng(n)
    logs = 0.05 * dice.standard_t(2, (4000, n))
    changes = [judge_pairs([1.0] * n, row, "lower") for row in numpy.exp(logs).tolist()]
    assert share(changes, "regression") < 0.01
    covered = sum(change.low <= 1 <= change.high for change in changes) / len(changes)
    assert covered > 0.99 - 3 * (0.01 * 0.99 / 4000) ** 0.5


def test_pairs_catch_ten_percent_under_heavy_tails():
    dice = numpy.random.default_rng(9)
    logs = log(1.1) + 0.05 * dice.standard_t(2, (500, 101))
    changes = [judge_pairs([1.0] * 101, row, "lower") for row in numpy.exp(logs).tolist()]
    assert share(changes, "regression") > 0.95


def test_judging_many_quantities_asks_for_more_of_each():
    alone = judge_change(runs(1.0), runs(1.5), "lower")
    among = judge_change(runs(1.0), runs(1.5), "lower", judged=100)
    assert alone.answer == "regression"
    assert among.answer == "inconclusive"
    widths = [log(change.high / change.low) for change in (alone, among)]
    # normal quantiles at 1 - 0.01 / 2 and 1 - 0.0001 / 2, from a table
    assert widths[1] / widths[0] == pytest.approx(3.8906 / 2.5758, rel=1e-4)
    with pytest.raises(ValueError, match="at least one quantity"):
        judge_change(runs(1.0), runs(1.5), "lower", judged=0)


def test_times_are_expected_to_spread_twice_as_much_as_ratios():
    logs = [
        log(change.high / change.low)
        for change in (judge_change(runs(1.0), runs(1.0), "lower", unit=u) for u in ("1", "s"))
    ]
    assert logs[1] / logs[0] == pytest.approx(2)


def test_a_run_whose_interval_reaches_below_0_is_judged_by_its_upper_half():
    below = [Interval(1.0, -2.0, 1.5, 9, 0.95)]
    touching = [Interval(1.0, 0.0, 1.5, 9, 0.95)]
    assert judge_change(below, below, "lower") == judge_change(touching, touching, "lower")


@pytest.mark.parametrize(
    ("base", "current", "better", "answer"),
    [
        (2.0, 2.0, "higher", "ok"),
        (2.0, 1.96, "higher", "ok"),
        (2.0, 1.7, "higher", "regression"),
        (2.0, 1.7, "lower", "improvement"),
        (0.0, 0.0, "lower", "ok"),
        (0.0, 0.1, "lower", "regression"),
    ],
)
def test_a_simulated_figure_is_its_own_interval(base, current, better, answer):
    assert judge_simulated(base, current, better).answer == answer
    with pytest.raises(ValueError, match="finite and not negative"):
        judge_simulated(base, nan, better)
