"""The server as OpenAI's own client sees it."""

import asyncio
import json

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
    server.assert_idle()


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
