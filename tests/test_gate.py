"""The gate on case H13 and its relatives: direction, machine, missing sides, verdicts, drift."""

import json
from dataclasses import replace
from itertools import product
from math import exp, isnan, log, nan, sqrt

import pytest

from prefill_decode.change import Quantity
from prefill_decode.gate import Report, code_of, compare, confirm
from prefill_decode.measure.machine import kind_of
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


DECISIVE = {  # of a machine's kind, with another value
    "device": "cuda",
    "device_name": "NVIDIA H200",
    "cpu_name": "AMD EPYC 7763",
    "cpu_family_model_stepping": "25 1 1",
    "instruction_sets": ["avx2"],
    "cores": 8,
    "threads": 2,
    "last_level_cache_bytes": 64e6,
    "system": "Darwin",
    "memory_bytes": 32 * 2**30,
}


@pytest.mark.parametrize("field", DECISIVE)
def test_another_kind_of_machine_is_no_baseline_whatever_makes_it_another(field):
    here = dict.fromkeys(DECISIVE) | {"memory_bytes": 16 * 2**30} | NINE_V_74
    sides = []
    for described, start in ((here, 0), (here | {field: DECISIVE[field]}, 9)):
        machine = described | {"kind": kind_of(described)}
        sides.append(runs([0.1 if start else 1.0], "higher", start=start, machine=machine))
    report = compare(*sides)
    assert only(report).answer == "not comparable"
    assert f"{field} " in only(report).reason
    assert not report.failed


@pytest.mark.parametrize(
    "field", ["python", "torch", "numpy", "kernels", "products", "accelerator_driver"]
)
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


@pytest.mark.parametrize(("better", "unit"), [("lower", "1"), ("higher", "s")])
def test_a_changed_unit_or_direction_fails_and_hides_no_other_quantity(better, unit):
    before = {"a": quantity(9.0, "lower", "s"), "b": quantity(1.0, "higher")}
    after = before | {"a": quantity(1.0, better, unit), "b": quantity(0.3, "higher")}
    report = compare([run(1, before)], [run(9, after)])
    rows = {row.name: row for row in report.rows}
    assert (report.failed, rows["a"].answer, rows["b"].answer) == (True, "regression", "regression")
    reason = "unit or direction changed: lower is better in 's' in the base, "
    assert rows["a"].reason == reason + f"{better} is better in {unit!r} now"
    again = compare([run(1, before), run(2, after)], [run(9, after)])
    assert {row.change.ratio for row in again.rows if row.name == "a"} == {1.0}


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


@pytest.mark.parametrize(
    ("before", "now", "answers"),
    [
        (["decode x1", "decode x36"], ["decode x1", "decode x40"], ["not comparable"]),
        (["decode x1", "decode x36"], ["decode x1"], ["regression"]),
        (["decode x1", "decode x36"], ["decode x1", "prefill 4"], ["regression"]),
        (["decode x8", "decode x36"], ["decode x40"], ["not comparable", "regression"]),
    ],
)
def test_a_step_is_forgiven_for_another_of_its_family_one_for_one(before, now, answers):
    def steps(names):
        return {f"time, {name}": quantity(1.0, "lower", "s") for name in names}

    report = compare([run(i, steps(before)) for i in range(3)], [run(9, steps(now))])
    gone = [row for row in report.rows if not row.current]
    assert [row.answer for row in gone] == answers
    for row in gone:
        if row.answer == "not comparable":
            assert row.reason == "this run has instead: time, decode x40"


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


def on(kind, **other):
    """One run on a kind of machine of its own."""
    machine = NINE_V_74 | {"kind": kind * 16, "title": kind}
    return runs([0.1], "higher", start=ord(kind) % 9, machine=machine, **other)


@pytest.mark.parametrize(
    ("elsewhere", "now", "answer"),
    [
        (["supported", "supported"], "refuted", "regression"),
        (["supported"], "refuted", "inconclusive"),
        (["supported", "refuted"], "refuted", "inconclusive"),
        (["supported", "inconclusive"], "refuted", "inconclusive"),
        (["supported", "supported"], "inconclusive", "inconclusive"),
        (["supported", "supported"], "supported", "ok"),
    ],
)
def test_a_verdict_travels_from_two_kinds_of_machine_that_agree(elsewhere, now, answer):
    base = [
        each for kind, said in zip("cd", elsewhere, strict=False) for each in on(kind, outcome=said)
    ]
    report = compare(base, on("e", outcome=now))
    assert report.verdicts[0].answer == answer
    assert report.failed == (answer == "regression")
    if answer == "regression":
        assert report.verdicts[0].reason == "every other machine supports it"


