"""Transfer cost: what moving a prompt's KV cache takes, and when moving beats computing.

A transfer of so many bytes over a link takes

    time_s = start_s + bytes / bytes_per_s

where a transport that copies through memory has two rates: one for what fits in the processor's
cache and one for what does not. A prompt whose prefill takes P seconds leaves S bytes in L layers;
over a link of B bytes/s its first token and its cache are both there

    sent after the prefill          P + S / B
    sent layer by layer             max(P + S / (L B), P / L + S / B)

after the prefill's start: either the link waits for the last layer, or the last layer for the
link. Moving beats computing again while S / B < P, so the break-even link has S / P bytes/s, which
is the bytes of a token times the tokens of a second of prefill. At that very speed, layers that
leave as they are ready hide all of the transfer but one layer's. In truth a layer's keys and values
are there before its other products have run, after a share `a` of it: then P / L shrinks to a P / L
in the second term, and P to (L - 1 + a) P / L in the first.

Counts:  every block that holds a token of the prompt, whole, in every layer.
Ignores: the start of a transfer in the laws of TTFT, the few bytes of the first token, windows (our
         engine keeps the whole context), other traffic on the link, and the output matrix, whose
         time comes after the last layer's.
Source:  Patel et al., "Splitwise" (2024), section 4.3, on sending layer by layer; Zhong et al.,
         "DistServe" (2024), section 3.3, on the link that a prefill needs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, log
from statistics import linear_regression, median

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware, accelerator
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import (
    ATTENTION,
    step_operations,
    step_work,
    telling_prompt_lengths,
)
from prefill_decode.statistics import Interval, fit_two_terms, median_interval
from prefill_decode.step import Chunk
from prefill_decode.units import GIGABIT

MODELLED = (  # one that caches every head, one of a quarter of them, one of a seventh
    ("llama-2-7b", "H100 SXM"),
    ("llama-3.1-8b", "H100 SXM"),
    ("qwen2.5-7b", "H100 SXM"),
    ("llama-3.1-8b", "L4"),
    ("llama-3.1-8b", "MI300X"),
    ("llama-3.1-8b", "B200 SXM"),
)
BEYOND = 1000.0  # times
LONG_S, LEAST_TOKENS = 0.2, 16
LINKS_BYTES_PER_S = tuple(speed * GIGABIT for speed in (1, 10, 100, 400))


def block_bytes(model: ModelSpec, block_tokens: int) -> int:
    """Of one block in all layers, keys and values."""
    return model.kv_bytes_per_token * block_tokens


def moved_bytes(model: ModelSpec, prompt_tokens: int, block_tokens: int = 1) -> int:
    """What a transfer of a prompt moves: its last block goes as a whole."""
    if prompt_tokens < 1 or block_tokens < 1:
        raise ValueError(
            "a transfer moves at least one token, in blocks of at least one; got "
            f"prompt_tokens={prompt_tokens} and block_tokens={block_tokens}"
        )
    return -(-prompt_tokens // block_tokens) * block_bytes(model, block_tokens)


@dataclass(frozen=True)
class Handover:
    """A prompt's cache that one worker computes and another needs.

    `ready_share`: of a layer's time, after which its keys and values may leave."""

    prefill_s: float
    moved_bytes: int
    num_layers: int
    ready_share: float = 1.0

    @property
    def break_even_bytes_per_s(self) -> float:
        """The link over which moving takes as long as computing; a faster one pays."""
        return self.moved_bytes / self.prefill_s

    def transfer_s(self, link_bytes_per_s: float) -> float:
        return self.moved_bytes / link_bytes_per_s

    def share(self, link_bytes_per_s: float) -> float:
        """Of the prefill's time, what moving takes."""
        return self.transfer_s(link_bytes_per_s) / self.prefill_s

    def serial_s(self, link_bytes_per_s: float) -> float:
        """From the prefill's start until the cache is there, sent once it is complete."""
        return self.prefill_s + self.transfer_s(link_bytes_per_s)

    def layered_s(self, link_bytes_per_s: float) -> float:
        """The same, each layer sent as soon as it is ready; never before the first token."""
        layers, transfer_s = self.num_layers, self.transfer_s(link_bytes_per_s)
        a_layer_s = self.prefill_s / layers
        first_ready_s = self.ready_share * a_layer_s
        last_ready_s = self.prefill_s - a_layer_s + first_ready_s
        return max(self.prefill_s, last_ready_s + transfer_s / layers, first_ready_s + transfer_s)

    def exposed_s(self, link_bytes_per_s: float) -> float:
        """Of a transfer layer by layer, what the prefill does not hide."""
        return self.layered_s(link_bytes_per_s) - self.prefill_s


def least_handover(
    model: ModelSpec, hardware: Hardware, prompt_tokens: int, block_tokens: int = 1
) -> Handover:
    """A prompt whose prefill takes the least time that the roofline allows."""
    prefill_s = step_work(model, [Chunk(prompt_tokens)]).least_time_s(hardware)
    moved = moved_bytes(model, prompt_tokens, block_tokens)
    return Handover(prefill_s, moved, model.num_layers, ready_share(model, prompt_tokens))


def telling_prompt(model: ModelSpec, hardware: Hardware) -> int:
    """Tokens of a prompt that is clearly compute-bound, or fewer where reading it takes long: its
    cache is moved over links slower than that prefill, many times."""
    tokens = telling_prompt_lengths(model, hardware)[-2]
    while tokens > LEAST_TOKENS and least_handover(model, hardware, tokens).prefill_s > LONG_S:
        tokens //= 2
    return tokens


