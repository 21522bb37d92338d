"""The engine's law under a scheduler: whoever shares the steps, however a prompt is cut, whatever
was found in the cache or taken back, an answer is the one its request would get alone."""

import math
import random
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.sampling import Sampling, sample
from prefill_decode.engine.serving import ServingEngine, build_serving_engine
from prefill_decode.scheduling import POLICIES, QueueFull, SchedulerSettings
from tests.conftest import TINY


@cache
def weights():
    return engine(8, 16).weights


def engine(num_blocks: int, block_tokens: int, given=None) -> PagedEngine:
    room = num_blocks * block_tokens
    return PagedEngine(
        TINY,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        capacity_tokens=min(room, 200),
        weights=given,
    )


def serving(num_blocks: int, block_tokens: int, scheduler: SchedulerSettings) -> ServingEngine:
    return ServingEngine(engine(num_blocks, block_tokens, weights()), scheduler)


def alone(prompt: tuple[int, ...], tokens: int, sampling: Sampling, answer: int = 0) -> list[int]:
    """The answer by a loop that knows no scheduler: all tokens so far, one chunk, no cache."""
    lone = engine(1, 200, weights())
    ids = list(prompt)
    for position in range(tokens):
        logits = lone.forward([PlacedChunk(ids, 0, [0])])
        ids.append(sample(logits, [sampling], [position], [answer])[0].token_id)
    return ids[len(prompt) :]


def serve(serving: ServingEngine) -> dict[tuple[str, int], list[int]]:
    answers: dict[tuple[str, int], list[int]] = {}
    for _ in range(5000):
        if not serving.has_work:
            return answers
        for token in serving.step():
            answers.setdefault((token.request_id, token.answer), []).append(token.token_id)
    raise AssertionError("the requests do not end")


def settled(serving: ServingEngine) -> bool:
    state = serving.state()
    return state.free_blocks == state.num_blocks and not state.num_running + state.num_waiting


