"""Loads: requests for replays, how often they come, and what is compared of what became of them.

Arrivals are drawn and then stretched to an even number of requests a second, so that replays differ
in how their requests bunch and in their lengths, and none is much longer than another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prefill_decode.request import Request, RequestRecord
from prefill_decode.serving_metrics import tpot_s, ttft_s
from prefill_decode.simulator import Fleet, Outcome, simulate
from prefill_decode.workload import gamma_arrivals, uniform_lengths

MEAN_TTFT, P95_TTFT, MEAN_TPOT, P95_TPOT = "mean TTFT", "P95 TTFT", "mean TPOT", "P95 TPOT"
FIGURES = (MEAN_TTFT, P95_TTFT, MEAN_TPOT, P95_TPOT)
RATES = (0.01, 1e5)  # requests/s, between which one is sought
HALVINGS = 18


@dataclass(frozen=True)
class Load:
    """Lengths are drawn evenly between two numbers of tokens."""

    name: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    cv: float = 1.0  # of the gaps between arrivals

    def requests(self, number: int, rate_per_s: float, seed: int) -> list[Request]:
        """So many, the last of which comes after `number` / `rate_per_s` seconds. Lengths, and
        how arrivals bunch, are the same at any rate."""
        arrivals = gamma_arrivals(1.0, number, self.cv, seed)
        stretch_s = number / rate_per_s / arrivals[-1]
        prompts = uniform_lengths(*self.prompt_tokens, number, seed, f"{self.name} prompts")
        outputs = uniform_lengths(*self.output_tokens, number, seed, f"{self.name} outputs")
        return [
            Request(str(i), stretch_s * arrivals[i], prompts[i], outputs[i]) for i in range(number)
        ]


def figures_of(records: Sequence[RequestRecord]) -> dict[str, float]:
    """Seconds, by `FIGURES`. ValueError where no answer has a second token."""
    first = [ttft_s(record) for record in records]
    later = [t for t in map(tpot_s, records) if not np.isnan(t)]
    if not later:
        raise ValueError("mean TPOT needs an answer of two tokens or more; got none")
    found = (np.mean(first), np.quantile(first, 0.95), np.mean(later), np.quantile(later, 0.95))
    return {name: float(value) for name, value in zip(FIGURES, found, strict=True)}


def busiest(outcome: Outcome) -> float:
    """The share of the time that the busiest instance works."""
    return max(use.busy_share for use in outcome.uses)


def rate_that_keeps_busy(
    fleet: Fleet, requests_at: Callable[[float], Sequence[Request]], busy: float
) -> float:
    """Requests/s at which the busiest instance is expected to work that share of the time;
    `requests_at` gives those of a rate. ValueError unless the share lies between 0 and 1."""
    if not 0 < busy < 1:
        raise ValueError(
            f"busy is a share of the time between 0 and 1, which requests can keep an engine at; "
            f"got {busy}: try 0.5"
        )
    low, high = RATES
    for _ in range(HALVINGS):
        rate = (low * high) ** 0.5
        if busiest(simulate(fleet, requests_at(rate))) < busy:
            low = rate
        else:
            high = rate
    return low
