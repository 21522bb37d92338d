"""Model: the forward pass of a Llama-like decoder over one planned step.

A pure function of tensors: no length is looked up here and no Python branch depends on a tensor's
value, so that CUDA can record a step once and replay it. `StepPlan` holds all that the host
decided.

Source: Touvron et al., "LLaMA" (2023): RMSNorm before each part, rotary positions, SwiGLU.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.engine.attention import decode_attention, prefill_attention
from prefill_decode.engine.kv_cache import KVCache, seen_in_cache
from prefill_decode.engine.weights import LayerWeights, Weights
from prefill_decode.model_spec import ModelSpec, RopeScaling

MOST_EXACT_ROWS, ROWS_TOGETHER = 32, 16


@dataclass(frozen=True)
class PrefillSpan:
    """Rows first:last of the step are new tokens of one sequence, which then has `total_tokens`."""

    first: int
    last: int
    seen: slice | Tensor  # where it lies, see `seen_in_cache`
    total_tokens: int


@dataclass(frozen=True)
class DecodeSpan:
    """Rows first:last of the step are one new token for each of as many sequences, run by torch."""

    first: int
    last: int
    seen: slice | Tensor
    longest_tokens: int
    tokens: Tensor | None  # [B], what each sequence then has; None when all have longest_tokens


@dataclass(frozen=True)
class CompiledDecodeSpan:
    """The same, run by the kernels of `kernels.cpp`, which walk the block tables themselves."""

    first: int
    last: int
    blocks: Tensor  # [B, most_blocks]
    longest_tokens: int


Span = PrefillSpan | DecodeSpan | CompiledDecodeSpan
OnLayer = Callable[[int], None]


@dataclass(frozen=True)
class StepPlan:
    token_ids: Tensor  # [N]
    positions: Tensor  # [N]
    blocks: Tensor  # [N], where each row's key and value go
    offsets: Tensor  # [N], and which token of its block it is
    spans: tuple[Span, ...]
    sampled_rows: Tensor | None  # [S]; None when every row is sampled


class RotaryTable:
    """Cosines and signed sines of every position, [capacity, 1, D], computed once in float64.

    None where positions are learned: their table is added to the embedding instead.
    Source: Su et al., "RoFormer" (2021), in the half-split form of Llama's published weights.
    """

    def __init__(self, model: ModelSpec, capacity_tokens: int, device: str) -> None:
        self.turns: tuple[Tensor, Tensor] | None = None
        if model.positions != "rotary":
            return
        half = model.head_dim // 2
        frequencies = model.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        frequencies = _stretched(frequencies, model.rope_scaling)
        angles = torch.outer(torch.arange(capacity_tokens, dtype=torch.float64), frequencies)
        dtype = getattr(torch, model.dtype)
        cosines = torch.cat([angles.cos(), angles.cos()], dim=-1)[:, None, :]
        signed_sines = torch.cat([-angles.sin(), angles.sin()], dim=-1)[:, None, :]
        placed = {"device": device, "dtype": dtype}
        self.turns = (cosines.to(**placed), signed_sines.to(**placed))

    def turn(self, heads: Tensor, positions: Tensor) -> Tensor:
        """[n, heads, D]: each pair (i, i + D/2) turned by its position's angle."""
        if self.turns is None:
            return heads
        cosines, signed_sines = self.turns
        swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
        return (heads * cosines[positions]).addcmul_(swapped, signed_sines[positions])


def _stretched(frequencies: Tensor, scaling: RopeScaling | None) -> Tensor:
    """Radians a token, [D/2], as the weights expect them."""
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_tokens * frequencies / (2 * pi)
    kept = (turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns)
    kept = kept.clamp(0, 1)
    return frequencies * (kept + (1 - kept) / scaling.factor)


def forward(
    model: ModelSpec,
    weights: Weights,
    cache: KVCache,
    rotary: RotaryTable,
    plan: StepPlan,
    on_layer: OnLayer | None = None,
) -> Tensor:
    """Logits [S, vocab] of the sampled rows; keys and values of every row go into the cache.

    `on_layer(index)` is called when those of a layer are there; on CUDA, when they will be."""
    epsilon = model.norm_epsilon
    hidden = functional.embedding(plan.token_ids, weights.embedding)  # [N, hidden]
    if weights.positions is not None:
        hidden = hidden + weights.positions[plan.positions]
    num_rows = len(hidden)
    hidden = _filled_up(hidden)
    for index, layer in enumerate(weights.layers):
        qkv = layer.qkv.after_norm(hidden, layer.attention_norm, epsilon)
        heads = _attention(model, layer, index, qkv, rotary, cache, plan)
        if on_layer is not None:
            on_layer(index)
        hidden = layer.attention_out.add_to(heads, hidden)
        gate_up = layer.gate_up.after_norm(hidden, layer.mlp_norm, epsilon)
        hidden = layer.down.add_swiglu_to(gate_up, hidden)
    hidden = hidden[:num_rows] if plan.sampled_rows is None else hidden[plan.sampled_rows]
    return weights.lm_head.after_norm(hidden, weights.final_norm, epsilon)


