"""The gate on case H13 and its relatives: direction, machine, missing sides, verdicts, drift."""

import json
from dataclasses import replace
from itertools import product
from math import isnan, nan

import pytest

from prefill_decode.change import Quantity
from prefill_decode.gate import Report, code_of, compare, confirm
from prefill_decode.paired import digest_of_code
from prefill_decode.results import Run
from prefill_decode.statistics import Interval

NINE_V_74 = {
    "slug": "amd-epyc-9v74-4-cores-aaaa",
    "title": "AMD EPYC 9V74, 4 cores",
    "kind": "a" * 16,
    "host": "1" * 16,
    "device": "cpu",
    "device_name": "AMD EPYC 9V74",
    "cpu_name": "AMD EPYC 9V74",
    "cores": 4,
    "threads": 4,
    "python": "3.11.0",
    "torch": "2.13.0",
    "numpy": "2.4.0",
}
SEVEN_763 = NINE_V_74 | {
    "slug": "amd-epyc-7763-4-cores-bbbb",
    "title": "AMD EPYC 7763, 4 cores",
    "kind": "b" * 16,
    "host": "2" * 16,
    "device_name": "AMD EPYC 7763",
    "cpu_name": "AMD EPYC 7763",
}
SETTING = {"model": "tiny", "dtype": "float32", "context_tokens": 128}


def quantity(median, better, unit="1"):
    return Quantity(Interval(median, 0.98 * median, 1.02 * median, 20, 0.95), unit, better)


def run(number, quantities, *, claim="decode", outcome="supported", machine=NINE_V_74, **other):
    """A run whose number is its id and its day."""
    run = Run(
        run_id=f"{number:016x}",
        claim=claim,
        date=f"2026-01-{number % 28 + 1:02d}T00:00:00Z",
        commit=None,
        library_version="0.1.0",
        outcome=outcome,
        reason="as measured",
        failed_control=False,
        machine=machine,
        setting=SETTING,
        quantities=quantities,
        expected={name: (2.0, 1.0) for name in quantities if ", " not in name},
    )
    return replace(run, **other)


def runs(medians, better, unit="1", name="share", start=0, **other):
    return [
        run(start + number, {name: quantity(median, better, unit)}, **other)
        for number, median in enumerate(medians)
    ]


def only(report: Report):
    assert len(report.rows) == 1
    return report.rows[0]


def said(row):
    return row.answer, row.reason


H13 = {  # better, unit, base, current, base's machine, current's
    "a": ("higher", "tok/s", [100, 101, 99, 100, 100], [130, 131, 129, 130, 131]),
    "b": ("higher", "tok/s", [100, 101, 99, 100, 100], [80, 81, 79, 80, 80]),
    "c": ("lower", "s", [0.2, 0.201, 0.199, 0.2, 0.202], [0.26, 0.259, 0.262, 0.261, 0.26]),
    "d": ("lower", "s", [0.2, 0.201, 0.199, 0.2, 0.202], [0.26, 0.259, 0.262, 0.261, 0.26]),
    "e": ("lower", "s", None, [0.2, 0.2, 0.2, 0.2, 0.2]),
    "f": ("lower", "s", [0.2, 0.2, 0.2, 0.2, 0.2], None),
    "g": ("lower", "1", [0, 0, 0, 0, 0], [3, 3, 3, 3, 3]),
    "h": ("lower", "s", [0.2, 0.201, 0.199, 0.2, 0.2], [0.004] * 5),
}
H13_ANSWERS = {
    "a": "improvement",
    "b": "regression",
    "c": "regression",
    "d": "not comparable",
    "e": "ok",
    "f": "regression",
    "g": "regression",
    "h": "improvement",
}


def h13(case):
    better, unit, base, current = H13[case]
    there = SEVEN_763 if case == "d" else NINE_V_74
    other = {"decode x1 / x8": quantity(2.0, "higher")}  # e and f: a side lacks one of several
    sides = []
    for medians, machine, start in ((base, NINE_V_74, 0), (current, there, 20)):
        held = [{"metric": quantity(m, better, unit)} for m in medians or []] or [{}] * 5
        sides.append([run(start + i, q | other, machine=machine) for i, q in enumerate(held)])
    return compare(*sides)


@pytest.mark.parametrize("case", H13)
def test_h13_is_answered_and_fails_the_gate_on_b_c_f_and_g_only(case):
    report = h13(case)
    row = next(row for row in report.rows if row.name == "metric")
    assert row.answer == H13_ANSWERS[case]
    assert report.failed == (case in "bcfg")
    assert row.change.suspicious == (case == "h")


