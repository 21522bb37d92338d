"""Slices: fewer layers of a model, each of them as it is, and a small vocabulary.

What a chapter says of every layer can be measured on a few of them, with longer prompts, more
steps or a second model in the same time and memory. The vocabulary shrinks with the layers,
because the output matrix would otherwise be most of what a slice reads.

Ignores: what only depth brings: more launches in a row, more weights than memory holds."""

from dataclasses import replace

from prefill_decode.engine.step_runner import choose_model
from prefill_decode.model_spec import ModelSpec

VOCABULARY = 1024


def choose_slice(
    name: str, num_layers: int, device: str, cache_bytes: float, memory_bytes: float
) -> ModelSpec:
    """`num_layers` layers of the model that `choose_model` gives. ValueError if it has fewer."""
    return slice_of(choose_model(name, device, cache_bytes, memory_bytes), num_layers)


def slice_of(model: ModelSpec, num_layers: int) -> ModelSpec:
    """`num_layers` of its layers. ValueError if it has fewer."""
    if not 1 <= num_layers <= model.num_layers:
        raise ValueError(
            f"a slice of {model.name} has from 1 to {model.num_layers} layers; got "
            f"num_layers={num_layers}"
        )
    return replace(
        model.with_layers(num_layers),
        name=f"{model.name}, {num_layers} of {model.num_layers} layers",
        vocab_size=min(VOCABULARY, model.vocab_size),
    )
