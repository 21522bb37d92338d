"""Paired: two checkouts' code measured in turns, and how far such answers can be trusted."""

from prefill_decode.paired.turns import (
    BUDGET_S,
    GUARD_STEPS,
    TOLERANCE,
    CodeComparison,
    StepComparison,
    compare_code,
)

__all__ = [
    "BUDGET_S",
    "GUARD_STEPS",
    "TOLERANCE",
    "CodeComparison",
    "StepComparison",
    "compare_code",
]
