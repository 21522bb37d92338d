"""A study end to end with made-up sessions: kept, resumed, refused when damaged, strict on disk."""

import json
from dataclasses import replace
from math import log, nan
from statistics import median, stdev

import numpy as np
import pytest

from prefill_decode import __version__
from prefill_decode.change import Quantity
from prefill_decode.paired import sessions as keeping
from prefill_decode.paired import study as studying
from prefill_decode.paired.pairs import Pair
from prefill_decode.paired.sessions import KeptRun, read_chapter_runs, read_sessions
from prefill_decode.paired.study import load_study, run_study, save_study, summary
from prefill_decode.paired.turns import Gathered
from prefill_decode.statistics import Interval

DATE = "2026-12-01T00:00:00Z"
STEPS = {"decode x1": [(1, 8, 1)], "prefill 64": [(64, 0, 1)]}
MACHINE = {
    "slug": "test-cpu-2-cores-abcd",
    "title": "Test CPU, 2 cores",
    "device": "cpu",
    "cores": 2,
    "instruction_sets": ["avx2", "fma"],
}


class Source:
    """Stands in for the processes: counts its sessions, and fails after so many."""

    def __init__(self, most=10**6, slug=MACHINE["slug"]) -> None:
        self.called, self.most, self.slug = [], most, slug

    def __call__(self, roots, job, kinds, budget_s, seed, say, session_s):
        if len(self.called) == self.most:
            raise KeyboardInterrupt
        assert session_s == budget_s  # one pair of processes a session
        self.called.append((budget_s, seed))
        dice = np.random.default_rng(len(self.called))
        pairs = tuple(
            Pair(kind, 0.01, float(0.01 * (1 + kind.planted) * np.exp(x)), i == 3)
            for kind in kinds
            for i, x in enumerate(dice.normal(dice.normal(0, 0.01), 0.03, 24))
        )
        versions = {"base": __version__, "current": __version__}
        machine = {**MACHINE, "slug": self.slug}
        return Gathered(pairs, 1, machine, {"name": "tiny", "dtype": "float32"}, versions)


