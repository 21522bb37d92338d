"""Serving metrics: TTFT, TPOT, ITL and stall of a request, from the times its tokens arrived;
goodput and what failed, of many.

    TTFT  = t_first - t_arrival                   time to first token
    TPOT  = (t_last - t_first) / (n - 1), n >= 2  time per output token, averaged over one request
    ITL   = gaps between token-carrying events    inter-token latencies, pooled over requests
    stall = a request's largest gap
    E2E   = t_last - t_arrival                    the whole answer
    goodput = requests answered within every objective, per second of the run

A request is answered when it did not fail and every token it asked for came. One that failed, was
dropped or was unfinished when the run ended is a miss: it lowers goodput and is counted beside
every percentile, which knows only requests that were answered.

Counts:  only events that carry tokens; n are the tokens of all of them, whatever the first one
         brought. Where every token came in one event, or their number is unknown, there is no TPOT.
Ignores: what happened inside the server. A number that does not exist is NaN, never 0.
Source:  TTFT and TPOT are those of MLPerf inference, NVIDIA GenAI-Perf and vLLM's benchmark. ITL
         differs between them where an event brings several tokens; the book's is the one above."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite, isnan, nan
from typing import Any

from prefill_decode.request import RequestRecord
from prefill_decode.statistics import PERCENTILES, Percentile, Share, percentile, share_interval


@dataclass(frozen=True)
class Objectives:
    """The most that a request may take, seconds; infinite where nothing is asked."""

    ttft_s: float = inf
    tpot_s: float = inf
    stall_s: float = inf

    def __post_init__(self) -> None:
        if not (self.ttft_s > 0 and self.tpot_s > 0 and self.stall_s > 0):
            raise ValueError(f"an objective is a positive time in seconds; got {self}")


NO_OBJECTIVES = Objectives()


@dataclass(frozen=True)
class Summary:
    """Of all requests of a run. The percentiles are of those answered, except one kind: in
    `ttft_with_failures_s` a request that was not answered is later than any other.

    Intervals take their samples for independent. Requests that wait for each other are not, nor
    are the gaps of one request: read theirs, above all those of ITL, as too narrow.
    """

    num_requests: int
    num_failed: int  # not answered, for whatever reason
    num_unfinished: int  # of these, without a failure that was recorded
    num_without_tpot: int  # answered, but in one event, or with tokens that nobody counted
    num_gaps_of_failed: int  # seen before a request failed; in no percentile
    share_failed: Share
    share_good: Share  # answered within every objective
    goodput_per_s: float
    objectives: Objectives
    duration_s: float
    ttft_s: tuple[Percentile, ...]
    ttft_with_failures_s: tuple[Percentile, ...]
    tpot_s: tuple[Percentile, ...]
    itl_s: tuple[Percentile, ...]
    stall_s: tuple[Percentile, ...]
    e2e_s: tuple[Percentile, ...]

    def as_dict(self) -> dict[str, Any]:
        """Strict JSON: null for a percentile that is withheld or lies among failures, and for an
        objective that was not set.
        """
        objectives = vars(self.objectives).items()
        return {
            "num_requests": self.num_requests,
            "num_failed": self.num_failed,
            "num_unfinished": self.num_unfinished,
            "num_without_tpot": self.num_without_tpot,
            "num_gaps_of_failed": self.num_gaps_of_failed,
            "share_failed": self.share_failed.as_dict(),
            "share_good": self.share_good.as_dict(),
            "goodput_per_s": self.goodput_per_s,
            "objectives": {name: most_s if most_s < inf else None for name, most_s in objectives},
            "duration_s": self.duration_s,
            "ttft_s": _by_name(self.ttft_s),
            "ttft_with_failures_s": _by_name(self.ttft_with_failures_s),
            "tpot_s": _by_name(self.tpot_s),
            "itl_s": _by_name(self.itl_s),
            "stall_s": _by_name(self.stall_s),
            "e2e_s": _by_name(self.e2e_s),
        }


def ttft_s(record: RequestRecord) -> float:
    """Time to first token, seconds; NaN if none came."""
    if not record.event_times_s:
        return nan
    return record.event_times_s[0] - record.request.arrival_s


def tpot_s(record: RequestRecord) -> float:
    """Time per output token, seconds; NaN below two events and where tokens were not counted."""
    tokens = sum(record.event_tokens) if record.tokens_counted else 0
    return mean_token_time_s(record.event_times_s, tokens)


def mean_token_time_s(event_times_s: Sequence[float], output_tokens: int) -> float:
    """(t_last - t_first) / (n - 1), seconds; NaN below two events or two tokens."""
    if len(event_times_s) < 2 or output_tokens < 2:
        return nan
    return (event_times_s[-1] - event_times_s[0]) / (output_tokens - 1)


def e2e_s(record: RequestRecord) -> float:
    """From arrival to the last token, seconds; NaN if none came."""
    if not record.event_times_s:
        return nan
    return record.event_times_s[-1] - record.request.arrival_s


def gaps_s(record: RequestRecord) -> list[float]:
    """Inter-token latencies of one request, seconds: one for each pair of neighbouring events."""
    return [later - earlier for earlier, later in pairwise(record.event_times_s)]


def itl_s(records: Iterable[RequestRecord]) -> list[float]:
    """Inter-token latencies pooled over requests, seconds."""
    return [gap for record in records for gap in gaps_s(record)]


def stall_s(record: RequestRecord) -> float:
    """A request's largest gap, seconds; NaN below two events."""
    return max(gaps_s(record), default=nan)


