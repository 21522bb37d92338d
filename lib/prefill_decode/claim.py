"""Claim: what a notebook asserts, what would refute it, and the verdict.

A prediction names the value its claim expects and the value its strongest rival expects, both
before anything is measured. The measured interval then decides between them on a log scale:
wholly on the claim's side of their geometric midpoint is "supported", wholly on the rival's side
"refuted", across it "inconclusive". A control that fails, or a result that physics forbids, makes
the verdict "void": the ruler is broken, and nothing measured with it counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from typing import Literal

from prefill_decode.statistics import Interval
from prefill_decode.units import format_significant

Outcome = Literal["supported", "refuted", "inconclusive", "void"]
LEAST_CONTRAST = 2.0  # expected and rival closer than this cannot be told apart by timing
LIMIT_TOLERANCE = 0.05  # the limit was measured too, with its own error


@dataclass(frozen=True)
class Prediction:
    """A positive, dimensionless quantity: a ratio of times or a share of a ceiling.

    `physical_limit` is the largest value that is possible; a larger one is a measuring error.
    """

    name: str
    expected: float
    rival: float
    physical_limit: float = inf

    def __post_init__(self) -> None:
        if not (0 < self.expected < inf and 0 < self.rival < inf and self.physical_limit > 0):
            raise ValueError(
                f"{self.name!r} is judged on a log scale, so expected, rival and limit must be "
                "positive, and the first two finite; got "
                f"{self.expected}, {self.rival} and {self.physical_limit}"
            )
        if self.expected > self.physical_limit:
            raise ValueError(
                f"{self.name!r} expects {self.expected}, more than its limit {self.physical_limit}"
            )

    @property
    def midpoint(self) -> float:
        return sqrt(self.expected) * sqrt(self.rival)

    @property
    def contrast(self) -> float:
        """How many fold the two stories differ."""
        return max(self.expected, self.rival) / min(self.expected, self.rival)

    def judge(self, measured: Interval) -> "Judgement":
        outcome, reason = self._outcome(measured)
        return Judgement(self, measured, outcome, reason)

    def _outcome(self, measured: Interval) -> tuple[Outcome, str]:
        if measured.low > self.physical_limit * (1 + LIMIT_TOLERANCE):
            limit = format_significant(self.physical_limit)
            return "void", f"above the physical limit of {limit}: the ruler is broken"
        if self.contrast < LEAST_CONTRAST:
            return "inconclusive", (
                f"cannot decide here: claim and rival differ only {self.contrast:.2f}-fold, "
                f"less than {LEAST_CONTRAST:g}-fold"
            )
        if not (isfinite(measured.low) and isfinite(measured.high)):
            return "inconclusive", f"{measured.n} samples are too few for an interval"
        claims_smaller = self.expected < self.rival
        wholly_below, wholly_above = measured.high < self.midpoint, measured.low > self.midpoint
        if wholly_below if claims_smaller else wholly_above:
            return "supported", "the whole interval lies on the claim's side"
        if wholly_above if claims_smaller else wholly_below:
            return "refuted", "the whole interval lies on the rival's side"
        return "inconclusive", "the interval holds the midpoint between claim and rival"


@dataclass(frozen=True)
class Judgement:
    prediction: Prediction
    measured: Interval
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str
    predictions: tuple[Judgement, ...]
    controls: tuple[Judgement, ...]


@dataclass(frozen=True)
class Claim:
    statement: str
    predictions: Sequence[Prediction]
    controls: Sequence[Prediction]  # must hold, or the ruler is broken

    def __post_init__(self) -> None:
        names = [prediction.name for prediction in (*self.predictions, *self.controls)]
        if not self.predictions or not self.controls:
            raise ValueError(
                f"a claim needs a prediction and a control; {self.statement!r} has "
                f"{len(self.predictions)} and {len(self.controls)}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"predictions and controls need names of their own; got {names}")

    def judge(self, measured: Mapping[str, Interval], broken_ruler: Sequence[str] = ()) -> Verdict:
        """The verdict. `broken_ruler` says why nothing that was measured counts.

        ValueError unless every prediction and control is measured, and nothing else.
        """
        names = {prediction.name for prediction in (*self.predictions, *self.controls)}
        if names != set(measured):
            raise ValueError(
                "every prediction needs its measurement and nothing else; these lack their "
                "other half: "
                f"{', '.join(sorted(names ^ set(measured)))}"
            )
        predictions = tuple(p.judge(measured[p.name]) for p in self.predictions)
        controls = tuple(c.judge(measured[c.name]) for c in self.controls)
        outcome, reason = _combine(predictions, controls, broken_ruler)
        return Verdict(outcome, reason, predictions, controls)


def _combine(
    predictions: Sequence[Judgement], controls: Sequence[Judgement], broken_ruler: Sequence[str]
) -> tuple[Outcome, str]:
    for words in broken_ruler:
        return "void", f"{words}: the ruler is broken"
    for judgement in (*controls, *predictions):
        if judgement.outcome == "void":
            return "void", f"{judgement.prediction.name}: {judgement.reason}"
    for control in controls:
        if control.prediction.contrast < LEAST_CONTRAST:
            return "inconclusive", f"the control {control.prediction.name}: {control.reason}"
        if control.outcome != "supported":
            return "void", f"the control failed ({control.prediction.name}: {control.reason})"
    for outcome in ("refuted", "inconclusive"):
        for judgement in predictions:
            if judgement.outcome == outcome:
                return outcome, f"{judgement.prediction.name}: {judgement.reason}"
    return "supported", "every prediction holds and so does every control"
