"""KV cache: the keys and values of every sequence, allocated once.

One tensor a layer for keys and one for values, [slots, K, capacity, D]: a slot holds one
sequence, and the tokens of one head lie side by side, which is how decode reads them. `lengths`
counts the tokens that each slot holds."""

import torch

from prefill_decode.model_spec import ModelSpec


class KVCache:
    def __init__(self, model: ModelSpec, num_slots: int, capacity_tokens: int, device: str) -> None:
        shape = (num_slots, model.num_kv_heads, capacity_tokens, model.head_dim)
        dtype = getattr(torch, model.dtype)

        def zeros() -> (
            torch.Tensor
        ):  # written once here, so that no later step pays for first touch
            return torch.empty(shape, dtype=dtype, device=device).zero_()

        self.keys = [zeros() for _ in range(model.num_layers)]
        self.values = [zeros() for _ in range(model.num_layers)]
        self.lengths = [0] * num_slots
        self.capacity_tokens = capacity_tokens

    def fill_with_noise(self, seed: int) -> None:
        """Random contents, as a filled cache has: zeros could be read or multiplied faster.

        Drawn for one tensor and copied to the others: drawing takes far longer than copying."""
        drawn, *others = self.keys + self.values
        drawn.normal_(generator=torch.Generator(drawn.device).manual_seed(seed))
        for tensor in others:
            tensor.copy_(drawn)