def test_h13_says_why_a_row_is_no_pass_or_no_comparison():
    reasons = {c: next(r.reason for r in h13(c).rows if r.name == "metric") for c in "defgh"}
    assert reasons["d"].startswith("another kind of machine: device_name AMD EPYC 9V74 in the base")
    assert reasons["e"] == "new: no baseline"
    assert reasons["f"] == "missing in this run"
    assert "no ratio to 0" in reasons["g"]
    assert "has the work been done?" in reasons["h"]


def test_h13_i_a_quantity_without_a_direction_cannot_be_made():
    with pytest.raises(ValueError, match="direction unknown"):
        quantity(100, None, "tok/s")


@pytest.mark.parametrize("field", [key for key in NINE_V_74 if key not in ("kind", "slug")])
def test_another_kind_of_machine_is_no_baseline_whatever_differs(field):
    other = NINE_V_74 | {"kind": "c" * 16, field: "other"}
    report = compare(runs([1.0] * 5, "higher"), runs([0.1], "higher", start=9, machine=other))
    assert only(report).answer == "not comparable"
    assert not report.failed


@pytest.mark.parametrize("field", ["python", "torch", "numpy", "kernels", "accelerator_driver"])
def test_other_software_is_compared_and_named(field):
    other = NINE_V_74 | {field: "9.9"}
    report = compare(runs([1.0] * 5, "higher"), runs([0.5], "higher", start=9, machine=other))
    assert only(report).answer == "regression"
    assert any(f"{field} " in note and "9.9 now" in note for note in report.notes)
    newer = runs([1.0], "higher", start=9, library_version="0.2.0")
    assert (
        "the library 0.1.0 in the base, 0.2.0 now" in compare(runs([1.0], "higher"), newer).notes[0]
    )


@pytest.mark.parametrize("host", ["9" * 16, None])
def test_absolute_times_stay_on_their_machine_and_ratios_travel_to_one_of_its_kind(host):
    twin = NINE_V_74 | {"host": host}
    both = {"time, decode x1": quantity(1.0, "lower", "s"), "share": quantity(1.0, "higher")}
    slow = {"time, decode x1": quantity(3.0, "lower", "s"), "share": quantity(0.3, "higher")}
    report = compare([run(i, both) for i in range(5)], [run(9, slow, machine=twin)])
    answers = {row.name: row.answer for row in report.rows}
    assert answers == {"time, decode x1": "not comparable", "share": "regression"}


def test_times_are_held_against_those_of_this_very_machine_among_its_kind():
    twin = NINE_V_74 | {"host": "9" * 16}
    here = runs([1.0] * 5, "lower", "s", "time, x")
    elsewhere = runs([9.0] * 5, "lower", "s", "time, x", start=10, machine=twin)
    report = compare([*here, *elsewhere], runs([2.0], "lower", "s", "time, x", start=20))
    assert only(report).answer == "regression"
    assert only(report).change.ratio == pytest.approx(2.0)


def test_other_parameters_are_not_comparable_and_named():
    report = compare(
        runs([1.0] * 5, "higher"),
        runs([0.1], "higher", start=9, setting=SETTING | {"context_tokens": 256}),
    )
    reason = "parameters differ: context_tokens 128 in the base, 256 now"
    assert said(only(report)) == ("not comparable", reason)


def test_runs_with_the_same_parameters_are_found_behind_newer_ones_with_others():
    trial = runs([9.0], "higher", start=9, setting=SETTING | {"context_tokens": 256})
    report = compare([*runs([1.0] * 5, "higher"), *trial], runs([0.5], "higher", start=10))
    assert only(report).answer == "regression"


def test_only_the_last_five_runs_count():
    old, new = runs([9.0] * 5, "higher"), runs([1.0] * 5, "higher", start=5)
    row = only(compare([*old, *new], runs([1.0], "higher", start=20)))
    assert row.change.ratio == pytest.approx(1.0)
    assert len(row.base) == 5


@pytest.mark.parametrize("better", ["higher", "lower"])
@pytest.mark.parametrize("rises", [True, False])
def test_both_directions_are_told_apart(better, rises):
    report = compare(runs([1.0] * 5, better), runs([1.6 if rises else 0.6], better, start=9))
    good = rises == (better == "higher")
    assert only(report).answer == ("improvement" if good else "regression")
    assert report.failed == (not good)


def test_one_base_run_and_runs_without_an_interval_are_judged():
    bare = Quantity(Interval(0.2, nan, nan, 3), "1", "higher")
    report = compare(runs([1.0], "higher"), [run(9, {"share": bare})])
    assert only(report).answer == "regression"


