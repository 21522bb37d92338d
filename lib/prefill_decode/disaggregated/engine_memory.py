"""Engine memory: the cache of a serving engine as a pool that can be moved, and what it must have
in common with another one."""

import numpy as np

from prefill_decode.engine.serving import ServingEngine
from prefill_decode.engine.weights import mark_of
from prefill_decode.kv_transfer import Layout, Pool


def pool_of(serving: ServingEngine) -> Pool:
    """Its blocks, with nothing copied. ValueError where they are not in the host's memory."""
    paged = serving.engine
    model, regions = paged.model, serving.kv_regions()
    layout = Layout(
        model=model.name,
        weights=mark_of(model, paged.weights),
        dtype=model.dtype,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_tokens=paged.cache.block_tokens,
        block_bytes=regions[0].shape[1],
    )
    generations = np.frombuffer(serving.scheduler.pool.generations, dtype=np.int64)
    return Pool(layout, regions, generations)
