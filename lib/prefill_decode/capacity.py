"""Capacity: how many sequences fit in a device's memory beside the weights.

Counts:  the weights once and the keys and values of every token, in the model's dtype.
Ignores: activations, workspaces and what an allocator cannot use, so fewer fit than this says; and
         the second copy of float32 weights that this book's engine keeps, for speed alone, on a CPU
         where its own kernels could not be compiled.
Source:  Kwon et al., "PagedAttention" (2023), section 3: the cache is what limits a batch.
"""

from prefill_decode.model_spec import ModelSpec


def sequences_that_fit(model: ModelSpec, memory_bytes: float, tokens: int) -> int:
    """Sequences of `tokens` tokens whose caches fit in `memory_bytes` with the weights; 0 if none.

    ValueError for sequences without tokens: they take no memory at all.
    """
    if tokens < 1:
        raise ValueError(f"a cached sequence has at least one token; got {tokens}")
    room_bytes = max(0.0, memory_bytes - model.weight_bytes)
    return int(room_bytes // model.kv_bytes(tokens))
