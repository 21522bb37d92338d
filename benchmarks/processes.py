"""Processes: engines that run one at a time, and who else took the cores.

An engine is a process that speaks the line protocol of adapters/serve.py, in a process group of
its own. It is stopped (SIGSTOP) except while it is asked, so that no idle thread of it spins."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import psutil

from prefill_decode.other_load import OtherLoad

LONGEST_ANSWER_S = 300
LONGEST_START_S = 600


class EngineError(Exception):
    """An engine did not start, did not answer in time, or answered with an error."""


class Adapter:
    """A running engine, stopped except while it is asked."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,  # a group of its own: its children stop with it
        )
        self.log: list[str] = []
        self.reader = threading.Thread(target=self._read_log, daemon=True)
        self.reader.start()
        try:
            self.version = str(self._answer(LONGEST_START_S)["version"])
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def time_s(self, step: str) -> float:
        """How long one such step takes, by the engine's own account."""
        self._signal(signal.SIGCONT)
        try:
            assert self.process.stdin is not None
            print(json.dumps({"step": step}), file=self.process.stdin, flush=True)
            return float(self._answer(LONGEST_ANSWER_S)["time_s"])
        except BrokenPipeError:
            raise EngineError(f"{self.name} has ended: {self._last_words()}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        """Processor time this engine's processes have taken so far."""
        return family_cpu_s(self.process.pid)

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()
        self.reader.join(1)

    def _answer(self, longest_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        alarm = threading.Timer(longest_s, self._signal, [signal.SIGKILL])
        alarm.start()
        line = self.process.stdout.readline()
        alarm.cancel()
        if not line:
            self.reader.join(1)  # it may have more to say
            raise EngineError(f"{self.name} gave no answer: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log = [*self.log[-19:], line.rstrip()]

    def _last_words(self) -> str:
        return " / ".join(self.log[-3:]) or "no message"


class Timed(Protocol):
    """An engine as a round sees it."""

    name: str
    version: str

    def time_s(self, step: str) -> float: ...
    def cpu_s(self) -> float: ...


def load_beside(engines: Sequence[Timed]) -> OtherLoad:
    """Processor time that neither this process nor the engines take from now on."""
    return OtherLoad(lambda: time.process_time() + sum(engine.cpu_s() for engine in engines))


def family_cpu_s(pid: int) -> float:
    """Processor time a process and its children have taken so far."""
    try:
        processes = [psutil.Process(pid)]
        processes += processes[0].children(recursive=True)
    except psutil.NoSuchProcess:
        return 0.0
    return sum(map(_cpu_s, processes))


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)
