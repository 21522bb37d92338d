"""Crossover: the batch at which sequences begin to pay for themselves.

A decode step has a shared cost, reading the weights, and an own cost of each sequence, its
arithmetic and its cache. While the shared cost dominates, one more sequence is nearly free; once
own costs dominate, twice the sequences take twice as long. The two meet at

    B* = shared_s / own_s

read off a sweep as the time of the smallest batch over the seconds that each further sequence
adds between the two largest. The same formula takes measured times and least times, so a
prediction and its measurement are one quantity.

Of a mixture of experts the shared cost itself grows with the batch, as experts wake. It grows more
slowly than the batch does, so own costs catch up once and stay ahead: there lies the crossover.

Counts:  the own cost at large batch, whichever bound it meets there. A sweep has the shared cost of
         its smallest batch, which of a mixture reads few experts, and so reads less than B*.
Ignores: how the time bends between the two ends: kernels made for some batch sizes only bend it.
"""

from collections.abc import Mapping, Sequence
from math import ceil, inf

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import step_work
from prefill_decode.statistics import Interval, median_interval
from prefill_decode.step import Chunk

LEAST_LARGEST = 64  # sequences
TIMES_CROSSOVER = 4  # the largest batch over B*: both of the two largest lie beyond the bend
NUM_DOUBLINGS = 6  # batch sizes besides 1, each twice the last
ALL_AWAKE_TOKENS = 10**6  # in a step, so that every expert has some


def crossover_sequences(times_s: Mapping[int, float]) -> float:
    """B* of a sweep, seconds by number of sequences. The two largest must lie beyond the bend.

    ValueError for fewer than three batch sizes, or when more sequences do not take longer.
    """
    if len(times_s) < 3:
        raise ValueError(
            f"a crossover needs at least three batch sizes, one small and two large; got "
            f"{sorted(times_s)}"
        )
    smallest, *_, large, largest = sorted(times_s)
    own_s = (times_s[largest] - times_s[large]) / (largest - large)
    if not (own_s > 0 and times_s[smallest] > 0):
        raise ValueError(
            f"a crossover needs times that are positive and grow with the batch; got "
            f"{times_s[large]} s at {large} and {times_s[largest]} s at {largest} sequences: "
            "sweep further, to batches where a step takes clearly longer"
        )
    return times_s[smallest] / own_s


def crossover_in_rounds(times_s: Mapping[int, Sequence[float]]) -> Interval:
    """B* measured round by round, from each batch size's times in round order.

    A sweep sees no further than its largest batch, so no round counts as more than that; a round
    whose two largest batches took equally long, or the wrong way round, counts as just that.
    """
    return median_interval([crossover_seen(sweep) for sweep in _rounds(times_s)])


def crossover_seen(times_s: Mapping[int, float]) -> float:
    """B* of one round's sweep, which sees no further than its largest batch."""
    *_, large, largest = sorted(times_s)
    climbs = times_s[largest] > times_s[large]
    return min(largest, crossover_sequences(times_s) if climbs else inf)


def throughput_gain(times_s: Mapping[int, float]) -> float:
    """Tokens per second at the largest batch of a sweep over those at the smallest."""
    smallest, largest = min(times_s), max(times_s)
    return largest / times_s[largest] / (smallest / times_s[smallest])


def throughput_gain_in_rounds(times_s: Mapping[int, Sequence[float]]) -> Interval:
    return median_interval([throughput_gain(sweep) for sweep in _rounds(times_s)])


def least_times_s(
    model: ModelSpec, batch_sizes: Sequence[int], context_tokens: int, hardware: Hardware
) -> dict[int, float]:
    """The least time of a decode step for each number of sequences with so many cached tokens."""
    steps = {batch: [Chunk(1, context_tokens)] * batch for batch in batch_sizes}
    return {n: step_work(model, step).least_time_s(hardware) for n, step in steps.items()}


def telling_batch_sizes(model: ModelSpec, context_tokens: int, hardware: Hardware) -> list[int]:
    """One sequence, then powers of two up to at least four times the crossover of least times.

    The two largest then lie beyond the bend, and "it grows for ever" differs from B* fourfold.
    """
    largest = LEAST_LARGEST
    while not reaches_beyond(model, largest, context_tokens, hardware):
        largest *= 2
    return [1, *(largest >> halvings for halvings in reversed(range(NUM_DOUBLINGS)))]


def reaches_beyond(model: ModelSpec, largest: int, context_tokens: int, hardware: Hardware) -> bool:
    """Whether a sweep up to `largest` ends at four crossovers or more, both as the sweep itself
    reads B* and as the model has it: experts that still wake make a sweep read too little."""
    seen = swept_crossover(model, largest, context_tokens, hardware)
    least = TIMES_CROSSOVER * max(seen, predicted_crossover(model, context_tokens, hardware))
    return largest >= least


def swept_crossover(
    model: ModelSpec, largest: int, context_tokens: int, hardware: Hardware
) -> float:
    """B* of least times as a sweep up to `largest` sequences reads it."""
    sizes = (1, largest // 2, largest)
    return crossover_sequences(least_times_s(model, sizes, context_tokens, hardware))


def predicted_crossover(model: ModelSpec, context_tokens: int, hardware: Hardware) -> float:
    """B* of least times: the batch whose own costs equal its weights and one sequence's attention,
    and from which on they exceed these. Of a mixture, the weights are of the experts that just so
    many sequences wake."""
    crossover = crossover_against(model, ALL_AWAKE_TOKENS, context_tokens, hardware)
    while (less := crossover_against(model, ceil(crossover), context_tokens, hardware)) < crossover:
        crossover = less
    return crossover


def crossover_against(
    model: ModelSpec, awake_tokens: int, context_tokens: int, hardware: Hardware
) -> float:
    """B* against the weights that a step of `awake_tokens` reads, with endless batches' own cost.

    Of a dense model every step reads the same."""
    one = step_work(model, [Chunk(1, context_tokens)])
    attention_s = one.attention.least_time_s(hardware)
    own_s = one.weights.flops / hardware.peak_flops_per_s + attention_s
    read_bytes = step_work(model, [Chunk(awake_tokens)]).weights.bytes
    shared_s = max(read_bytes / hardware.bandwidth_bytes_per_s, one.weights.least_time_s(hardware))
    return (shared_s + attention_s) / own_s


def _rounds(times_s: Mapping[int, Sequence[float]]) -> list[dict[int, float]]:
    """One sweep a round. ValueError unless every batch size has a time in every round."""
    counts = {batch: len(times) for batch, times in times_s.items()}
    if len(set(counts.values())) != 1:
        raise ValueError(f"every batch size needs one time a round; got {counts} times")
    return [dict(zip(times_s, times, strict=True)) for times in zip(*times_s.values(), strict=True)]
