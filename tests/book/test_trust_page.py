"""The page on trust: every number is the study's, and none is typed into the text."""

import json
import re

import pytest

from prefill_decode.book import trust_page
from prefill_decode.book.trust_page import (
    NO_STUDY,
    chosen,
    coverage_table,
    noise_part,
    percent,
    rates_part,
    rates_table,
    records_part,
    spread_part,
    studies,
    target,
    trust_parts,
)
from tests.conftest import ROOT

STEPS = ("decode x1", "prefill 64")


def a_rate(count, of, low, high):
    return {"count": count, "of": of, "share": count / of, "low": low, "high": high}


@pytest.fixture
def study():
    return {
        "schema_version": 1,
        "kind": "trust study",
        "machine": {"slug": "here-6a09", "title": "Here *b*", "device": "cpu"},
        "model": "tiny, float32",
        "commit": None,
        "library_version": "9.8.7",
        "date": "2026-12-01T10:00:00Z",
        "budget_s": 41.0,
        "tolerance": 0.12,
        "sessions": 17,
        "rates": {
            "equal, fresh": a_rate(1, 16, 0.0016, 0.302),
            "equal, fresh, confirmed": a_rate(0, 16, 0.0, 0.206),
            "equal, resampled": a_rate(3, 400, None, None),
            "equal, resampled, confirmed": a_rate(0, 400, None, None),
            "planted 10%, fresh": a_rate(16, 16, 0.794, 1.0),
            "planted 10%, fresh, confirmed": a_rate(15, 16, 0.698, 0.998),
            "planted 10%, fresh, decode x1": a_rate(16, 16, 0.794, 1.0),
            "planted 10%, fresh, decode x1, confirmed": a_rate(16, 16, 0.794, 1.0),
            "planted 10%, fresh, prefill 64": a_rate(380, 384, 0.97, 0.998),
            "equal, judged at 5%, fresh": a_rate(0, 4, 0.0, 0.602),
            "planted 5%, resampled": a_rate(150, 200, 0.684, 0.808),
        },
        "noise": {
            step: {"n_pairs": 901, "pair_spread": 0.0612, "session_spread": 0.0134}
            for step in STEPS
        },
        "chapter": {
            "claim": "decode_is_bandwidth_bound",
            "runs": 9,
            "spread": {"time, decode x1": {"between_runs": 0.137, "half_width": 0.0711}},
            "covers_another_run": 0.583,
            "rates": {
                "equal records": a_rate(3, 56, 0.0112, 0.149),
            },
        },
        "distributions": {
            "equal": {step: [0.001, -0.002] for step in STEPS},
            "planted 10%": {step: [0.09, 0.1] for step in STEPS},
        },
    }


@pytest.fixture
def parts(study, tmp_path):
    return parts_of(study, tmp_path)


def parts_of(study, folder):
    (folder / "trust").mkdir(exist_ok=True)
    (folder / "trust" / "here-6a09.json").write_text(json.dumps(study))
    return trust_parts(folder, "here-6a09")


def test_the_setting_is_that_of_the_study(parts):
    assert parts["trust-setting"] == (
        "Measured on Here \\*b\\*, 2026-12-01, library 9.8.7, commit unknown, "
        "17 sessions of 41 s for each sort of pairs, tolerance 12%."
    )


def rows_of(text):
    return [line for line in text.splitlines() if line.startswith("|") and "---" not in line]


def test_every_rate_stands_at_first_and_measured_again_and_the_latter_has_the_target(parts):
    header, *rows = rows_of(parts["trust-rates"].partition("\n\n")[0])
    assert header == "| comparisons | called slower | and again | target |"
    assert rows[0] == (
        "| equal code, fresh processes | 1 of 16 [0.16%, 30%] | 0 of 16 [0%, 21%] "
        "| ≤ 1%: met, not shown |"
    )
    assert rows[2] == (
        "| 10% slower, fresh processes | 16 of 16 [79%, 100%] | 15 of 16 [70%, 100%] "
        "| ≥ 95%: missed |"
    )
    assert rows[3].endswith("| not measured | not measured | ≥ 95% |")
    assert rows[4] == (
        "| equal code, sessions pooled, judged at 5%, fresh processes | 0 of 4 [0%, 60%] "
        "| not measured | ≤ 1%: met, not shown |"
    )
    assert len(rows) == 8
    assert parts["trust-rates"].count("<svg") == 1
    assert "0 of 4 equal, 4 of 4 10% slower" in parts["trust-rates"]


def test_rates_of_comparisons_that_share_sessions_or_runs_decide_nothing(parts):
    rows = rows_of(parts["trust-rates"])
    assert rows[2].endswith("| 3 of 400: 0.75% | 0 of 400: 0% | ≤ 1% |")
    # Its interval, which an older study holds, is that of as many independent tries.
    assert rows[8].endswith("| 150 of 200: 75% | not measured | ≥ 95% |")
    assert "| 3 of 56: 5.4% | ≤ 1% |" in parts["trust-records"]


def test_each_step_says_how_often_its_own_slowdown_was_caught(parts):
    sentence, steps = parts["trust-rates"].split("\n\n")[1:3]
    assert sentence.endswith("Each by itself, 10% slower, fresh processes:")
    assert rows_of(steps)[1:] == [
        "| decode x1 | 16 of 16 [79%, 100%] | 16 of 16 [79%, 100%] | ≥ 95%: met, not shown |",
        "| prefill 64 | 380 of 384 [97%, 100%] | not measured | ≥ 95%: shown |",
    ]


