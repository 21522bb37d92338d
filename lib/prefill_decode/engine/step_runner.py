"""StepRunner: steps ready to be timed, and the model that suits a device.

A timed step is the forward pass and nothing else: token ids are on the device, the plan is made,
the cache is filled, and the same step can be run again and again because it rewrites the same
cache positions."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

import torch

from prefill_decode import hf_config
from prefill_decode.engine.linear import copies_of_weights
from prefill_decode.engine.model import StepPlan
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.weights import Weights
from prefill_decode.kernels import kernels
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk
from prefill_decode.units import format_bytes

LEAST_TIMES_CACHE = 16  # weights / last-level cache
LEAST_CPU_LAYER_BYTES = 40e6  # a CPU starts an operation in about 10 us and reads 10 to 100 GB/s
MOST_PARAMS = 10e9  # a larger model shows the same and takes longer to measure
MOST_OF_MEMORY = {"cpu": 0.5, "mps": 0.5, "cuda": 0.75}


def choose_model(name: str, device: str, cache_bytes: float, memory_bytes: float) -> ModelSpec:
    """The shipped model of that name, in the device's dtype; "auto" chooses one for the device.

    Its weights dwarf the last-level cache, and reading one layer takes far longer than launching
    it. On a CPU that is the smallest such model, because arithmetic is slow there; on an
    accelerator the largest that fits, because launches weigh more there. ValueError when none
    qualifies: this device cannot decide, and the message says why."""
    dtype = _dtype_for(device)
    if name != "auto":
        return hf_config.get(name).with_dtype(dtype)
    models = [model.with_dtype(dtype) for model in hf_config.shipped() if _eligible(model)]
    dwarfing = [m for m in models if m.weight_bytes_read >= LEAST_TIMES_CACHE * cache_bytes]
    if device == "cpu":
        dwarfing = [m for m in dwarfing if m.layer_params * 4 >= LEAST_CPU_LAYER_BYTES]
    if not dwarfing:
        raise ValueError(
            f"this device cannot decide: no shipped model in {dtype} is {LEAST_TIMES_CACHE} times "
            f"its last-level cache of {format_bytes(cache_bytes)}"
        )
    copies = copies_of_weights(device, dtype)
    room_bytes = MOST_OF_MEMORY[device] * memory_bytes
    fitting = [m for m in dwarfing if m.weight_bytes * copies <= room_bytes]
    if not fitting:
        needed_bytes = dwarfing[0].weight_bytes * copies
        raise ValueError(
            "this device cannot decide: the smallest weights that dwarf its cache are "
            f"{dwarfing[0].name}'s, which take {format_bytes(needed_bytes)} in {dtype}, and it has "
            f"{format_bytes(memory_bytes)} of memory; name a smaller model to measure anyway"
        )
    return fitting[0] if device == "cpu" else fitting[-1]


def _eligible(model: ModelSpec) -> bool:
    """A model that the engine runs, small enough to measure, with one kind of attention."""
    return model.engine_runs and model.windows is None and model.total_params <= MOST_PARAMS


def _dtype_for(device: str) -> str:
    if device == "cpu":
        return "float32"
    if (
        device == "cuda"
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability()[0] >= 8
    ):
        return "bfloat16"
    return "float16"  # Apple's GPUs, and NVIDIA's before Ampere


def choose_dtypes(device: str) -> tuple[str, str]:
    """float32 and a second dtype in which this device computes well, the device's own where it is
    another.

    On a CPU bfloat16 where it has instructions for it and the engine kernels that read it, else
    float64: without them each product converts, and its rate says nothing of the ridge."""
    if device != "cpu":
        return "float32", _dtype_for(device)
    able = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    multiplies = able.get("amx_bf16") or able.get("avx512_bf16")
    return "float32", "bfloat16" if multiplies and kernels() is not None else "float64"


class StepRunner:
    """One engine with room for all the given steps, and each of them ready to run.

    `block_tokens`: None for one block a sequence, as long as the longest; else blocks of that many
    tokens, scattered over the cache by `seed`. `weights`: those of another engine, to share."""

    def __init__(
        self,
        model: ModelSpec,
        chunks: Mapping[str, Sequence[Chunk]],
        device: str = "cpu",
        seed: int = 0,
        block_tokens: int | None = None,
        weights: Weights | None = None,
    ) -> None:
        if not chunks or not all(chunks.values()):
            raise ValueError("there is nothing to run: every step needs at least one chunk")
        if block_tokens is not None and block_tokens < 1:
            raise ValueError(f"a block holds at least one token; got block_tokens={block_tokens}")
        capacity_tokens = max(
            c.cached_tokens + c.new_tokens for step in chunks.values() for c in step
        )
        self.block_tokens = block_tokens or capacity_tokens
        num_blocks = max(sum(map(self._num_blocks, step)) for step in chunks.values())
        self.engine = PagedEngine(
            model,
            device,
            num_blocks=num_blocks,
            block_tokens=self.block_tokens,
            capacity_tokens=capacity_tokens,
            seed=seed,
            weights=weights,
        )
        self.engine.cache.fill_with_noise(seed)
        self.blocks = list(range(num_blocks))
        if block_tokens is not None:
            random.Random(seed).shuffle(self.blocks)
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = {name: self._replayable(step) for name, step in chunks.items()}

    def _num_blocks(self, chunk: Chunk) -> int:
        return -(-(chunk.cached_tokens + chunk.new_tokens) // self.block_tokens)

    def _replayable(self, chunks: Sequence[Chunk]) -> Callable[[], object]:
        """One step of these chunks, each on blocks of its own, that can be run again and again."""
        free = iter(self.blocks)
        placed = [
            PlacedChunk(
                self._token_ids(chunk.new_tokens),
                chunk.cached_tokens,
                list(islice(free, self._num_blocks(chunk))),
                chunk.samples_token,
            )
            for chunk in chunks
        ]
        plan = self.engine.plan(placed)
        if self.engine.device == "cuda" and all(chunk.new_tokens == 1 for chunk in chunks):
            return _captured(self.engine, plan)
        return lambda: self.engine.run(plan)

    def _token_ids(self, count: int) -> list[int]:
        vocab_size = self.engine.model.vocab_size
        ids: list[int] = torch.randint(vocab_size, (count,), generator=self.generator).tolist()
        return ids


def one_after_another(steps: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Several steps as one thing to time: each starts when the host has handed over the last.

    Returns what the last step returns. ValueError for no steps."""
    if not steps:
        raise ValueError("there is nothing to run: give at least one step; got none")

    def run() -> object:
        output = None
        for step in steps:
            output = step()
        return output

    return run


def _captured(engine: PagedEngine, plan: StepPlan) -> Callable[[], object]:
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

    # The recording reads the plan's tensors at their addresses: they live as long as it does.
    return _Replay(graph, output, engine, plan)


class _Replay:
    """A recorded step and all that it reads."""

    def __init__(
        self, graph: torch.cuda.CUDAGraph, output: object, engine: PagedEngine, plan: StepPlan
    ) -> None:
        self.graph, self.output, self.read = graph, output, (engine, plan)

    def __call__(self) -> object:
        self.graph.replay()
        return self.output
