"""Prompt runs: how many prompts a worker reads in a row that reads them before it decodes.

Workers get requests in turn, so each gets every N-th arrival of a Poisson stream. A prompt takes as
long as any other. While one is read the next may come, and streams that decode wait for them all.

Counts:  runs that begin with one prompt at a worker that reads none.
Ignores: prompts that come during the decode step before a run, which make runs slightly longer.
Source:  Kingman, "The single server queue in heavy traffic" (1961), for the bound of a mean wait.
"""

from collections.abc import Sequence
from math import exp

MOST_PROMPTS = 8  # in a row that are told apart


def arrivals_at_most(mean: float, most: int) -> float:
    """The chance that a Poisson number with this mean is no larger than `most`."""
    return sum(_chances(mean, most))


def longer_runs(arrivals: float, in_turn: int, most: int = MOST_PROMPTS) -> list[float]:
    """The chance that a run has more than 0, 1, ..., `most` prompts. `arrivals`: requests that come
    to all workers together, on average, while one prompt is read."""
    size = in_turn * (most + 1)
    chances = _chances(arrivals, size)
    known = [1.0] + [0.0] * size  # of so many arrivals since the run began, while it lasts
    shares = [1.0]
    for prompts in range(1, most + 1):
        after = [
            sum(known[earlier] * chances[now - earlier] for earlier in range(now + 1))
            for now in range(size + 1)
        ]
        least = in_turn * prompts  # else nobody has come by the end of this prompt
        known = [0.0] * least + after[least:]
        shares.append(min(1.0, sum(known)))
    return shares


def median_longest(shares: Sequence[float], runs: float) -> int:
    """Prompts in the longest of so many runs, of which a Poisson number comes: its median."""
    for prompts, longer in enumerate(shares):
        if prompts and exp(-runs * longer) >= 0.5:
            return prompts
    return len(shares) - 1


def mean_wait_s(service_s: float, busy: float, in_turn: int) -> float:
    """Kingman's bound, before a service that always takes as long: arrivals in turn of N vary an
    N-th as much as Poisson's, for which (N = 1) it is exact."""
    if not 0 <= busy < 1:
        raise ValueError(f"a line is steady where its worker is busy below 1; got {busy}")
    return service_s * busy / (2 * (1 - busy) * in_turn)


def _chances(mean: float, most: int) -> list[float]:
    """Of 0, 1, ..., `most` arrivals."""
    found = [exp(-mean)]
    for number in range(1, most + 1):
        found.append(found[-1] * mean / number)
    return found