def test_the_spread_of_runs_stands_beside_the_width_of_one(parts):
    shown = parts["trust-spread"]
    assert shown.startswith("9 fresh runs of decode\\_is\\_bandwidth\\_bound, nothing changed")
    assert "covered another run's median in 58% of the pairs of runs" in shown
    assert "| time, decode x1 | 14% | 7.1% |" in shown
    # 1.96 * 0.137 / 0.0711
    assert "Runs lie 3.8 times as far apart as each one says" in shown


def test_records_and_noise_are_the_studys(parts):
    assert "equal code, records of several runs | 3 of 56: 5.4% |" in parts["trust-records"]
    assert "| not measured | ≥ 95% |" in parts["trust-records"]
    for step in STEPS:
        assert f"| {step} | 901 | 6.1% | 1.3% |" in parts["trust-noise"]


@pytest.mark.parametrize("lost", ["rates", "noise", "chapter", "distributions"])
def test_a_study_without_a_part_still_makes_its_parts(study, lost):
    made = (rates_part, records_part, spread_part, noise_part)
    whole = [part(study) for part in made]
    del study[lost]
    without = [part(study) for part in made]
    assert without != whole
    study[lost] = None
    assert [part(study) for part in made] == without


def test_a_study_of_no_chapter_makes_a_page(study, tmp_path):
    whole = parts_of(study, tmp_path)
    del study["chapter"]
    without = parts_of(study, tmp_path)
    assert without.keys() == whole.keys()
    assert without["trust-spread"] == NO_STUDY


def test_numbers_that_are_null_are_not_measured(study):
    study["noise"]["decode x1"] = {"n_pairs": 3, "pair_spread": None, "session_spread": None}
    study["chapter"]["spread"]["time, decode x1"]["half_width"] = None
    study["rates"]["equal, fresh"] = a_rate(1, 16, None, None) | {"share": None}
    del study["rates"]["equal, fresh, confirmed"]
    assert "| decode x1 | 3 | not measured | not measured |" in noise_part(study)
    assert spread_part(study) == NO_STUDY
    assert "fresh processes | not measured | not measured | ≤ 1% |" in rates_part(study)


def test_without_a_study_the_page_says_how_to_make_one(tmp_path):
    parts = trust_parts(tmp_path, "here-6a09")
    for name in ("trust-setting", "trust-spread", "trust-rates", "trust-records", "trust-noise"):
        assert "`prefill-decode trust`" in parts[name]
    assert parts["trust-problems"] == ""


def test_this_machines_study_is_preferred_and_then_the_newest(study):
    there = study | {"machine": {"slug": "there", "title": "T"}, "date": "2027-01-01T00:00:00Z"}
    older = there | {"date": "2026-01-01T00:00:00Z"}
    assert chosen([study, there], "here-6a09") is study
    assert chosen([study, there, older], "elsewhere") is there
    assert chosen([], "here-6a09") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("[]", "not a study: the study: [] is not of type 'object'"),
        ("{}", "not a study: the study: 'schema_version' is a required property"),
        ("[" * 100_000, "not a study: nested too deeply"),
    ],
)
def test_what_is_no_study_is_named_and_left_out(tmp_path, text, reason):
    (tmp_path / "trust").mkdir()
    (tmp_path / "trust" / "bad.json").write_text(text)
    found, problems = studies(tmp_path)
    assert found == []
    assert problems[0].startswith("trust/bad.json: ")
    assert reason in problems[0]


def test_a_target_is_shown_only_by_a_whole_interval():
    few = {"share": 0.0, "high": 0.3, "low": 0.0}
    assert target(few, wanted=False) == "≤ 1%: met, not shown"
    assert target(few | {"high": 0.01}, wanted=False) == "≤ 1%: shown"
    assert target({"share": 0.96, "low": 0.95, "high": 1.0}, wanted=True) == "≥ 95%: shown"
    assert target({"share": 0.94, "low": 0.9, "high": 1.0}, wanted=True) == "≥ 95%: missed"
    assert target({"share": 0.96, "low": None, "high": None}, wanted=True) == "≥ 95%"


def test_rates_that_are_none_are_not_measured():
    rows = rows_of(rates_table({"equal, fresh": None}))
    assert rows[1].endswith("fresh processes | not measured | not measured | ≤ 1% |")
    assert percent(None) == percent(float("nan")) == percent(True) == "not measured"


def test_simulated_coverage_keeps_its_promise_but_for_a_drifting_machine():
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in coverage_table().splitlines()
    ]
    assert header == ["", "promised", "normal", "skewed", "heavy tail", "drifting machine"]
    # The smallest and largest of six miss the median when all lie on one side: 2 / 2**6.
    assert rows[0][:2] == ["6 samples", f"{100 * (1 - 2 / 64):.1f}%"]
    spread = 100 * 4 * (0.95 * 0.05 / trust_page.REPETITIONS) ** 0.5  # four standard errors
    for row in rows:
        promised, *kept, drifting = (float(cell.rstrip("%")) for cell in row[1:])
        assert all(abs(each - promised) < spread for each in kept)
        assert drifting < promised - 20
    assert coverage_table() == coverage_table()


def test_no_number_is_typed_into_the_text_of_the_page():
    text = (ROOT / "book" / "how_far_to_trust.md").read_text(encoding="utf-8")
    for allowed in (r"(?s)```.*?```", r"`[^`]*`", r"\$[^$]*\$", r"<!-- [a-z-]+ -->"):
        text = re.sub(allowed, "", text)
    assert re.findall(r"[^\n]*\d[^\n]*", text) == []


def test_the_page_asks_for_every_part_that_there_is(parts):
    text = (ROOT / "book" / "how_far_to_trust.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- ([a-z-]+) -->", text)) == set(parts)
