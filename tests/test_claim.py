from math import inf, nan, nextafter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefill_decode.claim import LIMIT_TOLERANCE, Claim, Prediction
from prefill_decode.statistics import Interval


def interval(low, high, n=10):
    return Interval((low + high) / 2, low, high, n)


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.0, 2.5, "supported"), (3.0, 9.0, "refuted"), (2.0, 3.0, "inconclusive")],
)
def test_the_interval_is_judged_against_the_geometric_midpoint(low, high, outcome):
    prediction = Prediction("ratio", expected=1.0, rival=8.0)  # midpoint 2.83
    assert prediction.judge(interval(low, high)).outcome == outcome


positive = st.floats(min_value=1e-6, max_value=1e6)


@given(positive, positive, positive, positive)
def test_swapping_claim_and_rival_swaps_support_and_refutation(expected, rival, a, b):
    measured = interval(min(a, b), max(a, b))
    straight = Prediction("p", expected, rival).judge(measured).outcome
    swapped = Prediction("p", rival, expected).judge(measured).outcome
    opposite = {"supported": "refuted", "refuted": "supported", "inconclusive": "inconclusive"}
    assert swapped == opposite[straight]


def test_stories_that_differ_less_than_twofold_decide_nothing():
    judged = Prediction("ratio", 1.0, rival=1.9).judge(interval(0.9, 1.0))
    assert judged.outcome == "inconclusive"
    assert "cannot decide here" in judged.reason


def test_a_share_above_its_physical_limit_is_a_broken_ruler():
    share = Prediction("share", 1.0, rival=0.25, physical_limit=1.0)
    assert share.judge(interval(1.2, 1.4)).outcome == "void"
    assert share.judge(interval(0.99, 1.2)).outcome == "supported"  # within the limit's own error


def test_without_an_interval_nothing_is_decided():
    judged = Prediction("ratio", 1.0, rival=8.0).judge(Interval(1.0, nan, nan, 3))
    assert judged.outcome == "inconclusive"
    assert "3 samples" in judged.reason


@pytest.mark.parametrize(
    "values",
    [
        (0, 1, inf),
        (1, 0, inf),
        (1, -1, inf),
        (nan, 1, inf),
        (1, 2, 0),
        (inf, 1, inf),
        (1, inf, inf),
    ],
)
def test_a_prediction_off_the_log_scale_is_refused(values):
    expected, rival, limit = values
    with pytest.raises(ValueError, match="log scale"):
        Prediction("p", expected, rival, limit)


def test_a_share_may_exceed_its_limit_by_the_limits_own_error_and_no_more():
    share = Prediction("share", 0.9, rival=0.2, physical_limit=1.0)
    at_the_edge = 1.0 * (1 + LIMIT_TOLERANCE)
    assert share.judge(interval(at_the_edge, 1.2)).outcome == "supported"
    assert share.judge(interval(nextafter(at_the_edge, 2), 1.2)).outcome == "void"


def test_extreme_predictions_are_judged_without_over_or_underflow():
    tiny = Prediction("p", 1e-300, 1e-200)
    assert tiny.judge(interval(1e-290, 1e-290)).outcome == "supported"
    assert Prediction("p", 1e308, 1e300).judge(interval(1e307, 1e307)).outcome == "supported"


def test_a_claim_needs_predictions_controls_and_names_of_their_own():
    one, other = Prediction("a", 1.0, 8.0), Prediction("b", 1.0, 8.0)
    with pytest.raises(ValueError, match="a prediction and a control"):
        Claim("s", [], [one])
    with pytest.raises(ValueError, match="a prediction and a control"):
        Claim("s", [one], [])
    with pytest.raises(ValueError, match="names of their own"):
        Claim("s", [one], [one])
    assert Claim("s", [one], [other]).statement == "s"
    with pytest.raises(ValueError, match="more than its limit"):
        Prediction("a", 2.0, 1.0, physical_limit=1.0)


