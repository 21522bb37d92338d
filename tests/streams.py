"""Streamed answers written by hand: chunks as OpenAI-compatible servers send them."""

import json

from prefill_decode.event_stream import StreamReader


def chat(content=None, finish=None, usage=None, index=0, **delta):
    """A chunk of a chat; `usage` is the number of output tokens so far, of 9 prompt tokens."""
    if content is not None:
        delta["content"] = content
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {"object": "chat.completion.chunk", "choices": [choice]} | used(usage)


def completion(text, finish=None, usage=None):
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return {"object": "text_completion", "choices": [choice]} | used(usage)


def used(tokens):
    if tokens is None:
        return {}
    usage = {"prompt_tokens": 9, "completion_tokens": tokens, "total_tokens": 9 + tokens}
    return {"usage": usage}


def total(tokens):
    return {"object": "chat.completion.chunk", "choices": []} | used(tokens)


def read_stream(events, max_tokens=None):
    """The result of (t_s, data) pairs in order."""
    reader = StreamReader(max_tokens)
    for t_s, data in events:
        reader.take(t_s, data)
    return reader.finish()


def sse(data):
    """An event as bytes."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    return f"data: {text}\n\n".encode()
