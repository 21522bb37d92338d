"""Gaps: the times between the tokens of all answers, from the runs of a token log.

Between two turns of an instance lies one gap for everybody who got a token in both. A segment
begins and ends with a run, so each run has one number of answers for the gaps inside it and for
the gap before it; the first gap of a segment is its own.

Ignores: the differences between the gaps of one run beyond some of them: a longer run is cut into
         `MOST_PARTS` parts, fewer where there are many runs, and each gap taken for the mean of
         its part. Gaps grow by the attention to one token a step, so this moves one by far less
         than a hundredth. No request's largest gap is touched.
"""

from dataclasses import dataclass
from math import nan

import numpy as np

from prefill_decode.simulator.token_log import Floats, Integers, Timeline, TokenLog

MOST_PARTS = 64  # of a run
MOST_VALUES = 300_000  # of a timeline, unless it has more runs


@dataclass(frozen=True)
class Gaps:
    """Values in seconds and how many answers saw each; and the largest gap of every request."""

    values_s: Floats
    weights: Integers
    stall_s: Floats  # NaN below two tokens


def gaps_of(log: TokenLog) -> Gaps:
    """Of all requests of a log."""
    stall_s = np.full(len(log.last_of), nan)
    owner = _owners(log)
    first_s = np.frombuffer(log.first_s)
    since, last = np.frombuffer(log.since_turn, np.int64), np.frombuffer(log.last_turn, np.int64)
    instance = np.frombuffer(log.instance, np.int32)
    values, weights = [], []
    for number, timeline in enumerate(log.timelines):
        rows = np.flatnonzero((instance == number) & (last > since))
        if len(rows):
            runs = _Runs(timeline, since[rows], last[rows])
            own = runs.first_turn_s - first_s[rows]  # NaN where no token came before
            largest = np.fmax(own, runs.largest_gap_s())
            np.fmax.at(stall_s, owner[rows], largest)
            seen = own[~np.isnan(own)]
            inner_s, inner_weights = runs.inner_gaps()
            values += [seen, runs.head, inner_s]
            weights += [np.ones(len(seen), np.int64), runs.stayed, inner_weights]
    between, who = _between_segments(log, owner)
    np.fmax.at(stall_s, who, between)
    values.append(between)
    weights.append(np.ones(len(between), np.int64))
    every, many = np.concatenate(values), np.concatenate(weights)
    return Gaps(every[many > 0], many[many > 0], stall_s)


class _Runs:
    """The runs of a timeline, and the segments (turns since + 1 to last) that lie over them."""

    def __init__(self, timeline: Timeline, since: Integers, last: Integers) -> None:
        before, start, first, self.growth = timeline.runs()
        self.first, self.steps = first, np.diff(before, append=last.max())
        end = start + self.steps * first + self.growth * (self.steps * (self.steps - 1) / 2)
        self.head = start + first - np.concatenate([[nan], end[:-1]])  # the gap before a run
        self.begin = np.searchsorted(before, since)
        self.end = np.searchsorted(before, last)  # behind the last run
        assert np.array_equal(before[self.begin], since), "a segment begins with a run"
        self.first_turn_s = (start + first)[self.begin]
        changes = np.bincount(self.begin, minlength=len(before) + 1)
        joined = changes[: len(before)]
        changes = changes - np.bincount(self.end, minlength=len(before) + 1)
        self.decodes = np.cumsum(changes)[: len(before)]
        self.stayed = self.decodes - joined

    def largest_gap_s(self) -> Floats:
        """Of each segment, without the gap before its first turn; NaN for none."""
        inner = np.where(self.steps > 1, self.first + (self.steps - 1) * self.growth, nan)
        whole = np.append(np.fmax(inner, self.head), nan)
        rest = np.full(len(self.begin), nan)
        more = self.end > self.begin + 1
        pairs = np.column_stack([self.begin[more] + 1, self.end[more]]).ravel()
        if len(pairs):
            rest[more] = np.fmax.reduceat(whole, pairs)[::2]
        found: Floats = np.fmax(inner[self.begin], rest)
        return found

    def inner_gaps(self) -> tuple[Floats, Integers]:
        """Gaps inside runs, part by part: the mean, and how many answers saw one of them."""
        run, low, high = self._parts(max(1, min(MOST_PARTS, MOST_VALUES // len(self.steps))))
        middle = (low + high - 1) / 2  # of the gaps low to high - 1; gap n is first + n growth
        return self.first[run] + middle * self.growth[run], (high - low) * self.decodes[run]

    def _parts(self, most_parts: int) -> tuple[Integers, Integers, Integers]:
        """Runs cut into parts: (run, first gap, behind the last gap); gaps count from 1."""
        parts = np.minimum(self.steps - 1, most_parts)
        run = np.repeat(np.arange(len(parts)), parts)
        number = np.arange(len(run)) - np.repeat(np.cumsum(parts) - parts, parts)
        gaps, of = self.steps[run] - 1, parts[run]
        return run, 1 + number * gaps // of, 1 + (number + 1) * gaps // of


def _owners(log: TokenLog) -> Integers:
    """The request of every segment."""
    previous = np.frombuffer(log.previous, np.int64)
    owner = np.full(len(previous), -1)
    row = np.frombuffer(log.last_of, np.int64)
    request = np.flatnonzero(row >= 0)
    row = row[request]
    while len(row):
        owner[row] = request
        row = previous[row]
        request, row = request[row >= 0], row[row >= 0]
    return owner


def _between_segments(log: TokenLog, owner: Integers) -> tuple[Floats, Integers]:
    """Gaps between the last token of a segment and the first of the next; and whose they are."""
    starts, ends = log.segment_times_s()
    previous = np.frombuffer(log.previous, np.int64)
    rows = np.flatnonzero(previous >= 0)
    return starts[rows] - ends[previous[rows]], owner[rows]
