import pytest

from prefill_decode.batching import Line
from prefill_decode.engine import LineRunner
from prefill_decode.step import Chunk

LENGTHS = (1, 3, 2, 2, 4)
LINES = {name: Line(name, LENGTHS, 2, 5) for name in ("static", "continuous")}


def test_a_timed_line_runs_the_schedule_that_was_announced(tiny_model, monkeypatch):
    runner = LineRunner(tiny_model, LINES, seed=0)
    ran = []
    plan = runner.engine.plan
    monkeypatch.setattr(runner.engine, "plan", lambda chunks: ran.append(chunks) or plan(chunks))
    for name, line in LINES.items():
        for _ in range(2):  # it can be run again
            ran.clear()
            assert runner.steps[name]() == len(runner.schedules[name])
            found = [
                [Chunk(len(c.token_ids), c.cached_tokens, c.samples_token) for c in step]
                for step in ran
            ]
            assert found == runner.schedules[name] == line.schedule()


def test_no_lines_are_refused(tiny_model):
    with pytest.raises(ValueError, match="nothing to run"):
        LineRunner(tiny_model, {})
