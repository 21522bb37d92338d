"""Design: the episodes of steps that a calibration times.

An episode begins with sequences whose cache is filled and prompts that have just arrived, and lasts
a few steps. Together they spread rows from one to a full step, caches from none to long ones, and
the mixtures in between, so that each number of a calibration decides the time of some of them.

Ignores: what a workload makes often; every episode counts alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prefill_decode.step import Chunk

Kind = Literal["prefill", "prefix", "decode", "mixed", "waking"]
DECODE_STEPS = 5
IDLE_S = (0.1, 0.4, 1.2)
SHORT_CONTEXT = 64
LONG_CONTEXT = 1024
PROMPTS = (16, 32, 64, 128, 256, 512)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
LONG_BATCHES = (1, 4, 16)


@dataclass(frozen=True)
class Episode:
    """Chunks of its first step; in each of the others the same sequences decode."""

    name: str
    kind: Kind
    chunks: tuple[Chunk, ...]
    steps: int = 1
    idle_s: float = 0.0  # before it

    def __post_init__(self) -> None:
        if not self.chunks or self.steps < 1:
            raise ValueError(f"an episode has a chunk and a step; got {self}")

    def chunks_of(self, step: int) -> tuple[Chunk, ...]:
        if step == 0:
            return self.chunks
        return tuple(Chunk(1, c.cached_tokens + c.new_tokens + step - 1) for c in self.chunks)

    @property
    def alone(self) -> bool:
        return len(self.chunks) == 1

    @property
    def middle(self) -> tuple[Chunk, ...]:
        """The chunks of the step whose time is the median of all, where all decode."""
        return self.chunks_of(self.steps // 2)

    @property
    def most_tokens(self) -> int:
        """Of its longest sequence."""
        return max(c.cached_tokens + c.new_tokens for c in self.chunks) + self.steps

    def num_blocks(self, block_tokens: int) -> int:
        totals = (c.cached_tokens + c.new_tokens + self.steps for c in self.chunks)
        return sum(-(-total // block_tokens) for total in totals)


def design(
    most_rows: int = 512, most_sequences: int = 64, long_context: int = LONG_CONTEXT
) -> list[Episode]:
    """Episodes for steps of up to `most_rows` tokens and `most_sequences` sequences.

    ValueError where a step has no room for a prompt beside two sequences."""
    if most_sequences < 2 or most_rows < 2 * PROMPTS[0] or long_context < 2 * SHORT_CONTEXT:
        raise ValueError(
            "a calibration needs steps of a prompt beside two sequences: most_rows from "
            f"{2 * PROMPTS[0]}, most_sequences from 2 and contexts from {2 * SHORT_CONTEXT}; got "
            f"{most_rows}, {most_sequences} and {long_context}"
        )
    prompts = sorted({n for n in PROMPTS if n < most_rows} | {most_rows})
    batches = sorted({n for n in BATCHES if n < most_sequences} | {most_sequences})
    longer = [n for n in LONG_BATCHES if n <= most_sequences]
    middle = long_context // 2
    most_cached = min(long_context, 2 * most_rows)
    piece = most_rows // 4
    together = min(4, most_sequences)
    every = [
        *(_prompt("prefill", 1, rows, 0) for rows in prompts),
        *(_waking(prompts[1], idle_s) for idle_s in IDLE_S),
        _prompt("prefill", together, most_rows // 16, 0),
        _prompt("prefill", together, piece, 0),
        _prompt("prefix", 1, PROMPTS[0], most_cached),
        _prompt("prefix", 1, piece, middle),
        _prompt("prefix", 1, piece, long_context),
        _prompt("prefix", 1, most_rows, most_cached),
        *(_decode(count, SHORT_CONTEXT) for count in batches),
        *(_decode(count, long_context) for count in longer),
        _decode(min(8, most_sequences), middle),
        _mixed(piece, 0, min(4, most_sequences), long_context),
        _mixed(piece, middle, min(16, most_sequences - 1), middle),
        _mixed(2 * piece, 0, min(8, most_sequences - 1), middle // 2),
        _mixed(PROMPTS[0], 0, min(8, most_sequences - 1), SHORT_CONTEXT),
    ]
    return list({one.name: one for one in every}.values())  # small designs meet some twice


def rows_of(episodes: Sequence[Episode]) -> list[int]:
    """Rows at which the products' shares can be told: those of decodes, and of prompts alone."""
    return sorted(
        {1}
        | {len(one.chunks) for one in episodes if one.kind == "decode"}
        | {one.chunks[0].new_tokens for one in episodes if one.kind == "prefill" and one.alone}
    )


def _prompt(kind: Kind, count: int, rows: int, cached: int) -> Episode:
    many = "" if count == 1 else f"{count} x "
    on = f" on {cached}" if cached else ""
    return Episode(f"prefill {many}{rows}{on}", kind, (Chunk(rows, cached),) * count)


def _waking(rows: int, idle_s: float) -> Episode:
    """The prompt of that length which the design also has without a pause before it."""
    name = f"prefill {rows} after {idle_s:g} s"
    return Episode(name, "waking", (Chunk(rows),), idle_s=idle_s)


def _decode(count: int, context: int) -> Episode:
    chunks = (Chunk(1, context),) * count
    return Episode(f"decode {count} at {context}", "decode", chunks, DECODE_STEPS)


def _mixed(rows: int, cached: int, count: int, context: int) -> Episode:
    on = f" on {cached}" if cached else ""
    chunks = (*(Chunk(1, context),) * count, Chunk(rows, cached))
    return Episode(f"prefill {rows}{on} beside {count} at {context}", "mixed", chunks)
