"""Serial: the work of steps that wait for one another, such as the tokens of one answer.

Counts:  what each step counts, added up. The least time of the sum is the sum of the least times
         as long as all steps meet the same bound, and never more, so it stays a floor.
"""

from collections.abc import Sequence

from prefill_decode.roofline import StepWork, Work


def in_series(works: Sequence[StepWork]) -> StepWork:
    """FLOPs and bytes of all steps together. ValueError for no steps."""
    if not works:
        raise ValueError("there is no work to add up: give at least one step; got none")
    return StepWork(_added([w.weights for w in works]), _added([w.attention for w in works]))


def _added(works: Sequence[Work]) -> Work:
    return Work(sum(work.flops for work in works), sum(work.bytes for work in works))
