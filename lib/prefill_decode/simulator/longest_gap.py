"""Longest gap: the longest wait between two tokens of any answer, and who was served around it.

What an instance does for one of its requests it does at the expense of the others, so the requests
of the instance on which the gap ended are those that can explain it.
"""

from dataclasses import dataclass

import numpy as np

from prefill_decode.request import RequestRecord
from prefill_decode.simulator.gaps import gaps_of
from prefill_decode.simulator.outcome import Outcome
from prefill_decode.simulator.token_log import Integers, TokenLog


@dataclass(frozen=True)
class LongestGap:
    """From `start_s` to `end_s`, the times of two tokens that follow each other in `waiting`.

    `beside`: the other requests of the instance that were there at some moment of the gap or as
    long before and after it, by arrival."""

    start_s: float
    end_s: float
    waiting: RequestRecord
    beside: tuple[RequestRecord, ...]

    @property
    def length_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def served(self) -> tuple[RequestRecord, ...]:
        """Those whose prompt was read meanwhile: the first token came in the gap or at its end."""
        return tuple(
            record
            for record in self.beside
            if record.event_times_s and self.start_s < record.event_times_s[0] <= self.end_s
        )


def longest_gap(outcome: Outcome) -> LongestGap:
    """Of a simulation, the first of equals. ValueError where no answer has two tokens."""
    log = outcome.log
    stall_s = gaps_of(log).stall_s
    if np.isnan(stall_s).all():
        raise ValueError("a gap lies between two tokens of an answer; no answer here has two")
    who = int(np.nanargmax(stall_s))
    times_s = log.times_s(who)
    place = int(np.argmax(np.diff(times_s)))
    start_s, end_s = float(times_s[place]), float(times_s[place + 1])
    reach_s = end_s - start_s
    there = np.flatnonzero(
        (np.array([request.arrival_s for request in outcome.requests]) <= end_s + reach_s)
        & (outcome.last_s >= start_s - reach_s)
    )
    instance = _instance_at(log, who, end_s)
    beside = [
        outcome.record(int(index))
        for index in there
        if index != who and instance in _instances(log, int(index))
    ]
    beside.sort(key=lambda record: record.request.arrival_s)
    return LongestGap(start_s, end_s, outcome.record(who), tuple(beside))


def _instances(log: TokenLog, request: int) -> set[int]:
    return {log.instance[row] for row in log.segments_of(request)}


def _instance_at(log: TokenLog, request: int, time_s: float) -> int:
    """Where the answer got its token of that moment: in its first segment that reaches it."""
    _, ends_s = log.segment_times_s()
    rows: Integers = np.array(log.segments_of(request))
    return log.instance[int(rows[np.searchsorted(ends_s[rows], time_s)])]
