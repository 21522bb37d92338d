"""Engine: run a step, for real, in torch.

A Llama-like decoder, as a rule with random weights: their values do not change the time, their
bytes do; `engine.checkpoint` reads stored ones. One path, `PagedEngine.forward`, runs prefill,
decode and steps that mix them; `Engine` takes it with one block of cache a sequence."""

from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.engine.contention_runner import Arrival, ContentionRunner
from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.engine.exactness import (
    arrival_differences,
    batching_differences,
    chunking_differences,
    scoring_differences,
)
from prefill_decode.engine.first_token import FirstTokenRunner
from prefill_decode.engine.line_runner import LineRunner
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.sampling import Sampled, Sampling, sample
from prefill_decode.engine.serving import ServingEngine, build_serving_engine
from prefill_decode.engine.slices import choose_slice, slice_of
from prefill_decode.engine.step_runner import (
    StepRunner,
    choose_dtypes,
    choose_model,
    one_after_another,
)

__all__ = [
    "Arrival",
    "ContentionRunner",
    "Engine",
    "FailedAnswer",
    "FirstTokenRunner",
    "LineRunner",
    "PagedEngine",
    "PlacedChunk",
    "Sampled",
    "SampledToken",
    "Sampling",
    "SequenceChunk",
    "ServingEngine",
    "StepRunner",
    "arrival_differences",
    "batching_differences",
    "build_serving_engine",
    "choose_dtypes",
    "choose_model",
    "choose_slice",
    "chunking_differences",
    "one_after_another",
    "sample",
    "scoring_differences",
    "slice_of",
]
