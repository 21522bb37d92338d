"""A request of millions of wrong parts is refused at the first: no error is made for each."""

import threading

import pytest
from pydantic import ValidationError

from prefill_decode.endpoint.protocol import ChatRequest, CompletionRequest
from tests.endpoint.conftest import MODEL

MANY = 10_000
FEW = 20  # a field has some kinds of value, and an error of each may be told


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (CompletionRequest, {"prompt": [{}] * MANY}),
        (CompletionRequest, {"prompt": [5] * MANY + ["x"]}),
        (CompletionRequest, {"prompt": ["x"] * 100 + [5] * MANY}),
        (CompletionRequest, {"prompt": [[{}] * MANY]}),
        (CompletionRequest, {"prompt": [[5]] * MANY}),
        (CompletionRequest, {"prompt": "x", "stop": [{}] * MANY}),
        (ChatRequest, {"messages": [{}] * MANY}),
        (ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
    ],
)
def test_a_list_is_read_up_to_its_first_wrong_entry(kind, change):
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": MODEL, **change})
    assert caught.value.error_count() < FEW


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("/v1/completions", {"prompt": ["x" * 300] * 100}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 1000}),
    ],
)
def test_many_small_texts_are_read_aside_as_one_large_text_is(serve, path, change):
    server = serve()
    seen = []
    for name in ("encode", "chat"):
        make = getattr(server.tokenizer, name)

        def watched(given, make=make):
            seen.append(threading.current_thread())
            return make(given)

        setattr(server.tokenizer, name, watched)
    server.post(path, **change, max_tokens=1)
    assert seen
    assert server.thread not in seen
