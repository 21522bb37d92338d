"""Restarts: when a worker that died is started again, and when no more.

One that dies soon after its start waits twice as long each time, and after so many such deaths in a
row it stays dead; one that lived for a while begins anew."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartLimits:
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    calm_s: float = 10.0  # who lives for so long did not die of its start
    most_in_a_row: int = 8


@dataclass(slots=True)
class Restarts:
    """Of one worker."""

    limits: RestartLimits
    started_s: float
    in_a_row: int = 0
    due_s: float | None = None  # when it starts again; None: it runs, or stays dead

    @property
    def given_up(self) -> bool:
        return self.in_a_row > self.limits.most_in_a_row

    def died(self, now_s: float) -> None:
        calm = now_s - self.started_s >= self.limits.calm_s
        self.in_a_row = 1 if calm else self.in_a_row + 1
        pause_s = self.limits.first_pause_s * 2.0 ** (self.in_a_row - 1)
        pause_s = min(pause_s, self.limits.longest_pause_s)
        self.due_s = None if self.given_up else now_s + pause_s

    def started(self, now_s: float) -> None:
        self.started_s, self.due_s = now_s, None
