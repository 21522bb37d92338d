"""`prefill-decode serve --prefill 1 --decode 2` as a user types it: the answers of one engine, with
workers killed and stopped under it."""

import os
import signal
import threading

import httpx
import openai
import psutil
import pytest

from prefill_decode import hf_config
from prefill_decode.endpoint.tokenizer import ByteTokenizer
from prefill_decode.engine.sampling import Sampling
from prefill_decode.engine.serving import build_serving_engine
from tests.endpoint.conftest import wait_until
from tests.endpoint.test_serve_command import start
from tests.small_config import write_small_config

WORDS = ["--dtype", "float64", "--prefill", "1", "--decode", "2", "--worker-threads", "1",
         "--block-tokens", "16", "--blocks", "120", "--most-tokens-per-step", "64",
         "--most-sequences", "8", "--port", "0"]  # fmt: skip
TOKENS = 60


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = write_small_config(tmp_path_factory.mktemp("models") / "small")
    process = start("--model", str(folder), *WORDS)
    line = process.stdout.readline()
    assert "120 blocks of 16 tokens, in each of 3 workers" in line, process.stderr.read()
    yield process, line.split(" at ")[1].split("/v1")[0], folder
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in errors


def metric(url, name):
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


def wanted(folder, prompt, sampling, answers):
    """By one engine, as `serve` without workers builds it."""
    spec = hf_config.find(str(folder), "float64")
    engine = build_serving_engine(spec, cache_tokens=4000)
    engine.submit("r", ByteTokenizer(300).encode(prompt), TOKENS, sampling, answers=answers)
    ids = {answer: [] for answer in range(answers)}
    while engine.has_work:
        for token in engine.step():
            ids[token.answer].append(token.token_id)
    return [ByteTokenizer(300).decode(ids[answer]) for answer in range(answers)]


def ask(url, prompt, settings, answers, found):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=240, max_retries=0) as client:
        texts = [""] * answers
        chunks = client.completions.create(
            model="small", prompt=prompt, max_tokens=TOKENS, n=answers, stream=True,
            extra_body={"ignore_eos": True}, **settings,
        )  # fmt: skip
        for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        found.append((prompt, settings, answers, texts))


def assert_idle(url):
    wait_until(lambda: metric(url, "prefill_decode_running_sequences") == 0, 240)
    free, blocks = "prefill_decode_free_blocks", "prefill_decode_blocks"
    wait_until(lambda: metric(url, free) == metric(url, blocks) == 360, 240)


@pytest.mark.parametrize("number", [None, signal.SIGKILL, signal.SIGSTOP])
def test_streams_are_those_of_one_engine_whatever_happens_to_workers(served, number):
    process, url, folder = served
    found, lost = [], metric(url, "prefill_decode_lost_workers_total")
    settings = [{"temperature": 0}, {"temperature": 1, "top_p": 0.9, "seed": 5}]
    asked = [(f"Once upon {i} times " * (1 + 3 * i), settings[i % 2], 1 + i % 2) for i in range(4)]
    clients = [threading.Thread(target=ask, args=(url, *each, found)) for each in asked]
    before = metric(url, "prefill_decode_output_tokens_total")
    for client in clients:
        client.start()
    victims = psutil.Process(process.pid).children() if number else []
    for place, victim in enumerate(victims):
        wait_until(lambda p=place: metric(url, "prefill_decode_output_tokens_total")
                   > before + 30 * p, 240)  # fmt: skip
        os.kill(victim.pid, number)
        wait_until(lambda p=place: metric(url, "prefill_decode_lost_workers_total")
                   > lost + p, 240)  # fmt: skip
    for client in clients:
        client.join(300)
        assert not client.is_alive()
    assert len(found) == len(asked)
    for prompt, given, answers, texts in found:
        sampling = Sampling(given["temperature"], given.get("top_p", 1.0), given.get("seed", 0))
        assert texts == wanted(folder, prompt, sampling, answers)
    wait_until(lambda: metric(url, "prefill_decode_decode_workers") == 2, 240)
    assert_idle(url)
    assert httpx.get(f"{url}/health", timeout=60).status_code == 200
    assert metric(url, "prefill_decode_kv_transfer_bytes_total") > 0


def test_clients_that_leave_give_both_sides_their_blocks_back(served):
    _, url, _ = served
    body = {"model": "small", "prompt": "x" * 200, "max_tokens": 300, "n": 2, "ignore_eos": True}
    for _ in range(3):
        with (
            httpx.Client(timeout=60) as client,
            client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as reply,
        ):
            next(reply.iter_lines())
    assert_idle(url)


def test_what_does_not_fit_is_refused_before_anything_is_computed(served):
    _, url, _ = served
    body = {"model": "small", "prompt": "x" * 600, "max_tokens": 9}
    reply = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == "context_length_exceeded"
