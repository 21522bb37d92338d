"""Router: which instance gets a request.

    round_robin   each in turn
    least_loaded  the one with the fewest requests that it has not finished
    prefix_aware  of those with at most `slack` requests more than the least loaded, the one whose
                  cache holds most of the prompt's beginning, then the least loaded

Where several are equal the next in turn gets it. With a slack of 0 prefixes only decide between
equals; with an infinite one hits are chased whatever they cost.

Counts:  requests, not how long they are or how fast an instance is.
Source:  Zheng et al., "SGLang" (2024), section 3, and Srivatsa et al., "Preble" (2024), for caches
         as a reason to prefer an instance, and load as a reason not to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, get_args

Routing = Literal["round_robin", "least_loaded", "prefix_aware"]
ROUTINGS: tuple[Routing, ...] = get_args(Routing)


@dataclass
class Router:
    """Chooses, and remembers only whose turn is next."""

    routing: Routing = "least_loaded"
    slack: float = inf
    turn: int = 0

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise ValueError(f"routing is one of {', '.join(ROUTINGS)}; got {self.routing!r}")
        if not self.slack >= 0:
            raise ValueError(f"slack is 0 requests or more; got {self.slack}")

    def choose(self, loads: Sequence[int], hits: Sequence[int] | None = None) -> int:
        """The instance for a request, by the unfinished requests of each (`loads`) and the tokens
        or blocks of the prompt that each has (`hits`; None where nobody has any)."""
        if self.routing == "round_robin":
            chosen = self.turn % len(loads)
        elif self.routing == "least_loaded" or hits is None or not any(hits):
            chosen = self._next_of_least(loads)
        else:
            chosen = self._best_hit(loads, hits)
        self.turn = chosen + 1
        return chosen

    def _next_of_least(self, loads: Sequence[int]) -> int:
        least, start = min(loads), self.turn % len(loads)
        for index in range(start, len(loads)):
            if loads[index] == least:
                return index
        return loads.index(least)

    def _best_hit(self, loads: Sequence[int], hits: Sequence[int]) -> int:
        most = min(loads) + self.slack
        total = len(loads)
        ranks = [
            (-hits[index], loads[index], (index - self.turn) % total, index)
            for index in range(total)
            if loads[index] <= most
        ]
        return min(ranks)[-1]
