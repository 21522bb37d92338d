"""The server on the real engine: the answers are those that the engine gives alone, and whatever
happens to requests, every block comes back."""

import json
import math
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import openai
import pytest

from prefill_decode.endpoint.tokenizer import ByteTokenizer
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.sampling import Sampling, sample
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.scheduling import POLICIES, SchedulerSettings
from tests.conftest import TINY
from tests.endpoint.conftest import MODEL
from tests.endpoint.raw_http import connect, request

SHAPE = replace(TINY, vocab_size=300)  # room for the ids of bytes
BLOCKS, BLOCK_TOKENS = 24, 8


def engine(num_blocks=BLOCKS, block_tokens=BLOCK_TOKENS, weights=None):
    room = num_blocks * block_tokens
    return PagedEngine(
        SHAPE,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        capacity_tokens=room,
        weights=weights,
    )


@cache
def weights():
    return engine().weights


def alone(prompt, tokens, sampling, answer=0):
    """The ids of an answer by a loop that knows no scheduler, no cache and no server."""
    lone = engine(1, 200, weights())
    ids = list(prompt)
    for position in range(tokens):
        logits = lone.forward([PlacedChunk(ids, 0, [0])])
        ids.append(sample(logits, [sampling], [position], [answer])[0].token_id)
    return ids[len(prompt) :]


@pytest.fixture
def server(serve):
    scheduling = SchedulerSettings(most_tokens_per_step=16, most_sequences=4, most_waiting=40)
    serving = ServingEngine(engine(weights=weights()), scheduling)
    server = serve(serving, tokenizer=ByteTokenizer(SHAPE.vocab_size))
    yield server
    server.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("settings", [{"temperature": 0}, {"seed": 5, "top_p": 0.9}])
def test_an_answer_is_what_the_engine_gives_alone(server, settings, stream):
    prompt = "Once upon a time"
    drawn = Sampling(settings.get("temperature", 1.0), settings.get("top_p", 1.0), seed=5)
    ids = alone(prompt.encode(), 20, drawn)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        reply = client.completions.create(
            model=MODEL,
            prompt=prompt,
            max_tokens=20,
            stream=stream,
            extra_body={"ignore_eos": True},
            **settings,
        )
        chunks = list(reply) if stream else [reply]
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == ByteTokenizer(SHAPE.vocab_size).decode(ids)


def test_many_at_once_each_get_the_answer_they_would_get_alone(server):
    dice = random.Random(3)
    prompts = [bytes(dice.randrange(97, 123) for _ in range(dice.randrange(1, 40))).decode()
               for _ in range(12)]  # fmt: skip
    body = {"temperature": 0, "max_tokens": 12, "n": 2, "ignore_eos": True}
    reply = server.post("/v1/completions", prompt=prompts, **body).json()
    words = ByteTokenizer(SHAPE.vocab_size)
    wanted = [words.decode(alone(prompt.encode(), 12, Sampling())) for prompt in prompts]
    assert [c["text"] for c in reply["choices"]] == [text for text in wanted for _ in range(2)]
    assert server.metric("prefill_decode_preemptions_total") >= 0


def test_answers_to_one_prompt_with_one_seed_differ_and_can_be_had_again(server):
    body = {"prompt": "Once", "seed": 1, "n": 3, "max_tokens": 8}
    first, again = (server.post("/v1/completions", **body).json()["choices"] for _ in range(2))
    assert first == again
    assert len({choice["text"] for choice in first}) == 3


def test_a_prompt_that_is_sent_again_is_found_in_the_cache(server):
    for _ in range(2):
        server.post("/v1/completions", prompt="x" * 40, max_tokens=2)
    assert server.metric("prefill_decode_reused_tokens_total") == 32  # whole blocks but the last


def test_logprobs_are_those_of_the_engine(server):
    reply = server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        temperature=0,
        max_tokens=3,
        logprobs=True,
        top_logprobs=2,
        ignore_eos=True,
    ).json()
    prompt = ByteTokenizer(SHAPE.vocab_size).chat([{"role": "user", "content": "hi"}])
    logits = engine(1, 200, weights()).forward([PlacedChunk(prompt, 0, [0])])
    (best,) = sample(logits, [Sampling(top_logprobs=2)], [0])
    entry = reply["choices"][0]["logprobs"]["content"][0]
    assert entry["logprob"] == pytest.approx(best.logprob)
    assert [top["logprob"] for top in entry["top_logprobs"]] == pytest.approx(
        [logprob for _, logprob in best.top_logprobs]
    )


