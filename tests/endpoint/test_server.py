"""The server as OpenAI's own client sees it."""

import asyncio

import openai
import pytest

from tests.endpoint.conftest import MODEL
from tests.endpoint.fake_engine import FakeEngine

SAY = [{"role": "user", "content": "say"}]


@pytest.fixture
def server(serve):
    return serve()


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_completion_is_the_text_that_the_engine_writes(client, server):
    reply = client.completions.create(model=MODEL, prompt="xyz", max_tokens=12)
    (choice,) = reply.choices
    assert (choice.text, choice.finish_reason) == ("abcdefghijab", "length")
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (3, 12)
    assert reply.usage.total_tokens == 15
    assert reply.object == "text_completion"
    server.assert_idle()
    assert server.outcomes("completed") == 1


def test_a_completion_has_16_tokens_and_a_chat_what_the_cache_leaves(client, server):
    assert client.completions.create(model=MODEL, prompt="xyz").usage.completion_tokens == 16
    reply = client.chat.completions.create(model=MODEL, messages=SAY)
    assert reply.usage.total_tokens == server.engine.capacity_tokens


def test_a_chat_streams_its_role_then_a_token_an_event_then_its_end_then_usage(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=SAY, max_tokens=4, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    first, *tokens, end, usage = chunks
    assert first.choices[0].delta.role == "assistant"
    assert [chunk.choices[0].delta.content for chunk in tokens] == list("abcd")
    assert end.choices[0].finish_reason == "length"
    assert not end.choices[0].delta.content
    assert usage.choices == []
    assert usage.usage.completion_tokens == 4
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_a_completion_streams_its_tokens_and_then_its_end(client):
    *tokens, end = client.completions.create(model=MODEL, prompt="x", max_tokens=3, stream=True)
    assert [chunk.choices[0].text for chunk in tokens] == list("abc")
    assert (end.choices[0].text, end.choices[0].finish_reason) == ("", "length")


def test_a_step_that_brings_several_tokens_becomes_several_events(serve):
    server = serve(FakeEngine(tokens_per_step=3))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stream = client.completions.create(model=MODEL, prompt="x", max_tokens=6, stream=True)
        assert [chunk.choices[0].text for chunk in stream] == [*"abcdef", ""]


def test_usage_within_a_stream_counts_what_has_been_sent(client):
    stream = client.completions.create(
        model=MODEL,
        prompt="xy",
        max_tokens=3,
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    )
    assert [chunk.usage.completion_tokens for chunk in stream] == [1, 2, 3, 3, 3]


def test_several_answers_and_several_prompts_are_numbered_as_openai_does(client, server):
    reply = client.completions.create(model=MODEL, prompt=["ab", "c"], n=2, max_tokens=2)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    assert reply.usage.prompt_tokens == 3
    assert reply.usage.completion_tokens == 8
    assert [entry[1] for entry in server.engine.submitted] == [[97, 98], [99]]
    assert [entry[5] for entry in server.engine.submitted] == [2, 2]


def test_streamed_answers_are_told_apart_by_their_index(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=SAY, n=3, max_tokens=2, stream=True
    )
    texts = {0: "", 1: "", 2: ""}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == {0: "ab", 1: "ab", 2: "ab"}


def test_token_ids_go_to_the_engine_as_they_came(client, server):
    client.completions.create(model=MODEL, prompt=[5, 6, 300], max_tokens=1)
    client.completions.create(model=MODEL, prompt=[[7], [8, 9]], max_tokens=1)
    assert [entry[1] for entry in server.engine.submitted] == [[5, 6, 300], [7], [8, 9]]


def test_text_parts_of_a_message_are_joined(client, server):
    parts = [{"type": "text", "text": "sa"}, {"type": "text", "text": "y"}]
    for content in ("say", parts):
        messages = [{"role": "user", "content": content}]
        client.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
    first, second = server.engine.submitted
    assert first[1] == second[1]


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_exactly_before_a_stop_string_across_the_borders_of_tokens(serve, stream):
    server = serve(FakeEngine(capacity_tokens=100_000))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        reply = client.completions.create(
            model=MODEL, prompt="x", stop=["efg", "never"], max_tokens=90_000, stream=stream
        )
        chunks = list(reply) if stream else [reply]
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abcd"
    assert chunks[-1].choices[0].finish_reason == "stop"
    if not stream:
        assert reply.usage.completion_tokens == 7
    server.assert_idle()
    assert server.engine.sampled < 90_000  # it was cancelled


def test_one_answer_may_stop_while_the_others_go_on(serve):
    server = serve(FakeEngine("abc", capacity_tokens=1000))
    server.engine.text = b"abc"
    reply = server.post("/v1/completions", prompt="x", n=2, stop="c", max_tokens=50).json()
    assert [choice["text"] for choice in reply["choices"]] == ["ab", "ab"]
    server.assert_idle()


def test_the_models_own_end_ends_an_answer_and_has_no_text(serve):
    server = serve(FakeEngine("ab\n"))
    server.tokenizer.stop_ids = frozenset({10})
    reply = server.post("/v1/completions", prompt="x", max_tokens=50).json()
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab", "stop")
    assert reply["usage"]["completion_tokens"] == 3
    reply = server.post("/v1/completions", prompt="x", max_tokens=4, ignore_eos=True).json()
    (choice,) = reply["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("ab\na", "length")


def test_a_character_of_several_tokens_is_one_event_and_counts_all_of_them(serve):
    server = serve(FakeEngine("a€b"))
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        *tokens, end, _ = client.completions.create(
            model=MODEL,
            prompt="x",
            max_tokens=7,
            stream=True,
            stream_options={"include_usage": True, "continuous_usage_stats": True},
        )
    assert [chunk.choices[0].text for chunk in tokens] == [
        "a",
        "€",
        "b",
        "a",
        "\N{REPLACEMENT CHARACTER}",
    ]
    assert [chunk.usage.completion_tokens for chunk in tokens] == [1, 4, 5, 6, 7]
    assert end.usage.completion_tokens == 7


def test_logprobs_of_a_completion_name_tokens_and_where_they_begin(client):
    reply = client.completions.create(model=MODEL, prompt="x", max_tokens=3, logprobs=2)
    logprobs = reply.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.token_logprobs == [-1.0] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs[0] == {"a": -1.0, "b": -2.0}
    assert client.completions.create(model=MODEL, prompt="x").choices[0].logprobs is None


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_chat_come_with_the_text_they_belong_to(client, stream):
    reply = client.chat.completions.create(
        model=MODEL, messages=SAY, max_tokens=2, logprobs=True, top_logprobs=1, stream=stream
    )
    chunks = list(reply)[1:-1] if stream else [reply]
    entries = [entry for chunk in chunks for entry in chunk.choices[0].logprobs.content]
    assert [entry.token for entry in entries] == ["a", "b"]
    assert entries[0].bytes == [97]
    assert [(top.token, top.logprob) for top in entries[0].top_logprobs] == [("a", -1.0)]


def test_a_seed_is_kept_and_one_not_given_is_drawn_anew_for_each_prompt(client, server):
    for _ in range(2):
        client.completions.create(model=MODEL, prompt="x", max_tokens=1, seed=-7)
    client.completions.create(model=MODEL, prompt=["x", "x"], max_tokens=1)
    given, again, drawn, other = (entry[3].seed for entry in server.engine.submitted)
    assert given == again == -7
    assert len({given, drawn, other}) == 3


def test_settings_reach_the_engine_with_openais_defaults(client, server):
    client.completions.create(model=MODEL, prompt="x", max_tokens=1)
    client.completions.create(model=MODEL, prompt="x", max_tokens=1, temperature=0, top_p=0.5)
    default, greedy = (entry[3] for entry in server.engine.submitted)
    assert (default.temperature, default.top_p, default.top_logprobs) == (1.0, 1.0, None)
    assert (greedy.temperature, greedy.top_p) == (0, 0.5)


def test_the_model_is_listed_and_another_is_not_found(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError, match="the model served here is tiny"):
        client.models.retrieve("gpt-4o")
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-4o", prompt="x")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_many_streams_at_once_each_get_their_own_text(serve):
    server = serve(FakeEngine(most_waiting=1000))

    async def one(client, number):
        stream = await client.chat.completions.create(
            model=MODEL, messages=SAY, max_tokens=number, stream=True
        )
        return "".join([c.choices[0].delta.content or "" async for c in stream])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, number) for number in range(1, 41)))

    for number, text in enumerate(asyncio.run(all_of_them()), start=1):
        assert text == ("abcdefghij" * 4)[:number]
    server.assert_idle()


def test_one_thread_alone_calls_the_engine(client, server):
    for _ in range(3):
        client.completions.create(model=MODEL, prompt="x", max_tokens=2)
    assert len(server.engine.threads) == 1


def test_metrics_count_tokens_requests_and_times(client, server):
    client.completions.create(model=MODEL, prompt="x", max_tokens=5)
    server.assert_idle()
    assert server.outcomes("completed") == 1
    assert server.metric("prefill_decode_output_tokens_total") == 5
    assert server.metric("prefill_decode_steps_total") == 5
    assert server.metric("prefill_decode_ttft_seconds_count") == 1
    assert server.metric("prefill_decode_itl_seconds_count") == 4
    assert server.metric("prefill_decode_step_seconds_count") == 5


def test_two_servers_in_one_process_count_apart(serve):
    first, second = serve(), serve()
    first.post("/v1/completions", prompt="x")
    first.assert_idle()
    assert (first.outcomes("completed"), second.outcomes("completed")) == (1, 0)