def modelled(prompt_tokens: int = 4096) -> dict[tuple[str, str], Handover]:
    """Least handovers in bfloat16, from data sheets, by model and accelerator that holds it."""
    return {
        (model, name): least_handover(
            hf_config.get(model), accelerator(name).at("bfloat16"), prompt_tokens
        )
        for model, name in MODELLED
    }


def ready_share(model: ModelSpec, prompt_tokens: int) -> float:
    """The share of a layer's arithmetic that comes before its keys and values are there and its
    attention has run."""
    chunk = Chunk(prompt_tokens, samples_token=False)
    flops = {each.name: each.flops for each in step_operations(model, [chunk])}
    return (flops["qkv projection"] + flops[ATTENTION]) / sum(flops.values())


@dataclass(frozen=True)
class LinkLaw:
    """What one transfer takes. Beyond `near_bytes` every byte costs `far_per_byte_s`, which is
    `per_byte_s` where there is one regime only."""

    start_s: float
    per_byte_s: float
    far_per_byte_s: float
    near_bytes: float = inf

    def time_s(self, num_bytes: float) -> float:
        per_byte_s = self.per_byte_s if num_bytes <= self.near_bytes else self.far_per_byte_s
        return self.start_s + num_bytes * per_byte_s


def fit_law(
    sizes_bytes: Sequence[float], times_s: Sequence[float], near_bytes: float = inf
) -> LinkLaw:
    """The law nearest to one time for each size, by least squares of the relative errors, in which
    neither the start nor a byte takes less than no time.

    Sizes up to `near_bytes` give start and near rate, the larger ones the far rate; where there are
    none it is the same. ValueError unless two sizes are near ones and all times positive.
    """
    pairs = list(zip(sizes_bytes, times_s, strict=True))
    near = [(size, t) for size, t in pairs if size <= near_bytes]
    far = [(size, t) for size, t in pairs if size > near_bytes]
    sizes, times = [size for size, _ in near], [t for _, t in near]
    start_s, per_byte_s = fit_two_terms([1.0] * len(near), sizes, times)
    if per_byte_s < 0:
        start_s, per_byte_s = _scale([1.0] * len(near), times), 0.0
    elif start_s < 0:
        start_s, per_byte_s = 0.0, _scale(sizes, times)
    if not far:
        return LinkLaw(start_s, per_byte_s, per_byte_s, near_bytes)
    rest_s = [t - start_s for _, t in far]
    far_per_byte_s = max(0.0, _scale([size for size, _ in far], [t for _, t in far], rest_s))
    return LinkLaw(start_s, per_byte_s, far_per_byte_s, near_bytes)


def _scale(
    term: Sequence[float], times_s: Sequence[float], rest_s: Sequence[float] | None = None
) -> float:
    """The factor of `term` that leaves the least relative errors of `rest_s`, each over its time"""
    terms = [x / t for x, t in zip(term, times_s, strict=True)]
    rests = [y / t for y, t in zip(rest_s or times_s, times_s, strict=True)]
    return sum(x * y for x, y in zip(terms, rests, strict=True)) / sum(x * x for x in terms)


@dataclass(frozen=True)
class LinkFit:
    """A law for every round, and what they agree on."""

    laws: tuple[LinkLaw, ...]

    @property
    def start_s(self) -> Interval:
        return median_interval([law.start_s for law in self.laws])

    @property
    def bytes_per_s(self) -> Interval:
        return _rate(median_interval([law.per_byte_s for law in self.laws]))

    @property
    def far_bytes_per_s(self) -> Interval:
        return _rate(median_interval([law.far_per_byte_s for law in self.laws]))

    @property
    def middle(self) -> LinkLaw:
        """The law of the medians."""
        starts, near, far = (
            median(getattr(law, name) for law in self.laws)
            for name in ("start_s", "per_byte_s", "far_per_byte_s")
        )
        return LinkLaw(starts, near, far, self.laws[0].near_bytes)

    def misses(self, num_bytes: float, times_s: Sequence[float]) -> Interval:
        """By which factor, up or down, the law of each round misses that round's time of a size."""
        foreseen_s = [law.time_s(num_bytes) for law in self.laws]
        pairs = zip(foreseen_s, times_s, strict=True)
        return median_interval([max(t / f, f / t) for f, t in pairs])


def fit_laws(
    sizes_bytes: Sequence[float], times_s: Sequence[Sequence[float]], near_bytes: float = inf
) -> LinkFit:
    """`fit_law` in every round: `times_s[size][round]`, a list for each size."""
    rounds = zip(*times_s, strict=True)
    return LinkFit(tuple(fit_law(sizes_bytes, values, near_bytes) for values in rounds))


def _rate(per_unit: Interval) -> Interval:
    """Units a second, from seconds a unit: the longest time gives the lowest rate."""
    middle, low, high = (
        1 / t if t else inf for t in (per_unit.median, per_unit.high, per_unit.low)
    )
    return replace(per_unit, median=middle, low=low, high=high)


def crossing(places: Sequence[float], values: Sequence[float], level: float) -> float:
    """Where values that fall along rising `places` reach `level`, by the straight line that lies
    nearest to them on a log-log plot; at most a thousand times beyond either end.

    Where a disturbance made them rise there is no such line: the place whose value is nearest.
    ValueError unless there are two, and all are positive."""
    if not all(x > 0 for x in (*places, *values, level)) or len(places) < 2:
        raise ValueError("a line on a log-log plot needs two points or more, all positive")
    across, up = [log(x) for x in places], [log(y / level) for y in values]
    slope, start = linear_regression(across, up)
    if slope >= 0:
        return min(zip(places, up, strict=True), key=lambda point: abs(point[1]))[0]
    return exp(min(max(-start / slope, across[0] - log(BEYOND)), across[-1] + log(BEYOND)))