def test_what_never_fits_the_batch_is_refused_with_the_engines_reason(server):
    reply = server.post("/v1/completions", prompt="x", n=5)
    assert reply.status_code == 400
    assert "5" in reply.json()["error"]["message"]


def test_clients_that_come_and_go_at_random_leave_every_block_free(server):
    dice = random.Random(7)
    opened = []
    for number in range(40):
        one = connect(server.port)
        body = {
            "model": MODEL,
            "prompt": ["x" * dice.randrange(1, 60) for _ in range(dice.randrange(1, 3))],
            "n": dice.randrange(1, 4),
            "max_tokens": dice.randrange(1, 100),
            "stream": bool(number % 2),
            "stop": ["a", " b"] if number % 3 else None,
        }
        one.sendall(request(body))
        opened.append(one)
        if dice.random() < 0.6:
            leaving = opened.pop(dice.randrange(len(opened)))
            if dice.random() < 0.7:
                leaving.recv(1)
            leaving.close()
    for one in opened:
        assert one.recv(15).startswith(b"HTTP/1.1 ")
        one.close()
    server.assert_idle()
    assert server.metric("prefill_decode_waiting_sequences") == 0
    assert server.post("/v1/completions", prompt="x", max_tokens=2).status_code == 200


@pytest.mark.parametrize("policy", POLICIES)
def test_a_chat_of_no_given_length_fits_the_step_where_prompts_are_not_cut(serve, policy):
    scheduling = SchedulerSettings(policy, most_tokens_per_step=64, most_sequences=4)
    serving = ServingEngine(engine(weights=weights()), scheduling)
    server = serve(serving, tokenizer=ByteTokenizer(SHAPE.vocab_size))
    most = BLOCKS * BLOCK_TOKENS if scheduling.cuts_prompts else 64
    say = [{"role": "user", "content": "say"}]
    reply = server.post("/v1/chat/completions", messages=say, ignore_eos=True)
    assert reply.json()["usage"]["total_tokens"] == most
    (card,) = server.http.get("/v1/models").json()["data"]
    assert card["max_model_len"] == most


def test_a_step_that_fails_deep_in_the_engine_is_told(serve):
    serving = ServingEngine(engine(weights=weights()))
    server = serve(serving, tokenizer=ByteTokenizer(SHAPE.vocab_size))
    run = serving.engine.run

    def run_five(plan, on_layer):
        if serving.state().steps == 5:
            raise RuntimeError("out of memory")
        return run(plan, on_layer)

    serving.engine.run = run_five
    reply = server.post("/v1/completions", prompt="x", max_tokens=50, stream=True, ignore_eos=True)
    *tokens, error, done = [line for line in reply.text.split("\n\n") if line]
    assert len(tokens) <= 5
    assert "out of memory" in json.loads(error.removeprefix("data: "))["error"]["message"]
    assert done == "data: [DONE]"
    assert server.http.get("/health").status_code == 503


@pytest.fixture
def spoilt(serve):
    """Weights in which the letter x is no number, as a file that was damaged may have it."""
    found = engine()
    found.weights.embedding[ord("x")] = math.nan
    scheduling = SchedulerSettings(most_tokens_per_step=16, most_sequences=4, most_waiting=40)
    server = serve(ServingEngine(found, scheduling), tokenizer=ByteTokenizer(SHAPE.vocab_size))
    yield server
    server.assert_idle()


def test_a_request_whose_logits_are_no_numbers_fails_and_the_others_go_on(spoilt):
    good = {"prompt": "Once upon", "max_tokens": 60, "temperature": 0, "ignore_eos": True}
    expected = spoilt.post("/v1/completions", **good).json()
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(spoilt.post, "/v1/completions", **good) for _ in range(3)]
        whole = pool.submit(spoilt.post, "/v1/completions", prompt="an axe", n=2)
        stream = pool.submit(spoilt.post, "/v1/completions", prompt="an axe", stream=True)
    assert whole.result().status_code == 500
    assert "logits that are no numbers" in whole.result().json()["error"]["message"]
    events = [line for line in stream.result().text.splitlines() if line.startswith("data: {")]
    assert json.loads(events[-1][6:])["error"]["code"] == "answer_failed"
    for other in others:
        assert other.result().json()["choices"] == expected["choices"]
    assert spoilt.http.get("/health").status_code == 200
    assert spoilt.outcomes("failed") == 2
