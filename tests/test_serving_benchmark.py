"""The benchmark of servers: what it asks, what it accepts, and the table it makes."""

import asyncio
import json
import random
import sys
from types import SimpleNamespace

import pytest
from aiohttp import web

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))  # scripts, not a package

import serving
from processes import EngineError
from report import Record, Round
from serving_report import Burst, read_burst, serving_report, serving_table

BURST = Burst(requests=3, prompt_tokens=5, output_tokens=4)
STEP = "answer 3 of 5 plus 4"


def a_round(disturbed: bool = False, **times_s: float) -> Round:
    return Round(STEP, times_s, 1e12, 1e10, disturbed)


def a_record(*rounds: Round) -> Record:
    return Record("a machine", "laptop-254m", 2, {"ours": "1", "peer": "2"}, rounds)


async def against_a_server(answer, burst: Burst = BURST) -> tuple[float, list[dict]]:
    """The time, and what a server that answers each request with `answer` was asked."""
    asked: list[dict] = []

    async def complete(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return answer()

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        return await serving.answer_all(url, burst, random.Random(0)), asked
    finally:
        await runner.cleanup()


def stream(tokens: int | None) -> web.Response:
    usage = {} if tokens is None else {"usage": {"completion_tokens": tokens}}
    events = [{"choices": [{"text": " t1"}], "usage": None}, {"choices": [], **usage}]
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    return web.Response(text=text, content_type="text/event-stream")


def test_every_request_has_a_prompt_of_its_own_and_asks_for_every_token():
    took_s, asked = asyncio.run(against_a_server(lambda: stream(4)))
    assert took_s > 0
    assert len({tuple(each["prompt"]) for each in asked}) == 3
    assert all(len(each["prompt"]) == 5 and min(each["prompt"]) >= 3 for each in asked)
    assert all(each["max_tokens"] == 4 and each["ignore_eos"] for each in asked)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda: stream(3), "must have 4 tokens; got 3"),
        (lambda: stream(None), "must tell its usage"),
        (lambda: web.Response(status=400, text="no such field"), "status 400: no such field"),
    ],
)
def test_an_answer_that_is_short_or_refused_is_no_time(answer, complaint):
    with pytest.raises(ValueError, match=complaint):
        asyncio.run(against_a_server(answer))


def test_a_server_that_cannot_be_reached_is_an_engine_error_and_is_stopped_again():
    signals = []
    port = serving.servers.free_port()
    server = SimpleNamespace(url=f"http://127.0.0.1:{port}", signal=signals.append)
    engine = serving.ServedEngine("peer", "1", server, seed=0)
    with pytest.raises(EngineError, match="peer: ClientConnectorError"):
        engine.time_s(STEP)
    assert [each.name for each in signals] == ["SIGSTOP", "SIGCONT", "SIGSTOP"]


def test_a_burst_is_read_from_its_words():
    assert read_burst(STEP) == BURST
    with pytest.raises(ValueError, match="answer B of N plus N"):
        read_burst("prefill 128")


def test_the_least_time_of_a_burst_is_its_prefill_and_its_decode_steps():
    model = hf_config.get("laptop-254m").with_dtype("float32")
    layer = 1024 * (1024 + 512 + 512) + 1024 * 1024 + 3 * 1024 * 2816
    read_bytes = 4 * (16 * layer + 32000 * 1024)
    kv_bytes = 16 * 2 * 512 * 4  # of a token
    # Arithmetic for nothing: what is left is bytes. The prefill writes 5 tokens for each of 3
    # requests; the three further steps read 5, 6 and 7 of each and write one.
    least_s = Burst(3, 5, 4).least_time_s(model, Hardware("", "float32", 1e30, 1e10, ""))
    moved = 4 * read_bytes + kv_bytes * 3 * (5 + 6 + 7 + 8)
    assert least_s == pytest.approx(moved / 1e10, rel=1e-6)


def test_a_ratio_over_ours_is_of_rates_inside_quiet_rounds():
    rounds = [a_round(ours=t, peer=2 * t) for t in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    rounds += [a_round(disturbed=True, ours=1.0, peer=100.0), a_round(peer=1e6)]
    ours, peer = serving_table(a_record(*rounds), STEP).splitlines()[2:]
    assert ours.startswith("| ours | 3.5")  # 12 tokens in 3 and 4 s: medians 4 and 3
    assert "| × 0.500 [0.500, 0.500] | 7 |" in peer


def test_the_report_says_what_was_asked_and_how_many_rounds_were_left_out():
    shown = serving_report(a_record(a_round(ours=1.0), a_round(True, ours=2.0)), STEP)
    assert "3 requests at once, 5 prompt tokens and 4 output tokens each" in shown
    assert "2 rounds, of which 1 left out" in shown


def test_every_server_has_a_version_and_the_readme_names_it():
    readme = (ROOT / "benchmarks" / "README.md").read_text()
    assert set(serving.VERSIONS) == set(serving.SERVERS)
    assert all(f"| {name} |" in readme for name in (*serving.SERVERS, *serving.IN_PROCESS))
