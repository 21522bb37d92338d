"""Runs of a pair made up by hand, on a machine where a full step of prompts takes 10 ms and a step
of one decode 1.5 ms: some times as long as simulated."""

from dataclasses import replace

from prefill_decode.fleet_claims.pace import (
    LOADS,
    PAIR,
    PHASES,
    WHOLE,
    Found,
    Plan,
    computing,
    timed,
)
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Timings
from prefill_decode.simulator import Calibration
from tests.replays_by_hand import HERE

SLOW = Hardware("slow", "float64", 1.3e8, 6.3e7, "made up")
PLAN = Plan(replace(HERE, hardware=SLOW, calibration=Calibration()))
ROUNDS = 7


def found_by_hand(**times_of: float) -> Found:
    """The pair takes some times as long as simulated, by the first word of a load, and computes as
    long as simulated; all else is as simulated."""
    raw_s = {}
    for load in LOADS:
        slower = times_of.get(load.split()[0].replace("-", "_"), 1.0)
        raw_s[timed(PAIR, load)] = (slower * PLAN.simulated_s[PAIR, load],) * ROUNDS
        raw_s[timed(WHOLE, load)] = (PLAN.simulated_s[WHOLE, load],) * ROUNDS
        for phase in PHASES:
            raw_s[computing(phase, load)] = (PLAN.busy_s[phase, load],) * ROUNDS
    times = Timings(raw_s, dict.fromkeys(raw_s, ()), (False,) * ROUNDS, "budget", 1.0)
    return Found(PLAN, times, [1.0] * ROUNDS)
