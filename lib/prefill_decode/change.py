"""Change: how far one result lies from another, and what may be said of it."""

from dataclasses import dataclass
from typing import Literal

from prefill_decode.statistics import Interval

Better = Literal["higher", "lower"]
Answer = Literal["ok", "regression", "improvement", "inconclusive", "not comparable"]


@dataclass(frozen=True)
class Quantity:
    measured: Interval
    unit: str  # "1" for ratios and shares, else an SI unit such as "s"
    better: Better

    @property
    def travels(self) -> bool:
        """Whether it can be compared between machines of a kind."""
        return self.unit == "1"


@dataclass(frozen=True)
class Change:
    answer: Answer
    reason: str
    ratio: float
    low: float
    high: float
    suspicious: bool = False
