"""Crossover map: one crossover for each shape of a model and each dtype, predicted and measured.

A sweep is one model at one context on one device: a step of one sequence and two steps beyond the
crossover. Its prediction takes ceilings and counts alone; what is measured is never fitted. The
rival of all predictions together is one constant for every sweep, and it may be chosen after the
measurement: the constant whose mean absolute log error is least, which is their median.

Counts:  shapes that differ in what the crossover depends on: context, KV heads, width of the MLP.
Ignores: how many layers there are, which changes both costs alike; a control measures that.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from math import log
from statistics import mean, median

from prefill_decode.crossover import (
    crossover_seen,
    least_times_s,
    reaches_beyond,
    swept_crossover,
)
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import MOST_LAYERS, ModelSpec
from prefill_decode.roofline import StepWork, step_work
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.step import Chunk
from prefill_decode.units import counted

LEAST_LARGEST = 8  # sequences
VOCABULARY = 1024  # of every shape, so that the output matrix is a small part of the weights


@dataclass(frozen=True)
class Sweep:
    """One model at one context, and the ceilings that predict it, in the model's dtype."""

    name: str
    model: ModelSpec
    context_tokens: int
    hardware: Hardware

    @property
    def batch_sizes(self) -> tuple[int, int, int]:
        """One sequence, half of the largest batch, the largest: a multiple of 4, some 4 B*, so that
        half of it lies beyond B*, too."""
        largest = LEAST_LARGEST
        while not reaches_beyond(self.model, largest, self.context_tokens, self.hardware):
            largest += max(4, largest // 32 * 4)
        return 1, largest // 2, largest

    @property
    def predicted(self) -> float:
        """B* of least times, in sequences, from the same batch sizes as the measured one."""
        largest = self.batch_sizes[-1]
        return swept_crossover(self.model, largest, self.context_tokens, self.hardware)

    @property
    def least_s(self) -> dict[int, float]:
        return least_times_s(self.model, self.batch_sizes, self.context_tokens, self.hardware)

    @property
    def steps(self) -> dict[int, str]:
        """The name of each batch size's step."""
        return {batch: f"{self.name}, {batch} sequences" for batch in self.batch_sizes}

    @property
    def chunks(self) -> dict[str, list[Chunk]]:
        step = Chunk(1, self.context_tokens)
        return {name: [step] * batch for batch, name in self.steps.items()}

    @property
    def works(self) -> dict[str, StepWork]:
        return {name: step_work(self.model, chunks) for name, chunks in self.chunks.items()}

    def measured(self, times_s: Callable[[str], Sequence[float]]) -> list[float]:
        """B* of every round. `times_s` gives a step's times in round order."""
        steps = self.steps
        rounds = zip(*(times_s(name) for name in steps.values()), strict=True)
        return [crossover_seen(dict(zip(steps, times, strict=True))) for times in rounds]


def plan_sweeps(
    model: ModelSpec,
    context_tokens: Sequence[int],
    least_weight_bytes: float,
    ceilings: Sequence[Hardware],
) -> list[Sweep]:
    """Four shapes of `model` in the dtype of each of the `ceilings`, shape by shape.

    `context_tokens` are three: short, long, longest. Every shape has as many layers as its weights
    need to exceed `least_weight_bytes`. ValueError unless the contexts rise."""
    if len(context_tokens) != 3 or sorted(set(context_tokens)) != list(context_tokens):
        raise ValueError(
            f"shapes differ in context, so give three that rise: short, long and longest; got "
            f"{list(context_tokens)}"
        )
    short, long, longest = context_tokens
    heads = model.num_heads
    fewer = max(h for h in range(1, heads + 1) if heads % h == 0 and 4 * h <= max(heads, 4))
    grouped, every = replace(model, num_kv_heads=fewer), replace(model, num_kv_heads=heads)
    narrow = replace(every, intermediate_size=model.hidden_size)
    every_head = counted(heads, "KV head")
    shapes = {
        f"{every_head}, {short} tokens": (every, short),
        f"{counted(fewer, 'KV head')}, {long} tokens": (grouped, long),
        f"{every_head}, {long} tokens": (every, long),
        f"narrow MLP, {longest} tokens": (narrow, longest),
    }
    return [
        Sweep(f"{name}, {hw.dtype}", _thick(shape, hw.dtype, least_weight_bytes), tokens, hw)
        for name, (shape, tokens) in shapes.items()
        for hw in ceilings
    ]


def with_twice_the_layers(sweep: Sweep) -> Sweep:
    """The control's sweep: both costs double, so the crossover stays."""
    layers = 2 * sweep.model.num_layers
    deeper = replace(sweep.model.with_layers(layers), name=f"{sweep.model.name}, doubled")
    return replace(sweep, name=f"{sweep.name}, twice the layers", model=deeper)


def extremes(sweeps: Sequence[Sweep]) -> tuple[Sweep, Sweep]:
    """The sweeps with the smallest and with the largest predicted crossover."""
    ordered = sorted(sweeps, key=lambda sweep: sweep.predicted)
    return ordered[0], ordered[-1]


def works_by_dtype(sweeps: Sequence[Sweep]) -> dict[str, dict[str, StepWork]]:
    """The work of every step, by its dtype and its name."""
    found: dict[str, dict[str, StepWork]] = {sweep.model.dtype: {} for sweep in sweeps}
    for sweep in sweeps:
        found[sweep.model.dtype] |= sweep.works
    return found


def mean_log_error(values: Sequence[float], expected: Sequence[float]) -> float:
    """Mean of |ln(value / expected)|: 0.10 is about ten per cent, in either direction alike."""
    return mean(abs(log(v / e)) for v, e in zip(values, expected, strict=True))


def best_constant(crossovers: Sequence[float]) -> float:
    """The one number with the least mean absolute log error, which is the median."""
    return median(crossovers)


def error_ratio(crossovers: Sequence[float], predicted: Sequence[float]) -> float:
    """The prediction's error over the best constant's, the constant chosen after the fact.

    ValueError if a constant fits perfectly: then nothing has moved."""
    constant = best_constant(crossovers)
    error = mean_log_error(crossovers, [constant] * len(crossovers))
    if error == 0:
        raise ValueError(
            f"the crossovers are all {constant}, so there is nothing for a prediction to explain; "
            "sweep shapes that differ more"
        )
    return mean_log_error(crossovers, predicted) / error


def error_ratio_in_rounds(
    measured: Mapping[str, Sequence[float]], predicted: Mapping[str, float]
) -> Interval:
    """`error_ratio` round by round; both mappings go by the name of a sweep.

    A round in which every crossover came out alike, as each does that a noisy round leaves unseen,
    speaks for a constant: it counts as 1, which the rival foresees."""
    if set(measured) != set(predicted):
        raise ValueError(
            f"every sweep needs a prediction and a measurement; these lack their other half: "
            f"{', '.join(sorted(set(measured) ^ set(predicted)))}"
        )
    expected = [predicted[name] for name in measured]
    rounds = zip(*measured.values(), strict=True)
    return median_interval(
        [1.0 if len(set(found)) == 1 else error_ratio(found, expected) for found in rounds]
    )


def _thick(model: ModelSpec, dtype: str, least_weight_bytes: float) -> ModelSpec:
    """As few layers as make the weights that a step reads so heavy."""
    vocabulary = min(VOCABULARY, model.vocab_size)
    typed = replace(model, windows=None, vocab_size=vocabulary).with_dtype(dtype)
    layers = next(n for n in count(1) if _enough(typed.with_layers(n), least_weight_bytes))
    return replace(typed.with_layers(layers), name=f"{model.name}, {layers} layers")


def _enough(model: ModelSpec, least_weight_bytes: float) -> bool:
    return model.weight_bytes_read >= least_weight_bytes or model.num_layers == MOST_LAYERS
