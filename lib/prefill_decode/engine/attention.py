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


def prefill_attention(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> Tensor:
    """One sequence's chunk. [n, H, D] over [K, T, D], the new tokens being the last n of T.

    `window`: how many tokens each new one sees, itself included; None: all before it.
    """
    if queries.device.type == "cpu":
        return _attention_in_blocks(queries, keys, values, window)
    return _fused_attention(queries, keys, values, window)


def decode_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    tokens: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """One new token for each of B sequences. [B, H, D] over [B, K, T, D].

    `tokens` [B] says how many each sequence has, the new one included; None when all have T.
    """
    batch, num_heads, head_dim = queries.shape
    _, num_kv_heads, longest, _ = keys.shape
    grouped = queries.view(batch, num_kv_heads, num_heads // num_kv_heads, head_dim)
    mask = None
    if tokens is not None or window is not None:
        last = longest if tokens is None else tokens[:, None]
        places = torch.arange(longest, device=keys.device)
        visible = (places < last) & (places >= last - (window or longest))
        mask = visible.expand(batch, longest)[:, None, None, :]
    attended = functional.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return attended.reshape(batch, num_heads, head_dim)


def _attention_in_blocks(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> Tensor:
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
        block, end = last - first, cached_tokens + last
        start = 0 if window is None else max(0, cached_tokens + first + 1 - window)
        rows = grouped[:, :, first:last].reshape(num_kv_heads, groups * block, head_dim)
        scores = torch.bmm(rows * head_dim**-0.5, keys[:, start:end].transpose(1, 2))
        by_query = scores.view(num_kv_heads, groups, block, end - start)
        hidden = torch.full((block, block), -inf, dtype=rows.dtype).triu_(1)  # the block's future
        by_query[..., -block:].add_(hidden)
        if window is not None:
            by_query.masked_fill_(_too_early(block, end - start, window, rows.device), -inf)
        mixed = torch.bmm(scores.softmax(-1), values[:, start:end])
        attended[first:last] = (
            mixed.view(num_kv_heads, groups, block, head_dim).permute(2, 0, 1, 3).flatten(1, 2)
        )
    return attended


def _too_early(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """[queries, keys]: True where a key lies before the window of a query, both ending together."""
    places = torch.arange(keys, device=device)
    own = torch.arange(keys - queries, keys, device=device)
    return places <= own[:, None] - window


def _fused_attention(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None = None
) -> Tensor:
    """The same by torch's fused kernel, which accelerators have for the bottom-right mask."""
    new_tokens, num_heads, _ = queries.shape
    num_kv_heads, total_tokens, _ = keys.shape
    mask: Tensor = causal_lower_right(new_tokens, total_tokens)
    if window is not None and window < total_tokens:
        own = torch.arange(total_tokens - new_tokens, total_tokens, device=keys.device)
        future = torch.arange(total_tokens, device=keys.device) > own[:, None]
        mask = ~(future | _too_early(new_tokens, total_tokens, window, keys.device))
    attended = functional.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],  # [1, H, n, D]
        keys[None],
        values[None],
        attn_mask=mask,
        enable_gqa=num_heads != num_kv_heads,
    )
    return attended[0].transpose(0, 1)  # [n, H, D]