def test_a_run_is_never_compared_with_itself():
    same = runs([1.0, 1.1], "higher")
    with pytest.raises(ValueError, match="never compared with itself"):
        compare(same, same)
    with pytest.raises(ValueError, match="never compared with itself"):
        compare(same, same[:1])
    with pytest.raises(ValueError, match="at least one current run"):
        compare(same, [])


def test_a_run_that_stands_in_the_base_too_is_not_judged_and_its_claim_is_named():
    base = runs([1.0] * 4 + [0.5], "higher", outcome="refuted")
    new = runs([1.0], "higher", claim="prefill", start=9)
    report = compare(base, [base[-1], *new], base[:3])
    assert {row.claim for row in report.comparisons} == {"prefill"}
    assert not report.failed
    assert "no new run of: decode, on AMD EPYC 9V74, 4 cores" in report.notes
    both = compare(base, [base[-1], *runs([0.5], "higher", start=10)])
    assert len(only(both).base) == 5
    assert only(both).change.ratio == pytest.approx(0.5 / 0.5**0.2)
    assert not [note for note in both.notes if "no new run" in note]


def moved(*kinds):
    return {("decode", kind) for kind in kinds}


def test_against_a_moved_baseline_a_change_that_is_meant_passes_and_is_named():
    base, now = runs([1.0] * 5, "higher"), runs([0.5], "higher", start=20, outcome="refuted")
    meant = runs([0.5, 0.52], "higher", start=10, outcome="refuted")
    assert compare(base, now, meant).failed
    report = compare(base, now, meant, moved=moved(NINE_V_74["kind"]))
    assert not report.failed
    assert {row.against for row in report.comparisons} == {"pinned"}
    title = "AMD EPYC 9V74, 4 cores"
    assert report.notes[0].startswith(f"baseline moved: decode on {title} is held against")
    worse = runs([0.2], "higher", start=21, outcome="refuted")
    assert compare(base, worse, meant, moved=moved(NINE_V_74["kind"])).failed


def test_a_moved_baseline_of_other_parameters_or_machines_silences_nothing():
    base, now = runs([1.0] * 5, "higher"), runs([0.5], "higher", start=20)
    other = runs([0.5], "higher", start=10, setting=SETTING | {"context_tokens": 256})
    assert compare(base, now, other, moved=moved(NINE_V_74["kind"])).failed
    there = runs([0.5], "higher", start=10, machine=SEVEN_763)
    assert compare(base, now, there, moved=moved(SEVEN_763["kind"])).failed


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
    good = compare(base, slow, again=runs([1.0, 1.0], "higher", start=10))
    dropped = confirm(first, good, here)
    assert (only(dropped).again, dropped.failed) == ("does not stand", False)
    assert "measured again: does not stand" in dropped.markdown()
    bad = compare(base, slow, again=runs([0.5, 0.5], "higher", start=10))
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


def test_older_runs_do_not_outvote_the_newest_that_says_something():
    base, good = runs([1.0], "higher"), runs([1.0] * 3, "higher", start=5)
    refuted = runs([1.0], "higher", start=9, outcome="refuted")
    undecided = runs([1.0], "higher", start=10, outcome="inconclusive")
    assert compare(base, [*good, *refuted, *undecided]).failed
    assert not compare(base, [*refuted, *runs([1.0], "higher", start=11)]).failed
    broken = runs([1.0], "higher", start=12, outcome="void", failed_control=True)
    assert compare(base, [*good, *broken]).failed


def test_a_supported_claim_stays_so_behind_any_number_of_undecided_runs():
    undecided = runs([1.0] * 9, "higher", start=3, outcome="inconclusive")
    base = [*runs([1.0], "higher"), *undecided]
    assert compare(base, runs([1.0], "higher", start=20, outcome="refuted")).failed


@pytest.mark.parametrize(
    ("again", "stands"),
    [
        (["supported", "supported"], False),
        (["supported", "supported", "refuted"], False),
        (["supported", "refuted"], True),
        (["inconclusive", "inconclusive"], True),
        (["supported", "inconclusive"], True),
        (["refuted"], True),
    ],
)
def test_a_turn_is_dropped_only_where_most_runs_measured_again_support_the_claim(again, stands):
    base = runs([1.0], "higher")
    refuted = runs([1.0], "higher", start=9, outcome="refuted")
    more = [runs([1.0], "higher", start=10 + i, outcome=said)[0] for i, said in enumerate(again)]
    first = compare(base, refuted)
    assert first.failed
    here = {("decode", NINE_V_74["kind"])}
    assert confirm(first, compare(base, refuted, again=more), here).failed == stands


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
        "**The gate passes:** of 1 comparisons none is shown to be worse (1 ok; tolerance 50%).",
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


