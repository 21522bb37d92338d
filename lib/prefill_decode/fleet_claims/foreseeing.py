"""Foreseeing: what is said of requests before they are replayed, by three stories.

    simulated    the scheduler runs them, in steps that take what single steps were timed to take
    own steps    each waits for its own prefill and its own decodes alone, as if no other came
    roofline     the scheduler runs them, in steps of the least time

A plan fixes loads, rates, seeds and rivals from a calibration in which no request took part; what
is judged is priced by all rounds of steps, those among the replays too. Two loads check the ruler:
requests that come one after another, for which the first two stories say the same, and requests
that come at once to an engine whose every step is made longer.

Ignores: what drifts within a round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean, median
from typing import Literal, get_args

from prefill_decode.claim import Prediction
from prefill_decode.fleet_claims.loads import (
    MEAN_TPOT,
    MEAN_TTFT,
    Load,
    figures_of,
    rate_that_keeps_busy,
)
from prefill_decode.measure import Timings
from prefill_decode.request import Request, RequestRecord
from prefill_decode.roofline import StepWork, step_work
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import e2e_s, ttft_s
from prefill_decode.simulator import Calibrated, Calibration, Fleet, Pool, simulate
from prefill_decode.statistics import Interval
from prefill_decode.step import Chunk

Told = Mapping[str, Sequence[RequestRecord]]  # by story, and what was measured
Story = Literal["simulated", "own steps", "roofline"]
STORIES: tuple[Story, ...] = get_args(Story)
SIMULATED, OWN_STEPS, ROOFLINE = STORIES
MEASURED = "measured"

MOST_ROWS, MOST_SEQUENCES = 128, 16  # of a step
SETTINGS = SchedulerSettings("chunked", MOST_ROWS, MOST_SEQUENCES)

PROMPT_HEAVY = Load("prompt-heavy", (100, 250), (4, 8), cv=3.0)
OUTPUT_HEAVY = Load("output-heavy", (8, 48), (16, 40), cv=4.0)
BURSTY = Load("bursty", (60, 180), (6, 12), cv=5.0)
LOADS = {load.name: load for load in (PROMPT_HEAVY, OUTPUT_HEAVY, BURSTY)}
COMPARED = (MEAN_TTFT, MEAN_TPOT)
JUDGED = (  # where the first two stories differ twofold
    (PROMPT_HEAVY.name, MEAN_TTFT),
    (PROMPT_HEAVY.name, MEAN_TPOT),
    (OUTPUT_HEAVY.name, MEAN_TTFT),
    (BURSTY.name, MEAN_TTFT),
    (BURSTY.name, MEAN_TPOT),
)
ONE_AT_A_TIME, LONGER_STEPS = "one at a time", "steps made longer"
LONGER = 3  # times as long
CHECKS = (ONE_AT_A_TIME, LONGER_STEPS)
APART = 1.5  # of the longest answer's time, between two that come one at a time

SOUGHT = 200  # requests, to find a rate
FORESEEN = 12  # replays that are foreseen
LEAST_REQUESTS, MOST_REQUESTS = 5, 40
S_PER_REQUEST = 4.0  # of the budget

Figures = Mapping[str, float]


def ratio_of(load: str, figure: str, story: str = SIMULATED) -> str:
    """The name of a prediction or control."""
    return f"{load}: {figure}, {MEASURED} / {story}"


def at_most(name: str) -> str:
    """The name of the prediction that bounds the same number above."""
    return f"{name}, at most"


def requests_for(budget_s: float) -> int:
    """Of a replay: one for each four seconds of the budget, within bounds."""
    return min(MOST_REQUESTS, max(LEAST_REQUESTS, int(budget_s / S_PER_REQUEST)))


def records_of(
    story: Story, calibrated: Calibrated, requests: Sequence[Request]
) -> list[RequestRecord]:
    """What a story says becomes of the requests, in their order."""
    if story == OWN_STEPS:
        return _alone(calibrated, requests)
    calibration = Calibration() if story == ROOFLINE else calibrated.calibration
    return list(simulate(_fleet(calibrated, calibration), requests).records())


def _alone(calibrated: Calibrated, requests: Sequence[Request]) -> list[RequestRecord]:
    """Each on an engine of its own, which it wakes."""
    fleet = _fleet(calibrated, calibrated.calibration)
    return [next(simulate(fleet, [request]).records()) for request in requests]


def _fleet(calibrated: Calibrated, calibration: Calibration) -> Fleet:
    pool = Pool(
        "here",
        calibrated.model,
        calibrated.hardware,
        calibrated.num_blocks,
        block_tokens=calibrated.block_tokens,
        settings=SETTINGS,
        calibration=calibration,
    )
    return Fleet((pool,))


@dataclass(frozen=True)
class Plan:
    """What will be replayed. The n-th replay of a load has a seed of its own."""

    calibrated: Calibrated
    num_requests: int  # of a replay
    busy: float = 0.5  # share of the time
    seed: int = 0

    @cached_property
    def rates_per_s(self) -> dict[str, float]:
        """Of each load, so that the engine is expected to be that busy."""
        fleet = _fleet(self.calibrated, self.calibrated.calibration)
        return {
            name: rate_that_keeps_busy(
                fleet,
                lambda rate, load=load: load.requests(SOUGHT, rate, self.seed),  # type: ignore[misc]
                self.busy,
            )
            for name, load in LOADS.items()
        }

    @property
    def names(self) -> list[str]:
        return [*LOADS, *CHECKS]

    def requests(self, name: str, replay: int) -> list[Request]:
        """Of the so-manieth replay of a load or a check."""
        if name in LOADS:
            rate = self.rates_per_s[name]
            return LOADS[name].requests(self.num_requests, rate, self._seed(name, replay))
        return self._one_at_a_time() if name == ONE_AT_A_TIME else self._at_once()

    def _seed(self, name: str, replay: int) -> int:
        """Of a load's own, so that loads do not bunch alike."""
        return 10_000 * self.seed + 1000 * (1 + list(LOADS).index(name)) + replay

    def _one_of_each(self) -> list[Request]:
        return [
            Request(name, 0.0, _middle(load.prompt_tokens), _middle(load.output_tokens))
            for name, load in LOADS.items()
        ]

    def _at_once(self) -> list[Request]:
        return [replace(one, output_tokens=2) for one in self._one_of_each()]

    def _one_at_a_time(self) -> list[Request]:
        three = self._one_of_each()
        apart_s = APART * max(map(e2e_s, _alone(self.calibrated, three)))
        return [replace(one, arrival_s=apart_s * place) for place, one in enumerate(three)]

    @cached_property
    def foreseen(self) -> dict[str, list[dict[Story, Figures]]]:
        """What each story says of replays to come, by load."""
        return {
            name: [
                figures_by_story(self.calibrated, self.requests(name, replay))
                for replay in range(FORESEEN)
            ]
            for name in LOADS
        }

    def over_simulated(self, load: str, figure: str, story: Story = OWN_STEPS) -> float:
        """What a story says of the figure, over what the simulator says: the median of replays."""
        return median(each[story][figure] / each[SIMULATED][figure] for each in self.foreseen[load])

    def mean_s(self, load: str, figure: str, story: Story) -> float:
        return fmean(each[story][figure] for each in self.foreseen[load])

    @property
    def rivals(self) -> dict[str, float]:
        """By the names of the predictions: where the measured would lie if no request waited for
        another."""
        return {
            ratio_of(load, figure): self.over_simulated(load, figure) for load, figure in JUDGED
        }

    @property
    def predictions(self) -> list[Prediction]:
        """That the measured is the simulated: not as far below as the rival says, and not as far
        above."""
        below = [Prediction(name, 1.0, rival) for name, rival in self.rivals.items()]
        above = [Prediction(at_most(name), 1.0, 1 / rival) for name, rival in self.rivals.items()]
        return below + above


