"""Engine: run a step, for real, in torch.

A Llama-like decoder with random weights: their values do not change the time, their bytes do. One
path, `Engine.forward`, runs prefill, decode and steps that mix them."""

from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.engine.exactness import (
    batching_differences,
    chunking_differences,
    scoring_differences,
)
from prefill_decode.engine.step_runner import StepRunner, choose_model, one_after_another

__all__ = [
    "Engine",
    "SequenceChunk",
    "StepRunner",
    "batching_differences",
    "choose_model",
    "chunking_differences",
    "one_after_another",
    "scoring_differences",
]
