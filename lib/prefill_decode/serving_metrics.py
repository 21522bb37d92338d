"""Serving metrics: TTFT, TPOT, ITL and stall of a request, from the times its tokens arrived.

    TTFT  = t_first - t_arrival                   time to first token
    TPOT  = (t_last - t_first) / (n - 1), n >= 2  time per output token, averaged over one request
    ITL   = gaps between token-carrying events    inter-token latencies, pooled over requests
    stall = a request's largest gap

Counts:  only events that carry tokens. When the first event carries several tokens they all came at
         t_first, so TPOT divides by the tokens that came later.
Ignores: what happened inside the server. A number that does not exist is NaN, never 0.
Source:  the definitions of NVIDIA GenAI-Perf and of MLPerf inference agree with these for one
         token an event; for several tokens an event they differ, and the book's are the ones
         above."""

from collections.abc import Iterable
from itertools import pairwise
from math import nan

from prefill_decode.request import RequestRecord


def ttft_s(record: RequestRecord) -> float:
    """Time to first token, seconds; NaN if none came."""
    if not record.event_times_s:
        return nan
    return record.event_times_s[0] - record.request.arrival_s


def tpot_s(record: RequestRecord) -> float:
    """Time per output token after the first event, seconds; NaN below two events."""
    later_tokens = sum(record.event_tokens[1:])
    if later_tokens == 0:
        return nan
    return (record.event_times_s[-1] - record.event_times_s[0]) / later_tokens


def gaps_s(record: RequestRecord) -> list[float]:
    """Inter-token latencies of one request, seconds: one for each pair of neighbouring events."""
    return [later - earlier for earlier, later in pairwise(record.event_times_s)]


def itl_s(records: Iterable[RequestRecord]) -> list[float]:
    """Inter-token latencies pooled over requests, seconds."""
    return [gap for record in records for gap in gaps_s(record)]


def stall_s(record: RequestRecord) -> float:
    """A request's largest gap, seconds; NaN below two events."""
    return max(gaps_s(record), default=nan)
