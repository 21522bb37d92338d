"""Pace: what a prefill worker and a decode worker take for loads that lean, alone and together.

If a load keeps the first worker busy for U_p seconds and the second for U_d, and comes all at once,
it takes the pair as long as its busier worker is busy, and one whole worker as long as both
together would be:

    pair   max(U_p, U_d)
    whole  U_p + U_d, less what steps save that hold both phases

So of the pair's time a load that leans leaves nearly half idle, and two loads that lean to
different phases leave little. The idle share is of the time of both workers; the extra is by how
much two loads together take longer than one of them, as a share of that: 0 where the second is
free, 1 where it costs what it costs alone.

A plan finds loads that take the pair equally long, and simulates them in steps that take what they
were timed to take on one thread.

Ignores: what moving a cache takes; that two workers share a machine.
"""

from collections.abc import Sequence
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
from prefill_decode.workload import fixed_lengths, make_requests

PLACES, MOST_ROWS, LONG_CONTEXT = 16, 64, 128
SETTINGS = SchedulerSettings("chunked", MOST_ROWS, PLACES)
TOGETHER = "both loads"
LEANING = (PROMPT_HEAVY, OUTPUT_HEAVY)
LOADS = (*LEANING, TOGETHER)
REQUESTS = PLACES // 2  # of a leaning load, so that nobody waits for a place
MOST_ANSWER = 96  # tokens, among which one is sought
LEAST = 0.05  # of an idle share or an extra: less cannot be told from none

PAIR, WHOLE = "pair", "one whole worker"
WAYS = (PAIR, WHOLE)
PHASES = ("prefill", "decode")
ONE_AT_A_TIME = 0.5  # idle share of two workers that wait for each other
TOKENS = "least share of the pair's answers with the tokens of one engine"


def timed(way: str, load: str) -> str:
    """The name of a run."""
    return f"{load}, {way}"


def computing(phase: str, load: str) -> str:
    """The name of the processor time of a worker of the pair in a run."""
    return f"{load}, {phase} worker computing"


def idle(load: str) -> str:
    return f"{load}: idle share of the pair"


def extra(way: str) -> str:
    return f"{way}: time that a second load adds / time of one"


def over_whole(load: str) -> str:
    return f"{load}: time, {PAIR} / {WHOLE}"


def idle_share(time_s: float, prefill_s: float, decode_s: float) -> float:
    """Of the time of two workers; from how long a load took, and either computed."""
    return 1 - (prefill_s + decode_s) / (2 * time_s)


def extra_of(prompts_s: float, answers_s: float, both_s: float) -> float:
    """What the second of two loads adds, over what one takes; from their times and that of both."""
    return 2 * both_s / (prompts_s + answers_s) - 1


