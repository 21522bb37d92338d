"""Model: the forward pass of a Llama-like decoder over one planned step.

A pure function of tensors: no length is looked up here and no Python branch depends on a tensor's
value, so that CUDA can record a step once and replay it. `StepPlan` holds all that the host
decided.

Source: Touvron et al., "LLaMA" (2023): RMSNorm before each part, rotary positions, SwiGLU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.engine.attention import decode_attention, prefill_attention
from prefill_decode.engine.kv_cache import KVCache
from prefill_decode.engine.weights import LayerWeights, Weights
from prefill_decode.model_spec import ModelSpec


@dataclass(frozen=True)
class PrefillSpan:
    """Rows first:last of the step are new tokens of one slot, which then holds `total_tokens`."""

    first: int
    last: int
    slot: int
    total_tokens: int


@dataclass(frozen=True)
class DecodeSpan:
    """Rows first:last of the step are one new token for each of the slots from first_slot on."""

    first: int
    last: int
    first_slot: int
    longest_tokens: int
    visible: Tensor | None  # [B, longest_tokens]; None when all are equally long


@dataclass(frozen=True)
class StepPlan:
    token_ids: Tensor  # [N]
    slots: Tensor  # [N]
    positions: Tensor  # [N]
    spans: tuple[PrefillSpan | DecodeSpan, ...]
    sampled_rows: Tensor | None  # [S]; None when every row is sampled


class RotaryTable:
    """Cosines and signed sines of every position, [capacity, 1, D], computed once in float64.

    Ignores: rope_scaling, which stretches positions and changes no time.
    Source:  Su et al., "RoFormer" (2021), in the half-split form of Llama's published weights.
    """

    def __init__(self, model: ModelSpec, capacity_tokens: int, device: str) -> None:
        half = model.head_dim // 2
        frequencies = model.rope_theta ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(capacity_tokens, dtype=torch.float64), frequencies)
        dtype = getattr(torch, model.dtype)
        cosines = torch.cat([angles.cos(), angles.cos()], dim=-1)[:, None, :]
        signed_sines = torch.cat([-angles.sin(), angles.sin()], dim=-1)[:, None, :]
        self.cosines = cosines.to(device=device, dtype=dtype)
        self.signed_sines = signed_sines.to(device=device, dtype=dtype)


def forward(
    model: ModelSpec, weights: Weights, cache: KVCache, rotary: RotaryTable, plan: StepPlan
) -> Tensor:
    """Logits [S, vocab] of the sampled rows; keys and values of every row go into the cache."""
    hidden = functional.embedding(plan.token_ids, weights.embedding)  # [N, hidden]
    turns = (rotary.cosines[plan.positions], rotary.signed_sines[plan.positions])
    for index, layer in enumerate(weights.layers):
        normed = _norm(model, hidden, layer.attention_norm)
        heads = _attention(model, layer, index, normed, turns, cache, plan)
        hidden = layer.attention_out.add_to(heads, hidden)
        normed = _norm(model, hidden, layer.mlp_norm)
        activated = layer.gate.silu(normed).mul_(layer.up(normed))
        hidden = layer.down.add_to(activated, hidden)
    if plan.sampled_rows is not None:
        hidden = hidden[plan.sampled_rows]
    return weights.lm_head(_norm(model, hidden, weights.final_norm))


def _norm(model: ModelSpec, rows: Tensor, gains: Tensor) -> Tensor:
    return functional.rms_norm(rows, (rows.shape[-1],), gains, model.norm_epsilon)


def _attention(
    model: ModelSpec,
    layer: LayerWeights,
    index: int,
    rows: Tensor,
    turns: tuple[Tensor, Tensor],
    cache: KVCache,
    plan: StepPlan,
) -> Tensor:
    """[N, hidden] -> [N, H D], with this layer's keys and values of the new tokens cached."""
    num_rows = rows.shape[0]
    num_rotated = model.num_heads + model.num_kv_heads
    heads = layer.qkv(rows).view(num_rows, num_rotated + model.num_kv_heads, model.head_dim)
    rotated, values = heads.split([num_rotated, model.num_kv_heads], dim=1)
    if layer.query_norm is not None and layer.key_norm is not None:
        queries, keys = rotated.split([model.num_heads, model.num_kv_heads], dim=1)
        rotated = torch.cat(
            [_norm(model, queries, layer.query_norm), _norm(model, keys, layer.key_norm)], dim=1
        )
    queries, keys = _rotate(rotated, turns).split([model.num_heads, model.num_kv_heads], dim=1)

    cache.keys[index][plan.slots, :, plan.positions] = keys
    cache.values[index][plan.slots, :, plan.positions] = values
    attended = [
        _attend(span, queries, cache.keys[index], cache.values[index]) for span in plan.spans
    ]
    joined = attended[0] if len(attended) == 1 else torch.cat(attended)
    return joined.reshape(num_rows, model.query_size)


def _attend(
    span: PrefillSpan | DecodeSpan, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    rows = queries[span.first : span.last]  # [n or B, H, D]
    if isinstance(span, PrefillSpan):
        seen = (span.slot, slice(None), slice(0, span.total_tokens))
        return prefill_attention(rows, keys[seen], values[seen])
    slots = slice(span.first_slot, span.first_slot + span.last - span.first)
    seen_by_all = (slots, slice(None), slice(0, span.longest_tokens))
    return decode_attention(rows, keys[seen_by_all], values[seen_by_all], span.visible)


def _rotate(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """[N, heads, D]: each pair (i, i + D/2) turned by its position's angle."""
    cosines, signed_sines = turns
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    return (heads * cosines).addcmul_(swapped, signed_sines)