def figures_by_story(calibrated: Calibrated, requests: Sequence[Request]) -> dict[Story, Figures]:
    return {story: figures_of(records_of(story, calibrated, requests)) for story in STORIES}


def _middle(range_tokens: tuple[int, int]) -> int:
    return sum(range_tokens) // 2


@dataclass(frozen=True)
class Wait:
    """Of one request for its first token: measured, and by two stories."""

    load: str
    measured_s: float
    simulated_s: float
    own_steps_s: float


@dataclass(frozen=True)
class Found:
    plan: Plan
    calibrated: Calibrated  # from all rounds
    times: Timings  # with the figures of every replay
    told: Mapping[str, Sequence[Told]]  # by load or check, a replay for each round
    chunks: Mapping[str, Sequence[Chunk]]  # of the steps that a record shows, by their times

    @property
    def works(self) -> dict[str, StepWork]:
        model = self.calibrated.model
        return {name: step_work(model, chunks) for name, chunks in self.chunks.items()}

    def time_s(self, load: str, figure: str, of: str) -> Interval:
        """Over replays; `of` is a story, or what was measured."""
        return self.times.time_s(_named(load, figure, of))

    def ratio(self, load: str, figure: str, story: Story = SIMULATED) -> Interval:
        """Measured over what the story says, replay by replay."""
        return self.times.ratio(_named(load, figure, MEASURED), over=_named(load, figure, story))

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        judged = {ratio_of(*each): self.ratio(*each) for each in JUDGED}
        checks = {ratio_of(name, MEAN_TTFT): self.ratio(name, MEAN_TTFT) for name in CHECKS}
        return judged | {at_most(name): found for name, found in judged.items()} | checks

    def waits(self) -> list[Wait]:
        """Every request of every load, in the rounds that count."""
        counted = [
            (name, each)
            for name in LOADS
            for each, bad in zip(self.told[name], self.times.disturbed, strict=True)
            if self.times.trusts_all_rounds or not bad
        ]
        return [
            Wait(name, *(ttft_s(one) for one in three))
            for name, each in counted
            for three in zip(each[MEASURED], each[SIMULATED], each[OWN_STEPS], strict=True)
        ]


def idle_s(records: Sequence[RequestRecord]) -> float:
    """How long the engine had no request, from the start until the last token."""
    idle_s = end_s = 0.0
    for record in sorted(records, key=lambda each: each.request.arrival_s):
        idle_s += max(0.0, record.request.arrival_s - end_s)
        end_s = max(end_s, record.request.arrival_s, *record.event_times_s)
    return idle_s


def told_of(calibrated: Calibrated, records: Sequence[RequestRecord]) -> Told:
    requests = [record.request for record in records]
    told: dict[str, Sequence[RequestRecord]] = {MEASURED: records}
    for story in STORIES:
        told[story] = records_of(story, calibrated, requests)
    return told


def figures_of_rounds(told: Mapping[str, Sequence[Told]]) -> dict[str, list[float]]:
    """By load, figure and story: a value for each round."""
    found: dict[str, list[float]] = {}
    for name, rounds in told.items():
        for each in rounds:
            for of, records in each.items():
                figures = figures_of(records)
                for figure in COMPARED:
                    found.setdefault(_named(name, figure, of), []).append(figures[figure])
    return found


def _named(load: str, figure: str, of: str) -> str:
    return f"{load}: {figure}, {of}"
