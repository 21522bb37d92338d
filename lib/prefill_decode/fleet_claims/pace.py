"""Pace: what a prefill worker and a decode worker take for loads that lean, alone and together.

If a request keeps the first worker busy for b_p seconds and the second for b_d, a load that comes
all at once takes the pair as long as its busier worker is busy, and one whole worker as long as
both together would be:

    pair   max(sum b_p, sum b_d)
    whole  sum (b_p + b_d), less what steps save that hold both phases

So of two loads that lean to different phases each fits into the time in which the other leaves a
worker idle: what the second adds is little. The extra is by how much both take longer than one of
them, as a share of that: 0 where the second is free, 1 where it costs what it costs alone.

A plan finds loads that take the pair equally long, and simulates them in steps that take what they
were timed to take.

Ignores: what moving a cache takes; that two workers share a machine's memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log

from prefill_decode.claim import Prediction
from prefill_decode.fleet_claims.pools import OUTPUT_HEAVY, PROMPT_HEAVY
from prefill_decode.measure import Timings
from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import NO_OBJECTIVES
from prefill_decode.simulator import Calibrated, Fleet, Law, Pool, Role, law_of, simulate
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds
from prefill_decode.workload import make_requests

PLACES, MOST_ROWS, LONG_CONTEXT = 16, 64, 128
SETTINGS = SchedulerSettings("chunked", MOST_ROWS, PLACES)
TOGETHER = "both loads"
LEANING = (PROMPT_HEAVY, OUTPUT_HEAVY)
LOADS = (*LEANING, TOGETHER)
REQUESTS = PLACES // 2  # of a leaning load, so that nobody waits for a place
MOST_ANSWER = 96  # tokens, among which one is sought
LEAST_EXTRA = 0.05  # that is told from none

PAIR, WHOLE = "pair", "one whole worker"
WAYS = (PAIR, WHOLE)
TOKENS = "share of answers with the tokens of one engine"


def timed(way: str, load: str) -> str:
    """The name of a run."""
    return f"{load}, {way}"


def extra(way: str) -> str:
    return f"{way}: time that a second load adds / time of one"


def extra_of(prompts_s: float, answers_s: float, both_s: float) -> float:
    """What the second of two loads adds, over what one takes; from their times and that of both."""
    return 2 * both_s / (prompts_s + answers_s) - 1


def idler(load: str) -> str:
    first, last = ("prefill", "decode") if load == OUTPUT_HEAVY else ("decode", "prefill")
    return f"{load}: busy time, {first} / {last} worker"


@dataclass(frozen=True)
class Busy:
    """Seconds of one run in which either worker computed."""

    prefill_s: float
    decode_s: float

    def idler(self, load: str) -> float:
        """The busy time of the worker that a load leaves idle over the other's; decode over
        prefill where it leaves none."""
        ratio = self.decode_s / self.prefill_s
        return 1 / ratio if load == OUTPUT_HEAVY else ratio


@dataclass(frozen=True)
class Plan:
    """Loads, and what is expected of them, from a calibration on one worker's threads. Lengths are
    tokens of a prompt and of an answer. Unless the load with long answers is given, its answers are
    sought: both loads then take the simulated pair as long, as nearly as whole tokens allow."""

    calibrated: Calibrated
    prompt_heavy: tuple[int, int] = (64, 2)
    short_prompt: int = 8
    output_heavy: tuple[int, int] | None = None

    @cached_property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """By leaning load."""
        if self.output_heavy is not None:
            return {PROMPT_HEAVY: self.prompt_heavy, OUTPUT_HEAVY: self.output_heavy}
        wanted_s = self._pair_s(self._all_of(self.prompt_heavy))

        def miss(tokens: int) -> float:
            return abs(log(self._pair_s(self._all_of((self.short_prompt, tokens))) / wanted_s))

        answer = min(range(2, MOST_ANSWER + 1), key=miss)
        return {PROMPT_HEAVY: self.prompt_heavy, OUTPUT_HEAVY: (self.short_prompt, answer)}

    @cached_property
    def laws(self) -> dict[str, Law]:
        """Of endless loads, by leaning load."""
        return {load: self.law(*lengths) for load, lengths in self.lengths.items()}

    def law(self, prompt_tokens: int, output_tokens: int) -> Law:
        requests = make_requests([0.0], [prompt_tokens], [output_tokens])
        return law_of(self._pool("prefill"), self._pool("decode"), requests, NO_OBJECTIVES)

    def requests(self, load: str) -> list[Request]:
        """All at once, each with a name of its own; of both loads, short prompts first."""
        if load == TOGETHER:
            return [*self.requests(OUTPUT_HEAVY), *self.requests(PROMPT_HEAVY)]
        return self._all_of(self.lengths[load], load)

    @cached_property
    def simulated_s(self) -> dict[tuple[str, str], float]:
        """From when all is asked until the last token, by way and load."""
        return {
            (way, load): simulate(self._fleet(way), self.requests(load)).duration_s
            for way in WAYS
            for load in LOADS
        }

    @property
    def simulated_of_pair(self) -> dict[str, str]:
        """In words, by load."""
        return {load: format_seconds(self.simulated_s[PAIR, load]) for load in LOADS}

    @cached_property
    def busy(self) -> dict[str, Busy]:
        """Simulated, of the pair, by load."""
        found = {}
        for load in LOADS:
            outcome = simulate(self._fleet(PAIR), self.requests(load))
            shares = {use.pool: use.busy_share for use in outcome.uses}
            busy_s = (shares[role] * outcome.duration_s for role in ("prefill", "decode"))
            found[load] = Busy(*busy_s)
        return found

    def extra(self, way: str) -> float:
        """Simulated."""
        return extra_of(*(self.simulated_s[way, load] for load in LOADS))

    def chunks(self, load: str) -> list[Chunk]:
        """What one whole worker computes at least, as if one step did it all."""
        return [
            chunk
            for request in self.requests(load)
            for chunk in (
                Chunk(request.prompt_tokens),
                *(Chunk(1, request.prompt_tokens + n) for n in range(request.output_tokens - 1)),
            )
        ]

    @property
    def predictions(self) -> list[Prediction]:
        """Against a rival for whom work is work, whatever phase it is of: two workers are as busy.
        What a second load adds is not among them: workers that share a machine slow each other,
        which no step that was timed alone foresees."""
        return [Prediction(idler(load), self.busy[load].idler(load), 1.0) for load in LEANING]

    @property
    def on_one_worker(self) -> Prediction:
        """A control: a worker that does both has no idle time to give away."""
        rival = max(LEAST_EXTRA, self.extra(PAIR))
        return Prediction(extra(WHOLE), self.extra(WHOLE), rival)

    @property
    def both_busy(self) -> Prediction:
        """A control: both loads leave none to the pair either."""
        leaving_idle = max(self.busy[load].idler(load) for load in LEANING)
        return Prediction(idler(TOGETHER), self.busy[TOGETHER].idler(TOGETHER), leaving_idle)

    def _all_of(self, lengths: tuple[int, int], load: str = "") -> list[Request]:
        prompt, answer = lengths
        return [Request(f"{load} {n}", 0.0, prompt, answer) for n in range(REQUESTS)]

    def _pair_s(self, requests: Sequence[Request]) -> float:
        return simulate(self._fleet(PAIR), requests).duration_s

    def _fleet(self, way: str) -> Fleet:
        if way == WHOLE:
            return Fleet((self._pool("both"),))
        return Fleet((self._pool("prefill"), self._pool("decode")))

    def _pool(self, role: Role) -> Pool:
        found = self.calibrated
        return Pool(
            role,
            found.model,
            found.hardware,
            found.num_blocks,
            role=role,
            block_tokens=found.block_tokens,
            settings=SETTINGS,
            calibration=found.calibration,
            reuse=False,
        )


@dataclass(frozen=True)
class Found:
    """What runs of a plan took, in the rounds that count."""

    plan: Plan
    times: Timings  # of every way and load, as `timed` names them
    busy: Mapping[str, Sequence[Busy]]  # by load, of the pair
    alike: Sequence[float]  # the share of answers that were those of one engine

    def time_s(self, way: str, load: str) -> Interval:
        return self.times.time_s(timed(way, load))

    def extra(self, way: str) -> Interval:
        """Round by round."""
        times_s = (self.times.times_s(timed(way, load)) for load in LOADS)
        return median_interval([extra_of(*three) for three in zip(*times_s, strict=True)])

    def idler(self, load: str) -> Interval:
        return median_interval([each.idler(load) for each in self.busy[load]])

    def over_simulated(self, way: str, load: str) -> Interval:
        times_s = self.times.times_s(timed(way, load))
        return ratio_interval(times_s, [self.plan.simulated_s[way, load]] * len(times_s))

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        found = {TOKENS: median_interval(self.alike)}
        found[extra(WHOLE)] = self.extra(WHOLE)
        found |= {idler(load): self.idler(load) for load in LOADS}
        return found
