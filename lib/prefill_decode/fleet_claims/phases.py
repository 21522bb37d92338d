"""Phases: which accelerator is worth its watts in which phase, and what a mixed pair gains.

Accelerators are compared by requests/s for each watt of the power that their makers print. The law
of the roofline says it for each phase; a fleet under a limit of power takes the whole workers of
one or two kinds that the law gives the greatest rate, and is then simulated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from prefill_decode.fleet_claims.watts import Choice, Setting, other_loads, power_w_of
from prefill_decode.request import Request
from prefill_decode.simulator import (
    Split,
    carried_per_s,
    fleet_of_split,
    greatest_rate,
)
from prefill_decode.statistics import Interval, median_interval

__all__ = ["GAIN", "ONE_PHASE", "TURN", "Choice", "Found", "Setting", "other_loads"]

FEEDERS = 4  # more prefill workers than the law asks for, so that decode alone sets the pace
ALONE_REQUESTS = 150  # of a single worker's load
LEAST_GAIN = 0.01  # by the law, that a simulated gain is a share of
TURN = "{} over {}: decode per watt / prefill per watt"
GAIN = "gain of the mixed pair, simulated / by the law"
ONE_PHASE = "mixed pair / best uniform fleet, prefill alone"


@dataclass(frozen=True)
class Found:
    """What every seed found, in the seeds' order."""

    setting: Setting
    num_seeds: int
    mixed_per_s: Sequence[float]
    rivals_per_s: Sequence[Sequence[float]]  # of the setting's rivals, in their order
    turns: Sequence[float]
    one_phase: Sequence[float]
    duration_s: float  # that it took to simulate

    @property
    def gains(self) -> list[float]:
        """Of the mixed pair over the best uniform fleet of each seed; 0 is none."""
        best = [max(rates) for rates in zip(*self.rivals_per_s, strict=True)]
        return [one / other - 1 for one, other in zip(self.mixed_per_s, best, strict=True)]

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        pair, expected = self.setting.mixed, max(LEAST_GAIN, self.setting.gain)
        shares = [max(0.0, gain) / expected for gain in self.gains]  # a loss is no gain
        return {
            TURN.format(pair.decode, pair.prefill): median_interval(self.turns),
            GAIN: median_interval(shares),
            ONE_PHASE: median_interval(self.one_phase),
        }


def simulate_seeds(setting: Setting, seeds: Sequence[int]) -> Found:
    """The mixed pair and its rivals, and single workers of the pair."""
    begun_s = monotonic()
    mixed, turns, one_phase = [], [], []
    rivals: list[list[float]] = [[] for _ in setting.rivals]
    pair = setting.mixed
    for seed in seeds:
        requests = setting.requests(setting.num_requests, seed)
        mixed.append(_rate(setting, pair, requests))
        for rates, choice in zip(rivals, setting.rivals, strict=True):
            rates.append(_rate(setting, choice, requests))
        turns.append(_turn(setting, pair.decode, pair.prefill, seed))
        one_phase.append(_one_phase(setting, seed))
    taken_s = monotonic() - begun_s
    return Found(setting, len(seeds), mixed, rivals, turns, one_phase, taken_s)


def _rate(setting: Setting, choice: Choice, requests: Sequence[Request]) -> float:
    fleet = fleet_of_split(setting.workers(choice.prefill, choice.decode), choice.split)
    return carried_per_s(*greatest_rate(fleet, requests, setting.objectives, choice.rate_per_s))


def _turn(setting: Setting, one: str, other: str, seed: int) -> float:
    """As Setting.turn, of single workers that are simulated."""
    rows = setting.rows
    reads = [
        _prefill_alone(setting, name, 1, seed) / power_w_of(rows[name]) for name in (one, other)
    ]
    answers = [_decode_alone(setting, name, seed) / power_w_of(rows[name]) for name in (one, other)]
    return (answers[0] / answers[1]) / (reads[0] / reads[1])


def _prefill_alone(setting: Setting, name: str, count: int, seed: int) -> float:
    """Prompts/s of so many workers, for answers of one token."""
    requests = setting.requests(ALONE_REQUESTS * count, seed, output_tokens=1)
    workers = setting.workers(name, name)
    fleet = fleet_of_split(workers, Split(count, 1))
    guess = count * setting.laws[name].prefill_per_s
    return carried_per_s(*greatest_rate(fleet, requests, setting.objectives, guess))


def _decode_alone(setting: Setting, name: str, seed: int) -> float:
    """Answers/s of one worker behind prefill workers that never hold it up."""
    law = setting.laws[name]
    feeders = FEEDERS + round(law.decode_per_s / law.prefill_per_s)
    requests = setting.requests(ALONE_REQUESTS, seed)
    fleet = fleet_of_split(setting.workers(name, name), Split(feeders, 1))
    return carried_per_s(*greatest_rate(fleet, requests, setting.objectives, law.decode_per_s))


def _one_phase(setting: Setting, seed: int) -> float:
    """As Setting.one_phase, simulated."""
    counts = {name: int(setting.power_w // power_w_of(row)) for name, row in setting.rows.items()}
    best = max(counts, key=lambda name: counts[name] * setting.laws[name].prefill_per_s)
    pair = setting.mixed
    mixed = _prefill_alone(setting, pair.prefill, pair.split.prefill, seed)
    return mixed / _prefill_alone(setting, best, counts[best], seed)