def _filled_up(rows: Tensor) -> Tensor:
    """[N, hidden], on CPUs with rows of zeros up to the next multiple of 16 where N is beyond 32.

    A library compiles a product anew for each number of rows and keeps it for good, about 2 MB for
    a model's layers: a server meets every number, and this leaves it a few dozen."""
    missing = -len(rows) % ROWS_TOGETHER
    if rows.device.type != "cpu" or len(rows) <= MOST_EXACT_ROWS or not missing:
        return rows
    return functional.pad(rows, (0, 0, 0, missing))


def _attention(
    model: ModelSpec,
    layer: LayerWeights,
    index: int,
    qkv: Tensor,
    rotary: RotaryTable,
    cache: KVCache,
    plan: StepPlan,
) -> Tensor:
    """[N, (H + 2K) D] -> [N, H D], with this layer's keys and values of the new tokens cached."""
    keys, values = cache.keys[index], cache.values[index]
    window = _window(model, index)
    attended = []
    for span in plan.spans:
        rows = slice(span.first, span.last)
        positions = plan.positions[rows]
        if isinstance(span, CompiledDecodeSpan):
            assert layer.qkv.kernels is not None
            found = layer.qkv.kernels.decode_attention(
                qkv[rows],
                keys,
                values,
                rotary.turns,
                layer.head_norms,
                span.blocks,
                positions,
                span.longest_tokens,
                window,
                model.norm_epsilon,
            )
        else:
            queries, new_keys, new_values = _heads(model, layer, qkv[rows], rotary, positions)
            blocks, offsets = plan.blocks[rows], plan.offsets[rows]
            keys[blocks, :, offsets] = new_keys
            values[blocks, :, offsets] = new_values
            found = _attend(span, queries, keys, values, window).flatten(1)
        attended.append(found)
    missing = len(qkv) - plan.spans[-1].last
    if missing:
        attended.append(attended[0].new_zeros(missing, model.num_heads * model.head_dim))
    return attended[0] if len(attended) == 1 else torch.cat(attended)


def _heads(
    model: ModelSpec, layer: LayerWeights, qkv: Tensor, rotary: RotaryTable, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n, H, D], keys and values [n, K, D] of new tokens, normed and turned."""
    num_rotated = model.num_heads + model.num_kv_heads
    heads = qkv.view(len(qkv), num_rotated + model.num_kv_heads, model.head_dim)
    rotated, values = heads.split([num_rotated, model.num_kv_heads], dim=1)
    if layer.head_norms is not None:
        queries, keys = rotated.split([model.num_heads, model.num_kv_heads], dim=1)
        query_gains, key_gains = layer.head_norms
        rotated = torch.cat(
            [_norm(model, queries, query_gains), _norm(model, keys, key_gains)], dim=1
        )
    turned = rotary.turn(rotated, positions)
    queries, keys = turned.split([model.num_heads, model.num_kv_heads], dim=1)
    return queries, keys, values


def _window(model: ModelSpec, layer: int) -> int | None:
    return None if model.windows is None else model.windows[layer]


def _norm(model: ModelSpec, rows: Tensor, gains: Tensor) -> Tensor:
    return functional.rms_norm(rows, (rows.shape[-1],), gains, model.norm_epsilon)


def _attend(
    span: PrefillSpan | DecodeSpan,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
) -> Tensor:
    """[n or B, H, D] -> the same, over what the cache holds."""
    if isinstance(span, PrefillSpan):
        seen_keys, seen_values = (
            seen_in_cache(cached, span.seen, span.total_tokens)[0] for cached in (keys, values)
        )
        return prefill_attention(queries, seen_keys, seen_values, window)
    seen_keys, seen_values = (
        seen_in_cache(cached, span.seen, span.longest_tokens) for cached in (keys, values)
    )
    return decode_attention(queries, seen_keys, seen_values, span.tokens, window)
