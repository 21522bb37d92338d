"""Fit: the calibration that explains times of steps best.

The time of the host is a law of two terms, of the step and of its sequences. The rest is linear in
the inverses of the shares, once it is known whether arithmetic or bytes bind each part of a step;
that is found by trying: solve, look again which binds, until it stays. Errors are relative to the
time of the whole step, so that short steps count as much as long ones; inverses of shares are kept
at 1 or above and times at 0 or above (non-negative least squares).

Source:  Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import Work, step_work
from prefill_decode.simulator import (
    Calibration,
    Prices,
    Residual,
    filled_up,
    products_of_step,
)
from prefill_decode.step import Chunk

Floats = NDArray[np.float64]
Filling = tuple[int, int]
UNFILLED: Filling = (0, 1)

LAST_LOOK = 40
STARTS = (1.0, 2.0, 5.0)  # inverses of a share
TOLERANCE = 1e-12
LEAST_STEPS = 4


@dataclass(frozen=True)
class StepTime:
    """A step that was timed: all of it, and the host's part."""

    name: str
    kind: str
    chunks: tuple[Chunk, ...]
    time_s: float
    host_s: float = 0.0

    def __post_init__(self) -> None:
        if not (isfinite(self.time_s) and 0 <= self.host_s < self.time_s):
            raise ValueError(
                f"a step takes a positive time, of which the host's is a part; got {self.time_s} "
                f"and {self.host_s} s for {self.name!r}"
            )


def fit_calibration(
    steps: Sequence[StepTime],
    model: ModelSpec,
    hardware: Hardware,
    product_rows: Sequence[int] = (),
    weights: Sequence[float] | None = None,
    source: str = "fitted",
    start: Calibration | None = None,
    filling: Filling = UNFILLED,
) -> Calibration:
    """With `product_rows` the products' shares at so many rows and attention by chunk; without, the
    two shares of the products. `weights`: how much each step counts; `start`: where to look first;
    `filling`: `exact_rows` and `rows_together` of the engine.

    ValueError for too few steps to tell the numbers apart."""
    if len(steps) < LEAST_STEPS:
        raise ValueError(
            f"a fit needs the times of at least {LEAST_STEPS} unlike steps; got {len(steps)}"
        )
    counted = np.ones(len(steps)) if weights is None else np.asarray(weights, dtype=float)
    scale = np.sqrt(counted) / np.array([step.time_s for step in steps])
    step_s, sequence_s = _host(steps, scale)
    form = Calibration(exact_rows=filling[0], rows_together=filling[1])
    parts = [_Parts.of(step, model, hardware, tuple(product_rows), form) for step in steps]
    run_s = np.array([step.time_s - step.host_s for step in steps])
    best: tuple[float, Floats] | None = None
    for first in _starts(start, bool(product_rows)):
        cost, found = _settled(parts, run_s, scale, first, len(product_rows))
        if best is None or cost < best[0] - TOLERANCE:
            best = cost, found
    assert best is not None
    *inverses, chunk_s = best[1]
    shares = [float(min(1.0, 1 / value)) for value in inverses]
    fitted = replace(
        form,
        attention_compute_share=shares[0],
        attention_bandwidth_share=shares[1],
        step_s=step_s,
        sequence_s=sequence_s,
        source=source,
    )
    if not product_rows:
        return replace(fitted, product_compute_share=shares[2], product_bandwidth_share=shares[3])
    return replace(
        fitted,
        product_rows=tuple(product_rows),
        product_shares=tuple(shares[2:]),
        attention_by_chunk=True,
        chunk_s=float(chunk_s),
    )


def residuals(
    steps: Sequence[StepTime], calibration: Calibration, model: ModelSpec, hardware: Hardware
) -> tuple[Residual, ...]:
    """How far predictions lie from these times, for each kind of step."""
    prices = Prices(model, hardware, calibration)
    errors: dict[str, list[tuple[float, str]]] = {}
    for step in steps:
        error = prices.step_s_by_roofline(step.chunks) / step.time_s - 1
        errors.setdefault(step.kind, []).append((error, step.name))
    return tuple(_residual(kind, found) for kind, found in errors.items())


def _residual(kind: str, errors: Sequence[tuple[float, str]]) -> Residual:
    sizes = [abs(error) for error, _ in errors]
    worst, name = max(errors, key=lambda found: abs(found[0]))
    middle = float(np.median(sizes))
    return Residual(kind, len(errors), middle, float(abs(worst)), name, float(worst))