@dataclass(frozen=True)
class Plan:
    """Loads, and what is expected of them, from a calibration on one thread. Lengths are tokens of
    a prompt and of an answer. Unless the load with long answers is given, its answers are sought:
    both loads then take the simulated pair as long, as nearly as whole tokens allow."""

    calibrated: Calibrated
    prompt_heavy: tuple[int, int] = (64, 2)
    short_prompt: int = 8
    output_heavy: tuple[int, int] | None = None

    @cached_property
    def lengths(self) -> dict[str, tuple[int, int]]:
        """By leaning load."""
        if self.output_heavy is not None:
            return {PROMPT_HEAVY: self.prompt_heavy, OUTPUT_HEAVY: self.output_heavy}
        wanted_s = self._pair_s(self.prompt_heavy)

        def miss(tokens: int) -> float:
            return abs(log(self._pair_s((self.short_prompt, tokens)) / wanted_s))

        answer = min(range(2, MOST_ANSWER + 1), key=miss)
        return {PROMPT_HEAVY: self.prompt_heavy, OUTPUT_HEAVY: (self.short_prompt, answer)}

    @cached_property
    def laws(self) -> dict[str, Law]:
        """Of endless loads, by leaning load."""
        return {load: self.law(*lengths) for load, lengths in self.lengths.items()}

    def law(self, prompt_tokens: int, output_tokens: int) -> Law:
        """Of prompts that fill their steps, and decodes at as many places as there are."""
        lengths = (fixed_lengths(n, REQUESTS) for n in (prompt_tokens, output_tokens))
        requests = make_requests([0.0] * REQUESTS, *lengths)
        return law_of(self._pool("prefill"), self._pool("decode"), requests, NO_OBJECTIVES)

    def requests(self, load: str) -> list[Request]:
        """All at once, each with a name of its own; of both loads, short prompts first."""
        if load == TOGETHER:
            return [*self.requests(OUTPUT_HEAVY), *self.requests(PROMPT_HEAVY)]
        return _all_of(self.lengths[load], load)

    @cached_property
    def simulated_s(self) -> dict[tuple[str, str], float]:
        """From when all is asked until the last token, by way and load."""
        return {
            (way, load): simulate(self._fleet(way), self.requests(load)).duration_s
            for way in WAYS
            for load in LOADS
        }

    @cached_property
    def two_whole_s(self) -> float:
        """Simulated: both loads on two workers side by side that do both."""
        fleet = Fleet((self._pool("both", instances=2),))
        return simulate(fleet, self.requests(TOGETHER)).duration_s

    @property
    def simulated_of_pair(self) -> dict[str, str]:
        """In words, by load."""
        return {load: format_seconds(self.simulated_s[PAIR, load]) for load in LOADS}

    @cached_property
    def busy_s(self) -> dict[tuple[str, str], float]:
        """Simulated, of the pair's workers, by phase and load."""
        found = {}
        for load in LOADS:
            outcome = simulate(self._fleet(PAIR), self.requests(load))
            for use in outcome.uses:
                found[use.pool, load] = use.busy_share * outcome.duration_s
        return found

    def idle(self, load: str) -> float:
        """Simulated."""
        busy_s = (self.busy_s[phase, load] for phase in PHASES)
        return idle_share(self.simulated_s[PAIR, load], *busy_s)

    def extra(self, way: str) -> float:
        """Simulated."""
        return extra_of(*(self.simulated_s[way, load] for load in LOADS))

    def over_whole(self, load: str) -> float:
        """Simulated."""
        return self.simulated_s[PAIR, load] / self.simulated_s[WHOLE, load]

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
        """Of a load that leans, against a rival for whom work is work, so that two workers share it
        and idle no more than with both loads; of both, against workers that wait for each other."""
        both = max(LEAST, self.idle(TOGETHER))
        leaning = [Prediction(idle(load), self.idle(load), both) for load in LEANING]
        return [*leaning, Prediction(idle(TOGETHER), both, ONE_AT_A_TIME)]

    @property
    def on_one_worker(self) -> list[Prediction]:
        """Controls: a worker that does both has no idle time to give away to a second load; and of
        one load it is about as fast as the pair, or idle time comes from slowness."""
        free = max(LEAST, self.extra(PAIR))
        alone = {load: self.over_whole(load) for load in LEANING}
        return [
            Prediction(extra(WHOLE), self.extra(WHOLE), free),
            *(Prediction(over_whole(load), each, 2 * each) for load, each in alone.items()),
        ]

    def _pair_s(self, lengths: tuple[int, int]) -> float:
        return simulate(self._fleet(PAIR), _all_of(lengths)).duration_s

    def _fleet(self, way: str) -> Fleet:
        if way == WHOLE:
            return Fleet((self._pool("both"),))
        return Fleet((self._pool("prefill"), self._pool("decode")))

    def _pool(self, role: Role, instances: int = 1) -> Pool:
        found = self.calibrated
        return Pool(
            role,
            found.model,
            found.hardware,
            found.num_blocks,
            instances,
            role=role,
            block_tokens=found.block_tokens,
            settings=SETTINGS,
            calibration=found.calibration,
            reuse=False,
        )


def _all_of(lengths: tuple[int, int], load: str = "") -> list[Request]:
    prompt, answer = lengths
    return [Request(f"{load} {n}", 0.0, prompt, answer) for n in range(REQUESTS)]


@dataclass(frozen=True)
class Found:
    """What runs of a plan took, in the rounds that count."""

    plan: Plan
    times: Timings  # as `timed` and `computing` name them
    alike: Sequence[float]  # of each round, the least share of answers as one engine gives them

    def time_s(self, way: str, load: str) -> Interval:
        return self.times.time_s(timed(way, load))

    def busy_s(self, phase: str, load: str) -> Interval:
        return self.times.time_s(computing(phase, load))

    def idle(self, load: str) -> Interval:
        """Round by round, as all that follows."""
        names = (timed(PAIR, load), *(computing(phase, load) for phase in PHASES))
        rounds = zip(*(self.times.times_s(name) for name in names), strict=True)
        return median_interval([idle_share(*three) for three in rounds])

    def extra(self, way: str) -> Interval:
        rounds = zip(*(self.times.times_s(timed(way, load)) for load in LOADS), strict=True)
        return median_interval([extra_of(*three) for three in rounds])

    def over_whole(self, load: str) -> Interval:
        return self.times.ratio(timed(PAIR, load), over=timed(WHOLE, load))

    def over_simulated(self, way: str, load: str) -> Interval:
        times_s = self.times.times_s(timed(way, load))
        return ratio_interval(times_s, [self.plan.simulated_s[way, load]] * len(times_s))

    def figures(self) -> dict[str, Interval]:
        """By the names of predictions and controls."""
        return {
            **{idle(load): self.idle(load) for load in LOADS},
            **{over_whole(load): self.over_whole(load) for load in LEANING},
            extra(WHOLE): self.extra(WHOLE),
            TOKENS: median_interval(self.alike),
        }
