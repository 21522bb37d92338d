"""ReplayRunner: replays of a plan's loads among the episodes of a calibration, in turns.

A round holds one replay of every load, each with a seed of its own, one of either check, and every
episode once with the kernels that set the ceilings: what drifts touches steps and requests alike.

Timed:   a token, when its step has ended and the tokens are on the host (see `replay`).
Ignores: HTTP, text, other threads.
"""

import time
from collections.abc import Callable

from prefill_decode.calibrating.design import Episode, design
from prefill_decode.calibrating.episodes import EpisodeRunner
from prefill_decode.calibrating.measuring import Calibrator
from prefill_decode.calibrating.replaying import replay, warm_up
from prefill_decode.engine.answering import FailedAnswer, SampledToken
from prefill_decode.engine.model import OnLayer
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.fleet_claims.foreseeing import (
    LONGER,
    LONGER_STEPS,
    MOST_ROWS,
    MOST_SEQUENCES,
    SETTINGS,
    Found,
    Plan,
    figures_of_rounds,
    idle_s,
    told_of,
)
from prefill_decode.measure import Ceilings, Machine, Timings
from prefill_decode.measure.timer import Step
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import RequestRecord

CACHE_TOKENS = 8192
LONG_CONTEXT = 256
CALIBRATED = (  # of the design, as far as rows, contexts and pauses of the loads go
    *("prefill 16", "prefill 32", "prefill 64", "prefill 128"),
    *("prefill 32 after 0.1 s", "prefill 32 after 0.4 s"),
    *("prefill 32 on 128", "prefill 128 on 256"),
    *("decode 1 at 64", "decode 4 at 64", "decode 8 at 64", "decode 16 at 64", "decode 16 at 256"),
    *("prefill 16 beside 8 at 64", "prefill 64 beside 8 at 64"),
)
RECORDED = ("prefill 128", "decode 1 at 64", "decode 8 at 64", "prefill 64 beside 8 at 64")


def short_episodes() -> list[Episode]:
    """So few that they run in every round: for steps and contexts as long as the loads'."""
    every = design(MOST_ROWS, MOST_SEQUENCES, LONG_CONTEXT)
    return [one for one in every if one.name in CALIBRATED]


def short_calibrator(
    model: ModelSpec, machine: Machine, ceilings: Ceilings, seed: int
) -> Calibrator:
    """Of steps of the plan's loads, for an engine with room for all of them."""
    return Calibrator(
        model,
        machine,
        episodes=short_episodes(),
        ceilings=ceilings,
        seed=seed,
        num_blocks=CACHE_TOKENS // BLOCK_TOKENS,
    )


class LongerSteps(ServingEngine):
    """Waits after every step until it has taken `LONGER` times as long."""

    slept_s = 0.0

    def step(
        self,
        on_layer: OnLayer | None = None,
        on_scheduled: Callable[[list[str]], None] | None = None,
    ) -> list[SampledToken | FailedAnswer]:
        started_s = time.perf_counter()
        found = super().step(on_layer, on_scheduled)
        sleep_s = (LONGER - 1) * (time.perf_counter() - started_s)
        time.sleep(sleep_s)
        self.slept_s += sleep_s
        return found


class ReplayRunner:
    """`steps` are to be interleaved; `found` then says what became of them."""

    def __init__(self, plan: Plan, calibrator: Calibrator) -> None:
        self.plan, self.calibrator = plan, calibrator
        calibrated, weights = plan.calibrated, calibrator.runner.engine.weights
        self.engine = PagedEngine(
            calibrated.model,
            calibrator.machine.device,
            num_blocks=calibrated.num_blocks,
            block_tokens=calibrated.block_tokens,
            capacity_tokens=calibrated.num_blocks * calibrated.block_tokens,
            weights=weights,
        )
        self.played: dict[str, list[list[RequestRecord]]] = {name: [] for name in plan.names}
        self.idled_s = 0.0
        warm_up(self._serving(), calibrated.model.vocab_size, SETTINGS.most_tokens_per_step)

    def steps(self) -> dict[str, Step]:
        """Of a round: replays, episodes and the ceilings' kernels."""
        replays = {f"replay: {name}": self._replay(name) for name in self.plan.names}
        return {**self.calibrator.steps(), **replays}

    def own_s(self) -> float:
        """Processor time of this process; what others do while an engine waits disturbs nothing."""
        machine = self.calibrator.machine
        threads = machine.threads if machine.device == "cpu" else 1
        return self.calibrator.own_s() + threads * self.idled_s

    def _serving(self, name: str = "") -> ServingEngine:
        make = LongerSteps if name == LONGER_STEPS else ServingEngine
        return make(self.engine, SETTINGS)

    def _replay(self, name: str) -> Callable[[], None]:
        def run() -> None:
            turn, engine = len(self.played[name]), self._serving(name)
            requests = self.plan.requests(name, turn)
            records = replay(engine, requests, self.plan.calibrated.model.vocab_size, turn)
            self.played[name].append(records)
            self.idled_s += idle_s(records)
            if isinstance(engine, LongerSteps):
                self.idled_s += engine.slept_s

        return run

    def found(self, times: Timings) -> Found:
        """From the rounds of `steps`: with their step times, and beside what every story says."""
        noted = self.calibrator.note(times)
        calibrated, rounds = self.calibrator.calibrated(fits=0), times.num_rounds
        played = {
            name: [told_of(calibrated, records) for records in each]
            for name, each in self.played.items()
        }
        told = {name: each[len(each) - rounds :] for name, each in played.items()}  # not warm-ups
        chunks = {
            EpisodeRunner.whole(one.name): one.middle
            for one in self.calibrator.episodes
            if one.name in RECORDED
        }
        return Found(
            self.plan, calibrated, noted.with_noted(figures_of_rounds(played)), told, chunks
        )
