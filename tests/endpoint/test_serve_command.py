"""`prefill-decode serve` as a user types it, mistakes included."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from unittest import mock

import httpx
import pytest
import torch
import transformers

from prefill_decode import cli
from prefill_decode.cli import serving
from prefill_decode.cli.parser import make_parser
from prefill_decode.endpoint import starting
from prefill_decode.endpoint.running import bind
from prefill_decode.endpoint.starting import (
    Plan,
    ServeOptions,
    build_engine,
    count_blocks,
    find_model,
    read_weights,
)
from prefill_decode.measure import describe_machine
from prefill_decode.scheduling import SchedulerSettings
from tests.conftest import ROOT
from tests.endpoint.raw_http import connect, read_all, request
from tests.small_config import CONFIG, write_small_config


@pytest.fixture
def own_environment():
    """For `serve` in this process: it tells OpenMP's threads how long to spin."""
    with mock.patch.dict(os.environ):
        yield


@pytest.fixture
def config(tmp_path):
    return write_small_config(tmp_path / "small")


def start(*words, **environment):
    return subprocess.Popen(
        [sys.executable, "-m", "prefill_decode.cli", "serve", "--device", "cpu", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def engine_for(options, num_blocks, settings=None):
    """As `serve` builds it."""
    model = find_model(options, describe_machine("cpu"))
    plan = Plan(options, model, "cpu", num_blocks, settings or SchedulerSettings(), print)
    return build_engine(plan, read_weights(options, model, "cpu"))


def test_an_event_does_not_wait_until_the_one_before_has_been_acknowledged():
    async def sends_at_once():
        async def accept(_, writer):
            accepted.set_result(writer.get_extra_info("socket"))
            writer.close()

        accepted = asyncio.get_running_loop().create_future()
        with bind("127.0.0.1", 0) as bound:
            async with await asyncio.start_server(accept, sock=bound):
                _, writer = await asyncio.open_connection(*bound.getsockname())
                found = (await accepted).getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                writer.close()
                return found

    assert asyncio.run(sends_at_once())


def test_it_serves_says_where_and_stops_when_told_with_exit_code_0(config):
    words = ["--model", str(config), "--port", "0", "--blocks", "40", "--block-tokens", "16"]
    process = start(*words, "--policy", "prefill_first", PREFILL_DECODE_API_KEY="secret")
    try:
        line = process.stdout.readline()
        assert line.startswith("prefill-decode serves small at http://127.0.0.1:")
        assert "random weights, policy prefill_first" in line
        assert "40 blocks of 16 tokens" in line
        url = line.split(" at ")[1].split(": ")[0]
        assert httpx.get(f"{url}/models").status_code == 401
        key = {"authorization": "Bearer secret"}
        body = {"model": "small", "prompt": "Once", "max_tokens": 500, "ignore_eos": True}
        reply = httpx.post(f"{url}/completions", json=body, headers=key, timeout=30)
        assert reply.json()["usage"]["completion_tokens"] == 500
        with connect(httpx.URL(url).port) as opened:
            opened.sendall(request({**body, "stream": True}, authorization="Bearer secret"))
            opened.recv(200)
            process.send_signal(signal.SIGTERM)
            assert b"data: [DONE]" in read_all(opened)
        out, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out, errors) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "needs a key: set PREFILL_DECODE_API_KEY"),
        (["--host", "::"], "needs a key"),
        (["--host", "no.such.host.invalid"], "--host must be a name or address"),
        (["--host", "0.0.0.0", "--api-key", ""], "must be printable ASCII"),
        (["--api-key", "two words"], "must be printable ASCII"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--port", "-1"], "from 0 to 65535"),
        (["--grace", "nan"], "a number of seconds from 0 on"),
        (["--blocks", "0"], "from 1 to"),
        (["--blocks", "5", "--memory-gb", "1"], "not allowed with"),
        (["--policy", "fifo"], "invalid choice"),
        (["--most-sequences", "64", "--most-tokens-per-step", "32"], "most_sequences is"),
        (["--model", "laptop-254"], "did you mean laptop-254m?"),
        (["--model", "SMALL", "--memory-gb", "0.000001"], "room for one block"),
        (["--model", "SMALL", "--memory-gb", "9e5"], "must fit beside the weights"),
        (["--memory-gb", "1e300"], "a positive number of gigabytes"),
        (["--model", "SMALL", "--blocks", "999999999"], "must fit beside the weights"),
        (["--model", "SMALL", "--dtype", "int3"], "int3"),
        (["--model", "SMALL", "--dtype", ""], "dtype"),
        (["--seed", "9" * 30], "from 0 to"),
        (["--served-model-name", ""], "must be a printable text"),
        (["--prefill", "1"], "--prefill and --decode go together"),
        (["--prefill", "0", "--decode", "1"], "from 1 to"),
        (["--transfer", "tcp"], "--transfer is for workers"),
        (["--worker-threads", "1"], "--worker-threads is for workers"),
        (["--cluster"], "--cluster is for workers"),
        (
            [
                "--model",
                "SMALL",
                "--blocks",
                "5",
                "--prefill",
                "1",
                "--decode",
                "1",
                "--cluster",
                "127.0.0.1:9",
            ],
            "no Ray cluster is to be had at '127.0.0.1:9'",
        ),
        (
            [
                "--model",
                "SMALL",
                "--blocks",
                "5",
                "--prefill",
                "1",
                "--decode",
                "1",
                "--cluster",
                "--transfer",
                "unix",
            ],
            "between nodes a cache moves by auto or tcp",
        ),
        (["--prefill", "1", "--decode", "1", "--policy", "static"], "run with --policy chunked"),
    ],
)
@pytest.mark.usefixtures("own_environment")
def test_a_mistake_is_one_sentence_and_exit_code_2(words, message, config, capsys):
    words = [str(config) if word == "SMALL" else word for word in words]
    port = [] if "--port" in words else ["--port", "0"]
    try:
        code = cli.main(["serve", "--device", "cpu", *port, *words])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_folder_with_weights_is_served_with_them_and_another_with_random_ones(config):
    machine = describe_machine("cpu")
    options = ServeOptions(model=str(config))
    drawn = find_model(options, machine)
    drawn_weights = read_weights(options, drawn, "cpu")
    stored = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))
    stored.save_pretrained(config, safe_serialization=True)
    read = find_model(options, machine)
    weights = read_weights(options, read, "cpu")
    assert torch.equal(weights.embedding, stored.model.embed_tokens.weight)
    assert drawn.spec == read.spec
    assert (drawn.folder, read.folder) == (None, config)
    assert not torch.equal(weights.embedding, drawn_weights.embedding)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", "consolidated.00.pth", "model.pt", "pytorch_model.bin.index.json"]
)
def test_a_folder_whose_weights_are_no_safetensors_is_refused_and_not_made_up(config, name):
    (config / name).write_bytes(b"{}")
    with pytest.raises(ValueError, match=r"weights are read|an index holds"):
        engine_for(ServeOptions(model=str(config)), 1)


