"""KV cache: the keys and values of every sequence, in blocks, allocated once.

One tensor a layer for keys and one for values, [num_blocks, K, block_tokens, D]. A sequence lies
in the blocks that its table names, in that order and wherever they are; the tokens of one head lie
side by side inside a block, which is how decode reads them. A block as long as a sequence may
become is the unpaged cache.

Ignores: which block is whose. The caller decides, and may give one block to several sequences that
         begin alike."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from prefill_decode.model_spec import ModelSpec


class KVCache:
    def __init__(self, model: ModelSpec, num_blocks: int, block_tokens: int, device: str) -> None:
        shape = (num_blocks, model.num_kv_heads, block_tokens, model.head_dim)
        dtype = getattr(torch, model.dtype)

        def zeros() -> Tensor:  # written once here, so that no later step pays for first touch
            return torch.empty(shape, dtype=dtype, device=device).zero_()

        self.keys = [zeros() for _ in range(model.num_layers)]
        self.values = [zeros() for _ in range(model.num_layers)]
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies block source to block target in every layer, for each (source, target).

        Every source is read as it was before the call. ValueError, with nothing copied, for an
        unknown block or a target named twice."""
        self._check_pairs(pairs)
        if not pairs:
            return
        device = self.keys[0].device
        ends = on_device(torch.tensor(pairs, dtype=torch.int64), device)
        sources, targets = ends[:, 0], ends[:, 1]
        for cached in self.keys + self.values:
            cached.index_copy_(0, targets, cached.index_select(0, sources))

    def regions(self) -> list[NDArray[np.uint8]]:
        """The memory itself, as bytes: layer 0 keys, layer 0 values, layer 1 keys and so on, each
        [num_blocks, K * block_tokens * D * bytes of a value]. ValueError where it is not on a
        CPU."""
        if self.keys[0].device.type != "cpu":
            raise ValueError(
                "the bytes of a cache can be looked at where it lies in the host's memory; got "
                f"one on {self.keys[0].device}: use --device cpu"
            )
        pairs = zip(self.keys, self.values, strict=True)
        return [
            cached.view(torch.uint8).view(self.num_blocks, -1).numpy()
            for pair in pairs
            for cached in pair
        ]

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zeros in these blocks, as at the start: a mask hides any number, but not one that is
        none, because 0 times NaN is NaN."""
        places = on_device(torch.tensor(blocks, dtype=torch.int64), self.keys[0].device)
        for cached in self.keys + self.values:
            cached.index_fill_(0, places, 0)

    def fill_with_noise(self, seed: int) -> None:
        """Random contents, as a filled cache has: zeros could be read or multiplied faster.

        Drawn for one tensor and copied to the others: drawing takes far longer than copying."""
        drawn, *others = self.keys + self.values
        drawn.normal_(generator=torch.Generator(drawn.device).manual_seed(seed))
        for tensor in others:
            tensor.copy_(drawn)

    def _check_pairs(self, pairs: Sequence[tuple[int, int]]) -> None:
        for block in (block for pair in pairs for block in pair):
            if not isinstance(block, int) or not 0 <= block < self.num_blocks:
                raise ValueError(f"blocks are from 0 to {self.num_blocks - 1}; got {block}")
        targets = [target for _, target in pairs]
        if len(set(targets)) < len(targets):
            raise ValueError(f"blocks are copied to targets that differ; got {targets}")


def seen_in_cache(cached: Tensor, seen: slice | Tensor, tokens: int) -> Tensor:
    """The first `tokens` of B sequences, [B, K, tokens, D], in keys or values of one layer.

    `seen` is a slice where each sequence is one block and they follow one another: no copy. Else
    it names the pieces [B, K, n] of each head, a piece being one head's share of a block; their
    number is block * K + head."""
    if isinstance(seen, slice):
        return cached[seen, :, :tokens]
    num_blocks, num_kv_heads, block_tokens, head_dim = cached.shape
    pieces = cached.view(num_blocks * num_kv_heads, block_tokens * head_dim)
    found = pieces.index_select(0, seen.flatten())
    return found.view(len(seen), num_kv_heads, -1, head_dim)[:, :, :tokens]


def on_device(indices: Tensor, device: torch.device | str) -> Tensor:
    """Indices made on the host, on their way to the device without the host waiting for it."""
    if torch.device(device).type == "cuda":
        indices = indices.pin_memory()
    return indices.to(device, non_blocking=True)
