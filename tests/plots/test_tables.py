from math import nan

from prefill_decode import plots
from prefill_decode.claim import Claim, Prediction
from prefill_decode.hardware import Hardware
from prefill_decode.plots.tables import format_interval, format_interval_s, table
from prefill_decode.roofline import StepWork, Work, step_work
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk


def test_a_table_is_markdown_with_numbers_to_the_right():
    assert table(("a", "b"), [("x", "1")]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_intervals_are_shown_with_one_unit_and_say_when_there_is_none():
    assert format_interval_s(Interval(0.0418, 0.041, 0.0429, 9)) == "41.8 [41.0, 42.9] ms"
    assert format_interval(Interval(1.79, 1.75, 1.84, 9)) == "1.79 [1.75, 1.84]"
    assert format_interval(Interval(1.79, nan, nan, 3)) == "1.79 [too few]"


def test_times_stand_beside_the_share_of_the_possible_with_the_timers_words(timings, ceilings):
    works = {"decode x1": StepWork(Work(1.0, 1e8), Work(1.0, 1e8))}  # 10 ms at 2e10 bytes/s
    shown = plots.times_table(timings, works, ceilings).markdown
    assert "| decode x1 | 10.5 [10.1, 10.8] ms | 96% | 10 |" in shown
    assert "| read | 5.00 [5.00, 5.00] ms |  | 10 |" in shown
    assert "10 rounds in 1 s, until the time budget ended." in shown


def test_the_verdict_comes_first_and_every_prediction_with_its_interval():
    claim = Claim("it holds", [Prediction("ratio", 1.0, rival=8.0)], [Prediction("c", 8.0, 1.0)])
    measured = {"ratio": Interval(7.0, 6.5, 7.5, 12), "c": Interval(7.0, 6.5, 7.5, 12)}
    shown = plots.verdict_table(claim.statement, claim.judge(measured)).markdown
    assert shown.startswith(
        "**✗ refuted.** “it holds”: ratio: the whole interval lies on the rival"
    )
    assert "| ratio | ✗ refuted | 7.00 [6.50, 7.50] | 1.00 | 2.83 | 8.00 | 12 |" in shown
    assert "| control: c | ✓ supported | 7.00 [6.50, 7.50] | 8.00 | 2.83 | 1.00 | 12 |" in shown


def test_the_work_table_shows_both_sides_of_the_bound(tiny_model):
    hardware = Hardware("h", "float64", 1e9, 1e9, "made up")
    works = {"one": step_work(tiny_model, [Chunk(1)]), "many": step_work(tiny_model, [Chunk(64)])}
    shown = plots.work_table(works, hardware)
    assert "memory" in shown.markdown.splitlines()[2]
    assert "arithmetic" in shown.markdown.splitlines()[3]
    assert (shown + shown).markdown.count("| many |") == 2


def test_the_setting_says_when_the_cache_is_unknown(tiny_model, machine):
    unknown = type(machine)(**{**machine.__dict__, "last_level_cache_bytes": None})
    assert "33.6 MB" in plots.setting_table(tiny_model, machine).markdown
    assert "not reported" in plots.setting_table(tiny_model, unknown).markdown
