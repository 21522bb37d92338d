"""Attention against handed figures and an explicit mask."""

import pytest
import torch

from prefill_decode.engine.attention import (
    BLOCK_TOKENS,
    _fused_attention,
    decode_attention,
    prefill_attention,
)


def explicit(queries, keys, values, window=None):
    """[n, H, D] over [K, T, D], with repeated heads and a mask built entry by entry."""
    new, heads, size = queries.shape
    groups, total = heads // keys.shape[0], keys.shape[1]
    out = torch.empty_like(queries)
    for h in range(heads):
        for i in range(new):
            end = total - new + i + 1
            seen = slice(0 if window is None else max(0, end - window), end)
            scores = keys[h // groups, seen] @ queries[i, h] / size**0.5
            out[i, h] = scores.softmax(0) @ values[h // groups, seen]
    return out


# Two new tokens on two cached ones, [heads, tokens, dim], 4 query heads and 2 KV heads; worked out
# apart from this code, against the top-left mask and the h % 2 sharing that other tools have had.
HANDED_QUERIES = [
    [[-0.85, 0.56], [-0.12, 0.45]],
    [[0.96, 0.08], [0.0, -0.86]],
    [[-0.46, -0.0], [0.36, 0.61]],
    [[-0.24, -0.87], [-0.42, 0.82]],
]
HANDED_KEYS = [
    [[-0.57, -0.1], [0.86, -0.95], [0.2, 0.9], [-0.54, 0.1]],
    [[0.82, -0.73], [0.05, 0.5], [0.34, -0.06], [-0.59, -0.02]],
]
HANDED_VALUES = [
    [[-0.26, -0.05], [-0.27, 0.68], [0.54, -0.37], [0.15, -0.45]],
    [[-0.09, -0.29], [0.31, -0.26], [-0.08, 0.44], [-0.17, 0.81]],
]
HANDED_OUTPUT = [
    [[0.073044, -0.085115], [0.102404, -0.13541]],
    [[0.004614, 0.188745], [-0.069631, 0.119402]],
    [[0.062171, -0.031749], [0.019296, 0.140257]],
    [[0.008118, -0.05012], [0.023677, 0.218241]],
]


@pytest.mark.parametrize("attention", [prefill_attention, _fused_attention])
def test_the_causal_mask_is_aligned_to_the_bottom_right_with_shared_heads(attention):
    queries, keys, values, wanted = (
        torch.tensor(figures, dtype=torch.float64)
        for figures in (HANDED_QUERIES, HANDED_KEYS, HANDED_VALUES, HANDED_OUTPUT)
    )
    mixed = attention(queries.transpose(0, 1), keys, values)
    torch.testing.assert_close(mixed.transpose(0, 1), wanted, rtol=0, atol=2e-5)


def test_a_query_that_sees_nothing_but_itself_gives_its_own_value_and_never_nan():
    """The nearest thing to a fully masked row: no row of a step is ever without a key."""
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 4, 8, generator=generator, dtype=torch.float64)
    keys = torch.randn(2, 3, 8, generator=generator, dtype=torch.float64)
    values = torch.randn(2, 3, 8, generator=generator, dtype=torch.float64)
    mixed = prefill_attention(queries, keys, values, window=1)
    own = values.transpose(0, 1).repeat_interleave(2, dim=1)
    torch.testing.assert_close(mixed, own)


@pytest.mark.parametrize(
    ("new", "cached"),
    [(1, 0), (2, 2), (5, 0), (BLOCK_TOKENS, 0), (BLOCK_TOKENS + 1, 3), (2 * BLOCK_TOKENS + 7, 70)],
)
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 3, BLOCK_TOKENS + 1, 10_000])
def test_both_kernels_see_what_an_explicit_mask_shows(new, cached, kv_heads, window):
    generator = torch.Generator().manual_seed(new + cached)
    random = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    queries = random(new, 4, 8)
    keys, values = random(kv_heads, new + cached, 8), random(kv_heads, new + cached, 8)
    expected = explicit(queries, keys, values, window)
    torch.testing.assert_close(prefill_attention(queries, keys, values, window), expected)
    torch.testing.assert_close(_fused_attention(queries, keys, values, window), expected)


@pytest.mark.parametrize("window", [None, 1, 4, 100])
def test_decode_sees_only_the_tokens_that_each_sequence_has(window):
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(3, 4, 8, generator=generator, dtype=torch.float64)
    keys = torch.randn(3, 2, 9, 8, generator=generator, dtype=torch.float64)
    values = torch.randn(3, 2, 9, 8, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([9, 1, 4])
    mixed = decode_attention(queries, keys, values, lengths, window)
    for b, length in enumerate(lengths.tolist()):
        alone = explicit(queries[b : b + 1], keys[b, :, :length], values[b, :, :length], window)
        torch.testing.assert_close(mixed[b : b + 1], alone)
