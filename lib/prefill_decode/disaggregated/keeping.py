"""Keeping: workers by name, wherever they were started, and started again when they have died."""

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from prefill_decode.disaggregated.restarts import RestartLimits, Restarts
from prefill_decode.disaggregated.worker import WorkerOptions

STOP_S = 5.0  # for all workers of a fleet to end by themselves


class Started(Protocol):
    """One start of one worker."""

    def last_words(self) -> str | None:
        """Once it has ended: how, and what it said last. At once."""

    def kill(self) -> None:
        """It is found dead later."""

    def ask_to_end(self) -> None:
        """Without waiting for it."""

    def end(self, patience_s: float = 0.0) -> None:
        """Kill it, unless it ends by itself within so long; nothing of it is left."""


class KeptWorkers:
    """All workers of a fleet. `running`: those that were started and not yet found dead."""

    def __init__(
        self,
        options: Sequence[WorkerOptions],
        start: Callable[[WorkerOptions], Started],
        limits: RestartLimits | None = None,
    ) -> None:
        self._options = {option.name: option for option in options}
        self._start = start
        now_s = time.monotonic()
        self._restarts = {n: Restarts(limits or RestartLimits(), now_s) for n in self._options}
        self.running: dict[str, Started] = {}
        try:
            for name, option in self._options.items():
                self.running[name] = start(option)
        except BaseException:
            self.close()
            raise

    def tend(self, now_s: float) -> list[str]:
        complaints = []
        for name, worker in list(self.running.items()):
            if (words := worker.last_words()) is not None:
                complaints.append(f"{name} {words}{self._died(name, now_s)}")
        for name, restarts in self._restarts.items():
            if restarts.due_s is not None and now_s >= restarts.due_s:
                self.running[name] = self._start(self._options[name])
                restarts.started(now_s)
        return complaints

    def end(self, name: str) -> None:
        """It is found dead, and started again, when next looked at."""
        if name in self.running:
            self.running[name].kill()

    def close(self) -> None:
        for worker in self.running.values():
            worker.ask_to_end()
        end_s = time.monotonic() + STOP_S
        for worker in self.running.values():
            worker.end(max(0.0, end_s - time.monotonic()))
        self.running.clear()

    def _died(self, name: str, now_s: float) -> str:
        self.running.pop(name).end()
        restarts = self._restarts[name]
        restarts.died(now_s)
        if restarts.due_s is None:
            return f"; it has died {restarts.in_a_row} times in a row and stays dead"
        return f"; it starts again in {restarts.due_s - now_s:g} s"