def is_answered(record: RequestRecord, may_stop_early: bool = False) -> bool:
    """Whether the request got what it asked for: no failure, and all of its output tokens.

    Where a model may end its answer by itself (`may_stop_early`) one token is enough, because
    the record cannot tell a short answer from one that was cut off: record a failure for those.
    So it is where the tokens of events were not counted.
    """
    any_will_do = may_stop_early or not record.tokens_counted
    least_tokens = 1 if any_will_do else record.request.output_tokens
    return record.failure is None and sum(record.event_tokens) >= least_tokens


def is_good(record: RequestRecord, objectives: Objectives, may_stop_early: bool = False) -> bool:
    """Whether the request was answered within every objective.

    An answer without a later token has no TPOT and no gap, so it cannot miss those objectives.
    """
    took_s = (ttft_s(record), tpot_s(record), stall_s(record))
    most_s = (objectives.ttft_s, objectives.tpot_s, objectives.stall_s)
    missed = any(took > most for took, most in zip(took_s, most_s, strict=True))
    return is_answered(record, may_stop_early) and not missed


def goodput_per_s(
    records: Iterable[RequestRecord],
    duration_s: float,
    ttft_s: float = inf,
    tpot_s: float = inf,
    stall_s: float = inf,
    may_stop_early: bool = False,
) -> float:
    """Requests answered within every objective, per second.

    `duration_s` is the whole run, from its first arrival to its last token, and `records` every
    request that arrived in it. Failed, dropped and unfinished ones are misses.
    """
    _check_duration(duration_s)
    objectives = Objectives(ttft_s, tpot_s, stall_s)
    return sum(is_good(record, objectives, may_stop_early) for record in records) / duration_s


def ttft_percentile(
    records: Iterable[RequestRecord], p: float, may_stop_early: bool = False
) -> Percentile:
    """Of the TTFT of all requests, one that was not answered being later than any other.

    Infinite in memory and null on disk when it falls among those, even if some of their first
    tokens came: a server that drops the slow half does not become fast.
    """
    waits_s = [ttft_s(r) if is_answered(r, may_stop_early) else inf for r in records]
    return percentile(waits_s, p)


def summarize(
    records: Iterable[RequestRecord],
    duration_s: float,
    objectives: Objectives = NO_OBJECTIVES,
    may_stop_early: bool = False,
) -> Summary:
    """What became of every request of a run that lasted `duration_s`: see Summary."""
    _check_duration(duration_s)
    every = list(records)
    answered = [record for record in every if is_answered(record, may_stop_early)]
    failed = [record for record in every if not is_answered(record, may_stop_early)]
    num_good = sum(is_good(record, objectives, may_stop_early) for record in answered)
    tpots_s = [tpot_s(record) for record in answered]
    stalls_s = [max(gaps) for gaps in map(gaps_s, answered) if gaps]
    return Summary(
        num_requests=len(every),
        num_failed=len(failed),
        num_unfinished=sum(record.failure is None for record in failed),
        num_without_tpot=sum(map(isnan, tpots_s)),
        num_gaps_of_failed=len(itl_s(failed)),
        share_failed=share_interval(len(failed), len(every)),
        share_good=share_interval(num_good, len(every)),
        goodput_per_s=num_good / duration_s,
        objectives=objectives,
        duration_s=duration_s,
        ttft_s=_percentiles([ttft_s(record) for record in answered]),
        ttft_with_failures_s=tuple(ttft_percentile(every, p, may_stop_early) for p in PERCENTILES),
        tpot_s=_percentiles([tpot for tpot in tpots_s if not isnan(tpot)]),
        itl_s=_percentiles(itl_s(answered)),
        stall_s=_percentiles(stalls_s),
        e2e_s=_percentiles([e2e_s(record) for record in answered]),
    )


def _percentiles(samples: Sequence[float]) -> tuple[Percentile, ...]:
    return tuple(percentile(samples, p) for p in PERCENTILES)


def _by_name(percentiles: Iterable[Percentile]) -> dict[str, Any]:
    return {found.name: found.as_dict() for found in percentiles}


def _check_duration(duration_s: float) -> None:
    if not (isfinite(duration_s) and duration_s > 0):
        raise ValueError(f"a run lasts a positive time in seconds; got {duration_s}")
