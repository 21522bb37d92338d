"""Engine memory: the cache of a serving engine as a pool that can be moved, and what it must have
in common with another one."""

import numpy as np

from prefill_decode.engine.serving import ServingEngine
from prefill_decode.engine.weights import mark_of
from prefill_decode.kv_transfer import Layout, Pool
from prefill_decode.model_spec import ModelSpec


def pool_of(serving: ServingEngine) -> Pool:
    """Its blocks, with nothing copied. ValueError where they are not in the host's memory."""
    paged = serving.engine
    model, regions = paged.model, serving.kv_regions()
    layout = layout_of(model, paged.cache.block_tokens, mark_of(model, paged.weights))
    generations = np.frombuffer(serving.scheduler.pool.generations, dtype=np.int64)
    return Pool(layout, regions, generations)


def layout_of(model: ModelSpec, block_tokens: int, weights: str) -> Layout:
    """Of a cache of this model, as the engine keeps it; `weights` is their mark."""
    return Layout(
        model=model.name,
        weights=weights,
        dtype=model.dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_tokens=block_tokens,
        block_bytes=model.kv_size * model.bytes_per_value * block_tokens,
    )