def test_no_name_becomes_a_link_an_image_emphasis_mathematics_or_a_mention():
    name = "![i](u) [l](u) *e* _e_ __e__ a_b_c ~s~ @someone $x$ https://example.org www.example.org"
    base = [run(i, {name: quantity(1.0, "higher")}) for i in range(5)]
    report = compare(base, [run(9, {name: quantity(1.0, "higher")})])
    shown = replace(report, notes=(name,), problems=(name,)).markdown()
    told = (
        r"\!\[i\](u) \[l\](u) \*e\* \_e\_ \_\_e\_\_ a_b_c \~s\~ "
        r"@~someone <span>$</span>x<span>$</span> "
        "https:~//example.org www~.example.org"
    )
    assert shown.replace("\u200b", "~").count(told) == 3
    assert name not in shown


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


def steps(factor, count=100, width=0.02):
    """Shares reached and times of so many steps, slower by a factor: {name: quantity}."""
    shares = {
        f"reached, decode x{i}": Quantity(
            Interval(0.5 / factor, 0.5 / factor * (1 - width), 0.5 / factor * (1 + width), 9, 0.95),
            "1",
            "higher",
        )
        for i in range(count)
    }
    times = {f"time, decode x{i}": quantity(factor, "lower", "s") for i in range(count)}
    return shares | times


def test_what_slows_every_step_is_seen_in_all_of_them_together():
    base = [run(i, steps(1.0)) for i in range(5)]
    report = compare(base, [run(9, steps(1.35))])
    answers = {row.name: row.answer for row in report.rows}
    assert answers.pop("all steps together") == "regression"
    assert set(answers.values()) == {"inconclusive"}
    joint = next(row for row in report.rows if row.name == "all steps together")
    assert (joint.unit, joint.better, len(joint.base)) == ("1", "higher", 5)
    assert joint.change.ratio == pytest.approx(1 / 1.35)
    # 99 % of a normal distribution with the spread 0.10 that is expected, of five runs and one
    spread = 0.10 * sqrt(4 / 8) * sqrt(1 / 5 + 1)
    assert log(joint.change.high * 1.35) == pytest.approx(2.5758 * spread, rel=1e-3)


def test_all_steps_together_are_those_in_common_turned_so_that_more_is_better():
    before = {
        "reached, a": quantity(0.5, "higher"),
        "reached, b": quantity(4.0, "lower"),
        "reached, zero": quantity(0.0, "higher"),
        "reached, turned": quantity(1.0, "higher"),
        "reached, gone": quantity(1.0, "higher"),
    }
    after = {
        "reached, a": quantity(0.25, "higher"),
        "reached, b": quantity(2.0, "lower"),
        "reached, zero": quantity(0.5, "higher"),
        "reached, turned": quantity(9.0, "lower"),
        "reached, new": quantity(1.0, "higher"),
    }
    rows = compare([run(1, before)], [run(9, after)]).rows
    joint = next(row for row in rows if row.name == "all steps together")
    assert joint.base[0].median == pytest.approx((0.5 / 4) ** 0.5)
    assert joint.current[0].median == pytest.approx((0.25 / 2) ** 0.5)
    assert joint.change.ratio == pytest.approx(1.0)  # half as much, and half the cost


def test_wide_intervals_of_the_steps_widen_that_of_all_of_them():
    def joint(width):
        report = compare([run(1, steps(1.0, width=width))], [run(9, steps(1.0, width=width))])
        return next(row.change for row in report.rows if row.name == "all steps together")

    wide, narrow = joint(0.5), joint(0.01)
    # half of the log interval is ln(1.5 / 0.5) / 2, a standard deviation 1.96 times less
    assert log(wide.high) == pytest.approx(2.5758 * log(3) / 2 / 1.96 * sqrt(2), rel=1e-3)
    assert log(narrow.high) == pytest.approx(2.5758 * 0.10 * sqrt(2), rel=1e-3)


def test_single_steps_do_not_make_predictions_harder_to_judge():
    worse = quantity(0.65, "higher")
    before = {"a prediction": quantity(1.0, "higher")}
    for held in (before, before | steps(1.0)):
        report = compare([run(1, held)], [run(2, held | {"a prediction": worse})])
        answers = {row.name: row.answer for row in report.rows}
        assert answers["a prediction"] == "regression"


