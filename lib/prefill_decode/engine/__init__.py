"""Engine: run a step, for real, in torch.

A Llama-like decoder, as a rule with random weights: their values do not change the time, their
bytes do. `engine.checkpoint` reads stored ones. One path, `Engine.forward`, runs prefill, decode
and steps that mix them."""

from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.engine.exactness import (
    batching_differences,
    chunking_differences,
    scoring_differences,
)
from prefill_decode.engine.first_token import FirstTokenRunner
from prefill_decode.engine.sampling import Sampled, Sampling, sample
from prefill_decode.engine.schedule_runner import ScheduleRunner
from prefill_decode.engine.slices import choose_slice
from prefill_decode.engine.step_runner import (
    StepRunner,
    choose_dtypes,
    choose_model,
    one_after_another,
)

__all__ = [
    "Engine",
    "FirstTokenRunner",
    "Sampled",
    "Sampling",
    "ScheduleRunner",
    "SequenceChunk",
    "StepRunner",
    "batching_differences",
    "choose_dtypes",
    "choose_model",
    "choose_slice",
    "chunking_differences",
    "one_after_another",
    "sample",
    "scoring_differences",
]
