"""Outcome: what became of every request of a simulation, as records and as a summary.

A record holds a number for each token and is made when it is asked for. The summary needs none:
first and last times come from the token log, gaps from its runs, each gap with the number of
answers that saw it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import NO_OBJECTIVES, Objectives, Summary
from prefill_decode.simulator.fleet import Fleet
from prefill_decode.simulator.instance import Instance
from prefill_decode.simulator.links import Link
from prefill_decode.simulator.summary import Flags, good_requests, summarize_log
from prefill_decode.simulator.token_log import TokenLog


@dataclass(frozen=True)
class InstanceUse:
    """What one instance did; `requests` were sent to it, `busy_share` is of the whole run."""

    pool: str
    requests: int
    steps: int
    busy_share: float
    preemptions: int
    reused_tokens: int


class Outcome:
    def __init__(
        self,
        fleet: Fleet,
        requests: Sequence[Request],
        log: TokenLog,
        failures: dict[int, str],
        instances: Sequence[Instance],
        links: Sequence[Link],
    ) -> None:
        self.fleet, self.requests, self.log, self.failures = fleet, requests, log, failures
        self.first_s, self.last_s, self.tokens = log.first_and_last_s()
        self.moved_bytes = sum(link.moved_bytes for link in links)
        self.uses = [self._use(instance) for instance in instances]

    @property
    def start_s(self) -> float:
        return min(request.arrival_s for request in self.requests)

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last token; 0 where none came."""
        ends = self.last_s[~np.isnan(self.last_s)]
        return float(ends.max()) - self.start_s if len(ends) else 0.0

    @property
    def num_preemptions(self) -> int:
        return sum(use.preemptions for use in self.uses)

    @property
    def num_reused_tokens(self) -> int:
        return sum(use.reused_tokens for use in self.uses)

    def record(self, index: int) -> RequestRecord:
        """Of the index-th request, with the time of every token."""
        times_s = tuple(self.log.times_s(index).tolist())
        tokens = (1,) * len(times_s)
        return RequestRecord(self.requests[index], times_s, tokens, self.failures.get(index))

    def records(self) -> Iterator[RequestRecord]:
        return (self.record(index) for index in range(len(self.requests)))

    def summary(self, objectives: Objectives = NO_OBJECTIVES) -> Summary:
        """What serving_metrics.summarize says of the records, without making them. ValueError if
        no token came."""
        return summarize_log(
            self.requests,
            self.log,
            (self.first_s, self.last_s, self.tokens),
            self.failures,
            self.duration_s,
            objectives,
        )

    def is_good(self, objectives: Objectives) -> Flags:
        """Of each request, in their order: whether it was answered within every objective."""
        times = (self.first_s, self.last_s, self.tokens)
        return good_requests(self.requests, self.log, times, objectives)

    def _use(self, instance: Instance) -> InstanceUse:
        duration_s = self.duration_s
        return InstanceUse(
            instance.pool.name,
            instance.num_requests,
            instance.num_steps,
            instance.busy_s / duration_s if duration_s else 0.0,
            instance.scheduler.num_preemptions,
            instance.scheduler.num_reused_tokens,
        )