def test_a_name_has_one_unit_and_one_direction():
    base = runs([1.0], "lower", "s")
    with pytest.raises(ValueError, match="one name has one unit"):
        compare(base, runs([1.0], "lower", "1", start=9))
    with pytest.raises(ValueError, match="one direction"):
        compare(base, runs([1.0], "higher", "s", start=9))


def test_a_claim_that_vanished_fails_and_a_new_one_does_not():
    old = runs([1.0], "higher", claim="decode")
    both = [*old, *runs([1.0], "higher", claim="prefill", start=3)]
    now = runs([1.0], "higher", start=9)
    report = compare(both, now)
    assert [(v.claim, v.answer, v.reason) for v in report.verdicts] == [
        ("decode", "ok", "as before"),
        ("prefill", "regression", "missing in this run"),
    ]
    report = compare(old, [*now, *runs([1.0], "higher", claim="prefill", start=10)])
    new = [(r.claim, r.answer, r.reason) for r in (*report.verdicts, *report.rows)]
    assert ("prefill", "ok", "new: no baseline") in new
    assert not report.failed


def test_a_claim_recorded_on_another_machine_only_is_not_missed():
    elsewhere = runs([1.0], "higher", claim="prefill", machine=SEVEN_763)
    report = compare([*runs([1.0], "higher"), *elsewhere], runs([1.0], "higher", start=9))
    assert not report.failed
    assert "not judged: AMD EPYC 7763, 4 cores, on which there is no current run" in report.notes


def test_everything_new_passes():
    report = compare([], runs([1.0, 1.1], "higher"))
    assert not report.failed
    assert {row.reason for row in (*report.rows, *report.verdicts)} == {"new: no baseline"}


def test_a_control_counts_by_its_outcome_but_must_not_vanish():
    held = {"share": quantity(1.0, "higher"), "logits": quantity(1e-15, "lower")}
    before = [run(i, held, expected={"share": (2.0, 1.0)}) for i in range(5)]
    worse = held | {"logits": quantity(1e-13, "lower")}
    report = compare(before, [run(9, worse, expected={"share": (2.0, 1.0)})])
    assert [row.name for row in report.rows] == ["share"]
    report = compare(before, [run(9, {"share": quantity(1.0, "higher")})])
    assert {row.name: row.answer for row in report.rows}["logits"] == "regression"


def test_a_prediction_cannot_leave_by_becoming_a_control():
    before = runs([1.0] * 5, "higher")
    report = compare(before, runs([0.3], "higher", start=9, expected={}))
    assert only(report).answer == "regression"


def test_a_step_that_gave_way_to_another_is_not_missed_and_one_that_was_dropped_is():
    def steps(*names):
        return {f"time, {name}": quantity(1.0, "lower", "s") for name in names}

    before = [run(i, steps("x1", "x36")) for i in range(3)]
    chosen_anew = compare(before, [run(9, steps("x1", "x40"))])
    answers = {row.name: row.answer for row in chosen_anew.rows}
    assert answers["time, x36"] == "not comparable"
    dropped = compare(before, [run(9, steps("x1"))])
    assert {row.name: row.answer for row in dropped.rows}["time, x36"] == "regression"


OUTCOMES = ["supported", "refuted", "inconclusive", "void"]
TURNS = {  # all that is neither "ok" nor "inconclusive"
    ("supported", "refuted"): "regression",
    ("refuted", "supported"): "improvement",
    ("inconclusive", "supported"): "ok",
    ("void", "supported"): "ok",
}


@pytest.mark.parametrize(("before", "now"), list(product(OUTCOMES, OUTCOMES)))
def test_a_verdict_that_turns(before, now):
    report = compare(
        runs([1.0], "higher", outcome=before), runs([1.0], "higher", start=9, outcome=now)
    )
    expected = TURNS.get((before, now), "ok" if before == now else "inconclusive")
    assert report.verdicts[0].answer == expected
    assert report.failed == ((before, now) == ("supported", "refuted"))


@pytest.mark.parametrize("before", OUTCOMES)
def test_a_control_that_no_longer_holds_fails_the_gate_where_the_claim_was_supported(before):
    now = runs([1.0], "higher", start=9, outcome="void", failed_control=True)
    report = compare(runs([1.0], "higher", outcome=before), now)
    assert report.failed == (before == "supported")


def test_an_undecided_run_in_between_hides_no_turn():
    base = [*runs([1.0], "higher"), *runs([1.0], "higher", start=3, outcome="inconclusive")]
    assert compare(base, runs([1.0], "higher", start=9, outcome="refuted")).failed