def test_a_pass_says_which_changes_of_a_single_step_it_would_not_have_seen():
    base = [run(i, steps(1.0, count=1)) for i in range(5)]
    report = compare(base, [run(9, steps(1.0, count=1))])
    spread = 0.10 * sqrt(4 / 8) * sqrt(1 / 5 + 1)
    one, both = exp(2.807 * spread), exp(2.5758 * spread)  # 1 - 0.005 / 2 and 1 - 0.01 / 2, a table
    line = report.markdown().splitlines()[0]
    assert line.startswith("**The gate passes:** of 4 comparisons none is shown to be worse; of ")
    assert f"single steps, changes below about {one:.2f}-fold would not be, of a chapter's " in line
    assert f"steps together below about {both:.2f}-fold (" in line


def test_a_file_that_could_not_be_used_fails_the_gate():
    report = compare(runs([1.0], "higher"), runs([1.0], "higher", start=9))
    for problems, words in ((("a",), "1 file could"), (("a", "b"), "2 files could")):
        torn = replace(report, problems=problems)
        assert torn.failed
        assert torn.as_dict()["failed"]
        says = f"**The gate fails:** {words} not be used, so that the result cannot be trusted; of "
        assert torn.markdown().startswith(says)


def test_a_claim_that_vanished_fails_even_where_nothing_else_is_new_on_its_machine():
    base = [run(1, {"a": quantity(2.0, "higher")}), run(2, {}, claim="gone")]
    elsewhere = run(3, {"a": quantity(2.0, "higher")}, machine=SEVEN_763)
    report = compare(base, [base[0], elsewhere])
    assert [(row.claim, row.base, row.reason) for row in report.failing] == [
        ("gone", "supported", "missing in this run")
    ]


def test_a_metric_that_the_newest_run_lacks_is_missed_though_an_older_one_has_it():
    both = {"a": quantity(2.0, "higher"), "b": quantity(2.0, "higher")}
    report = compare([run(1, both)], [run(2, both), run(3, {"a": both["a"]})])
    assert [(row.name, row.reason) for row in report.failing] == [("b", "missing in this run")]


def test_a_moved_baseline_that_is_the_run_under_test_excuses_nothing():
    good = runs([2.0] * 5, "higher")
    worse = run(9, {"share": quantity(0.5, "higher")}, outcome="refuted")
    place = {("decode", NINE_V_74["kind"])}
    report = compare(good, [worse], [worse], moved=place)
    assert {row.name for row in report.failing} == {"share", "verdict"}
    assert "measure once more" in report.notes[0]
    moved = compare(good, [worse], [replace(worse, run_id="f" * 16)], moved=place)
    assert not moved.failed


def test_a_zero_in_a_run_that_is_too_old_to_count_is_no_obstacle():
    name = "reached, decode x1"
    base = runs([0.0, *[0.5] * 7], "higher", name=name)
    assert not compare(base, [run(20, {name: quantity(0.5, "higher")})]).failed


SIMULATED = SETTING | {"simulated": {"hardware": [], "num_seeds": 8}}


@pytest.mark.parametrize(
    ("now", "answer"), [(4.0, "ok"), (3.9, "ok"), (3.5, "regression"), (4.5, "improvement")]
)
def test_what_was_simulated_travels_to_any_machine_and_has_no_spread(now, answer):
    base = runs([4.0], "higher", setting=SIMULATED, machine=SEVEN_763)
    current = runs([now], "higher", setting=SIMULATED, start=5)
    row = only(compare(base, current))
    assert row.answer == answer
    assert row.change.low == row.change.high == row.change.ratio
    measured = only(compare(runs([4.0], "higher"), runs([now], "higher", start=5)))
    assert measured.answer in ("ok", "inconclusive")


def test_what_was_simulated_for_other_hardware_is_not_comparable():
    other = SETTING | {"simulated": {"hardware": [{"name": "another"}], "num_seeds": 8}}
    base = runs([4.0], "higher", setting=other, machine=SEVEN_763)
    current = runs([4.0], "higher", setting=SIMULATED, start=5)
    assert only(compare(base, current)).answer == "not comparable"


def test_a_simulated_claim_that_turns_on_another_machine_fails():
    base = runs([4.0], "higher", setting=SIMULATED, machine=SEVEN_763)
    current = runs([1.0], "higher", setting=SIMULATED, start=5, outcome="refuted")
    report = compare(base, current)
    assert [row.answer for row in report.verdicts] == ["regression"]
