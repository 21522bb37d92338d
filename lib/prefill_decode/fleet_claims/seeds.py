"""Seeds: how many a chapter takes. Their number depends on the budget and on no clock, so that a
fast machine and a slow one simulate the same."""

from prefill_decode.statistics import LEAST_SAMPLES

S_PER_SEED = 6.0


def seeds_for(budget_s: float, seed: int) -> range:
    """The seeds from `seed` on: one for each six seconds of the budget, and at least as many as
    an interval needs."""
    if not budget_s > 0:
        raise ValueError(f"a budget is a positive number of seconds; got {budget_s}")
    return range(seed, seed + max(LEAST_SAMPLES, int(budget_s / S_PER_SEED)))
