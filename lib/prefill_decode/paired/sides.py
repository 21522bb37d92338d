"""Sides: the two processes that take turns, each with one checkout's library.

A worker is stopped (SIGSTOP) except while it is asked: its idle threads spin for milliseconds after
a step and would slow the other side, by less after a step that was slowed on purpose.

A worker that dies, answers nonsense or lacks a step becomes a ValueError of one sentence. Whatever
happens, both processes end with the `with` block. Each is a process group in the driver's session:
when a driver is killed, the system hangs up on groups that lie stopped.
"""

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from prefill_decode.other_load import OtherLoad
from prefill_decode.paired.pairs import SIDES, Side

WORKER = Path(__file__).with_name("worker.py")
LONGEST_START_S = 600
LONGEST_ANSWER_S = 300
LONGEST_END_S = 5
LONGEST_WORDS = 300

Steps = Mapping[str, Sequence[tuple[int, int, int]]]  # (new tokens, cached tokens, how many)


@dataclass(frozen=True)
class Job:
    """What both sides run: the name of a shipped model, "auto", or a ModelSpec's fields."""

    steps: Steps
    model: str | Mapping[str, Any] = "auto"
    device: str = "auto"
    seed: int = 0


class Worker:
    """A side, its steps warm, stopped except while it is asked."""

    def __init__(self, side: Side, root: Path, job: Job) -> None:
        self.side, self.root = side, root
        self.log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - until close()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-B", str(WORKER), str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root / "lib")},
            process_group=0,  # Ctrl-C reaches the driver alone, which ends both
        )
        try:
            self.facts = self._ask(asdict(job), LONGEST_START_S)
            missing = {"library_version", "machine", "model"} - self.facts.keys()
            if missing:
                raise self._failure(f"its first answer lacks {', '.join(sorted(missing))}")
        except BaseException:
            self.close()
            raise

    def time_s(self, step: str, planted: float) -> float:
        """How long the step takes, by the worker's own clock."""
        answer = self._ask({"step": step, "planted": planted}, LONGEST_ANSWER_S)
        time_s = answer.get("time_s")
        if not isinstance(time_s, float) or not time_s > 0:
            raise self._failure(f"a time is a positive number of seconds; got {time_s!r}")
        return time_s

    def cpu_s(self) -> float:
        """Processor time it has taken so far."""
        try:
            times = psutil.Process(self.process.pid).cpu_times()
        except psutil.NoSuchProcess:
            return 0.0
        return float(times.user + times.system)

    def close(self) -> None:
        """End the process: asked first, then forced."""
        self.process.terminate()
        self._signal(signal.SIGCONT)
        try:
            self.process.wait(LONGEST_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def _ask(self, line: Mapping[str, Any], longest_s: float) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            print(json.dumps(line), file=self.process.stdin, flush=True)
            answered = select.select([self.process.stdout], [], [], longest_s)[0]
            answer = self.process.stdout.readline() if answered else ""
        except BrokenPipeError:
            raise self._failure("it has ended") from None
        finally:
            self._signal(signal.SIGSTOP)
        if not answered:
            raise self._failure(f"no answer in {longest_s} s")
        return self._answer(answer)

    def _answer(self, text: str) -> dict[str, Any]:
        if not text:
            raise self._failure("it ended without an answer")
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(f"an answer is one JSON object; got {text.strip()[:60]!r}")
        if "error" in answer:
            raise self._failure(str(answer["error"])[:LONGEST_WORDS])
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def _failure(self, reason: str) -> ValueError:
        self.log.seek(0)
        last = [line.strip() for line in self.log if line.strip()][-1:]
        words = f" (its last words: {last[0][:LONGEST_WORDS]})" if last else ""
        return ValueError(f"the {self.side} code in {self.root} cannot be timed: {reason}{words}")


@contextmanager
def two_sides(roots: Mapping[Side, Path], job: Job, seed: str) -> Iterator[dict[Side, Worker]]:
    """Both workers, started in random order; the first one chooses the model for both."""
    workers: dict[Side, Worker] = {}
    try:
        for side in random.Random(f"{seed}, start").sample(SIDES, 2):
            workers[side] = Worker(side, roots[side], job)
            if job.model == "auto":
                job = replace(job, model=workers[side].facts["model"]["name"])
        _check_alike(workers)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def watching(workers: Mapping[Side, Worker]) -> Callable[[], Callable[[], bool]]:
    """Starts a watch of processor time that neither this process nor the workers took."""
    machine = workers["current"].facts["machine"]
    threads = machine["threads"] if machine["device"] == "cpu" else 1  # a GPU needs one to launch
    spare_cores = machine["cores"] - threads

    def own_s() -> float:
        return time.process_time() + sum(worker.cpu_s() for worker in workers.values())

    def start() -> Callable[[], bool]:
        load = OtherLoad(own_s)
        return lambda: load.took_more_than(spare_cores)

    return start


def _check_alike(workers: Mapping[Side, Worker]) -> None:
    """ValueError unless both sides run the same model on the same device."""
    base, current = (
        {**worker.facts["model"], "device": worker.facts["machine"]["device"]}
        for worker in (workers["base"], workers["current"])
    )
    unlike = [f"{key} {base[key]} and {current.get(key)}" for key in base]
    unlike = [words for key, words in zip(base, unlike, strict=True) if base[key] != current[key]]
    if unlike:
        raise ValueError(
            f"both codes must run the same model on one device; base and current have "
            f"{', '.join(unlike)}; name a model that both ship"
        )
