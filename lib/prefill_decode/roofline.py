"""Roofline: the least time one step can take on a machine.

A step does `flops` of arithmetic and moves `bytes` to and from memory. Even if the two overlap
perfectly, it cannot finish before the slower one:

    time_s >= max(flops / peak_flops_per_s, bytes / bandwidth_bytes_per_s)

That is `Work.least_time_s`, a floor for any implementation. A decoder's step has two parts that
wait for each other in every layer, products with the weights and attention over the cache, so the
best that an engine can hope for is the sum of the two parts' floors: `StepWork.least_time_s`, the
book's prediction.

Counts:  a decoder-only transformer on one device, operation by operation. Causal attention once:
         a new token meets the tokens it sees, no masked ones, and in a layer with a window at most
         the window. An embedding gives single rows and is not read.
         Mixtures of experts: arithmetic of the experts that each token uses, bytes of the experts
         that the step is expected to wake when every token's are drawn uniformly and independently.
         Latent attention: each chunk in the cheaper of the two ways that engines run it, over
         the latents (absorbed, for decode) or over keys and values made from them (for prefill);
         either way only the latents are cached.
Ignores: norms, softmax, activations, biases and kernel launches, which add time; and on-chip
         caches, which remove it. A model that fits in cache can beat this bound; anything else
         that beats it was miscounted. What operations pass one another is ignored too, unless
         `count_activations` asks for it.
Source:  Austin et al., "How to Scale Your Model" (2025), chapters "Roofline" and "Inference";
         DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1, for the two forms of latent attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, log2
from typing import Literal

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk


@dataclass(frozen=True)
class Work:
    flops: float
    bytes: float

    @property
    def intensity_flops_per_byte(self) -> float:
        return self.flops / self.bytes

    def least_time_s(self, hardware: Hardware) -> float:
        compute_s = self.flops / hardware.peak_flops_per_s
        memory_s = self.bytes / hardware.bandwidth_bytes_per_s
        return max(compute_s, memory_s)

    def limited_by(self, hardware: Hardware) -> Literal["compute", "bandwidth"]:
        return (
            "compute"
            if self.intensity_flops_per_byte > hardware.ridge_flops_per_byte
            else "bandwidth"
        )


@dataclass(frozen=True)
class StepWork:
    """A step's two parts, kept apart because batching helps only the first."""

    weights: Work  # products with the weights: read once, shared by every sequence in the batch
    attention: Work  # attention over the KV cache: each sequence reads its own

    @property
    def total(self) -> Work:
        flops = self.weights.flops + self.attention.flops
        return Work(flops, self.weights.bytes + self.attention.bytes)

    def least_time_s(self, hardware: Hardware) -> float:
        """Sum of the parts' floors, seconds: within a layer, one part waits for the other."""
        return self.weights.least_time_s(hardware) + self.attention.least_time_s(hardware)


@dataclass(frozen=True)
class Operation:
    """One kind of operation, summed over all layers of a step."""

    name: str
    flops: float
    weight_bytes: float = 0  # weights read
    kv_read_bytes: float = 0  # keys and values that earlier steps left
    kv_written_bytes: float = 0  # and those of this step's tokens
    activation_bytes: float = 0  # inputs read and outputs written, where they are counted

    @property
    def work(self) -> Work:
        kv_bytes = self.kv_read_bytes + self.kv_written_bytes
        return Work(self.flops, self.weight_bytes + kv_bytes + self.activation_bytes)


ATTENTION = "attention"


def step_work(model: ModelSpec, chunks: Sequence[Chunk]) -> StepWork:
    """FLOPs and bytes of one step over `chunks`, one chunk for each sequence in the batch."""
    operations = step_operations(model, chunks)
    return StepWork(
        weights=_sum([o.work for o in operations if o.name != ATTENTION]),
        attention=_sum([o.work for o in operations if o.name == ATTENTION]),
    )


