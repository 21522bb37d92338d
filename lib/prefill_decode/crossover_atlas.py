"""Crossover atlas: the crossover of any model on any accelerator, from a config and a data sheet.

With endless batches a further sequence costs its arithmetic and its cache, nothing else, so

    B* = (least time of a step of one sequence) / (FLOP / peak + attention's least time, for one)

A mixture of experts has two ends instead of one bend: a step of one sequence reads the experts of
one token, a large step reads all of them, and the shared cost climbs from the one to the other.

Counts:  weights, arithmetic and caches in bfloat16, whatever a checkpoint stores; dense peaks. A
         model that needs several devices has all their bandwidth and all their arithmetic, which
         leaves the crossover where it is.
Ignores: communication between devices, launches, what kernels leave unused, and quantization.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from prefill_decode.capacity import sequences_that_fit
from prefill_decode.crossover import ALL_AWAKE_TOKENS, crossover_against
from prefill_decode.hardware import Accelerator, Hardware
from prefill_decode.model_spec import ModelSpec

DTYPE = "bfloat16"


@dataclass(frozen=True)
class Entry:
    """One model on one accelerator at one context."""

    model: ModelSpec
    accelerator: Accelerator
    context_tokens: int
    crossover: float  # sequences
    crossover_all_awake: float  # against reading all experts; the same for a dense model
    devices: int | None  # that hold the weights; None where the capacity is unknown
    sequences_that_fit: int | None  # on so many devices, at this context

    @property
    def has_room(self) -> bool | None:
        """Whether the caches of a whole crossover fit; None where the capacity is unknown."""
        if self.sequences_that_fit is None:
            return None
        return self.sequences_that_fit >= self.crossover


def entry(model: ModelSpec, accelerator: Accelerator, context_tokens: int) -> Entry:
    """ValueError when no source prints the accelerator's bf16 peak."""
    typed = model.with_dtype(DTYPE)
    hardware = accelerator.at(DTYPE)
    devices = fits = None
    if accelerator.capacity_bytes is not None:
        devices = ceil(typed.weight_bytes / accelerator.capacity_bytes)
        memory_bytes = devices * accelerator.capacity_bytes
        fits = sequences_that_fit(typed, memory_bytes, context_tokens + 1)
    first, last = crossovers(typed, context_tokens, hardware)
    return Entry(typed, accelerator, context_tokens, first, last, devices, fits)


def crossovers(model: ModelSpec, context_tokens: int, hardware: Hardware) -> tuple[float, float]:
    """B* against the weights that one sequence reads, and against all experts' weights.

    Both are the same for a dense model. `predicted_crossover` lies between."""
    first, last = (
        crossover_against(model, tokens, context_tokens, hardware)
        for tokens in (1, ALL_AWAKE_TOKENS)
    )
    return first, last


def atlas(
    models: Sequence[ModelSpec], accelerators: Sequence[Accelerator], context_tokens: int
) -> list[list[Entry]]:
    """A row for each model, an entry for each accelerator whose bf16 peak is known."""
    known = [each for each in accelerators if each.peak_flops_per_s(DTYPE) is not None]
    return [[entry(model, each, context_tokens) for each in known] for model in models]