class Chapter:
    """One run after another, each with its own medians."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self):
        self.runs += 1
        value = 1.0 + 0.05 * self.runs
        quantity = Quantity(Interval(value, 0.9 * value, 1.1 * value, 9, 0.95), "1", "lower")
        names = ["a prediction", "a control", "reached, decode x1", "time, decode x1"]
        run = KeptRun("a_claim", dict.fromkeys(names, quantity), DATE, "not read")
        return type("Run", (), {**vars(run), "expected": {"a prediction": (1.0, 2.0)}})


@pytest.fixture
def source(monkeypatch):
    found = Source()
    monkeypatch.setattr(keeping, "gather_sessions", found)
    return found


@pytest.fixture
def studied(root, tmp_path):
    def run(**options):
        given = {"sessions": 4, "budget_s": 2.0, "chapter_runs": 0, "steps": STEPS, "resamples": 20}
        return run_study(root, tmp_path / "trust", **{**given, **options})

    return run


def test_a_study_holds_the_numbers_of_its_raw_pairs(source, studied, tmp_path):
    study = studied()
    assert source.called[0][0] == 3 * 2.0  # each of three sorts has the budget
    assert (study["kind"], study["sessions"], study["machine"]["slug"]) == (
        "trust study",
        4,
        MACHINE["slug"],
    )
    lines = (tmp_path / "trust" / "sessions.jsonl").read_text().splitlines()
    medians = []
    for line in lines:
        held = json.loads(line)["pairs"]["planted 10%"]["prefill 64"]
        medians.append(median(log(b / a) for a, b, disturbed in held if not disturbed))
    assert study["distributions"]["planted 10%"]["prefill 64"] == pytest.approx(medians)
    equal = study["distributions"]["equal"]["decode x1"]
    noise = study["noise"]["decode x1"]
    assert noise["session_spread"] == pytest.approx(stdev(equal))
    assert noise["n_pairs"] == 23
    assert noise["pair_spread"] == pytest.approx(0.03, rel=0.3)
    assert study["rates"]["equal, fresh"]["of"] == 4
    told = summary(study).splitlines()
    assert f"equal, fresh: 0 of 4 (0.0%, 0.0% to {1 - 0.025 ** (1 / 4):.1%})" in told
    resampled = study["rates"]["equal, resampled"]
    assert f"equal, resampled: {resampled['count']} of 20 ({resampled['share']:.1%})" in told


def test_a_study_that_was_interrupted_goes_on_and_comes_out_the_same(
    source, studied, monkeypatch, tmp_path
):
    whole = studied()
    seeds = [seed for _, seed in source.called]
    assert len(set(seeds)) == 4
    for path in (tmp_path / "trust").iterdir():
        path.unlink()
    broken = Source(most=3)
    monkeypatch.setattr(keeping, "gather_sessions", broken)
    with pytest.raises(KeyboardInterrupt):
        studied()
    assert len(read_sessions(tmp_path / "trust" / "sessions.jsonl")) == 3
    rest = Source()
    rest.called = [None] * 3  # its fourth session is the whole study's fourth
    monkeypatch.setattr(keeping, "gather_sessions", rest)
    resumed = studied()
    assert [seed for _, seed in rest.called[3:]] == seeds[3:]
    assert {**resumed, "date": ""} == {**whole, "date": ""}


def test_again_begins_afresh_and_otherwise_nothing_is_measured_twice(source, studied):
    studied()
    studied()
    assert len(source.called) == 4
    studied(again=True)
    assert len(source.called) == 8


def test_chapter_runs_are_spread_over_the_sessions_and_kept(source, studied, tmp_path):
    chapter, seen = Chapter(), []

    def once():
        seen.append(len(source.called))
        return chapter()

    study = studied(chapter_runs=2, run_chapter_once=once)
    assert seen == [2, 4]
    assert study["chapter"]["runs"] == 2
    assert list(study["chapter"]["spread"]) == [
        "a prediction",
        "reached, decode x1",
        "time, decode x1",
    ]
    assert len(read_chapter_runs(tmp_path / "trust" / "chapter_runs.jsonl")) == 2
    assert studied(chapter_runs=2, run_chapter_once=once)["chapter"] == study["chapter"]
    assert seen == [2, 4]


def test_an_end_that_is_unknown_is_null_on_disk(source, studied, tmp_path):
    unknown = Quantity(Interval(1.0, nan, nan, 3), "1", "higher")
    held = {"claim": "c", "date": DATE, "quantities": {"p": unknown}, "expected": {"p": ()}}
    run = type("Run", (), held)
    studied(chapter_runs=1, run_chapter_once=lambda: run)
    path = tmp_path / "trust" / "chapter_runs.jsonl"
    assert json.loads(path.read_text())["quantities"]["p"]["low"] is None
    kept = read_chapter_runs(path)[0].quantities["p"]
    assert kept.better == "higher"
    assert np.isnan(kept.measured.low)


@pytest.mark.parametrize(
    "change", [{"budget_s": 3.0}, {"steps": {"decode x1": [(1, 8, 1)]}}], ids=["budget", "steps"]
)
def test_sessions_of_another_setting_are_not_pooled(source, studied, change):
    studied()
    with pytest.raises(ValueError, match="ask for the same, or begin afresh with --again"):
        studied(**change)


def test_sessions_of_another_machine_are_not_pooled(source, studied):
    studied(sessions=2)
    source.slug = "another-cpu"
    with pytest.raises(ValueError, match=r"differ in machine: begin afresh with --again"):
        studied(sessions=3)


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[: len(line) // 2],
        lambda line: "[]",
        lambda line: "{}",
        lambda line: line.replace("0.01,", "-0.01,", 1),
        lambda line: line.replace("0.01,", "NaN,", 1),
        lambda line: line.replace("false]", "0]", 1),
        lambda line: line.replace('"planted 5%": {', '"planted 7%": {'),
        lambda line: line.replace('"prefill 64": [[0.01', '"decode x1": [[0.01'),
    ],
    ids=["torn", "list", "empty", "negative", "NaN", "not a mark", "unknown sort", "step lost"],
)
def test_a_damaged_line_is_refused_with_its_number(source, studied, tmp_path, damage):
    studied()
    path = tmp_path / "trust" / "sessions.jsonl"
    lines = path.read_text().splitlines()
    damaged = damage(lines[1])
    assert damaged != lines[1]
    path.write_text("\n".join([lines[0], damaged, *lines[2:]]) + "\n")
    with pytest.raises(ValueError, match=r"sessions\.jsonl, line 2: not a finished") as error:
        studied()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"sessions": 0}, {"budget_s": nan}, {"chapter_runs": -1}])
def test_a_study_needs_something_to_do(studied, wrong):
    with pytest.raises(ValueError, match="at least one session"):
        studied(**wrong)


def test_a_saved_study_loads_as_it_was_and_is_strict_json(source, studied, tmp_path):
    study = studied(chapter_runs=4, run_chapter_once=Chapter())
    path = tmp_path / "results" / "trust" / "machine.json"
    save_study(study, path)
    assert load_study(path) == study == json.loads(path.read_text(), parse_constant=pytest.fail)
    assert "pairs" not in study


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema_version": 2}, "schema_version"),
        ({"kind": "record"}, "kind"),
        ({"sessions": 0}, "sessions"),
        ({"tolerance": "10 %"}, "tolerance"),
        ({"rates": {"x": {"count": 1, "of": 2, "share": 0.5, "low": 0.6, "high": 0.9}}}, "x: a sh"),
        ({"rates": {"x": {"count": 1, "of": 2, "share": 0.4, "low": 0.0, "high": 0.9}}}, "x: a sh"),
        ({"rates": {"x": {"count": 1, "of": 2, "share": 0.5, "low": None, "high": 1}}}, "x: a sh"),
        ({"rates": {"x": {"count": 1, "of": 2, "share": 0.4, "low": None, "high": None}}}, "x: a "),
        ({"rates": {"<b>": {"count": 1, "of": 2, "share": 0.5, "low": 0, "high": 1}}}, "rates"),
        ({"machine": {**MACHINE, "title": "a | b"}}, "machine/title"),
        ({"machine": {**MACHINE, "slug": "../x"}}, "machine/slug"),
        ({"more": 1}, "the study"),
    ],
)
def test_what_is_no_study_is_neither_saved_nor_loaded(source, studied, tmp_path, change, words):
    study = {**studied(), **change}
    path = tmp_path / "machine.json"
    with pytest.raises(ValueError, match="not a study") as error:
        save_study(study, path)
    assert words in str(error.value)
    assert not path.exists()
    path.write_text(json.dumps(study))
    with pytest.raises(ValueError, match="not a study"):
        load_study(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the file is empty"),
        ("{", "not a study: not valid JSON"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ("[" * 100_000, "nested too deeply"),
        ("[]", "not a study"),
        ('{"a": 1, "a": 2}', "not a study: .*'a' appears twice"),
        ('{"machine": {"title": "<b>"}}', "not a study: the study/machine/title: text is"),
    ],
)
def test_a_file_that_is_no_study_is_refused_in_one_sentence(tmp_path, text, reason):
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reason) as caught:
        load_study(path)
    assert str(caught.value).startswith(str(path))
    assert "record" not in str(caught.value)


def test_every_study_in_book_results_is_accepted_by_this_library(root):
    for path in (root / "book" / "results" / "trust").glob("*"):
        assert load_study(path)["machine"]["slug"] + ".json" == path.name


def test_a_missing_study_says_how_to_make_one(tmp_path):
    with pytest.raises(ValueError, match="prefill-decode trust makes one"):
        load_study(tmp_path / "machine.json")


def test_the_commit_is_marked_when_the_library_differs_from_it(root, tmp_path, monkeypatch):
    assert studying._commit(tmp_path) is None
    answers = {"rev-parse": "0123456789ab", "status": ""}
    monkeypatch.setattr(studying, "_git", lambda where, *words: answers[words[0]])
    assert studying._commit(root) == "0123456789ab"
    answers["status"] = " M lib/x.py"
    assert studying._commit(root) == "0123456789ab+changes"


def test_the_same_raw_parts_make_the_same_numbers(source, studied, tmp_path):
    studied()
    held = read_sessions(tmp_path / "trust" / "sessions.jsonl")
    made = [studying.make_study(held, [], 2.0, 0, 20) for _ in range(2)]
    assert {**made[0], "date": ""} == {**made[1], "date": ""}
    slower = [
        replace(s, pairs=tuple(replace(p, current_s=2 * p.current_s) for p in s.pairs))
        for s in held
    ]
    rates = studying.make_study(slower, [], 2.0, 0, 20)["rates"]
    assert rates["equal, fresh"]["count"] == 4
