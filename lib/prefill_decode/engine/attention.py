"""Attention over the KV cache, for the two kinds of chunk.

Grouped queries are folded into rows: the H / K query heads that share a KV head are G rows of one
product over its keys, so keys and values are never repeated. A new token sees the cache, the new
tokens before it and itself: the causal mask is aligned to the bottom right, because new tokens
are the last ones."""

from math import inf

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

BLOCK_TOKENS = 64  # queries at a time on a CPU: their scores stay in cache


def prefill_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One sequence's chunk. [n, H, D] over [K, T, D], the new tokens being the last n of T."""
    if queries.device.type == "cpu":
        return _attention_in_blocks(queries, keys, values)
    return _fused_attention(queries, keys, values)


def decode_attention(
    queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None
) -> Tensor:
    """One new token for each of B sequences. [B, H, D] over [B, K, T, D].

    `visible` [B, T] says which cached tokens each sequence has; None when all of them have T.
    """
    batch, num_heads, head_dim = queries.shape
    num_kv_heads = keys.shape[1]
    grouped = queries.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = None if visible is None else visible[:, None, None, :]
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return attended.reshape(batch, num_heads, head_dim)


def _attention_in_blocks(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same in blocks of queries, each over the keys it can see: a third faster than the fused
    kernel on a 2-core CPU at 512 tokens, and half the scores are never computed."""
    new_tokens, num_heads, head_dim = queries.shape
    num_kv_heads, total_tokens, _ = keys.shape
    cached_tokens = total_tokens - new_tokens
    groups = num_heads // num_kv_heads
    grouped = queries.view(new_tokens, num_kv_heads, groups, head_dim).permute(1, 2, 0, 3)
    attended = torch.empty_like(queries)
    for first in range(0, new_tokens, BLOCK_TOKENS):
        last = min(first + BLOCK_TOKENS, new_tokens)
        block, seen = last - first, cached_tokens + last
        rows = grouped[:, :, first:last].reshape(num_kv_heads, groups * block, head_dim)
        scores = torch.bmm(rows * head_dim**-0.5, keys[:, :seen].transpose(1, 2))
        hidden = torch.full((block, block), -inf, dtype=rows.dtype).triu_(1)  # the block's future
        scores.view(num_kv_heads, groups, block, seen)[..., seen - block :].add_(hidden)
        mixed = torch.bmm(scores.softmax(-1), values[:, :seen])
        attended[first:last] = (
            mixed.view(num_kv_heads, groups, block, head_dim).permute(2, 0, 1, 3).flatten(1, 2)
        )
    return attended


def _fused_attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The same by torch's fused kernel, which accelerators have for the bottom-right mask."""
    new_tokens, num_heads, _ = queries.shape
    num_kv_heads, total_tokens, _ = keys.shape
    attended = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, H, n, D]
        keys[None],
        values[None],
        attn_mask=causal_lower_right(new_tokens, total_tokens),
        enable_gqa=num_heads != num_kv_heads,
    )
    return attended[0].transpose(0, 1)  # [n, H, D]
