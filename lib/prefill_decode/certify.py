"""Certify: whether physics permits a claimed TTFT, TPOT or token rate.

A claim names a model, an accelerator and a figure. The step behind the figure must read the
weights and the KV cache and must do its arithmetic; no implementation takes less than the longer
of the two at the data sheet's ceilings, even if they overlap perfectly. A figure below that floor
is forbidden. A permitted one is not thereby true.

Counts:  one step of the whole batch, `roofline.step_work`; of a mixture of experts only those that
         one token reads, because others need not differ. What the step reads if they choose evenly,
         which is the book's prediction, is named beside it. N devices have N times both ceilings.
Ignores: communication, launches, norms, sampling, queueing: they only make a figure worse.
Errs:    towards "permitted". Before it forbids it takes off what chips could keep on them between
         steps, what the last layer of a prefill need not compute, and the rounding of printed
         figures (`least_s`). What would change the work itself is listed in IGNORED.
Source:  Austin et al., "How to Scale Your Model" (2025), chapters "Roofline" and "Inference".
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import nan
from typing import Any, Literal

from prefill_decode.hardware import Accelerator, Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import Work, step_work
from prefill_decode.step import Chunk
from prefill_decode.units import GB, GIB, format_bytes, format_seconds, format_si
from prefill_decode.units import format_significant as digits

ROUNDING = 0.02  # data sheets and claims round, some to two digits: 2.0 TB/s stands for 2.04
# The most that one chip of the table can keep without its main memory: MI355X, 256 compute units
# of 512 KiB registers and 160 KiB LDS, 32 MiB L2, 256 MiB L3 (ROCm GPU specifications 7.13),
# rounded up. It stands in where a part's own figure is unknown.
MOST_ON_CHIP_BYTES = 512 * 2**20
MOST_COUNT = 2**40  # of sequences, tokens or devices
SUFFIXES = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
IGNORED = [
    "speculative decoding: several tokens a step divide the floor of each",
    "weights or KV cache at fewer bits than the dtype says: fewer bytes, another peak",
    "a prefix found in the cache: --context for --ttft; sequences that share one read it once",
    "clocks above the data sheet's, and structured sparsity",
]


@dataclass(frozen=True)
class Setting:
    """What a claim is about. `chunk` is one sequence's share of the step."""

    model: ModelSpec
    accelerator: Accelerator
    chunk: Chunk
    devices: int = 1

    def __post_init__(self) -> None:
        _check_count(self.devices, "devices")
        _check_count(self.chunk.new_tokens + self.chunk.cached_tokens, "prompt and context")
        self.accelerator.at(self.model.dtype)  # an unknown peak judges nothing

    @property
    def hardware(self) -> Hardware:
        """All devices as one: the ceilings of perfect tensor parallelism."""
        one = self.accelerator.at(self.model.dtype)
        peak, bandwidth = one.peak_flops_per_s, one.bandwidth_bytes_per_s
        return Hardware(
            one.name, one.dtype, self.devices * peak, self.devices * bandwidth, one.source
        )

    @property
    def weight_bytes(self) -> float:
        """Weights that every step reads, however large its batch."""
        return step_work(self.model, [Chunk(1)]).weights.bytes

    @property
    def kv_bytes_per_sequence(self) -> float:
        return step_work(self.model, [self.chunk]).attention.bytes

    def work(self, batch: int) -> Work:
        """Of a step over `batch` sequences: all FLOPs, and the bytes that no routing saves."""
        flops = batch * step_work(self.model, [self.chunk]).total.flops
        return Work(flops, self.weight_bytes + batch * self.kv_bytes_per_sequence)

    def evenly_routed_work(self, batch: int) -> Work:
        """The same with the experts that so many tokens wake if they choose evenly."""
        tokens = batch * self.chunk.new_tokens
        weight_bytes = step_work(self.model, [Chunk(tokens)]).weights.bytes
        return Work(self.work(batch).flops, weight_bytes + batch * self.kv_bytes_per_sequence)

    def needed_bytes(self, batch: int) -> float:
        """Stored weights and KV cache; activations are ignored."""
        return self.model.weight_bytes + batch * self.kv_bytes_per_sequence

    @property
    def room_bytes(self) -> float | None:
        """Memory of all devices at its largest reading: a printed GB may mean a GiB."""
        if self.accelerator.capacity_bytes is None:
            return None
        in_gb = (self.accelerator.capacity_printed or "").endswith(" GB")
        return self.devices * self.accelerator.capacity_bytes * (GIB / GB if in_gb else 1.0)

    @property
    def largest_batch(self) -> int | None:
        """Sequences that fit beside the weights; None when the capacity is unknown."""
        if self.room_bytes is None:
            return None
        left_bytes = self.room_bytes - self.model.weight_bytes
        return max(0, int(left_bytes // self.kv_bytes_per_sequence))


@dataclass(frozen=True)
class Certificate:
    """The arithmetic behind a verdict, in SI units. `claimed` and `bound` are of one kind:
    seconds, of which less is bolder, or tokens/s, of which more is.
    """

    setting: Setting
    kind: Literal["ttft_s", "tpot_s", "tokens_per_s"]
    batch: int
    claimed: float
    batch_was_sought: bool = False

    @property
    def work(self) -> Work:
        return self.setting.work(self.batch)

    @property
    def compute_s(self) -> float:
        return self.work.flops / self.setting.hardware.peak_flops_per_s

    @property
    def memory_s(self) -> float:
        return self.work.bytes / self.setting.hardware.bandwidth_bytes_per_s

    @property
    def floor_s(self) -> float:
        return floor_s(self.setting, self.batch)

    @property
    def evenly_routed_floor_s(self) -> float:
        """The floor of tokens that choose their experts evenly; of a dense model, the floor."""
        work = self.setting.evenly_routed_work(self.batch)
        return work.least_time_s(self.setting.hardware)

    @property
    def needs_shared_experts(self) -> bool:
        """Whether a mixture's tokens must choose more alike than evenly. Not said of a batch that
        was sought: a larger one might do without."""
        work = self.setting.evenly_routed_work(self.batch)
        least = _least_s(self.setting, self.batch, work)
        return self.permitted and not self.batch_was_sought and self.claimed_s < least

    @property
    def least_s(self) -> float:
        """The floor less all that could still be saved: what the verdict goes by."""
        return least_s(self.setting, self.batch)

    @property
    def claimed_s(self) -> float:
        """The longest step that meets the claim."""
        return self.batch / self.claimed if self.kind == "tokens_per_s" else self.claimed

    @property
    def ratio(self) -> float:
        """Claimed time over floor; below 1 the claim is faster than the floor."""
        return self.claimed_s / self.floor_s

    @property
    def permitted(self) -> bool:
        return self.claimed_s >= self.least_s

    @property
    def fits(self) -> bool | None:
        """Whether weights and cache fit in memory; None when the capacity is unknown."""
        room_bytes = self.setting.room_bytes
        return None if room_bytes is None else self.setting.needed_bytes(self.batch) <= room_bytes

    @property
    def verdict(self) -> Literal["permitted", "forbidden"]:
        return "permitted" if self.permitted else "forbidden"

    @property
    def finding(self) -> bool:
        return not self.permitted or self.fits is False

    def as_dict(self) -> dict[str, Any]:
        """Everything shown, for JSON; unknown is None."""
        setting = self.setting
        return {
            "verdict": self.verdict,
            "fits": self.fits,
            "model": setting.model.name,
            "dtype": setting.model.dtype,
            "accelerator": setting.accelerator.name,
            "source": setting.accelerator.source,
            "devices": setting.devices,
            "batch": self.batch,
            "batch_was_sought": self.batch_was_sought,
            "new_tokens": setting.chunk.new_tokens,
            "cached_tokens": setting.chunk.cached_tokens,
            "weight_bytes_read": setting.weight_bytes,
            "kv_bytes": self.batch * setting.kv_bytes_per_sequence,
            "bytes": self.work.bytes,
            "flops": self.work.flops,
            "peak_flops_per_s": setting.hardware.peak_flops_per_s,
            "bandwidth_bytes_per_s": setting.hardware.bandwidth_bytes_per_s,
            "memory_floor_s": self.memory_s,
            "compute_floor_s": self.compute_s,
            "floor_s": self.floor_s,
            "evenly_routed_floor_s": self.evenly_routed_floor_s,
            "least_s": self.least_s,
            self.kind: self.claimed,
            "claimed_step_s": self.claimed_s,
            "claimed_over_floor": self.ratio,
            "needed_bytes": setting.needed_bytes(self.batch),
            "capacity_bytes": setting.room_bytes,
            "largest_batch_that_fits": setting.largest_batch,
            "ignored": IGNORED,
        }


def certify_tpot(
    model: ModelSpec,
    accelerator: Accelerator,
    tpot_s: float,
    *,
    batch: int = 1,
    context_tokens: int = 0,
    devices: int = 1,
) -> Certificate:
    """Judge a time per output token: one decode step over `batch` sequences.

    `context_tokens` are in the cache of each, at the first of the steps that the claim averages.
    """
    setting = Setting(model, accelerator, Chunk(1, context_tokens), devices)
    return Certificate(setting, "tpot_s", _check_count(batch, "batch"), _check(tpot_s, "tpot_s"))


def certify_ttft(
    model: ModelSpec,
    accelerator: Accelerator,
    ttft_s: float,
    *,
    prompt_tokens: int,
    batch: int = 1,
    cached_tokens: int = 0,
    devices: int = 1,
) -> Certificate:
    """Judge the time until each of `batch` prompts, begun at once, has its first token."""
    setting = Setting(model, accelerator, Chunk(prompt_tokens, cached_tokens), devices)
    return Certificate(setting, "ttft_s", _check_count(batch, "batch"), _check(ttft_s, "ttft_s"))


def certify_tokens_per_s(
    model: ModelSpec,
    accelerator: Accelerator,
    tokens_per_s: float,
    *,
    batch: int | None = None,
    context_tokens: int = 0,
    devices: int = 1,
) -> Certificate:
    """Judge output tokens per second, all sequences together.

    Without a batch: at the smallest that permits the rate, else at the best of those that fit.
    """
    setting = Setting(model, accelerator, Chunk(1, context_tokens), devices)
    rate = _check(tokens_per_s, "tokens_per_s")
    sought = batch is None
    chosen = _best_batch(setting, rate) if batch is None else _check_count(batch, "batch")
    return Certificate(setting, "tokens_per_s", chosen, rate, sought)


def floor_s(setting: Setting, batch: int) -> float:
    """The least time of a step at the data sheet's ceilings, both perfectly overlapped."""
    return setting.work(batch).least_time_s(setting.hardware)


def least_s(setting: Setting, batch: int) -> float:
    """The floor of a step less what an implementation might save, never above the truth."""
    return _least_s(setting, batch, setting.work(batch))


def _least_s(setting: Setting, batch: int, work: Work) -> float:
    on_chip = setting.accelerator.on_chip_bytes or MOST_ON_CHIP_BYTES
    off_chip = max(0.0, work.bytes - setting.devices * on_chip)
    arithmetic = work.flops - batch * _spared_flops(setting)
    return (1 - ROUNDING) * Work(arithmetic, off_chip).least_time_s(setting.hardware)


def _spared_flops(setting: Setting) -> float:
    """FLOPs of one sequence that a prefill can skip: its first token needs the last layer's
    output at the last position only.

    One layer in num_layers of the products; of attention one layer of full reach, the dearest
    that can stand last where others have windows.
    """
    model, chunk = setting.model, setting.chunk
    if chunk.new_tokens == 1:
        return 0.0
    one = step_work(model, [chunk])
    full_layer = 4.0 * model.num_heads * model.head_dim * chunk.attended_pairs
    mean_layer = one.attention.flops / model.num_layers
    attention = min(one.attention.flops, max(mean_layer, full_layer))
    return one.weights.flops / model.num_layers + attention


def _best_batch(setting: Setting, tokens_per_s: float) -> int:
    """The smallest batch whose floor reaches the rate, else whose least time does, else the best
    of those that fit.

    The rate rises with the batch, which shares the weights, unless the weights could stay on
    chip: then one sequence already reaches the most.
    """
    most = setting.largest_batch or MOST_COUNT  # where none fits, that is a finding of its own
    for shortest_s in (floor_s, least_s):
        reaches = partial(_reaches, setting, tokens_per_s, shortest_s)
        batch = _smallest(reaches, most)
        if reaches(batch):
            return batch
    return max(1, most, key=lambda batch: batch / least_s(setting, batch))


def _reaches(
    setting: Setting,
    tokens_per_s: float,
    shortest_s: Callable[[Setting, int], float],
    batch: int,
) -> bool:
    return batch / tokens_per_s >= shortest_s(setting, batch)


def _smallest(holds: Callable[[int], bool], most: int) -> int:
    """The smallest of 1..most for which `holds`, which stays true once it is; else `most`."""
    if holds(1):
        return 1
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def parse_duration(text: str) -> float:
    """Seconds of "0.0042", "4.2ms", "300us" or "0.5s". ValueError says the rule."""
    stripped = text.strip()
    for suffix, factor in SUFFIXES.items():
        if stripped.endswith(suffix):
            return _check(factor * _float(stripped.removesuffix(suffix)), "a duration", text)
    return _check(_float(stripped), "a duration", text)


def report(certificate: Certificate) -> str:
    """The certificate as text, the arithmetic line by line."""
    lines = [_headline(certificate), *_arithmetic(certificate), "", *_verdict(certificate)]
    ignored = [f"  {line}" for line in IGNORED]
    note = certificate.setting.accelerator.note
    return "\n".join([*lines, "", "not considered:", *ignored, *([f"  {note}"] if note else [])])


def _headline(certificate: Certificate) -> str:
    setting = certificate.setting
    batch = f"batch {certificate.batch}"
    if certificate.batch_was_sought:
        batch += ", the " + ("smallest that reaches it" if certificate.permitted else "best")
    return (
        f"{setting.model.name} {setting.model.dtype} on {setting.devices} x "
        f"{setting.accelerator.name}, {batch}, {_tokens(setting.chunk)}"
    )


def _tokens(chunk: Chunk) -> str:
    step = "decode" if chunk.new_tokens == 1 else f"prefill of {chunk.new_tokens} tokens"
    return f"{step} on {chunk.cached_tokens} cached tokens"


def _arithmetic(certificate: Certificate) -> list[str]:
    setting, work, hardware = certificate.setting, certificate.work, certificate.setting.hardware
    kv_bytes = certificate.batch * setting.kv_bytes_per_sequence
    rows = [
        ("weights read", format_bytes(setting.weight_bytes), "without the input embedding"),
        ("KV cache", format_bytes(kv_bytes), "read and written"),
        (
            "bytes",
            format_bytes(work.bytes),
            f"/ {format_si(hardware.bandwidth_bytes_per_s, 'B/s')}"
            f" = {format_seconds(certificate.memory_s)}",
        ),
        (
            "arithmetic",
            format_si(work.flops, "FLOP"),
            f"/ "
            f"{format_si(hardware.peak_flops_per_s, 'FLOP/s')} = "
            f"{format_seconds(certificate.compute_s)}",
        ),
        ("floor", format_seconds(certificate.floor_s), "the longer, however well they overlap"),
        *_evenly_routed(certificate),
        (
            "at the very least",
            format_seconds(certificate.least_s),
            "less what chips might keep or skip, and rounding",
        ),
        ("claimed", *_claimed(certificate)),
        ("claimed / floor", digits(certificate.ratio), ""),
        ("memory needed", format_bytes(setting.needed_bytes(certificate.batch)), _room(setting)),
    ]
    return [f"  {name:<18} {value:>12}  {how}".rstrip() for name, value, how in rows]


def _evenly_routed(certificate: Certificate) -> list[tuple[str, str, str]]:
    if certificate.setting.model.experts is None:
        return []
    floor = format_seconds(certificate.evenly_routed_floor_s)
    return [("if routed evenly", floor, "the floor with the experts that the batch would wake")]


def _claimed(certificate: Certificate) -> tuple[str, str]:
    if certificate.kind != "tokens_per_s":
        return format_seconds(certificate.claimed), certificate.kind.removesuffix("_s").upper()
    step = format_seconds(certificate.claimed_s)
    return step, f"a step: batch {certificate.batch} / {digits(certificate.claimed)} tokens/s"


def _room(setting: Setting) -> str:
    if setting.room_bytes is None:
        return "of an unknown capacity"
    return f"of {format_bytes(setting.room_bytes)} at most: {setting.largest_batch} sequences"


def _verdict(certificate: Certificate) -> list[str]:
    lines = [f"verdict: {certificate.verdict}"]
    if certificate.permitted and certificate.ratio < 1:
        lines[0] += ", below the floor but within what chips might keep or skip, and rounding"
    elif certificate.needs_shared_experts:
        lines[0] += ", but only where its tokens share more experts than an even choice does"
    if certificate.fits is False:
        lines.append("does not fit: weights and KV cache exceed the memory of the devices")
    if certificate.fits is None:
        lines.append("capacity unknown: whether it fits cannot be said")
    return lines


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return nan


def _check(value: float, name: str, came: object = None) -> float:
    if not 1e-12 <= value <= 1e15:  # beyond any claim, and quotients stay finite
        rule = "such as 0.0042, 4.2ms or 300us" if name == "a duration" else "not 0 or infinite"
        raise ValueError(
            f"{name} must be a positive number, {rule}; got {value if came is None else came!r}"
        )
    return value


def _check_count(value: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_COUNT:
        raise ValueError(f"{name} must be a whole number from 1 to 2**40; got {value!r}")
    return value