SAMPLINGS = st.sampled_from(
    [Sampling(), Sampling(1.0, seed=3), Sampling(0.7, top_p=0.8, seed=4), Sampling(2.0, seed=-5)]
)
REQUESTS = st.lists(
    st.tuples(st.integers(1, 24), st.integers(1, 9), SAMPLINGS, st.integers(1, 3), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    requests=REQUESTS,
    policy=st.sampled_from(POLICIES),
    block_tokens=st.sampled_from([1, 2, 3, 5, 16]),
    budget=st.integers(6, 40),
    spare_blocks=st.integers(0, 12),
    seed=st.integers(0, 99),
)
def test_an_answer_is_the_same_under_any_schedule_as_alone(
    requests, policy, block_tokens, budget, spare_blocks, seed
):
    dice = random.Random(seed)
    beginning = [dice.randrange(61) for _ in range(24)]  # shared by some: prefixes are reused
    asked = {}
    for index, (length, tokens, sampling, answers, shares) in enumerate(requests):
        own = [dice.randrange(61) for _ in range(length)]
        prompt = tuple((beginning + own)[:length] if shares else own)
        asked[str(index)] = (prompt, tokens, sampling, answers)
    longest = max(len(prompt) + tokens for prompt, tokens, _, _ in asked.values())
    num_blocks = -(-longest // block_tokens) + spare_blocks  # often too few for all at once
    budget = budget if policy == "chunked" else max(budget, longest)
    server = serving(num_blocks, block_tokens, SchedulerSettings(policy, budget, 6))
    for name, (prompt, tokens, sampling, answers) in asked.items():
        server.submit(name, prompt, tokens, sampling, answers=answers)
    expected = {
        (name, answer): alone(prompt, tokens, sampling, answer)
        for name, (prompt, tokens, sampling, answers) in asked.items()
        for answer in range(answers)
    }
    assert serve(server) == expected
    assert settled(server)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    dice = random.Random(seed)
    return tuple(dice.randrange(61) for _ in range(length))


def test_requests_that_preempt_one_another_get_their_answers_all_the_same():
    server = serving(6, 4, SchedulerSettings(most_tokens_per_step=16, most_sequences=4))
    for index in range(4):
        server.submit(str(index), prompt_of(6, index), 14)
    answers = serve(server)
    assert server.state().preemptions > 0
    for index in range(4):
        assert answers[str(index), 0] == alone(prompt_of(6, index), 14, Sampling())
    assert settled(server)


def test_a_prompt_that_was_read_before_is_found_in_the_cache_and_answered_alike():
    server = serving(20, 4, SchedulerSettings())
    server.submit("first", prompt_of(18), 5)
    first = serve(server)
    server.submit("second", prompt_of(18), 5)
    assert serve(server)["second", 0] == first["first", 0]
    assert server.state().reused_tokens == 16  # four whole blocks; the rest must run


def test_several_answers_read_their_prompt_once(monkeypatch):
    server = serving(20, 4, SchedulerSettings(most_tokens_per_step=64))
    server.submit("a", prompt_of(18), 6, Sampling(1.0, seed=1), answers=3)
    ran, plan = [], server.engine.plan
    monkeypatch.setattr(server.engine, "plan", lambda chunks: ran.extend(chunks) or plan(chunks))
    server.step()
    assert [len(chunk.token_ids) for chunk in ran] == [18]
    answers = serve(server)
    assert len({tuple(answers["a", answer]) for answer in range(3)}) == 3
    assert settled(server)


def test_whoever_is_cancelled_frees_its_blocks_and_changes_nobody_else():
    for policy in POLICIES:
        server = serving(30, 4, SchedulerSettings(policy, 64, 6))
        for index in range(5):
            answers = 3 if index == 1 else 1
            server.submit(str(index), prompt_of(10, index), 12, answers=answers)
        server.cancel("4")  # while it waits
        answers = {}
        for step in range(200):
            if step == 3:
                server.cancel("0")
                server.cancel("1", 1)
                server.cancel("nobody")
            for token in server.step():
                answers.setdefault((token.request_id, token.answer), []).append(token.token_id)
            if not server.has_work:
                break
        for index, answer in [(1, 0), (1, 2), (2, 0), (3, 0)]:
            expected = alone(prompt_of(10, index), 12, Sampling(), answer)
            assert answers[str(index), answer] == expected
        assert ("4", 0) not in answers
        assert len(answers.get(("0", 0), [])) < 12
        assert settled(server)


def test_a_stop_token_ends_its_answer_and_is_the_last():
    ids = alone(prompt_of(8), 12, Sampling())
    stop = ids[5]
    server = serving(20, 4, SchedulerSettings())
    server.submit("a", prompt_of(8), 12, stop_ids=frozenset({stop}))
    told = []
    while server.has_work:
        told += server.step()
    assert [token.token_id for token in told] == ids[: ids.index(stop) + 1]
    assert [token.finish_reason for token in told][-1] == "stop"
    assert not any(token.finish_reason for token in told[:-1])
    server.submit("b", prompt_of(8), 3)
    while server.has_work:
        told = server.step()
    assert told[-1].finish_reason == "length"


def test_logprobs_come_with_every_token_that_asked_for_them():
    server = serving(20, 4, SchedulerSettings())
    server.submit("with", prompt_of(8), 3, Sampling(top_logprobs=2))
    server.submit("without", prompt_of(8), 3)
    told = []
    while server.has_work:
        told += server.step()
    for token in told:
        assert (token.logprob is not None) == (token.request_id == "with")
        if token.request_id == "with":
            assert token.top_logprobs[0] == (token.token_id, token.logprob)  # greedy


def test_a_sequence_computed_elsewhere_goes_on_from_there():
    source = engine(4, 8, weights())
    prompt = prompt_of(20)
    source.forward([PlacedChunk(list(prompt[:-1]), 0, [0, 1, 2])])
    server = serving(10, 8, SchedulerSettings())
    blocks = server.accept("a", prompt, 6, cached_tokens=19)
    for layer in range(TINY.num_layers):
        for mine, theirs in zip(blocks, [0, 1, 2], strict=True):
            server.engine.cache.keys[layer][mine] = source.cache.keys[layer][theirs]
            server.engine.cache.values[layer][mine] = source.cache.values[layer][theirs]
    assert serve(server)["a", 0] == alone(prompt, 6, Sampling())


def test_the_counts_are_those_of_what_ran():
    server = serving(20, 4, SchedulerSettings(most_tokens_per_step=64))
    server.submit("a", prompt_of(10), 4, answers=2)
    server.submit("b", prompt_of(7, 1), 1)
    serve(server)
    state = server.state()
    assert (state.prompt_tokens, state.sampled_tokens, state.steps) == (17, 9, 4)
    assert server.step() == []


def test_what_cannot_be_served_is_refused_and_leaves_nothing_behind():
    server = serving(4, 4, SchedulerSettings(most_waiting=1))
    for prompt, tokens, words in [
        ((), 1, "at least one token"),
        ((61,), 1, "from 0 to 60"),
        ((True,), 1, "whole numbers"),
        ((1,), 0, "at least one token of"),
        ((1,) * 10, 8, "16 tokens in the cache"),
    ]:
        with pytest.raises(ValueError, match=words):
            server.submit("a", prompt, tokens)
    server.submit("a", (1,), 1)
    with pytest.raises(ValueError, match="'a' is in use"):
        server.submit("a", (1,), 1)
    with pytest.raises(QueueFull, match="no more than 1 may"):
        server.submit("b", (1,), 1)
    serve(server)
    server.submit("a", (1,) * 9, 8)  # exactly as long as the cache
    assert len(serve(server)["a", 0]) == 8
    assert settled(server)


def test_a_serving_engine_is_built_with_room_in_whole_blocks():
    built = build_serving_engine(TINY, cache_tokens=100, block_tokens=16)
    assert built.state().num_blocks == 6
    assert built.capacity_tokens == 96
    short = build_serving_engine(TINY, cache_tokens=100, block_tokens=16, capacity_tokens=40)
    assert short.capacity_tokens == 40
    with pytest.raises(ValueError, match="one block of 16"):
        build_serving_engine(replace(TINY), cache_tokens=10, block_tokens=16)


def spoilt(num_blocks: int, block_tokens: int, settings: SchedulerSettings) -> ServingEngine:
    """Weights in which token 7 is no number, as a file that was damaged may have it."""
    found = ServingEngine(engine(num_blocks, block_tokens), settings)
    found.engine.weights.embedding[7] = math.nan
    return found


def without(token: int, prompt: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(0 if each == token else each for each in prompt)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("block_tokens", [3, 16])
def test_answers_whose_logits_are_no_numbers_fail_alone(policy, block_tokens, kernels_or_not):
    """Good and bad requests of all lengths in turns, through blocks that few others are left."""
    server = spoilt(150 // block_tokens, block_tokens, SchedulerSettings(policy, 64, 6))
    prompts = {str(i): without(7, prompt_of(3 + 5 * i, i)) for i in range(8)}
    bad = {f"bad {i}": (*prompt_of(4 * i, 90 + i), 7, *prompt_of(i, i)) for i in range(8)}
    for (good, prompt), (name, spoils) in zip(prompts.items(), bad.items(), strict=True):
        server.submit(name, spoils, 6, answers=2)
        server.submit(good, prompt, 6)
    told = [each for _ in range(200) for each in server.step()]
    failed = [(each.request_id, each.answer) for each in told if isinstance(each, FailedAnswer)]
    assert sorted(failed) == [(name, answer) for name in bad for answer in (0, 1)]
    answers: dict[str, list[int]] = {}
    for each in told:
        if isinstance(each, SampledToken):
            answers.setdefault(each.request_id, []).append(each.token_id)
    assert all(7 not in answer for answer in answers.values()), "another seed, or it is spoilt too"
    assert answers == {name: alone(prompt, 6, Sampling()) for name, prompt in prompts.items()}
    assert settled(server)
    assert server.state().sampled_tokens == 6 * 8
    assert not any(bool(kept.isnan().any()) for kept in server.engine.cache.values)


def test_what_a_failed_answer_computed_is_not_found_again():
    server = spoilt(20, 4, SchedulerSettings())
    good = without(7, prompt_of(12))
    for name, prompt in [("first", (*good, 7, 1)), ("second", (*good, 1)), ("third", (*good, 2))]:
        server.submit(name, prompt, 1)
        (told,) = server.step()
        assert isinstance(told, FailedAnswer) == (name == "first")
    assert server.state().reused_tokens == 12  # by the third of what the second computed