def test_a_verdict_travels_though_numbers_do_not():
    now = runs([0.1], "higher", start=9, machine=SEVEN_763, outcome="refuted")
    report = compare(runs([1.0], "higher"), now)
    assert report.failed
    assert report.verdicts[0].reason == "every other machine supports it"
    third = SEVEN_763 | {"kind": "d" * 16}
    doubted = runs([1.0], "higher", start=5, machine=third, outcome="refuted")
    assert not compare([*runs([1.0], "higher"), *doubted], now).failed
    supported = [replace(each, outcome="supported") for each in now]
    assert compare(runs([1.0], "higher"), supported).verdicts[0].answer == "ok"
    undecided = [replace(each, outcome="inconclusive") for each in now]
    assert compare(runs([1.0], "higher"), undecided).verdicts[0].answer == "inconclusive"


def test_a_run_is_never_compared_with_itself():
    same = runs([1.0, 1.1], "higher")
    with pytest.raises(ValueError, match="never compared with itself"):
        compare(same, same)
    with pytest.raises(ValueError, match="never compared with itself"):
        compare(same, same[:1])
    with pytest.raises(ValueError, match="at least one current run"):
        compare(same, [])


def test_a_current_run_that_stands_in_the_base_is_left_out_there_with_a_note():
    base = runs([1.0] * 4 + [0.5], "higher")
    new = runs([1.0], "higher", claim="prefill", start=9)
    report = compare(base, [base[-1], *new])
    row = next(row for row in report.rows if row.claim == "decode")
    assert row.change.ratio == pytest.approx(0.5)
    assert any("is left out" in note for note in report.notes)
    lonely = compare(base[-1:], [base[-1], *new])
    assert [v.reason for v in lonely.verdicts if v.claim == "decode"] == [
        "the same run on both sides: nothing to compare"
    ]
    assert not [row for row in lonely.rows if row.claim == "decode"]


def test_a_slow_drift_is_caught_against_the_pinned_runs():
    drift = [1.0 * 0.93**i for i in range(12)]
    everything = runs(drift, "higher")
    steps = [compare(everything[:i], everything[i : i + 1]) for i in range(1, 12)]
    assert not any(step.failed for step in steps)
    report = compare(everything[:11], everything[11:], everything[:5])
    answers = {row.against: row.answer for row in report.rows}
    assert answers == {"last": "inconclusive", "pinned": "regression"}
    assert report.failed


def test_pinned_runs_of_another_machine_say_nothing():
    pinned = runs([9.0] * 5, "higher", machine=SEVEN_763)
    report = compare(runs([1.0] * 5, "higher"), runs([1.0], "higher", start=9), pinned)
    assert {row.against for row in (*report.rows, *report.verdicts)} == {"last"}


def test_a_regression_that_measuring_again_does_not_bear_out_is_dropped_and_told():
    base = runs([1.0] * 5, "higher")
    slow = runs([0.5], "higher", start=9)
    first = compare(base, slow)
    assert first.failed
    here = {("decode", NINE_V_74["kind"])}
    good = compare(base, [*slow, *runs([1.0, 1.0], "higher", start=10)])
    dropped = confirm(first, good, here)
    assert (only(dropped).again, dropped.failed) == ("does not stand", False)
    assert "measured again: does not stand" in dropped.markdown()
    bad = compare(base, [*slow, *runs([0.5, 0.5], "higher", start=10)])
    stands = confirm(first, bad, here)
    assert (only(stands).again, stands.failed) == ("stands", True)
    assert len(only(stands).current) == 3
    assert confirm(first, good, set()) == first  # nothing was measured again


def test_measuring_again_finds_no_new_alarms():
    two = {"a": quantity(1.0, "higher"), "b": quantity(1.0, "higher")}
    base = [run(i, two) for i in range(5)]
    slow = [run(9, two | {"a": quantity(0.5, "higher")})]
    again = [run(9 + i, two | {"b": quantity(0.1, "higher")}) for i in (1, 2)]
    here = {("decode", NINE_V_74["kind"])}
    report = confirm(compare(base, slow), compare(base, [*slow, *again]), here)
    assert not report.failed


def test_most_of_the_runs_measured_again_decide_a_verdict():
    base = runs([1.0], "higher")
    refuted = runs([1.0], "higher", start=9, outcome="refuted")
    better = runs([1.0, 1.0], "higher", start=10)
    assert compare(base, refuted).failed
    assert not compare(base, [*refuted, *better]).failed
    assert compare(base, [*refuted, *better[:1], replace(better[1], outcome="refuted")]).failed


def strict(report):
    def refuse(token):
        raise AssertionError(f"{token} in JSON")

    return json.loads(json.dumps(report.as_dict(), allow_nan=False), parse_constant=refuse)