def nonnegative_least_squares(matrix: Floats, target: Floats) -> Floats:
    """The x, none of it below 0, for which |matrix x - target| is least."""
    size = matrix.shape[1]
    lengths = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(lengths > 0, lengths, 1.0)
    free = np.zeros(size, dtype=bool)
    found = np.zeros(size)
    for _ in range(10 * size):
        slope = scaled.T @ (target - scaled @ found)
        slope[free | (lengths == 0)] = -np.inf
        best = int(np.argmax(slope))
        if slope[best] <= TOLERANCE * max(1.0, float(np.linalg.norm(target))):
            break
        free[best] = True
        while True:
            trial = np.zeros(size)
            trial[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            below = free & (trial <= 0)
            if not below.any():
                break
            with np.errstate(divide="ignore", invalid="ignore"):
                steps = np.where(below, found / (found - trial), np.inf)
            steps = np.where(below & ~np.isfinite(steps), 0.0, steps)
            found = found + float(steps.min()) * (trial - found)
            free &= ~(below & (steps <= steps.min()))
            found[~free] = 0.0
        found = trial
    return found / np.where(lengths > 0, lengths, 1.0)


@dataclass(frozen=True)
class _Parts:
    """Seconds at the ceilings: of attention for each chunk, of the products for each column."""

    attention: tuple[tuple[float, float], ...]  # by arithmetic, by bytes
    products: Mapping[int, float]  # with rows: by column, of the table
    whole: tuple[float, float]  # without
    several: int  # chunks of several tokens, where they are priced apart

    @classmethod
    def of(
        cls,
        step: StepTime,
        model: ModelSpec,
        hardware: Hardware,
        rows: tuple[int, ...],
        form: Calibration,
    ) -> "_Parts":
        groups = [[chunk] for chunk in step.chunks] if rows else [list(step.chunks)]
        attention = tuple(_both(step_work(model, group).attention, hardware) for group in groups)
        new = form.filled(sum(chunk.new_tokens for chunk in step.chunks))
        run = filled_up(step.chunks, new)
        if not rows:
            whole = _both(step_work(model, run).weights, hardware)
            return cls(attention, {}, whole, 0)
        layers, head = products_of_step(model, run)
        columns: dict[int, float] = {}
        sampled = sum(chunk.samples_token for chunk in step.chunks)
        for work, count in ((layers, new), (head, sampled)):
            for column, share in _columns(rows, count) if count else ():
                floor_s = max(_both(work, hardware))
                columns[column] = columns.get(column, 0.0) + share * floor_s
        several = sum(chunk.new_tokens > 1 for chunk in step.chunks)
        return cls(attention, columns, (0.0, 0.0), several)

    def line(self, inverses: Floats, num_rows: int) -> Floats:
        """Seconds that multiply each inverse share, as they bind under these, and last what
        multiplies the seconds of a chunk."""
        line = np.zeros(len(inverses))
        line[-1] = self.several
        for seconds in self.attention:
            side = int(seconds[1] * inverses[1] > seconds[0] * inverses[0])
            line[side] += seconds[side]
        if num_rows:
            for column, seconds_s in self.products.items():
                line[2 + column] += seconds_s
        else:
            side = int(self.whole[1] * inverses[3] > self.whole[0] * inverses[2])
            line[2 + side] += self.whole[side]
        return line


def _settled(
    parts: Sequence[_Parts], run_s: Floats, scale: Floats, first: Floats, num_rows: int
) -> tuple[float, Floats]:
    """(cost, inverse shares and the seconds of a chunk) once the parts that bind no longer change,
    or the best on the way."""
    least = np.ones(2 + (num_rows or 2) + 1)
    least[-1] = 0.0
    inverses = least.copy()
    inverses[: len(first)] = first
    best = (np.inf, inverses)
    for _ in range(LAST_LOOK):
        matrix = np.array([part.line(inverses, num_rows) for part in parts])
        target = scale * (run_s - matrix @ least)
        inverses = least + nonnegative_least_squares(scale[:, None] * matrix, target)
        now = np.array([part.line(inverses, num_rows) for part in parts])
        cost = float(np.sum((scale * (now @ inverses - run_s)) ** 2))
        if cost < best[0]:
            best = (cost, inverses)
        if np.array_equal(now, matrix):
            break
    return best


def _starts(start: Calibration | None, by_rows: bool) -> list[Floats]:
    if start is not None:
        inverses = [1 / start.attention_compute_share, 1 / start.attention_bandwidth_share]
        if not by_rows:
            inverses += [1 / start.product_compute_share, 1 / start.product_bandwidth_share]
        return [np.array(inverses)]
    return [np.array(each) for each in product(STARTS, repeat=2 if by_rows else 4)]


def _host(steps: Sequence[StepTime], scale: Floats) -> tuple[float, float]:
    sequences = np.array([len(step.chunks) for step in steps], dtype=float)
    matrix = scale[:, None] * np.stack([np.ones(len(steps)), sequences], axis=1)
    host_s = np.array([step.host_s for step in steps])
    step_s, sequence_s = nonnegative_least_squares(matrix, scale * host_s)
    return float(step_s), float(sequence_s)


def _columns(rows: Sequence[int], count: int) -> list[tuple[int, float]]:
    """Which entries of a table decide at so many rows, and by how much: as `product_stretch`."""
    last = len(rows) - 1
    if count >= rows[last]:
        return [(last, 1.0)]
    after = next(i for i, each in enumerate(rows) if each > count)
    part = (count - rows[after - 1]) / (rows[after] - rows[after - 1])
    return [(after - 1, 1 - part), (after, part)]


def _both(work: Work, hardware: Hardware) -> tuple[float, float]:
    return work.flops / hardware.peak_flops_per_s, work.bytes / hardware.bandwidth_bytes_per_s
