"""Rehearsal: the steps a scheduler would choose, without running them.

No step takes time here, so this is what a line of requests becomes under a policy: the roofline
can price it before anything is measured."""

from collections.abc import Iterable

from prefill_decode.scheduling.kv_blocks import BlockPool
from prefill_decode.scheduling.scheduler import Scheduler
from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.scheduling.settings import SchedulerSettings
from prefill_decode.step import Chunk


def rehearse(scheduler: Scheduler, sequences: Iterable[SequenceState]) -> list[list[Chunk]]:
    """Every step until all have ended, as chunks, when all wait from the start. Their lengths are
    enough: token ids are not known here."""
    for sequence in sequences:
        scheduler.add(sequence)
    steps = []
    while (step := scheduler.next_step()) is not None:
        steps.append([chunk for _, chunk in step.chunks])
        scheduler.complete(step)
    return steps


def beside_streams(streams: int, chunk_tokens: int) -> SchedulerSettings:
    """A budget that leaves a prompt `chunk_tokens` a step beside `streams` that decode."""
    return SchedulerSettings("chunked", streams + chunk_tokens, streams + 1)


def rehearse_arrival(
    prompt_tokens: int, chunk_tokens: int, streams: int, context_tokens: int
) -> list[list[Chunk]]:
    """The steps from the arrival of a prompt to its first token, while streams decode that hold
    `context_tokens` each, the last of which is still to run."""
    num_steps = -(-prompt_tokens // chunk_tokens)
    room = streams * (context_tokens + num_steps) + prompt_tokens
    scheduler = Scheduler(BlockPool(room, 1), beside_streams(streams, chunk_tokens))
    for index in range(streams):
        stream = SequenceState(f"stream {index}", context_tokens, num_steps + 1)
        scheduler.accept(stream, context_tokens - 1)
    prompt = SequenceState("prompt", prompt_tokens, 1)
    scheduler.add(prompt)
    steps = []
    while prompt.finish_reason is None:
        step = scheduler.next_step()
        assert step is not None
        steps.append([chunk for _, chunk in step.chunks])
        scheduler.complete(step)
    return steps
