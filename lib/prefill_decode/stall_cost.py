"""Stall cost: what a long prompt does to streams that decode, for three ways to serve both.

    one piece   one engine; the prompt in a step of its own, and the streams' next step after it
    chunked     one engine; the prompt in pieces, each beside the streams
    apart       a prefill worker and a decode worker, each on a share of the same processors

Counts:  least times of the roofline: of all processors for one engine, of a share for a worker.
Ignores: what two workers take of each other's memory bandwidth, messages, and what a step costs
         whatever is in it. All of it makes `apart` look better than it is.
Source:  Zhong et al., "DistServe" (2024), section 2, on the interference of the phases; Agrawal et
         al., "Sarathi-Serve" (2024), on pieces instead.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

from prefill_decode.chunking import least_price
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import step_work, telling_prompt_lengths
from prefill_decode.serving_metrics import Objectives
from prefill_decode.step import Chunk

ONE_PIECE, CHUNKED, APART = "one piece", "chunked", "apart"
WAYS = (ONE_PIECE, CHUNKED, APART)
PIECES = 4  # of the prompt, where none are given
PATIENT = 2.0  # times the longest of all ways: an objective that none of them should miss


@dataclass(frozen=True)
class Burst:
    """Streams that decode, and a prompt that arrives among them and is answered, too."""

    prompt_tokens: int
    chunk_tokens: int  # of the prompt in a step, where it is cut
    streams: int = 4
    context_tokens: int = 32  # of each stream when it begins
    answer_tokens: int = 8  # to the prompt

    def __post_init__(self) -> None:
        counts = (self.chunk_tokens, self.streams, self.context_tokens)
        if min(counts) < 1 or self.prompt_tokens < self.chunk_tokens or self.answer_tokens < 2:
            raise ValueError(
                "a burst has a stream, a token of its context, a chunk no longer than the prompt "
                f"and an answer of two tokens, each of them at least; got {self}"
            )


@dataclass(frozen=True)
class Latency:
    """What one way costs, seconds."""

    quiet_gap_s: float  # of a stream, with nobody else
    worst_gap_s: float  # of a stream, while the prompt is read and answered
    ttft_s: float  # of the prompt
    joining_s: float  # from the first token to the second of whoever begins to decode

    @property
    def stall_s(self) -> float:
        """The worst gap of anyone."""
        return max(self.worst_gap_s, self.joining_s)


def telling_burst(
    model: ModelSpec, hardware: Hardware, streams: int = 4, prompt_tokens: int | None = None
) -> Burst:
    """Pieces that are clearly compute-bound, and a prompt of several where none is given."""
    piece = telling_prompt_lengths(model, hardware)[-2]
    prompt = PIECES * piece if prompt_tokens is None else prompt_tokens
    return Burst(prompt, min(piece, prompt), streams)


@dataclass(frozen=True)
class Foreseen:
    """The latencies of every way, and what follows from them."""

    burst: Burst
    latencies: Mapping[str, Latency]

    def gap_ratio(self, way: str) -> float:
        """Worst gap, over that of `apart`."""
        return self.latencies[way].worst_gap_s / self.latencies[APART].worst_gap_s

    def quiet_ratio(self, way: str) -> float:
        return self.latencies[way].quiet_gap_s / self.latencies[APART].quiet_gap_s

    @property
    def wait_ratio(self) -> float:
        """TTFT of `apart`, over that of the prompt in one piece."""
        return self.latencies[APART].ttft_s / self.latencies[ONE_PIECE].ttft_s

    @property
    def readers(self) -> Objectives:
        """Strict with gaps: midway, on a log scale, between `apart` and the next longer stall."""
        apart_s = self.latencies[APART].stall_s
        longer_s = [each.stall_s for each in self.latencies.values() if each.stall_s > apart_s]
        patient_s = PATIENT * max(latency.ttft_s for latency in self.latencies.values())
        return Objectives(ttft_s=patient_s, stall_s=sqrt(apart_s) * sqrt(min(longer_s)))

    @property
    def askers(self) -> Objectives:
        """Strict with the prompt's TTFT: midway between `one piece` and `apart`."""
        one_s, apart_s = (self.latencies[way].ttft_s for way in (ONE_PIECE, APART))
        patient_s = PATIENT * max(latency.stall_s for latency in self.latencies.values())
        return Objectives(ttft_s=sqrt(one_s) * sqrt(apart_s), stall_s=patient_s)

    def share_good(self, way: str, objectives: Objectives) -> float:
        """Of the streams and the prompt, those within the objectives. A stream's own TTFT is in
        time; whoever reads the prompt's answer sees only its own gaps."""
        latency = self.latencies[way]
        streams = latency.stall_s <= objectives.stall_s
        on_time = latency.ttft_s <= objectives.ttft_s
        prompt = on_time and latency.joining_s <= objectives.stall_s
        return (self.burst.streams * streams + prompt) / (self.burst.streams + 1)

    def readers_good(self, way: str) -> float:
        return self.share_good(way, self.readers)


def foresee(model: ModelSpec, burst: Burst, whole: Hardware, share: Hardware) -> Foreseen:
    """From least times: `whole` for one engine, `share` for each of two workers."""
    return Foreseen(
        burst,
        {
            ONE_PIECE: one_piece(model, burst, whole),
            CHUNKED: chunked(model, burst, whole),
            APART: apart(model, burst, share, share),
        },
    )


def one_piece(model: ModelSpec, burst: Burst, hardware: Hardware) -> Latency:
    quiet_s, joined_s = _decode_steps_s(model, burst, hardware)
    prefill_s = _prefill_s(model, burst, hardware)
    return Latency(quiet_s, prefill_s + joined_s, prefill_s, joined_s)


def chunked(model: ModelSpec, burst: Burst, hardware: Hardware) -> Latency:
    quiet_s, joined_s = _decode_steps_s(model, burst, hardware)
    sizes = (burst.prompt_tokens, burst.chunk_tokens, burst.streams, burst.context_tokens)
    price = least_price(model, hardware, *sizes)
    return Latency(quiet_s, max(price.worst_gap_s, joined_s), price.ttft_s, joined_s)


def apart(model: ModelSpec, burst: Burst, prefill: Hardware, decode: Hardware) -> Latency:
    """Who joins the decode worker may have to let a step end before its own begins; its cache is
    there by then, all but the last layer, which takes no time here."""
    quiet_s, joined_s = _decode_steps_s(model, burst, decode)
    return Latency(quiet_s, joined_s, _prefill_s(model, burst, prefill), quiet_s + joined_s)


def decode_chunks(burst: Burst, with_prompt: bool) -> list[Chunk]:
    """A step of the streams, and of the prompt's answer among them."""
    streams = [Chunk(1, burst.context_tokens)] * burst.streams
    return [*streams, Chunk(1, burst.prompt_tokens)] if with_prompt else streams


def _decode_steps_s(model: ModelSpec, burst: Burst, hardware: Hardware) -> tuple[float, float]:
    """Without the prompt's answer, and with it."""
    steps = [decode_chunks(burst, with_prompt) for with_prompt in (False, True)]
    quiet_s, joined_s = (step_work(model, step).least_time_s(hardware) for step in steps)
    return quiet_s, joined_s


def _prefill_s(model: ModelSpec, burst: Burst, hardware: Hardware) -> float:
    return step_work(model, [Chunk(burst.prompt_tokens)]).least_time_s(hardware)