CLAIM = Claim(
    "decode waits for memory",
    [Prediction("ratio", 1.0, rival=8.0), Prediction("share", 1.0, rival=0.25, physical_limit=1.0)],
    controls=[Prediction("prefill", 8.0, rival=1.0)],
)
SUPPORT = {"ratio": interval(1.1, 1.3), "share": interval(0.8, 0.9), "prefill": interval(7, 8)}


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        ({}, "supported", "every prediction holds"),
        ({"ratio": interval(6, 7)}, "refuted", "ratio"),
        ({"share": interval(0.4, 0.6)}, "inconclusive", "share"),
        ({"ratio": interval(6, 7), "share": interval(0.4, 0.6)}, "refuted", "ratio"),
        ({"prefill": interval(1, 1.2)}, "void", "control failed"),
        ({"prefill": interval(2, 4)}, "void", "control failed"),
        ({"ratio": interval(6, 7), "prefill": interval(1, 1.2)}, "void", "control failed"),
        ({"share": interval(1.5, 1.6)}, "void", "physical limit"),
    ],
)
def test_a_claim_is_as_good_as_its_worst_part_and_void_without_its_control(change, outcome, reason):
    verdict = CLAIM.judge({**SUPPORT, **change})
    assert verdict.outcome == outcome
    assert reason in verdict.reason


def test_a_control_that_cannot_decide_here_makes_the_claim_inconclusive_not_void():
    weak = Claim("c", [Prediction("ratio", 1.0, rival=8.0)], [Prediction("prefill", 1.6, 1.0)])
    verdict = weak.judge({"ratio": interval(1.1, 1.3), "prefill": interval(1.5, 1.7)})
    assert verdict.outcome == "inconclusive"
    assert "cannot decide here" in verdict.reason


def test_anything_faster_than_physics_makes_the_verdict_void():
    verdict = CLAIM.judge(SUPPORT, broken_ruler=["decode x8 took 0.62 of the least possible time"])
    assert verdict.outcome == "void"
    assert verdict.reason == ("decode x8 took 0.62 of the least possible time: the ruler is broken")


def test_every_prediction_needs_its_measurement_and_nothing_else():
    with pytest.raises(ValueError, match="share"):
        CLAIM.judge({name: SUPPORT[name] for name in ("ratio", "prefill")})
    with pytest.raises(ValueError, match="stray"):
        CLAIM.judge({**SUPPORT, "stray": interval(1, 2)})


def test_an_interval_that_ends_on_the_midpoint_decides_nothing():
    prediction = Prediction("ratio", expected=1.0, rival=4.0)  # midpoint 2, exactly
    assert prediction.judge(interval(1, 2)).outcome == "inconclusive"
    assert prediction.judge(interval(2, 3)).outcome == "inconclusive"


def test_stories_that_differ_twofold_are_far_enough_apart():
    twofold = Prediction("ratio", 1.0, rival=2.0)
    assert twofold.judge(interval(0.9, 1.1)).outcome == "supported"
    claim = Claim("c", [Prediction("share", 1.0, rival=8.0)], [twofold])
    measured = {"share": interval(1.0, 1.1), "ratio": interval(1.9, 2.1)}
    assert claim.judge(measured).outcome == "void", "such a control can fail"


def test_a_limit_that_was_measured_too_may_be_passed_by_a_twentieth():
    share = Prediction("share", 1.0, rival=0.25, physical_limit=1.0)
    assert share.judge(interval(1.04, 1.2)).outcome == "supported"
    assert share.judge(interval(1.06, 1.2)).outcome == "void"


@pytest.mark.parametrize(("low", "high"), [(0.5, inf), (-inf, 1.5), (nan, 1.5), (0.5, nan)])
def test_an_interval_without_one_of_its_ends_decides_nothing(low, high):
    judged = Prediction("ratio", 1.0, rival=8.0).judge(Interval(1.0, low, high, 3))
    assert judged.outcome == "inconclusive"
    assert "3 samples" in judged.reason
