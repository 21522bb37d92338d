"""Roofline: the least time one step can take on a machine.

A step does `flops` of arithmetic and moves `bytes` to and from memory. Even if the two overlap
perfectly, it cannot finish before the slower one:

    time_s >= max(flops / peak_flops_per_s, bytes / bandwidth_bytes_per_s)

That is `Work.least_time_s`, a floor for any implementation. A decoder's step has two parts that
wait for each other in every layer, products with the weights and attention over the cache, so the
best that an engine can hope for is the sum of the two parts' floors: `StepWork.least_time_s`, the
book's prediction.

Counts:  a dense decoder-only transformer on one device.
Ignores: norms, softmax, activations, biases and kernel launches, which add time; and on-chip
         caches, which remove it. A model that fits in cache can beat this bound; anything else
         that beats it was miscounted.
Source:  Austin et al., "How to Scale Your Model" (2025), chapters "Roofline" and "Inference".
"""

from collections.abc import Sequence
from dataclasses import dataclass
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


def step_work(model: ModelSpec, chunks: Sequence[Chunk]) -> StepWork:
    """FLOPs and bytes of one step over `chunks`, one chunk for each sequence in the batch."""
    if not chunks:
        raise ValueError("a step needs at least one chunk; got an empty batch")
    new_tokens = sum(chunk.new_tokens for chunk in chunks)
    cached_tokens = sum(chunk.cached_tokens for chunk in chunks)
    pairs = sum(chunk.attended_pairs for chunk in chunks)
    sampled = sum(chunk.samples_token for chunk in chunks)

    weights_read = model.block_params + (model.lm_head_params if sampled else 0)
    weights = Work(
        flops=2 * (model.block_params * new_tokens + model.lm_head_params * sampled),
        bytes=model.bytes_per_weight * weights_read,  # an embedding reads only its own rows
    )
    attention = Work(
        flops=4 * model.num_layers * model.num_heads * model.head_dim * pairs,  # scores, values
        bytes=model.kv_bytes_per_token * (cached_tokens + new_tokens),  # read cached, write new
    )
    return StepWork(weights, attention)


def turning_tokens(model: ModelSpec, hardware: Hardware) -> float:
    """New tokens in a step at which its products with the weights turn compute-bound.

    Each token brings 2 FLOP for each weight, and the weight brings its bytes once.
    """
    return hardware.ridge_flops_per_byte * model.bytes_per_weight / 2


def telling_prompt_lengths(model: ModelSpec, hardware: Hardware) -> list[int]:
    """Five prompt lengths, from one token to eight times one that is clearly compute-bound.

    The last two are powers of two, at least four and 32 times past the turning point.
    """
    short = 2 ** max(6, ceil(log2(4 * turning_tokens(model, hardware))))
    return [1, short // 16, short // 4, short, 8 * short]
