"""Crossover: the batch at which sequences begin to pay for themselves.

A decode step has a shared cost, reading the weights, and an own cost of each sequence, its
arithmetic and its cache. While the shared cost dominates, one more sequence is nearly free; once
own costs dominate, twice the sequences take twice as long. The two meet at

    B* = shared_s / own_s

read off a sweep as the time of the smallest batch over the seconds that each further sequence
adds between the two largest. The same formula takes measured times and least times, so a
prediction and its measurement are one quantity.

Counts:  the own cost at large batch, whichever bound it meets there.
Ignores: how the time bends between the two ends: kernels made for some batch sizes only bend it.
"""

from collections.abc import Mapping


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
