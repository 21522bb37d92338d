"""Rehearsal: the steps a scheduler would choose, without running them.

All sequences wait from the start and no step takes time, so this is what one line of requests
becomes under a policy: the roofline can price it before anything is measured."""

from collections.abc import Iterable

from prefill_decode.scheduling.scheduler import Scheduler
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.step import Chunk


def rehearse(scheduler: Scheduler, sequences: Iterable[SequenceState]) -> list[list[Chunk]]:
    """Every step until all have ended, as chunks. Token ids are not known here."""
    for sequence in sequences:
        scheduler.add(sequence)
    steps = []
    while (step := scheduler.next_step()) is not None:
        steps.append([chunk for _, chunk in step.chunks])
        scheduler.complete(step)
    return steps
