"""Cluster: workers on the nodes of a Ray cluster, and the coordinator that they answer to.

Ray chooses the node of each worker, one processor for each of its threads, and keeps a small host
beside it, which tells how the worker ends. Everything else is as on one machine: workers dial the
coordinator over TCP, and caches move between them over the same sockets, each frame proved with a
key that is drawn for each launch. Two workers that Ray places on one host may read each other's
memory. A node that is lost takes its workers with it; they are started again where there is room.

Needs the extra `cluster`, and this package, in the same version, on every node. A model that is a
path must lie there under the same path.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from secrets import token_bytes
from typing import Any

from prefill_decode.disaggregated.coordinator import Coordinator
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.keeping import KeptWorkers
from prefill_decode.disaggregated.launch import (
    COMMAND,
    KEY_BYTES,
    START_S,
    Fleet,
    WorkerProcess,
    coordinator_of,
)
from prefill_decode.disaggregated.restarts import RestartLimits
from prefill_decode.disaggregated.worker import WorkerOptions

CONNECT_S = 5.0
END_S = 2.0  # for a host to say that its worker has ended
CLUSTER_TRANSFERS = ("auto", "tcp")


class WorkerHost:
    """Beside a worker, in a process that Ray has started on some node."""

    def __init__(self, options: WorkerOptions, key: bytes) -> None:
        import ray

        listen = f"tcp:{ray.util.get_node_ip_address()}:0"
        self._worker = WorkerProcess(replace(options, listen=listen), key, COMMAND)

    def watch(self) -> str:
        """Waits for its end: how it was, and what it said last."""
        self._worker.wait()
        return self._worker.last_words() or ""

    def kill(self) -> None:
        self._worker.kill()

    def ask_to_end(self) -> None:
        self._worker.ask_to_end()


class WorkerOnCluster:
    """One start of one worker, somewhere. Like every call to a cluster, these may come to nothing;
    then the worker is found dead."""

    def __init__(self, options: WorkerOptions, key: bytes) -> None:
        import ray

        hosts: Any = ray.remote(WorkerHost)
        hosts = hosts.options(
            num_cpus=options.threads,
            max_concurrency=2,  # one waits for the end
            scheduling_strategy="SPREAD",
            runtime_env={"env_vars": _path()},
        )
        self._host: Any = hosts.remote(options, key)
        self._end = self._host.watch.remote()

    def last_words(self) -> str | None:
        return self._words(0.0)

    def kill(self) -> None:
        self._host.kill.remote()

    def ask_to_end(self) -> None:
        self._host.ask_to_end.remote()

    def end(self, patience_s: float = 0.0) -> None:
        import ray

        if self._words(patience_s) is None:
            self.kill()
            self._words(END_S)
        with suppress(ray.exceptions.RayError):
            ray.kill(self._host)

    def _words(self, timeout_s: float) -> str | None:
        import ray

        ready, _ = ray.wait([self._end], timeout=timeout_s)
        if not ready:
            return None
        try:
            return str(ray.get(self._end))
        except ray.exceptions.RayError as error:
            return f"is lost with its node: {str(error).strip().splitlines()[0]}"


@contextmanager
def workers_on_cluster(
    fleet: Fleet,
    address: str = "auto",
    patience: Patience | None = None,
    complain: Callable[[str], None] = lambda words: None,
    limits: RestartLimits | None = None,
) -> Iterator[Coordinator]:
    """A coordinator here with all workers of the fleet ready on the nodes of the cluster at
    `address`, as Ray takes it; "auto" is the one that this host belongs to.

    ValueError where there is no Ray, no such cluster, no room on it, or for workers that do not
    start."""
    if fleet.transfer not in CLUSTER_TRANSFERS:
        raise ValueError(
            f"between nodes a cache moves by {' or '.join(CLUSTER_TRANSFERS)}; got {fleet.transfer}"
        )
    key = token_bytes(KEY_BYTES)
    with _joined(address) as here:
        fleet = _fitted(fleet)
        with coordinator_of(fleet, f"tcp:{here}:0", key, patience, complain) as coordinator:
            options = [
                fleet.options(role, name, coordinator.address, listen="")  # its host knows where
                for role, name in fleet.names()
            ]
            coordinator.keeper = KeptWorkers(
                options, lambda option: WorkerOnCluster(option, key), limits
            )
            coordinator.wait_for(fleet.num_prefill, fleet.num_decode, START_S)
            yield coordinator


@contextmanager
def _joined(address: str) -> Iterator[str]:
    """This host's own address, by which the cluster's nodes reach it."""
    try:
        import ray
    except ImportError:
        raise ValueError(
            "workers on a cluster need Ray, which is not installed here: take the extra, "
            "prefill-decode[cluster]"
        ) from None
    try:
        _knock(address)
        before = signal.getsignal(signal.SIGTERM)
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray takes it; who stops a server decides
    except (OSError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster is to be had at {address!r}: {str(error).strip().splitlines()[0]}; "
            "start one with `ray start --head`, and `ray start --address HOST:PORT` on the others"
        ) from None
    try:
        yield ray.util.get_node_ip_address()
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """OSError or ValueError where nobody listens at HOST:PORT: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in address:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            pass


def _fitted(fleet: Fleet) -> Fleet:
    """With the most threads for which all workers find room, unless they were given. A worker for
    which there is no room would wait for ever: ValueError."""
    import ray

    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    workers = fleet.num_prefill + fleet.num_decode
    asked = [fleet.threads] if fleet.threads else range(max(nodes, default=0), 0, -1)
    for threads in asked:
        if sum(cpus // threads for cpus in nodes) >= workers:
            return replace(fleet, threads=threads)
    raise ValueError(
        f"each of {workers} workers needs {fleet.threads or 1} processors of one node; the cluster "
        f"has nodes with {', '.join(map(str, nodes))}: add nodes, or ask for fewer workers or "
        "threads"
    )


def _path() -> dict[str, str]:
    """Where this process finds the package, for one that was not installed on the nodes."""
    path = os.environ.get("PYTHONPATH")
    return {} if path is None else {"PYTHONPATH": path}
