"""Workloads that hold the simulator against the engine; no step of them is calibrated."""

from dataclasses import dataclass, field

from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.workload import gamma_arrivals, uniform_lengths

MOST_REQUESTS = 2000
LEAST_REQUESTS = 12


@dataclass(frozen=True)
class Workload:
    """Lengths are drawn evenly between two numbers of tokens; `texts` are beginnings, of which each
    prompt has one."""

    name: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    cv: float = 1.0  # of the gaps between arrivals
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    texts: int = 0
    text_tokens: int = 0
    apart: bool = False  # a process of one thread for prefill, another for decode

    def requests(self, rate_per_s: float, duration_s: float, seed: int) -> list[Request]:
        """Those that arrive within the duration, at least a few. Lengths are the same at any
        rate."""
        number = max(LEAST_REQUESTS, min(MOST_REQUESTS, round(rate_per_s * duration_s)))
        arrivals_s = gamma_arrivals(1.0, MOST_REQUESTS, self.cv, seed)[:number]
        prompts = uniform_lengths(*self.prompt_tokens, MOST_REQUESTS, seed, f"{self.name} prompts")
        outputs = uniform_lengths(*self.output_tokens, MOST_REQUESTS, seed, f"{self.name} outputs")
        drawn = uniform_lengths(1, max(1, self.texts), MOST_REQUESTS, seed, f"{self.name} texts")
        return [
            Request(
                str(i),
                arrivals_s[i] / rate_per_s,
                prompts[i] + self.text_tokens,
                outputs[i],
                ((drawn[i], self.text_tokens),) if self.texts else (),
            )
            for i in range(number)
        ]


WORKLOADS = (
    Workload("prompt-heavy", (150, 500), (4, 12)),
    Workload("output-heavy", (16, 64), (50, 120)),
    Workload("bursty", (50, 250), (16, 48), cv=3.0),
    Workload(
        "whole prompts first",
        (100, 400),
        (16, 48),
        settings=SchedulerSettings("prefill_first", 1024),
    ),
    Workload("small chunks", (100, 400), (16, 48), settings=SchedulerSettings("chunked", 128)),
    Workload("shared prefixes", (16, 64), (16, 48), texts=3, text_tokens=320),
    Workload("prefill and decode apart", (50, 300), (16, 48), apart=True),
)
