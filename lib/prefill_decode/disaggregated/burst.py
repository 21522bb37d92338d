"""Burst: streams that decode, a prompt that arrives among them, and the time of every token, with
whoever answers.

All streams are asked at once. When each has had `QUIET_GAPS` gaps with nobody else, the prompt is
asked, and with the last token of its answer the burst is over: the streams are cancelled.

Timed:   when whoever serves has a token in hand.
Ignores: text, HTTP, and streams that arrive or end meanwhile."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from prefill_decode.engine.answering import Answering, FailedAnswer
from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import gaps_s, ttft_s
from prefill_decode.stall_cost import Burst

PROMPT = "prompt"
QUIET_GAPS = 12
LONGEST_S = 300.0


@dataclass(frozen=True)
class Lived:
    """What the streams and, last, the prompt lived through; times are seconds since the start."""

    records: tuple[RequestRecord, ...]
    token_ids: Mapping[str, Sequence[int]]  # by request
    settled_s: float  # when every stream had begun to decode

    @property
    def prompt(self) -> RequestRecord:
        return self.records[-1]

    @property
    def ttft_s(self) -> float:
        return ttft_s(self.prompt)

    @property
    def quiet_gap_s(self) -> float:
        """The worst gap of a stream before the prompt came."""
        return max(self._gaps_s(self.settled_s, self.prompt.request.arrival_s, whole=True))

    @property
    def worst_gap_s(self) -> float:
        """Of a stream, among the gaps that ended while the prompt was read or answered."""
        return max(self._during_s())

    @property
    def median_gap_s(self) -> float:
        return median(self._during_s())

    @property
    def joining_s(self) -> float:
        """The worst first gap of an answer, of streams and prompt: when it begins to decode."""
        return max(gaps_s(record)[0] for record in self.records)

    def alike(self, token_ids: Mapping[str, Sequence[int]]) -> float:
        """The share of answers that are the same as these, as far as both reach."""
        same = [
            all(one == other for one, other in zip(ids, token_ids[name], strict=False))
            for name, ids in self.token_ids.items()
        ]
        return sum(same) / len(same)

    def _during_s(self) -> list[float]:
        return self._gaps_s(self.prompt.request.arrival_s, self.prompt.event_times_s[-1])

    def _gaps_s(self, first_s: float, last_s: float, whole: bool = False) -> list[float]:
        """Gaps of streams that end within this time, and where `whole` begin within it, too."""
        return [
            gap_s
            for stream in self.records[:-1]
            for end_s, gap_s in zip(stream.event_times_s[1:], gaps_s(stream), strict=True)
            if first_s < end_s <= last_s and not (whole and end_s - gap_s < first_s)
        ]


def live_through(
    serving: Answering,
    burst: Burst,
    prompts: Mapping[str, Sequence[int]],
    stream_tokens: int,
    least_tokens: int = 0,
) -> Lived:
    """Ask `prompts`, the one named `PROMPT` among the others, and note every token.

    `stream_tokens`: the most a stream may have. `least_tokens`: go on until each has so many.
    RuntimeError where an answer fails, or nothing comes for long."""
    streams = [name for name in prompts if name != PROMPT]
    started_s = time.perf_counter()
    token_ids: dict[str, list[int]] = {name: [] for name in prompts}
    times_s: dict[str, list[float]] = {name: [] for name in prompts}
    arrived_s = settled_s = 0.0

    def fewest() -> int:
        return min(len(token_ids[name]) for name in streams)

    for name in streams:
        serving.submit(name, prompts[name], stream_tokens)
    asked = False
    while len(token_ids[PROMPT]) < burst.answer_tokens or fewest() < least_tokens:
        for token in serving.step():
            if isinstance(token, FailedAnswer):
                raise RuntimeError(f"{token.request_id} failed: {token.reason}")
            token_ids[token.request_id].append(token.token_id)
            times_s[token.request_id].append(time.perf_counter() - started_s)
        now_s = time.perf_counter() - started_s
        if fewest() >= 2 and not settled_s:
            settled_s = now_s
        if fewest() >= 2 + QUIET_GAPS and not asked:
            asked, arrived_s = True, now_s
            serving.submit(PROMPT, prompts[PROMPT], burst.answer_tokens)
        if now_s > LONGEST_S:
            raise RuntimeError(f"a burst takes less than {LONGEST_S:g} s; got {serving.state()}")
    _clear(serving, streams)
    arrivals_s = {PROMPT: arrived_s}
    records = tuple(
        _record(name, arrivals_s.get(name, 0.0), len(prompts[name]), times_s[name])
        for name in (*streams, PROMPT)
    )
    return Lived(records, token_ids, settled_s)


def _clear(serving: Answering, streams: Sequence[str]) -> None:
    """Cancel what still runs, and wait until all blocks are back."""
    for name in streams:
        serving.cancel(name)
    end_s = time.perf_counter() + LONGEST_S
    while (state := serving.state()).free_blocks < state.num_blocks:
        if time.perf_counter() > end_s:
            raise RuntimeError(f"cancelled streams give their blocks back; got {state}")
        serving.step()


def _record(
    name: str, arrived_s: float, prompt_tokens: int, times_s: Sequence[float]
) -> RequestRecord:
    request = Request(name, arrived_s, prompt_tokens, len(times_s))
    return RequestRecord(request, tuple(times_s), (1,) * len(times_s))
