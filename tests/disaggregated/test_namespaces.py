"""Two workers that share no network but a shaped link, as two hosts do: what crosses it, what it
takes at least, and what becomes of requests while it is down."""

import os
import shutil
import subprocess
import time
from secrets import token_bytes

import pytest

from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.keeping import KeptWorkers
from prefill_decode.disaggregated.launch import COMMAND, WorkerProcess, coordinator_of
from prefill_decode.disaggregated.restarts import RestartLimits
from tests.disaggregated.test_launch import PROMPTS, SAMPLINGS, Asking, fleet, model  # noqa: F401

BYTES_PER_S = 2.5e6
BURST_BYTES = 64_000  # that the link lets through at once
HERE, THERE = "10.77.0.1", "10.77.0.2"
LONG = [i % 300 for i in range(1400)]
TOKEN_BYTES = 2 * 2 * 2 * 16 * 8  # layers, keys and values, heads, their size, float64
COMPLAINTS: list[str] = []


def run(words, namespace=None):
    within = [] if namespace is None else ["ip", "netns", "exec", namespace]
    return subprocess.run([*within, *words.split()], capture_output=True, text=True, check=True)


@pytest.fixture(scope="module")
def hosts():
    """The names of two namespaces and of the ends of the link between them."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("no ip and tc here to make network namespaces with")
    name = f"pd{os.getpid() % 100000}"
    names = [name + "a", name + "b"]
    try:
        run(f"ip netns add {names[0]}")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this user may not make network namespaces: {error.stderr.strip()}")
    try:
        run(f"ip netns add {names[1]}")
        run(f"ip link add {names[0]} netns {names[0]} type veth peer {names[1]} netns {names[1]}")
        for end, address in zip(names, (HERE, THERE), strict=True):
            run(f"ip -n {end} addr add {address}/24 dev {end}")
            run(f"ip -n {end} link set {end} up")
        shape = f"rate {8 * BYTES_PER_S:.0f}bit burst {BURST_BYTES} latency 200ms"
        run(f"tc qdisc add dev {names[0]} root tbf {shape}", names[0])
        yield names
    finally:
        for end in names:
            subprocess.run(["ip", "netns", "del", end], capture_output=True, check=False)


@pytest.fixture(scope="module")
def coordinator(hosts, model, tmp_path_factory):  # noqa: F811
    folder, key = tmp_path_factory.mktemp("meeting"), token_bytes(32)
    two = fleet(model, transfer="auto")
    place = dict(zip(("prefill", "decode"), hosts, strict=True))

    def start(option):
        return WorkerProcess(option, key, ("ip", "netns", "exec", place[option.role], *COMMAND))

    address = f"unix:{folder}/coordinator"  # files are shared by namespaces of networks
    patience = Patience(silence_s=6.0)
    with coordinator_of(two, address, key, patience, COMPLAINTS.append) as coordinator:
        options = [two.options(r, n, coordinator.address, f"tcp:{HERE}:0") for r, n in two.names()]
        coordinator.keeper = KeptWorkers(options, start, RestartLimits(0.1, 0.1))
        coordinator.wait_for(1, 1, 120.0)
        yield coordinator


def received(hosts):
    file = f"/sys/class/net/{hosts[1]}/statistics/rx_bytes"
    return int(run(f"cat {file}", hosts[1]).stdout)


def test_a_cache_crosses_the_link_whole_and_no_faster_than_it_may(hosts, coordinator, model):  # noqa: F811
    before, moved = received(hosts), coordinator.state().hand_overs
    asking = Asking(coordinator, model)
    asking.submit("long", LONG, 12, SAMPLINGS[1])
    asking.assert_answered()
    hand_overs = coordinator.state().hand_overs
    num_bytes = hand_overs.moved_bytes - moved.moved_bytes
    assert num_bytes >= len(LONG) * TOKEN_BYTES
    assert received(hosts) - before > num_bytes
    least_s = (num_bytes - BURST_BYTES) / BYTES_PER_S
    assert hand_overs.moving_s - moved.moving_s > least_s
    assert hand_overs.recomputed_answers == 0


def test_a_link_that_is_down_for_a_while_costs_nobody_a_token(hosts, coordinator, model):  # noqa: F811
    asking = Asking(coordinator, model)
    for index, prompt in enumerate([LONG, *PROMPTS, LONG[::-1]]):
        asking.submit(f"d{index}", prompt, 12, SAMPLINGS[index % 2])
    asking.until(lambda: coordinator.state().num_running > 0)
    run(f"ip -n {hosts[0]} link set {hosts[0]} down")
    down_s = time.monotonic() + 2.0
    asking.until(lambda: time.monotonic() > down_s)
    run(f"ip -n {hosts[0]} link set {hosts[0]} up")
    asking.assert_answered()
