"""Calculator page: what its script needs to know, and a table for readers without scripts.

The script, book/_static/calculator.js, repeats the arithmetic of the roofline, of capacity, of
crossovers and of transfers, so that a choice answers at once; a test holds every number of it
against the library's. Shapes and data sheets come from the library when the page is staged.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from prefill_decode.capacity import sequences_that_fit
from prefill_decode.crossover import predicted_crossover
from prefill_decode.hardware import Accelerator, accelerator, accelerators
from prefill_decode.hf_config import get, shipped
from prefill_decode.model_spec import ModelSpec
from prefill_decode.model_spec.spec import SIZES
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from prefill_decode.transfer_cost import least_handover
from prefill_decode.units import (
    format_bits_per_s,
    format_bytes,
    format_seconds,
    format_significant,
)

MODEL_FIELDS = ("name", *SIZES, "gated_mlp", "total_params", "num_expert_layers")


@dataclass(frozen=True)
class Numbers:
    """A dtype of the library, and the one whose peak its products reach."""

    dtype: str
    arithmetic: str
    words: str


# A type of 8 bits on both sides multiplies at the float8 rate; other quantized weights are widened
# first. The cache of fp8, int8, int4 and mxfp4 weights stays in bfloat16, as in model_spec.
NUMBERS = (
    Numbers("bfloat16", "bfloat16", "bfloat16 weights and cache"),
    Numbers("float8", "float8", "float8 weights and cache"),
    Numbers("fp8", "float8", "fp8 weights, bfloat16 cache"),
    Numbers("int8", "bfloat16", "int8 weights, bfloat16 cache and products"),
    Numbers("int4", "bfloat16", "int4 weights, bfloat16 cache and products"),
    Numbers("mxfp4", "bfloat16", "mxfp4 experts, all else bfloat16"),
)
# The table that needs no script, and the choice that the fields begin with.
WORKED_MODELS = ("llama-2-7b", "llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b")
WORKED_ACCELERATORS = ("L4", "H100 SXM", "MI300X")
WORKED_TOKENS, WORKED_SEQUENCES = 2048, 16
WORKED_HEADER = (
    "model, accelerator",
    "TTFT at least",
    "TPOT at least",
    "cache a token",
    "sequences that fit",
    "B* of a sweep",
    "break-even link",
)


def calculator_parts() -> dict[str, str]:
    """What book/calculator.md asks for, by name."""
    return {
        "calculator-models": options([(model.name, model.name) for model in shipped()], START[0]),
        "calculator-accelerators": options(
            [(word(each.name), each.name) for each in accelerators()], START[1]
        ),
        "calculator-numbers": options([(each.dtype, each.words) for each in NUMBERS], START[2]),
        "calculator-data": data_element(),
        "calculator-table": worked_table(),
    }


def word(name: str) -> str:
    """An accelerator's name as the command and the page's links take it: h100-sxm."""
    return name.lower().replace(" ", "-")


START = ("llama-3.1-8b", word("H100 SXM"), NUMBERS[0].dtype)


def options(values_and_words: Sequence[tuple[str, str]], chosen: str) -> str:
    """The options of a field, one of them chosen."""
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>'
        f"{escape(words)}</option>"
        for value, words in values_and_words
    )


def data_element() -> str:
    """Shapes and data sheets as JSON in an element that the script reads."""
    text = json.dumps(calculator_data(), allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c")  # no text in it can end the element
    return f'<script type="application/json" id="calculator-data">{text}</script>'


def calculator_data() -> dict[str, Any]:
    """Everything that the script computes with, under the library's own names."""
    return {
        "models": [model_data(model) for model in shipped()],
        "accelerators": [accelerator_data(each) for each in accelerators()],
        "numbers": [_numbers_data(each) for each in NUMBERS],
    }


def model_data(model: ModelSpec) -> dict[str, Any]:
    """What of a shape the arithmetic needs."""
    return {
        **{name: getattr(model, name) for name in MODEL_FIELDS},
        "window_layers": list(model.window_layers()),
        "experts": None if model.experts is None else asdict(model.experts),
        "latent": None if model.latent is None else asdict(model.latent),
    }


def accelerator_data(row: Accelerator) -> dict[str, Any]:
    """A data sheet, with the peak of each arithmetic; None is unknown."""
    peaks = {each.arithmetic: row.peak_flops_per_s(each.arithmetic) for each in NUMBERS}
    return {**asdict(row), "word": word(row.name), "peaks_flops_per_s": peaks}


def _numbers_data(numbers: Numbers) -> dict[str, Any]:
    mixture = next(model for model in shipped() if model.experts is not None)
    typed = mixture.with_dtype(numbers.dtype)
    names = ("bytes_per_value", "bytes_per_weight", "bytes_per_expert_weight")
    sizes = {name: getattr(typed, name) for name in names}
    return {**asdict(numbers), **sizes, "experts_only": numbers.dtype == "mxfp4"}


def worked_table() -> str:
    """A few choices that the library has worked out, each a link to itself among the fields."""
    header = "".join(f'<th scope="col">{escape(each)}</th>' for each in WORKED_HEADER)
    rows = "".join(_worked_rows())
    return (
        '<div class="atlas" tabindex="0" role="region" aria-label="A few choices, worked out">'
        f"<table><thead><tr>{header}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _worked_rows() -> Iterator[str]:
    for model in WORKED_MODELS:
        for name in WORKED_ACCELERATORS:
            address = (
                f"?model={model}&amp;accelerator={word(name)}&amp;numbers={START[2]}"
                f"&amp;batch={WORKED_SEQUENCES}&amp;context={WORKED_TOKENS}"
                f"&amp;prompt={WORKED_TOKENS}"
            )
            link = f'<a href="{address}">{escape(model)}, {escape(name)}</a>'
            cells = "".join(f"<td>{each}</td>" for each in worked(model, name))
            yield f'<tr><th scope="row">{link}</th>{cells}</tr>'


def worked(model_name: str, accelerator_name: str) -> list[str]:
    """One row of the table: the library's figures as text."""
    model, row = get(model_name).with_dtype(START[2]), accelerator(accelerator_name)
    hardware = row.at(model.dtype)
    batch = [Chunk(1, WORKED_TOKENS)] * WORKED_SEQUENCES
    handover = least_handover(model, hardware, WORKED_TOKENS)
    fit = None
    if row.capacity_bytes is not None:
        fit = sequences_that_fit(model, row.capacity_bytes, WORKED_TOKENS)
    return [
        format_seconds(handover.prefill_s),
        format_seconds(step_work(model, batch).least_time_s(hardware)),
        format_bytes(model.kv_bytes_per_token),
        "not published" if fit is None else f"{fit:,}",
        format_significant(predicted_crossover(model, WORKED_TOKENS, hardware)),
        format_bits_per_s(handover.break_even_bytes_per_s),
    ]
