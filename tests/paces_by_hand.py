"""Runs of a pair made up by hand, on a machine where a full step of prompts takes 10 ms and a step
of one decode 1.5 ms: some times as long as simulated."""

from dataclasses import replace

from prefill_decode.fleet_claims.pace import LOADS, PAIR, WAYS, Busy, Found, Plan, timed
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Timings
from prefill_decode.simulator import Calibration
from tests.replays_by_hand import HERE

SLOW = Hardware("slow", "float64", 1.3e8, 6.3e7, "made up")
PLAN = Plan(replace(HERE, hardware=SLOW, calibration=Calibration()))
ROUNDS = 7


def found_by_hand(**times_of: float) -> Found:
    """The pair some times as slow as simulated, by load: of a load that is not named, once."""
    raw_s, busy = {}, {}
    for load in LOADS:
        slower = times_of.get(load.split()[0].replace("-", "_"), 1.0)
        for way in WAYS:
            time_s = PLAN.simulated_s[way, load] * (slower if way == PAIR else 1.0)
            raw_s[timed(way, load)] = (time_s,) * ROUNDS
        busy[load] = [Busy(PLAN.busy[load].prefill_s, PLAN.busy[load].decode_s)] * ROUNDS
    times = Timings(raw_s, dict.fromkeys(raw_s, ()), (False,) * ROUNDS, "budget", 1.0)
    return Found(PLAN, times, busy, [1.0] * ROUNDS)
