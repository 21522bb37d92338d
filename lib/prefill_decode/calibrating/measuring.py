"""Measuring: this machine's calibration, from episodes timed among its ceilings.

Every round runs each episode once, in random order, with the two kernels that set the ceilings
among them. The calibration is fitted to the medians over rounds. Each of its `fits` is fitted to a
stretch of rounds, resampled inside it, with episodes weighted at random: they differ as the machine
differs from one time to another, and as the form of the calibration errs from episode to episode
(the Bayesian bootstrap). So what they predict is an interval for one run, not for a mean.

Source:  Rubin, "The Bayesian Bootstrap", Annals of Statistics 9 (1981); Politis, Romano and Wolf,
         "Subsampling" (1999), for stretches.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray

from prefill_decode.calibrating.design import Episode, design, rows_of
from prefill_decode.calibrating.episodes import EpisodeRunner
from prefill_decode.calibrating.fit import (
    UNFILLED,
    Filling,
    StepTime,
    fit_calibration,
    residuals,
)
from prefill_decode.engine.linear import copies_of_weights
from prefill_decode.engine.model import MOST_EXACT_ROWS, ROWS_TOGETHER
from prefill_decode.engine.serving import BLOCK_TOKENS, SHARE_OF_MEMORY
from prefill_decode.engine.weights import Weights
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Ceilings, Machine, Timings, interleave, measure_ceilings
from prefill_decode.measure.timer import Step
from prefill_decode.model_spec import ModelSpec
from prefill_decode.simulator import Calibrated, Calibration

FITS = 24
STRETCHES = 3  # a fit's rounds are a third of all
LEAST_STRETCH = 3  # rounds
CEILINGS_SHARE = 0.12  # of the budget
LEAST_CEILINGS_S = 2.0

Floats = NDArray[np.float64]
Progress = Callable[[int, float], None]


class Calibrator:
    """An engine and this machine's ceilings, ready for rounds; `run` may be called several times,
    with other work in between. `progress` hears how many episodes have run and how long it took."""

    def __init__(
        self,
        model: ModelSpec,
        machine: Machine,
        *,
        episodes: Sequence[Episode] | None = None,
        ceilings_s: float = 4.0,
        ceilings: Ceilings | None = None,
        seed: int = 0,
        weights: Weights | None = None,
        num_blocks: int | None = None,
        progress: Progress = lambda episodes, elapsed_s: None,
    ) -> None:
        self.machine, self.seed = machine, seed
        self.num_blocks = num_blocks or blocks_beside_weights(model, machine)
        self.ceilings = ceilings or measure_ceilings(machine, model.dtype, ceilings_s, seed)
        self.episodes = list(design() if episodes is None else episodes)
        self._progress, self._count, self._started_s = progress, 0, time.perf_counter()
        self.runner = EpisodeRunner(
            model,
            self.episodes,
            machine.device,
            seed=seed,
            weights=weights,
            began=self._note_progress,
        )
        self.timings: list[Timings] = []

    @property
    def model(self) -> ModelSpec:
        return self.runner.engine.model

    def run(self, budget_s: float) -> Timings:
        """Six rounds or more, in about `budget_s` seconds."""
        seed = self.seed + len(self.timings)
        return self.note(interleave(self.steps(), self.machine, budget_s, seed, self.own_s))

    def steps(self) -> dict[str, Step]:
        """Of a round, for who interleaves them with steps of its own; `note` takes the times."""
        self.runner.noted_s.clear()
        return {**self.runner.steps, **self.ceilings.steps()}

    def note(self, found: Timings) -> Timings:
        """Rounds that have been timed since `steps` was asked for, with what episodes noted."""
        self.timings.append(found.with_noted(self.runner.noted_s))
        return self.timings[-1]

    def calibrated(self, source: str | None = None, fits: int = FITS) -> Calibrated:
        """From all rounds so far. ValueError before the first."""
        if not self.timings:
            raise ValueError("a calibration needs rounds: call run first")
        hardware = self._hardware()
        times = [self._of_rounds(one) for one in self.episodes]
        whole = np.array([each[0] for each in times])  # [episode, round]
        host = np.array([each[1] for each in times])
        rows = rows_of(self.episodes)
        told = source or f"measured on {self.machine.title}"
        steps = _steps(self.episodes, whole, host)
        fitted = fit_calibration(
            steps, self.model, hardware, rows, source=told, filling=self._filling()
        )
        central = _with_waking(fitted, self.episodes, whole)
        around = self._fits(central, whole, host, hardware, fits)
        return Calibrated(
            calibration=replace(central, fits=tuple(around)),
            hardware=hardware,
            model=self.model,
            num_blocks=self.num_blocks,
            block_tokens=self.runner.engine.cache.block_tokens,
            residuals=residuals(steps, central, self.model, hardware),
            num_rounds=whole.shape[1],
            advice=tuple(dict.fromkeys(word for one in self.timings for word in one.advice)),
        )

    def _fits(
        self,
        central: Calibration,
        whole: Floats,
        host: Floats,
        hardware: Hardware,
        count: int,
    ) -> list[Calibration]:
        dice = np.random.default_rng(self.seed)
        num_rounds = whole.shape[1]
        length = min(num_rounds, max(LEAST_STRETCH, ceil(num_rounds / STRETCHES)))
        found = []
        for _ in range(count):
            first = int(dice.integers(num_rounds - length + 1))
            chosen = first + dice.integers(length, size=length)
            steps = _steps(self.episodes, whole[:, chosen], host[:, chosen])
            weights = (dice.exponential(size=len(steps)) + 1e-3).tolist()
            fitted = fit_calibration(
                steps,
                self.model,
                hardware,
                central.product_rows,
                weights,
                central.source,
                central,
                self._filling(),
            )
            found.append(_with_waking(fitted, self.episodes, whole[:, chosen]))
        return found

    def own_s(self) -> float:
        """Processor time of this process; what others do in its pauses disturbs nothing."""
        threads = self.machine.threads if self.machine.device == "cpu" else 1
        return time.process_time() + threads * self.runner.idled_s

    def _filling(self) -> Filling:
        """As the engine fills its steps up."""
        if self.machine.device != "cpu":
            return UNFILLED
        return MOST_EXACT_ROWS, ROWS_TOGETHER

    def _of_rounds(self, episode: Episode) -> tuple[list[float], list[float]]:
        whole = [t for one in self.timings for t in one.times_s(self.runner.whole(episode.name))]
        host = [t for one in self.timings for t in one.times_s(self.runner.host(episode.name))]
        return whole, host

    def _hardware(self) -> Hardware:
        """The ceilings as all rounds found them, each at its median."""
        every = [self.ceilings.during(one) for one in self.timings]
        return Hardware(
            every[0].name,
            every[0].dtype,
            float(np.median([one.peak_flops_per_s for one in every])),
            float(np.median([one.bandwidth_bytes_per_s for one in every])),
            every[0].source,
        )

    def _note_progress(self) -> None:
        self._count += 1
        self._progress(self._count, time.perf_counter() - self._started_s)


def measure_calibration(
    model: ModelSpec,
    machine: Machine,
    budget_s: float = 60.0,
    *,
    seed: int = 0,
    episodes: Sequence[Episode] | None = None,
    weights: Weights | None = None,
    num_blocks: int | None = None,
    progress: Progress = lambda episodes, elapsed_s: None,
) -> Calibrated:
    """The calibration of this machine with this model, in about `budget_s` seconds, in six rounds
    at least. `num_blocks`: of the cache of an engine that it stands for (as `serve` would have)."""
    if not budget_s > 0:
        raise ValueError(f"budget_s must be a positive number of seconds; got {budget_s}")
    ceilings_s = max(LEAST_CEILINGS_S, CEILINGS_SHARE * budget_s)
    calibrator = Calibrator(
        model,
        machine,
        episodes=episodes,
        ceilings_s=ceilings_s,
        seed=seed,
        weights=weights,
        num_blocks=num_blocks,
        progress=progress,
    )
    calibrator.run(max(budget_s - ceilings_s, budget_s / 2))
    return calibrator.calibrated()


def use_threads(count: int) -> None:
    """So many threads of torch in this process, before anything is measured."""
    torch.set_num_threads(count)


def blocks_beside_weights(
    model: ModelSpec, machine: Machine, block_tokens: int = BLOCK_TOKENS
) -> int:
    """Of the cache that `serve` makes here. ValueError if not one fits."""
    weight_bytes = model.weight_bytes * copies_of_weights(machine.device, model.dtype)
    room_bytes = SHARE_OF_MEMORY * (machine.memory_bytes - weight_bytes)
    blocks = int(room_bytes // model.kv_bytes_kept_by_engine(block_tokens))
    if blocks < 1:
        raise ValueError(
            f"the weights of {model.name} leave no room for a cache: take a smaller model, or a "
            "slice of its layers"
        )
    return blocks


def _steps(
    episodes: Sequence[Episode],
    whole: Floats,
    host: Floats,
) -> list[StepTime]:
    """The medians over rounds, [episode, round]."""
    return [
        StepTime(one.name, one.kind, one.middle, float(np.median(w)), float(np.median(h)))
        for one, w, h in zip(episodes, whole, host, strict=True)
        if not one.idle_s
    ]


def _with_waking(
    calibration: Calibration, episodes: Sequence[Episode], whole: Floats
) -> Calibration:
    """And what an idle time before a step adds to it, in the median over rounds."""
    rested = {one.chunks: row for one, row in zip(episodes, whole, strict=True) if not one.idle_s}
    found = {
        one.idle_s: max(0.0, float(np.median(row - rested[one.chunks])))
        for one, row in zip(episodes, whole, strict=True)
        if one.idle_s and one.chunks in rested
    }
    idle_s = sorted(found)
    wake_s = tuple(found[key] for key in idle_s)
    return replace(calibration, idle_s=tuple(idle_s), wake_s=wake_s)