def step_operations(
    model: ModelSpec, chunks: Sequence[Chunk], count_activations: bool = False
) -> list[Operation]:
    """The operations of one step over `chunks`, in the order of a layer; their sum is `step_work`.

    With `count_activations` each carries the bytes of its inputs and outputs, read and written
    once: the rows of a product; queries and result of attention, whose scores stay on the chip."""
    if not chunks:
        raise ValueError("a step needs at least one chunk; got an empty batch")
    new_tokens = sum(chunk.new_tokens for chunk in chunks)
    sampled = sum(chunk.samples_token for chunk in chunks)
    operations = [
        _qkv_projection(model, new_tokens),
        _attention(model, chunks),
        _attention_out_projection(model, new_tokens),
        *_dense_mlps(model, new_tokens),
        *_expert_mlps(model, new_tokens),
    ]
    if sampled:
        operations.append(_lm_head(model, sampled))
    if count_activations:
        return operations
    return [replace(operation, activation_bytes=0) for operation in operations]


def in_series(works: Sequence[StepWork]) -> StepWork:
    """FLOPs and bytes of steps that wait for one another, such as the tokens of one answer.

    The least time of the sum is the sum of the least times as long as all steps meet the same
    bound, and never more, so it stays a floor. ValueError for no steps.
    """
    if not works:
        raise ValueError("there is no work to add up: give at least one step; got none")
    return StepWork(_sum([w.weights for w in works]), _sum([w.attention for w in works]))


def turning_tokens(model: ModelSpec, hardware: Hardware) -> float:
    """New tokens in a step at which its products with the weights turn compute-bound.

    Each token brings 2 FLOP for each weight, and the weight brings its bytes once. Of a dense
    model: a token uses only some of the experts that a step reads, which turns later."""
    return hardware.ridge_flops_per_byte * model.bytes_per_weight / 2


