"""Launch: workers as processes of this machine, and the coordinator that they answer to.

They dial in over a Unix socket in a folder that their user alone may enter, with a key that is
drawn for each launch and that no list of processes shows. They end with the process that started
them, however that ends: their standard input closes. One that dies, or is ended because it hangs,
is started again after a pause."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from secrets import token_bytes
from typing import IO, Literal

from prefill_decode.disaggregated.coordinator import Coordinator
from prefill_decode.disaggregated.journey import Patience
from prefill_decode.disaggregated.keeping import KeptWorkers
from prefill_decode.disaggregated.messages import Role
from prefill_decode.disaggregated.restarts import RestartLimits
from prefill_decode.disaggregated.worker import WorkerOptions, first_line
from prefill_decode.kv_transfer import Lane
from prefill_decode.kv_transfer.nixl import refuse_if_missing
from prefill_decode.measure import Machine
from prefill_decode.other_load import allowed_cpus, cores_first

Transfer = Literal["auto", "unix", "tcp", "cma", "nixl"]
LANES: dict[Transfer, Lane] = {
    "auto": "auto",
    "unix": "stream",
    "tcp": "stream",
    "cma": "cma",
    "nixl": "nixl",
}
START_S = 300.0  # large random weights take their time
MOST_LAST_BYTES = 2000  # of what a worker said last
COMMAND = (sys.executable, "-m", "prefill_decode.disaggregated.worker")
KEY_BYTES = 32


@dataclass(frozen=True)
class Fleet:
    """How many workers of each kind, all with the same model, and what each has."""

    num_prefill: int
    num_decode: int
    model: str  # as `worker.WorkerOptions` takes it
    vocab_size: int
    num_blocks: int  # of each worker
    num_layers: int | None = None  # None: all
    dtype: str = "float32"
    seed: int = 0
    block_tokens: int = 32
    capacity_tokens: int | None = None  # of one sequence; None: all that a worker has
    most_tokens_per_step: int = 512
    most_sequences: int = 64
    most_waiting: int | None = None
    reuse: bool = True
    threads: int | None = None  # of each worker; None: an even share of the processors
    own_cpus: bool = False  # each worker is held to a processor for each of its threads (Linux)
    transfer: Transfer = "auto"
    pace_bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.num_prefill < 1 or self.num_decode < 1:
            raise ValueError(
                "there is at least one worker for each phase; got "
                f"{self.num_prefill} for prefill and {self.num_decode} for decode"
            )
        if self.transfer == "nixl":
            refuse_if_missing()
        needed, there = (self.num_prefill + self.num_decode) * self.threads_each, allowed_cpus()
        if self.own_cpus and needed > len(there):
            raise ValueError(
                f"own_cpus needs a processor for each thread of every worker; got {needed} threads "
                f"for {len(there)} processors: give fewer, or let workers share"
            )

    @property
    def tokens(self) -> int:
        """The most that a sequence may have in the cache."""
        room = self.num_blocks * self.block_tokens
        return min(self.capacity_tokens or room, room)

    @property
    def threads_each(self) -> int:
        return self.threads or max(1, len(allowed_cpus()) // (self.num_prefill + self.num_decode))

    def names(self) -> list[tuple[Role, str]]:
        counts: list[tuple[Role, int]] = [
            ("prefill", self.num_prefill),
            ("decode", self.num_decode),
        ]
        return [(role, f"{role}-{n}") for role, count in counts for n in range(count)]

    def cpus_of(self, name: str) -> list[int] | None:
        """Processors that a worker is held to, of cores of their own as far as there are enough."""
        if not self.own_cpus:
            return None
        place, each = [own for _, own in self.names()].index(name), self.threads_each
        return cores_first(allowed_cpus())[place * each : (place + 1) * each]

    def options(self, role: Role, name: str, coordinator: str, listen: str) -> WorkerOptions:
        return WorkerOptions(
            role=role,
            name=name,
            coordinator=coordinator,
            model=self.model,
            num_blocks=self.num_blocks,
            num_layers=self.num_layers,
            dtype=self.dtype,
            seed=self.seed,
            block_tokens=self.block_tokens,
            capacity_tokens=self.tokens,
            most_tokens_per_step=self.most_tokens_per_step,
            most_sequences=self.most_sequences,
            reuse=self.reuse,
            threads=self.threads_each,
            listen=listen,
            lane=LANES[self.transfer],
            pace_bytes_per_s=self.pace_bytes_per_s,
        )


def threads_each(machine: Machine) -> int:
    """Of two workers. ValueError where they cannot have processors of their own."""
    if machine.device != "cpu":
        raise ValueError(
            f"prefill and decode workers compute on the CPU; got the device {machine.device!r}: "
            "choose cpu"
        )
    if min(machine.threads, len(allowed_cpus())) < 2:
        raise ValueError(
            "a prefill worker and a decode worker need a core each; this machine has one: run this "
            "on two cores or more"
        )
    return machine.threads // 2


class WorkerProcess:
    """One start of one worker, held to these processors where the system has such a thing and
    allows it; else on all of its starter's."""

    def __init__(
        self,
        options: WorkerOptions,
        key: bytes,
        command: Sequence[str],
        cpus: Sequence[int] | None = None,
    ) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        threads = {} if options.threads is None else {"OMP_NUM_THREADS": str(options.threads)}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env={**os.environ, **threads},
        )
        self.pid = self._process.pid
        if cpus is not None and sys.platform == "linux":
            with suppress(OSError):  # it has died already, or this is forbidden
                for thread in os.listdir(f"/proc/{self.pid}/task"):  # later ones inherit it
                    os.sched_setaffinity(int(thread), cpus)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died already, and will be found dead
            self._process.stdin.write(first_line(options, key))
            self._process.stdin.flush()

    def last_words(self) -> str | None:
        """Once it has ended: how, and what it said last."""
        code = self._process.poll()
        if code is None:
            return None
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - MOST_LAST_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"ended with {how}{said}"

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()

    def ask_to_end(self) -> None:
        self._process.terminate()

    def end(self, patience_s: float = 0.0) -> None:
        """Kill it, unless it ends by itself within so long."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.kill()
        self._process.wait()
        for opened in (self._process.stdin, self._errors):
            if opened is not None:
                with suppress(BrokenPipeError):
                    opened.close()


@contextmanager
def workers_here(
    fleet: Fleet,
    patience: Patience | None = None,
    complain: Callable[[str], None] = lambda words: None,
    limits: RestartLimits | None = None,
    command: Sequence[str] = COMMAND,
) -> Iterator[Coordinator]:
    """A coordinator with all workers of the fleet ready; all of them end with the context.

    ValueError, with their last words, for workers that do not start."""
    key = token_bytes(KEY_BYTES)
    with tempfile.TemporaryDirectory(prefix="prefill-decode-") as folder:
        address = f"unix:{folder}/coordinator"
        with coordinator_of(fleet, address, key, patience, complain) as coordinator:
            options = [
                fleet.options(role, name, coordinator.address, _listen(fleet, folder, name))
                for role, name in fleet.names()
            ]
            coordinator.keeper = KeptWorkers(
                options,
                lambda option: WorkerProcess(option, key, command, fleet.cpus_of(option.name)),
                limits,
            )
            coordinator.wait_for(fleet.num_prefill, fleet.num_decode, START_S)
            yield coordinator


def pids_of(coordinator: Coordinator) -> dict[str, int]:
    """Of the workers that `workers_here` keeps for it, by name."""
    assert isinstance(coordinator.keeper, KeptWorkers)
    running = coordinator.keeper.running.items()
    return {name: worker.pid for name, worker in running if isinstance(worker, WorkerProcess)}


@contextmanager
def coordinator_of(
    fleet: Fleet,
    address: str,
    key: bytes,
    patience: Patience | None,
    complain: Callable[[str], None],
) -> Iterator[Coordinator]:
    """The one that a fleet's workers dial, closed with the context and its keeper with it."""
    coordinator = Coordinator(
        address,
        vocab_size=fleet.vocab_size,
        capacity_tokens=fleet.tokens,
        key=key,
        patience=patience,
        most_sequences=fleet.most_sequences,
        most_waiting=fleet.most_waiting,
        complain=complain,
    )
    with closing(coordinator):
        yield coordinator


def _listen(fleet: Fleet, folder: str, name: str) -> str:
    return "tcp:127.0.0.1:0" if fleet.transfer == "tcp" else f"unix:{folder}/{name}"
