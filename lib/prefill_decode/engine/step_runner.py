"""StepRunner: steps ready to be timed, and the model that suits a device.

A timed step is the forward pass and nothing else: token ids are on the device, the plan is made,
the cache is filled, and the same step can be run again and again because it rewrites the same
cache positions."""

from collections.abc import Callable, Sequence

import torch

from prefill_decode import model_spec
from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.engine.linear import copies_of_weights
from prefill_decode.engine.model import StepPlan
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk
from prefill_decode.units import format_bytes

DEFAULT_DTYPE = {"cpu": "float32", "cuda": "bfloat16", "mps": "float16"}
# Reading one layer must take far longer than launching it: a CPU starts an operation in about
# 10 us and reads 10 to 100 GB/s, a GPU starts one in 2 to 5 us and reads 0.3 to 8 TB/s.
LEAST_LAYER_BYTES = {"cpu": 40e6, "mps": 80e6, "cuda": 250e6}
LEAST_TIMES_CACHE = 16  # weights / last-level cache
MOST_OF_MEMORY = 0.4


def choose_model(name: str, device: str, cache_bytes: float, memory_bytes: float) -> ModelSpec:
    """The shipped model of that name, or with "auto" the smallest whose weights dwarf this device's
    last-level cache and launches; in the device's dtype.

    ValueError when no model dwarfs them and fits in `MOST_OF_MEMORY` of the memory: this device
    cannot decide, and the message says why."""
    dtype = DEFAULT_DTYPE[device]
    if name != "auto":
        return model_spec.get(name).with_dtype(dtype)
    least_bytes = LEAST_TIMES_CACHE * cache_bytes
    for model in (spec.with_dtype(dtype) for spec in model_spec.shipped()):
        layer_bytes = model.layer_params * model.bytes_per_weight
        if model.weight_bytes_read < least_bytes or layer_bytes < LEAST_LAYER_BYTES[device]:
            continue
        stored_bytes = model.weight_bytes * copies_of_weights(device, dtype)
        if stored_bytes > MOST_OF_MEMORY * memory_bytes:
            raise ValueError(
                f"this device cannot decide: the smallest weights that dwarf its cache are "
                f"{model.name}'s, "
                f"which take {format_bytes(stored_bytes)} in {dtype}, and it has "
                f"{format_bytes(memory_bytes)} of memory; name a smaller model to measure anyway"
            )
        return model
    raise ValueError(
        f"this device cannot decide: no shipped model in {dtype} is {LEAST_TIMES_CACHE} times its "
        f"last-level cache of {format_bytes(cache_bytes)}"
    )


class StepRunner:
    """Builds the engine once and turns chunks, as the roofline prices them, into steps to time."""

    def __init__(
        self,
        model: ModelSpec,
        device: str = "cpu",
        num_slots: int = 8,
        capacity_tokens: int = 1024,
        seed: int = 0,
    ) -> None:
        self.engine = Engine(model, device, num_slots, capacity_tokens, seed)
        self.engine.cache.fill_with_noise(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def step(self, chunks: Sequence[Chunk]) -> Callable[[], object]:
        """One step of these chunks, one slot each, that can be run again and again."""
        held = [
            SequenceChunk(slot, self._token_ids(chunk.new_tokens), chunk.samples_token)
            for slot, chunk in enumerate(chunks)
        ]
        lengths = self.engine.cache.lengths
        if len(chunks) > len(lengths):
            raise ValueError(
                f"this engine has {len(lengths)} slots; got a step of {len(chunks)} chunks"
            )
        lengths[: len(chunks)] = [chunk.cached_tokens for chunk in chunks]
        plan = self.engine.plan(held)
        lengths[: len(chunks)] = [0] * len(chunks)
        if self.engine.device == "cuda" and all(chunk.new_tokens == 1 for chunk in chunks):
            return _captured(self.engine, plan)
        return lambda: self.engine.run(plan)

    def _token_ids(self, count: int) -> list[int]:
        vocab_size = self.engine.model.vocab_size
        ids: list[int] = torch.randint(vocab_size, (count,), generator=self.generator).tolist()
        return ids


def _captured(engine: Engine, plan: StepPlan) -> Callable[[], object]:
    """The step as a CUDA graph: its kernels start without the host, as in serving engines."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # libraries allocate their workspaces before the recording
            engine.run(plan)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = engine.run(plan)

    def replay() -> object:
        graph.replay()
        return output

    return replay
