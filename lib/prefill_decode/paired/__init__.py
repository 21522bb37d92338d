"""Paired: two checkouts' code measured in turns, and how far such answers can be trusted."""

from prefill_decode.paired.study import (
    CHAPTER,
    CHAPTER_RUNS,
    SESSIONS,
    load_study,
    run_study,
    save_study,
    summary,
)
from prefill_decode.paired.turns import (
    BUDGET_S,
    GUARD_STEPS,
    CodeComparison,
    StepComparison,
    compare_code,
    digest_of_code,
)

__all__ = [
    "BUDGET_S",
    "CHAPTER",
    "CHAPTER_RUNS",
    "GUARD_STEPS",
    "SESSIONS",
    "CodeComparison",
    "StepComparison",
    "compare_code",
    "digest_of_code",
    "load_study",
    "run_study",
    "save_study",
    "summary",
]