@pytest.mark.parametrize("case", H13)
def test_a_report_is_strict_json_that_holds_every_row(case):
    report = h13(case)
    document = strict(report)
    assert document["failed"] == report.failed
    assert len(document["rows"]) == len(report.rows)
    row = next(row for row in document["rows"] if row["name"] == "metric")
    assert row["change"]["answer"] == H13_ANSWERS[case]
    ratio = next(r for r in report.rows if r.name == "metric").change.ratio
    assert row["change"]["ratio"] == (None if isnan(ratio) else ratio)


def test_markdown_begins_with_the_gates_verdict_and_the_regressions():
    base = [run(i, {"a": quantity(1.0, "higher"), "b": quantity(1.0, "lower")}) for i in range(5)]
    worse = {"a": quantity(9.0, "higher"), "b": quantity(9.0, "lower")}
    lines = compare(base, [run(9, worse)]).markdown().splitlines()
    assert lines[0] == (
        "**The gate fails:** 1 of 3 comparisons got worse (1 regression, 1 improvement, 1 ok; "
        "tolerance 10%)."
    )
    assert lines[4].startswith("| ✗ regression | decode, AMD EPYC 9V74, 4 cores | b | 1.00, 5 runs")
    assert lines[5].startswith("| ✓ improvement |")
    assert lines[7] == "<details>"


def test_markdown_is_a_sentence_and_folded_rows_when_all_is_well():
    narrow = runs([1.0] * 5, "higher")
    report = compare(narrow, runs([1.5], "higher", start=9), tolerance=0.5)
    quiet = replace(report, rows=(), notes=())
    assert quiet.markdown().split("\n\n")[:2] == [
        "**The gate passes:** none of 1 comparisons got worse (1 ok; tolerance 50%).",
        "<details>\n<summary>All 1 comparisons</summary>",
    ]


def test_markdown_escapes_what_would_break_a_table_and_shows_times_in_their_unit():
    name = "time, a|b <script> `x`"
    base = runs([0.0412] * 5, "lower", "s", name)
    shown = compare(base, runs([0.0912], "lower", "s", name, start=9)).markdown()
    assert "time, a\\|b &lt;script> \\`x\\`" in shown
    assert "| 41.2 ms, 5 runs | 91.2 [89.4, 93.0] ms | 2.21 [" in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {9}


def test_what_is_undecided_is_summed_up_by_reason():
    base = [run(i, {f"time, {n}": quantity(1.0, "lower", "s") for n in "abc"}) for i in range(2)]
    elsewhere = NINE_V_74 | {"host": "7" * 16}
    now = run(9, {f"time, {n}": quantity(1.0, "lower", "s") for n in "abc"}, machine=elsewhere)
    shown = compare(base, [now]).markdown()
    assert "\n- 3 not comparable: absolute times on another machine" in shown


def test_code_is_read_from_a_checkout_or_a_revision(root, tmp_path):
    with code_of(str(root), None) as found:
        assert found == root
        here = digest_of_code(found)
    with code_of("HEAD", root) as found:
        assert (found / "lib" / "prefill_decode" / "kernels.cpp").is_file()
        assert len(digest_of_code(found)) == len(here)
    assert not found.exists()
    with pytest.raises(ValueError, match="has no library"), code_of(str(tmp_path), root):
        pass
    with pytest.raises(ValueError, match="look for a typing error"), code_of("no-such", root):
        pass
    with pytest.raises(ValueError, match="this is no checkout"), code_of("HEAD", None):
        pass


def test_code_differs_when_a_file_of_the_library_does(tmp_path):
    package = tmp_path / "lib" / "prefill_decode"
    (package / "__pycache__").mkdir(parents=True)
    (package / "a.py").write_text("1")
    before = digest_of_code(tmp_path)
    (package / "__pycache__" / "a.pyc").write_text("2")
    (tmp_path / "README.md").write_text("3")
    assert digest_of_code(tmp_path) == before
    (package / "a.py").write_text("2")
    assert digest_of_code(tmp_path) != before


def test_a_hundred_quantities_are_judged_more_cautiously_than_one():
    few = {"ratio": quantity(1.0, "lower")}
    many = {f"ratio {i}": quantity(1.0, "lower") for i in range(100)}
    worse = quantity(1.5, "lower")
    answers = []
    for held, name in ((few, "ratio"), (many, "ratio 7")):
        report = compare([run(1, held)], [run(2, {**held, name: worse})])
        answers.append(next(row.change.answer for row in report.rows if row.name == name))
    assert answers == ["regression", "inconclusive"]
