"""Who runs next, which pairs count, and what they say: with a clock and sides of our own."""

import random

import pytest

from prefill_decode.change import Change
from prefill_decode.paired.pairs import (
    LEAST_PAIRS,
    Kind,
    Pair,
    confirm,
    judge_kind,
    next_kind,
    take_turns,
    that_count,
)

SHORT, LONG = Kind("decode x1"), Kind("prefill 64")
STEP_S = {"decode x1": 0.01, "prefill 64": 0.08}


class World:
    """Two sides whose steps take a known time on a clock that only they move."""

    def __init__(self, slower: float = 1.0) -> None:
        self.now_s, self.slower = 0.0, slower
        self.asked: list[tuple[str, str, float]] = []
        self.sides = {"base": self._side("base", 1.0), "current": self._side("current", slower)}

    def _side(self, name, factor):
        def ask(step, planted):
            self.asked.append((name, step, planted))
            time_s = STEP_S[step] * factor * (1 + planted)
            self.now_s += time_s
            return time_s

        return ask

    def run(self, kinds, budget_s, watch=lambda: lambda: False, seed="seed"):
        return take_turns(self.sides, kinds, budget_s, seed, watch=watch, clock=lambda: self.now_s)


def test_each_kind_gets_an_equal_share_of_the_budget_and_a_short_step_many_pairs():
    pairs = World().run([SHORT, LONG], 16.0)
    spent_s = {
        kind: sum(p.base_s + p.current_s for p in pairs if p.kind == kind) for kind in (SHORT, LONG)
    }
    assert spent_s[SHORT] == pytest.approx(8.0, abs=0.2)
    assert spent_s[LONG] == pytest.approx(8.0, abs=0.2)
    assert sum(pair.kind == SHORT for pair in pairs) == pytest.approx(400, abs=8)


def test_every_turn_asks_both_sides_about_one_step_in_either_order():
    world = World()
    world.run([SHORT], 2.0)
    turns = list(zip(world.asked[::2], world.asked[1::2], strict=True))
    assert all({first[0], second[0]} == {"base", "current"} for first, second in turns)
    first_asked = [first[0] for first, _ in turns]
    assert 0.3 < first_asked.count("base") / len(turns) < 0.7


def test_times_land_on_the_side_that_took_them_and_only_the_current_side_is_slowed():
    pairs = World(slower=1.5).run([Kind("decode x1", 0.1)], 1.0)
    assert all(p.base_s == pytest.approx(0.01) for p in pairs)
    assert all(p.current_s == pytest.approx(0.01 * 1.5 * 1.1) for p in pairs)


def test_the_least_of_pairs_are_run_even_when_they_outlast_the_budget():
    pairs = World().run([SHORT, LONG], 0.001)
    assert [sum(p.kind == kind for p in pairs) for kind in (SHORT, LONG)] == [LEAST_PAIRS] * 2


def test_past_the_budget_nothing_more_is_run_once_all_have_enough():
    held = [Pair(SHORT, 1.0, 1.0, False)] * LEAST_PAIRS
    assert next_kind(held, {SHORT: 1.0}, False, random.Random(0)) is None
    assert next_kind(held, {SHORT: 1.0, LONG: 9.0}, False, random.Random(0)) == LONG
    assert next_kind(held, {SHORT: 1.0, LONG: 9.0}, True, random.Random(0)) == SHORT


def test_the_same_seed_takes_the_same_turns():
    worlds = [World(), World(), World()]
    for world, seed in zip(worlds, ("a", "a", "b"), strict=True):
        world.run([SHORT, LONG], 2.0, seed=seed)
    assert worlds[0].asked == worlds[1].asked != worlds[2].asked


def test_a_disturbed_pair_is_marked_kept_and_left_out():
    rounds = iter(range(10**6))
    pairs = World().run([SHORT], 2.0, watch=lambda: lambda: next(rounds) % 4 == 0)
    assert [pair.disturbed for pair in pairs[:5]] == [True, False, False, False, True]
    assert that_count(pairs) == [pair for pair in pairs if not pair.disturbed]


def test_all_pairs_count_when_too_few_were_quiet():
    pairs = [Pair(SHORT, 1.0, 1.0, disturbed=i >= LEAST_PAIRS - 1) for i in range(30)]
    assert that_count(pairs) == pairs
    assert len(that_count([*pairs, Pair(SHORT, 1.0, 1.0, False)])) == LEAST_PAIRS


def test_each_kind_is_judged_by_its_own_pairs_alone():
    slow = [Pair(LONG, 1.0, 1.3 + 0.001 * i, False) for i in range(20)]
    same = [Pair(SHORT, 1.0, 1.0 + 0.001 * (i % 3 - 1), False) for i in range(20)]
    fast = [Pair(Kind("decode x1", 0.1), 1.3 + 0.001 * i, 1.0, False) for i in range(20)]
    pairs = slow + same + fast
    assert judge_kind(pairs, LONG, 0.10).answer == "regression"
    assert judge_kind(pairs, SHORT, 0.10).answer == "ok"
    assert judge_kind(pairs, Kind("decode x1", 0.1), 0.10).answer == "improvement"


def test_disturbed_pairs_do_not_decide():
    pairs = [Pair(SHORT, 1.0, 1.0, False)] * 10 + [Pair(SHORT, 1.0, 2.0, True)] * 30
    assert judge_kind(pairs, SHORT, 0.10).answer == "ok"


@pytest.mark.parametrize("second", ["regression", "ok", "inconclusive", "improvement"])
def test_the_second_measuring_decides_and_the_reason_names_both(second):
    answer, reason = confirm(
        Change("regression", "slow at first", 1.2, 1.1, 1.3),
        Change(second, "looked at again", 1.0, 0.9, 1.1),
    )
    assert answer == second
    assert "slow at first" in reason
    assert "looked at again" in reason
    assert ("it does not stand" in reason) == (second != "regression")


def test_without_a_suspicion_the_first_answer_stands():
    assert confirm(Change("ok", "fine", 1.0, 0.9, 1.05), None) == ("ok", "fine")
