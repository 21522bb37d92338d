"""Queue: two checks of the simulator that share no code with it.

A worker that reads one prompt of a fixed length after another, with Poisson arrivals, is the queue
M/D/1, whose mean wait Pollaczek and Khinchine give in closed form. And a simulation that prices
runs of steps must end where one does that takes every step by itself.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.simulator import Fleet, Pool, Prices, simulate
from prefill_decode.step import Chunk
from prefill_decode.workload import fixed_lengths, make_requests, poisson_arrivals

LOAD = 0.5  # share of the time that the queue's worker is busy
QUEUED = 2500  # requests of a queue; the first tenth is not counted
LOOKED_AT = 60  # requests that are played step by step


def wait_over_closed_form(worker: Pool, prompt_tokens: int, seed: int) -> float:
    """Mean wait before the prefill of a single worker, over that of M/D/1; 1 is right."""
    settings = SchedulerSettings("chunked", prompt_tokens, 1)
    pool = replace(worker, role="both", settings=settings)
    prices = Prices(pool.model, pool.ceilings, pool.calibration)
    service_s = prices.step_s_by_roofline([Chunk(prompt_tokens, 0, True)])
    arrivals_s = poisson_arrivals(LOAD / service_s, QUEUED, seed)
    lengths = fixed_lengths(prompt_tokens, QUEUED), fixed_lengths(1, QUEUED)
    outcome = simulate(Fleet((pool,)), make_requests(arrivals_s, *lengths))
    waits_s = outcome.first_s - service_s - arrivals_s
    return float(waits_s[QUEUED // 10 :].mean()) / (LOAD * service_s / (2 * (1 - LOAD)))


def error_over_single_steps(fleet: Fleet, requests: Sequence[Request]) -> float:
    """The largest relative difference between the times at which answers end, of the first few
    requests, when every step is taken by itself at the roofline's own price."""
    few = requests[:LOOKED_AT]
    fast, slow = simulate(fleet, few), simulate(fleet, few, step_by_step=True)
    differences = abs(fast.last_s - slow.last_s) / slow.last_s
    return float(differences.max())


def mean_tokens(requests: Sequence[Request]) -> tuple[float, float]:
    """(prompt, output) tokens of a request."""
    prompts = fmean(request.prompt_tokens for request in requests)
    return prompts, fmean(request.output_tokens for request in requests)
