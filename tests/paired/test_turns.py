"""A comparison from pairs that a test made up; and how a long budget is split."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from prefill_decode.paired import turns
from prefill_decode.paired.pairs import Kind, Pair
from prefill_decode.paired.sides import Job
from prefill_decode.paired.turns import Gathered, compare_by, compare_code, gather_sessions

MACHINE = {"title": "Test CPU, 2 cores", "device": "cpu", "cores": 2, "threads": 2}
MODEL = {"name": "tiny", "dtype": "float32"}
KINDS = [Kind("decode x1"), Kind("prefill 64")]


def gathering(*ratios):
    """A source of pairs whose i-th call finds the i-th ratios by step, and a list of its calls."""
    calls = []

    def gather(kinds, budget_s, seed):
        found = ratios[len(calls)]
        calls.append(([kind.step for kind in kinds], budget_s, seed))
        pairs = [
            Pair(kind, 0.010, 0.010 * found[kind.step] * (1 + 0.001 * (i % 5 - 2)), i == 0)
            for kind in kinds
            for i in range(21)
        ]
        return Gathered(tuple(pairs), 1, MACHINE, MODEL, {"base": "0.1.0", "current": "0.2.0"})

    return gather, calls


def compared(gather, tolerance=0.10):
    roots = {"base": "/base", "current": "/current"}
    return compare_by(gather, KINDS, roots, 40.0, tolerance, "seed 0", lambda words: None)


def test_equal_codes_are_measured_once_and_found_not_slower():
    gather, calls = gathering({"decode x1": 1.0, "prefill 64": 1.0})
    comparison = compared(gather)
    assert len(calls) == 1
    assert [step.answer for step in comparison.steps] == ["ok", "ok"]
    assert not comparison.failed
    assert "a regression of 10% is excluded in every step" in comparison.markdown()


def test_only_what_is_suspected_is_measured_again_with_twice_the_budget_and_another_seed():
    gather, calls = gathering({"decode x1": 1.2, "prefill 64": 1.0}, {"decode x1": 1.2})
    comparison = compared(gather)
    assert calls[0][:2] == (["decode x1", "prefill 64"], 40.0)
    assert calls[1][:2] == (["decode x1"], 80.0)
    assert calls[0][2] != calls[1][2]
    assert comparison.failed
    assert [step.answer for step in comparison.steps] == ["regression", "ok"]
    assert "**Slower: decode x1.**" in comparison.markdown()
    assert comparison.sessions == 2


def test_a_suspicion_that_does_not_stand_is_no_regression_and_says_so():
    gather, _ = gathering({"decode x1": 1.2, "prefill 64": 1.0}, {"decode x1": 1.0})
    comparison = compared(gather)
    assert not comparison.failed
    step = comparison.steps[0]
    assert (step.first.answer, step.second.answer, step.answer) == ("regression", "ok", "ok")
    assert step.current_s == pytest.approx(0.010, rel=0.01)  # of the measuring that decided
    assert "it does not stand" in comparison.markdown()


def test_half_the_tolerance_is_where_a_slowdown_begins():
    ratios = {"decode x1": 1.055, "prefill 64": 1.04}
    gather, _ = gathering(ratios, ratios)
    assert [s.answer for s in compared(gather).steps] == ["regression", "ok"]
    gather, _ = gathering(ratios, ratios)
    assert [s.answer for s in compared(gather, 0.05).steps] == ["regression", "regression"]


def test_what_is_not_decided_is_named_and_does_not_fail():
    gather, _ = gathering({"decode x1": 1.0, "prefill 64": 1.0})

    def few(kinds, budget_s, seed):
        found = gather(kinds, budget_s, seed)
        kept = [p for p in found.pairs if p.kind.step == "decode x1"] + list(found.pairs[-5:])
        return Gathered(tuple(kept), 1, MACHINE, MODEL, found.versions)

    comparison = compared(few)
    assert not comparison.failed
    assert "not decided for prefill 64" in comparison.markdown()
    assert comparison.as_dict()["steps"][1]["first"]["low"] is None


def test_the_document_is_strict_json_and_counts_disturbed_pairs():
    gather, _ = gathering({"decode x1": 1.2, "prefill 64": 1.0}, {"decode x1": 1.2})
    document = json.loads(json.dumps(compared(gather).as_dict(), allow_nan=False))
    assert document["failed"] is True
    assert document["steps"][0]["answer"] == "regression"
    assert document["steps"][0]["n"] == 20
    assert document["steps"][0]["num_disturbed"] == 1
    assert document["steps"][1]["second"] is None


@pytest.mark.parametrize(("budget_s", "sessions"), [(3, 1), (40, 1), (41, 2), (160, 4)])
def test_a_long_budget_is_split_into_sessions_of_fresh_processes(monkeypatch, budget_s, sessions):
    started, budgets = [], []

    @contextmanager
    def two_sides(roots, job, seed):
        started.append((seed, list(job.steps)))
        facts = {"machine": MACHINE, "model": MODEL, "library_version": "0.1.0"}
        worker = SimpleNamespace(facts=facts, time_s=None, cpu_s=lambda: 0.0)
        yield {"base": worker, "current": worker}

    def take_turns(asks, kinds, budget_s, seed, watch):
        budgets.append(budget_s)
        return [Pair(kinds[0], 1.0, 1.0, False)]

    monkeypatch.setattr(turns, "two_sides", two_sides)
    monkeypatch.setattr(turns, "take_turns", take_turns)
    job = Job({"decode x1": [(1, 512, 1)], "other": [(1, 1, 1)]})
    found = gather_sessions({}, job, [Kind("decode x1")], budget_s, "seed")
    assert found.sessions == len(found.pairs) == len(started) == sessions
    assert sum(budgets) == pytest.approx(budget_s)
    assert len({seed for seed, _ in started}) == sessions
    assert all(steps == ["decode x1"] for _, steps in started)


def test_a_folder_without_the_library_is_refused(tmp_path, root):
    with pytest.raises(ValueError, match="a checkout holds lib/prefill_decode"):
        compare_code(tmp_path, root)


@pytest.mark.parametrize(
    "wrong", [{"budget_s": 0}, {"budget_s": float("nan")}, {"tolerance": -1}, {"planted": -0.1}]
)
def test_a_setting_beyond_its_range_is_refused(root, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        compare_code(root, root, **wrong)
