"""Token log: when every token came, without a number for each.

All that decode on an instance get a token in each of its turns, and turns of a run follow a
parabola in time. So an instance keeps one line for each run (first turn, start, time of its first
step, what each further step adds), and a request one line for each segment of its answer. Times
are computed from these when they are asked for, one request or a million at once.
"""

from array import array
from math import isnan, nan

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Timeline:
    """The turns of an instance; turn n is its n-th step in which sequences decode, from 1."""

    def __init__(self) -> None:
        self._lines = array("d")  # of each run: turns before it, start, first step, growth

    def __len__(self) -> int:
        return len(self._lines) // 4

    def add(self, before: int, start_s: float, first_s: float, growth_s: float) -> None:
        self._lines.extend((before, start_s, first_s, growth_s))

    def runs(self) -> tuple[Integers, Floats, Floats, Floats]:
        """Turns before each run, its start, the time of its first step and what each further step
        adds, seconds."""
        lines = np.frombuffer(self._lines).reshape(-1, 4)
        return lines[:, 0].astype(np.int64), lines[:, 1], lines[:, 2], lines[:, 3]

    def times_s(self, turns: Integers) -> Floats:
        """When these turns ended."""
        before, starts, firsts, growths = self.runs()
        run = np.searchsorted(before, turns, side="left") - 1
        start, first, growth = starts[run], firsts[run], growths[run]
        step = (turns - before[run]).astype(np.float64)
        found: Floats = start + step * first + growth * (step * (step - 1) / 2)
        return found


class TokenLog:
    """Segments of answers in the order in which they ended; each knows the one before it."""

    def __init__(self, num_requests: int, num_instances: int) -> None:
        self.timelines = [Timeline() for _ in range(num_instances)]
        self.instance = array("i")
        self.first_s = array("d")  # of a token at no turn, before those at turns; NaN without
        self.since_turn = array("q")
        self.last_turn = array("q")
        self.previous = array("q")  # of the same request; -1 for none
        self.last_of = array("q", [-1]) * num_requests

    def end_segment(
        self, request: int, instance: int, first_s: float, since_turn: int, last_turn: int
    ) -> None:
        if last_turn == since_turn and isnan(first_s):
            return  # it never got a token
        self.previous.append(self.last_of[request])
        self.last_of[request] = len(self.instance)
        self.instance.append(instance)
        self.first_s.append(first_s)
        self.since_turn.append(since_turn)
        self.last_turn.append(last_turn)

    def segments_of(self, request: int) -> list[int]:
        """The rows of a request's segments, in time."""
        rows, row = [], self.last_of[request]
        while row >= 0:
            rows.append(row)
            row = self.previous[row]
        return rows[::-1]

    def times_s(self, request: int) -> Floats:
        """Of every token of an answer, seconds."""
        parts = []
        for row in self.segments_of(request):
            if not isnan(self.first_s[row]):
                parts.append(np.array([self.first_s[row]]))
            turns = np.arange(self.since_turn[row] + 1, self.last_turn[row] + 1)
            if len(turns):
                parts.append(self.timelines[self.instance[row]].times_s(turns))
        return np.concatenate(parts) if parts else np.empty(0)

    def first_and_last_s(self) -> tuple[Floats, Floats, Integers]:
        """(time of the first token, of the last, number of tokens) of every request; NaN, NaN and
        0 where none came."""
        num_requests = len(self.last_of)
        starts, ends = self.segment_times_s()
        tokens = np.zeros(num_requests, np.int64)
        first, last = np.full(num_requests, nan), np.full(num_requests, nan)
        previous = np.frombuffer(self.previous, np.int64)
        row = np.frombuffer(self.last_of, np.int64).copy()
        per_row = np.frombuffer(self.last_turn, np.int64) - np.frombuffer(self.since_turn, np.int64)
        per_row = per_row + ~np.isnan(np.frombuffer(self.first_s))
        alive = np.flatnonzero(row >= 0)
        last[alive] = ends[row[alive]]
        while len(alive):
            rows = row[alive]
            first[alive] = starts[rows]
            tokens[alive] += per_row[rows]
            row[alive] = previous[rows]
            alive = alive[row[alive] >= 0]
        return first, last, tokens

    def segment_times_s(self) -> tuple[Floats, Floats]:
        """Of the first and the last token of every segment."""
        first_s = np.frombuffer(self.first_s)
        since = np.frombuffer(self.since_turn, np.int64)
        last = np.frombuffer(self.last_turn, np.int64)
        instance = np.frombuffer(self.instance, np.int32)
        starts, ends = first_s.copy(), first_s.copy()
        for number, timeline in enumerate(self.timelines):
            turned = np.flatnonzero((instance == number) & (last > since))
            ends[turned] = timeline.times_s(last[turned])
            bare = turned[np.isnan(first_s[turned])]
            starts[bare] = timeline.times_s(since[bare] + 1)
        return starts, ends
