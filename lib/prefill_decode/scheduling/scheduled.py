"""Scheduled: what a scheduler has chosen, one step or a run of steps that are alike."""

from dataclasses import dataclass, field

from prefill_decode.scheduling.sequence import SequenceState
from prefill_decode.step import Chunk


@dataclass(slots=True)
class ScheduledStep:
    """Chunks in the order in which they run: decodes before prompts.

    `copies` are blocks, from and to, to be copied in this order before the step runs. `samples`
    says who gets a token: the place of the chunk among those that sample, and the sequence; the
    forks of a prompt follow it with the same place.
    """

    chunks: list[tuple[SequenceState, Chunk]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    preempted: list[SequenceState] = field(default_factory=list)
    samples: list[tuple[int, SequenceState]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chunk.new_tokens for _, chunk in self.chunks)

    def note_samples(self) -> None:
        """Fill in `samples`, once all chunks are there."""
        place = 0
        for sequence, chunk in self.chunks:
            if chunk.samples_token:
                self.samples.append((place, sequence))
                if sequence.forks:
                    self.samples += [(place, fork) for fork in sequence.forks]
                place += 1


@dataclass(slots=True)
class ScheduledRun:
    """`steps` steps: in each of them `decodes` sequences decode, whose caches hold
    `context_tokens` before the first one and grow by a token a step; and the chunks of `step` run
    beside them, if it has any, in a single step.

    Where blocks are short a step is chosen sequence by sequence, decodes among the chunks of
    `step`, and `decodes` is 0.
    """

    step: ScheduledStep
    steps: int = 1
    decodes: int = 0
    context_tokens: int = 0
    by_sequence: bool = False