@pytest.mark.parametrize(("own", "most"), [(512, 512), (10**6, 16_384), (None, 16_384)])
def test_a_sequence_is_no_longer_than_its_config_has_it(config, own, most):
    write_small_config(config, max_position_embeddings=own)
    options = ServeOptions(model=str(config), block_tokens=128)
    assert engine_for(options, 200).capacity_tokens == most


def test_the_cache_takes_what_memory_it_is_given(config):
    machine = describe_machine("cpu")
    model = find_model(ServeOptions(model=str(config)), machine)
    assert model.spec.dtype == "float32"
    block_bytes = 2 * 2 * 2 * 16 * 4 * 32  # K and V, layers, KV heads, head size, float32, tokens
    for blocks, memory_gb in ((1, 1.5 * block_bytes / 1e9), (1000, 1000.5 * block_bytes / 1e9)):
        assert count_blocks(ServeOptions(memory_gb=memory_gb), model.spec, machine) == blocks
    for_four = ServeOptions(num_blocks=None, memory_gb=8.5 * block_bytes / 1e9, processes=4)
    assert count_blocks(for_four, model.spec, machine) == 2
    options = ServeOptions(model=str(config), reuse=False)
    engine = engine_for(options, 4, SchedulerSettings(most_waiting=3))
    assert (engine.capacity_tokens, engine.state().num_blocks) == (4 * 32, 4)
    assert not engine.scheduler.pool.reuse


@pytest.mark.usefixtures("own_environment")
def test_a_server_whose_first_line_nobody_reads_serves_all_the_same(monkeypatch):
    def start_and_say(options, say, complain, engine_of):
        say("ready")
        return 0

    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        monkeypatch.setattr(starting, "start", start_and_say)
        assert serving.serve(make_parser().parse_args(["serve"])) == 0  # no BrokenPipeError


@pytest.mark.usefixtures("own_environment")
def test_a_port_that_is_taken_is_said_before_anything_is_loaded(capsys):
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port), "--model", "nonsense"]) == 2
    assert f"must be an address that is free; got 127.0.0.1, {port}" in capsys.readouterr().err


def test_a_slice_of_a_host_with_a_vast_cache_serves_the_model_that_a_chapter_would_take(machine):
    slice_of_host = replace(machine, cores=2, last_level_cache_bytes=480 * 2**20)
    plain = find_model(ServeOptions(), machine).spec
    assert find_model(ServeOptions(), slice_of_host).spec == plain


def test_threads_take_short_turns_while_it_serves_and_their_own_again_at_its_end(
    config, monkeypatch
):
    before_s, during_s = sys.getswitchinterval(), []

    def fail(running):
        running.close()
        during_s.append(sys.getswitchinterval())
        raise ValueError("the loop ends so")

    monkeypatch.setattr(starting.uvloop, "run", fail)
    options = ServeOptions(model=str(config), device="cpu", port=0, num_blocks=5)
    with pytest.raises(ValueError, match="the loop ends so"):
        starting.start(options, say=print, complain=print)
    assert during_s == [pytest.approx(starting.TURN_S, rel=0.1)]
    assert sys.getswitchinterval() == before_s


GIVES_UP = """
import os, sys
from prefill_decode import cli

class Watch:
    def find_spec(self, name, *rest):
        if name == "torch":
            print(os.environ.get("GOMP_SPINCOUNT"), os.environ.get("KMP_BLOCKTIME"))
            sys.exit(0)

sys.meta_path.insert(0, Watch())
cli.main(["serve", "--port", "0"])
"""


@pytest.mark.parametrize(("given", "told"), [({}, "100 0"), ({"GOMP_SPINCOUNT": "7"}, "7 0")])
def test_idle_threads_are_told_to_sleep_before_torch_is_loaded(given, told):
    environment = {k: v for k, v in os.environ.items() if k not in serving.PATIENCE_OF_THREADS}
    shown = subprocess.run([sys.executable, "-c", GIVES_UP], env={**environment, **given},
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert shown.stdout.strip() == told