def telling_prompt_lengths(model: ModelSpec, hardware: Hardware) -> list[int]:
    """Five prompt lengths, from one token to eight times one that is clearly compute-bound.

    The last two are powers of two, at least four and 32 times past the turning point.
    """
    short = 2 ** max(6, ceil(log2(4 * turning_tokens(model, hardware))))
    return [1, short // 16, short // 4, short, 8 * short]


def _sum(works: Sequence[Work]) -> Work:
    return Work(sum(work.flops for work in works), sum(work.bytes for work in works))


def _product(
    model: ModelSpec, name: str, layers: int, rows: int, params: int, widths: int
) -> Operation:
    """`rows` rows times `params` weights in each of so many layers; `widths` in and out of a row"""
    return Operation(
        name,
        flops=2 * layers * rows * params,
        weight_bytes=layers * params * model.bytes_per_weight,
        activation_bytes=layers * rows * widths * model.bytes_per_value,
    )


def _qkv_projection(model: ModelSpec, rows: int) -> Operation:
    """Queries, keys and values; with latent attention also what makes them from the latents."""
    widths = model.hidden_size + model.query_size + 2 * model.kv_size
    if model.latent is not None:
        widths = model.hidden_size + model.query_size + model.latent.cached_size
    return _product(model, "qkv projection", model.num_layers, rows, model.qkv_params, widths)


def _attention_out_projection(model: ModelSpec, rows: int) -> Operation:
    widths = model.attended_size + model.hidden_size
    params = model.attention_out_params
    return _product(model, "output projection", model.num_layers, rows, params, widths)


def _dense_mlps(model: ModelSpec, rows: int) -> list[Operation]:
    if not model.num_dense_layers:
        return []
    return _mlp(model, model.num_dense_layers, rows, model.intermediate_size)


def _mlp(
    model: ModelSpec, layers: int, rows: int, intermediate_size: int, whose: str = ""
) -> list[Operation]:
    hidden_size, ups = model.hidden_size, 1 + model.gated_mlp
    params = hidden_size * intermediate_size
    first = whose + ("gate and up projections" if model.gated_mlp else "up projection")
    in_and_out = hidden_size + ups * intermediate_size
    return [
        _product(model, first, layers, rows, ups * params, in_and_out),
        _product(
            model,
            whose + "down projection",
            layers,
            rows,
            params,
            intermediate_size + hidden_size,
        ),
    ]


def _expert_mlps(model: ModelSpec, rows: int) -> list[Operation]:
    """Router, routed experts and shared experts of all layers that have them."""
    experts, layers = model.experts, model.num_expert_layers
    if experts is None or not layers:
        return []
    widths = model.hidden_size + model.router_params // model.hidden_size
    router = _product(model, "router", layers, rows, model.router_params, widths)
    used_rows = rows * experts.experts_per_token  # a token is a row of each expert it uses
    awake = experts.expected_distinct(rows) * model.bytes_per_expert_weight / model.bytes_per_weight
    routed = [
        replace(one, weight_bytes=awake * one.weight_bytes)
        for one in _mlp(model, layers, used_rows, experts.intermediate_size, "experts' ")
    ]
    if not experts.shared_intermediate_size:
        return [router, *routed]
    shared = _mlp(model, layers, rows, experts.shared_intermediate_size, "shared experts' ")
    return [router, *routed, *shared]


def _lm_head(model: ModelSpec, sampled: int) -> Operation:
    params = model.lm_head_params
    return Operation(
        "lm_head",
        flops=2 * sampled * params,
        weight_bytes=params * model.bytes_per_value,  # never quantized
        activation_bytes=sampled * (model.hidden_size + model.vocab_size) * model.bytes_per_value,
    )


def _attention(model: ModelSpec, chunks: Sequence[Chunk]) -> Operation:
    """Scores and mixtures of values, over the cache that the chunks read and write."""
    flops = read = written = 0
    windows = list(model.window_layers())
    for chunk in chunks:
        for window, layers in windows:
            flops += layers * _chunk_attention_flops(model, chunk, window)
            read += layers * _cached_tokens_read(chunk, window)
            written += layers * _new_tokens_kept(chunk, window)
    values = model.kv_values_per_token_layer
    new_tokens = sum(chunk.new_tokens for chunk in chunks)
    widths = model.query_size + model.attended_size
    return Operation(
        ATTENTION,
        flops=flops,
        kv_read_bytes=read * values * model.bytes_per_value,
        kv_written_bytes=written * values * model.bytes_per_value,
        activation_bytes=new_tokens * model.num_layers * widths * model.bytes_per_value,
    )


def _chunk_attention_flops(model: ModelSpec, chunk: Chunk, window: int | None) -> int:
    """One layer's. A pair costs 2 FLOP for each value of its key and of its value, in each head."""
    pairs = attended_pairs(chunk, window)
    flops = 2 * (model.query_size + model.attended_size) * pairs
    if model.latent is None:
        return flops
    expanding = 2 * model.kv_expansion_params * _cached_tokens_read(chunk, window)
    absorbed = 2 * model.num_heads * (model.latent.cached_size + model.latent.kv_rank) * pairs
    return min(flops + expanding, absorbed)


def attended_pairs(chunk: Chunk, window: int | None) -> int:
    """Query-key pairs of a chunk in a layer whose queries see at most `window` tokens."""
    if window is None:
        return chunk.attended_pairs
    growing = max(0, min(chunk.new_tokens, window - chunk.cached_tokens))  # not yet a full window
    first = Chunk(growing, chunk.cached_tokens).attended_pairs if growing else 0
    return first + (chunk.new_tokens - growing) * window


def _cached_tokens_read(chunk: Chunk, window: int | None) -> int:
    """The first new token sees the most of the cache: all but its own place in the window."""
    return chunk.cached_tokens if window is None else min(chunk.cached_tokens, window - 1)


def _new_tokens_kept(chunk: Chunk, window: int | None) -> int:
    """No later step sees the tokens that have left the window by the chunk's end."""
    return chunk.new_tokens if window is None else min(chunk.new_tokens, window)
