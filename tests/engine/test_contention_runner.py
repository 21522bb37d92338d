import pytest

from prefill_decode.engine import Arrival, ContentionRunner
from prefill_decode.engine.contention_runner import QUIET_STEPS
from prefill_decode.serving_metrics import gaps_s
from prefill_decode.step import Chunk

ARRIVALS = {"nobody": None, "whole": Arrival(20), "pieces of 8": Arrival(20, 8)}


@pytest.fixture
def runner(tiny_model) -> ContentionRunner:
    return ContentionRunner(tiny_model, ARRIVALS, streams=3, context_tokens=5, seed=1)


def test_the_schedule_is_known_before_anything_runs(runner):
    decodes = [Chunk(1, 4)] * 3
    assert runner.schedules["whole"] == [[*decodes, Chunk(20)]]
    assert runner.schedules["pieces of 8"] == [
        [*decodes, Chunk(8, 0, False)],
        [*[Chunk(1, 5)] * 3, Chunk(8, 8, False)],
        [*[Chunk(1, 6)] * 3, Chunk(4, 16)],
    ]
    assert len(runner.schedules["nobody"]) == QUIET_STEPS


def test_the_heaviest_step_is_the_one_that_does_most(runner):
    assert runner.heaviest["pieces of 8: worst gap"][-1] == Chunk(8, 8, False)
    assert runner.heaviest["nobody: worst gap"] == [Chunk(1, 4 + QUIET_STEPS - 1)] * 3


def test_an_episode_can_be_run_again_and_notes_its_gaps_every_time(runner):
    for _ in range(3):
        runner.steps["pieces of 8"]()
    noted = runner.noted_s
    assert [len(times) for times in noted.values()] == [3, 3, 3]
    pairs = zip(noted["pieces of 8: median gap"], noted["pieces of 8: worst gap"], strict=True)
    assert all(0 < middle <= worst for middle, worst in pairs)


def test_the_engine_runs_the_schedule_that_was_announced(tiny_model, monkeypatch):
    runner = ContentionRunner(tiny_model, ARRIVALS, streams=3, context_tokens=5, seed=1)
    ran = []
    plan = runner.engine.plan
    monkeypatch.setattr(runner.engine, "plan", lambda chunks: ran.append(chunks) or plan(chunks))
    for name, schedule in runner.schedules.items():
        ran.clear()
        runner.steps[name]()
        found = [
            [Chunk(len(c.token_ids), c.cached_tokens, c.samples_token) for c in step]
            for step in ran
        ]
        assert found == schedule, name


def test_a_timeline_tells_what_streams_and_prompt_lived_through(runner):
    *streams, prompt = runner.timeline("pieces of 8")
    assert len(streams) == 3
    steps = 2 * QUIET_STEPS + 3
    assert all(len(gaps_s(stream)) == steps - 1 for stream in streams)
    assert prompt.request.prompt_tokens == 20
    assert prompt.request.arrival_s == pytest.approx(streams[0].event_times_s[QUIET_STEPS - 1], 0.5)
    assert prompt.event_times_s == (streams[0].event_times_s[QUIET_STEPS + 2],)


def test_the_prompt_of_a_timeline_is_read_whole_whatever_the_streams_left(tiny_model, monkeypatch):
    """Its ids begin as the streams' context does: nothing of it may be found in their blocks."""
    runner = ContentionRunner(tiny_model, {"whole": Arrival(128)}, streams=2, context_tokens=70)
    ran = []
    plan = runner.engine.plan
    monkeypatch.setattr(runner.engine, "plan", lambda chunks: ran.append(chunks) or plan(chunks))
    runner.timeline("whole")
    assert max(len(chunk.token_ids) for step in ran for chunk in step) == 128


def test_nothing_to_run_is_refused(tiny_model):
    for arrivals, streams, context in [({}, 1, 1), (ARRIVALS, 0, 1), (ARRIVALS, 1, 0)]:
        with pytest.raises(ValueError, match="nothing to run"):
            ContentionRunner(tiny_model, arrivals, streams=streams, context_tokens=context)
    for sizes in [(0,), (5, 0)]:
        with pytest.raises(ValueError, match="at least one token"):
            Arrival(*sizes)
