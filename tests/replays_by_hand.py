"""Replays made up by hand: every step takes 10 ms, and requests wait twice as long as simulated."""

from prefill_decode.fleet_claims.foreseeing import Found, Plan, figures_of_rounds, told_of
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Timings
from prefill_decode.request import Request, RequestRecord
from prefill_decode.simulator import Calibrated, Calibration, Residual
from prefill_decode.step import Chunk
from tests.conftest import TINY

FREE = Hardware("free", "float64", 1e18, 1e18, "a machine on which only the host takes time")
STEP_S = 0.01
HERE = Calibrated(
    Calibration(step_s=STEP_S, source="by hand"),
    FREE,
    TINY,
    num_blocks=256,
    block_tokens=32,
    residuals=(Residual("decode", 3, 0.02, 0.05, "decode 4 at 64", -0.05),),
    num_rounds=6,
)
PLAN = Plan(HERE, num_requests=6)
ROUNDS = 7
LAST_IS_DISTURBED = (False,) * (ROUNDS - 1) + (True,)


def stretched(record: RequestRecord, times: float) -> RequestRecord:
    """What happened, so many times as long after the arrival."""
    since_s = record.request.arrival_s
    later = tuple(since_s + times * (each - since_s) for each in record.event_times_s)
    return RequestRecord(record.request, later, record.event_tokens)


def answered(request: Request, *times_s: float) -> RequestRecord:
    return RequestRecord(request, times_s, (1,) * len(times_s))


def found_by_hand(times: float = 2.0) -> Found:
    told = {}
    for name in PLAN.names:
        rounds = []
        for turn in range(ROUNDS):
            plain = told_of(HERE, [answered(each) for each in PLAN.requests(name, turn)])
            measured = [stretched(record, times) for record in plain["simulated"]]
            rounds.append({**plain, "measured": measured})
        told[name] = rounds
    step = "decode 1 at 64: step"
    timings = Timings({step: (STEP_S,) * ROUNDS}, {step: ()}, LAST_IS_DISTURBED, "budget", 1.0)
    noted = timings.with_noted(figures_of_rounds(told))
    return Found(PLAN, HERE, noted, told, {step: (Chunk(1, 64),)})
