"""Change: a measured quantity with its unit and direction, and what became of it."""

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
        """Comparable between machines of a kind; anything else only on the same machine."""
        return self.unit == "1"


@dataclass(frozen=True)
class Change:
    answer: Answer
    reason: str
    ratio: float  # current / base; NaN when there is none
    low: float  # interval of that ratio; NaN when there is none
    high: float
    suspicious: bool = False  # an improvement beyond 2-fold: has the work been done?
