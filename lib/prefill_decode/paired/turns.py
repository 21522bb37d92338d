"""Turns: is one checkout's code slower than another's? Both are measured in turns, here and now.

Records made at different hours can only be screened, because a shared machine drifts by more than
a small change is worth. Two processes that take turns share the drift. What they do not share is
their memory's layout, luck that lasts as long as a process: a long budget is split into sessions
of fresh processes, and a suspected regression is measured again in fresh processes, with twice the
budget, before it is reported.

Ignores: what the guard steps do not run (schedulers, pages, checks); changes of a step's result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import ceil, isfinite
from pathlib import Path
from statistics import median
from typing import Any

from prefill_decode.change import TOLERANCE, Answer, Change
from prefill_decode.paired.pairs import (
    Kind,
    Pair,
    Side,
    confirm,
    judge_kind,
    take_turns,
    that_count,
)
from prefill_decode.paired.sides import Job, Steps, two_sides, watching
from prefill_decode.units import format_seconds

GUARD_STEPS: Steps = {  # both phases, and the batch between them
    "decode x1": [(1, 512, 1)],
    "decode x8": [(1, 512, 8)],
    "prefill 64": [(64, 0, 1)],
}
BUDGET_S = 40.0
SESSION_S = 40.0
CONFIRMING_BUDGETS = 2

Say = Callable[[str], None]


@dataclass(frozen=True)
class Gathered:
    """Pairs of one or more sessions, and what the workers said of themselves."""

    pairs: tuple[Pair, ...]
    sessions: int
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    versions: Mapping[Side, str]


Gather = Callable[[Sequence[Kind], float, str], Gathered]  # (kinds, budget_s, seed)


@dataclass(frozen=True)
class StepComparison:
    step: str
    n: int  # pairs that count, of the measuring that decided
    num_disturbed: int  # pairs in which other processes took the cores
    base_s: float  # median
    current_s: float
    first: Change
    second: Change | None  # after a suspicion, measured again

    @property
    def decisive(self) -> Change:
        return self.second or self.first

    @property
    def answer(self) -> Answer:
        return confirm(self.first, self.second)[0]

    @property
    def reason(self) -> str:
        return confirm(self.first, self.second)[1]

    def as_dict(self) -> dict[str, Any]:
        changes = {"first": _change_dict(self.first), "second": _change_dict(self.second)}
        return {**asdict(self), **changes, "answer": self.answer, "reason": self.reason}


@dataclass(frozen=True)
class CodeComparison:
    steps: tuple[StepComparison, ...]
    base: str
    current: str
    budget_s: float
    tolerance: float
    planted: float
    sessions: int
    machine: Mapping[str, Any]
    model: Mapping[str, Any]
    versions: Mapping[Side, str]

    @property
    def failed(self) -> bool:
        return any(step.answer == "regression" for step in self.steps)

    def as_dict(self) -> dict[str, Any]:
        """For strict JSON: what is unknown is null."""
        steps = [step.as_dict() for step in self.steps]
        return {"kind": "code comparison", "failed": self.failed, **asdict(self), "steps": steps}

    def markdown(self) -> str:
        """A sentence with the verdict, a table of the steps, how it was measured."""
        return "\n".join([_headline(self), "", *_table(self.steps), "", _method(self)]) + "\n"


def compare_code(
    base: Path,
    current: Path,
    *,
    device: str = "auto",
    budget_s: float = BUDGET_S,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    planted: float = 0.0,
    model_name: str | Mapping[str, Any] = "auto",
    steps: Steps = GUARD_STEPS,
    say: Say = lambda words: None,
) -> CodeComparison:
    """Whether the checkout `current` is slower than the checkout `base`, step by step.

    Takes about `budget_s` and the start of two processes; three times that when a regression is
    suspected. `planted` slows the current side by that share, to see whether it is found.
    ValueError if either checkout cannot be timed."""
    _check(budget_s=budget_s, tolerance=tolerance)
    if not 0 <= planted < 10:
        raise ValueError(f"planted is a share of the step's time from 0 to 10; got {planted}")
    roots: dict[Side, Path] = {"base": checkout(base), "current": checkout(current)}
    job = Job(steps, model_name, device, seed)

    def gather(kinds: Sequence[Kind], budget_s: float, seed: str) -> Gathered:
        return gather_sessions(roots, job, kinds, budget_s, seed, say)

    kinds = [Kind(step, planted) for step in steps]
    return compare_by(gather, kinds, roots, budget_s, tolerance, f"seed {seed}", say)


def compare_by(
    gather: Gather,
    kinds: Sequence[Kind],
    roots: Mapping[Side, Path],
    budget_s: float,
    tolerance: float,
    seed: str,
    say: Say,
) -> CodeComparison:
    """`compare_code`, with pairs from wherever `gather` takes them."""
    found = gather(kinds, budget_s, seed)
    first = {kind: judge_kind(found.pairs, kind, tolerance) for kind in kinds}
    suspected = [kind for kind in kinds if first[kind].answer == "regression"]
    again, second = found, dict[Kind, Change]()
    if suspected:
        say(f"measuring again what may be slower: {', '.join(kind.step for kind in suspected)}")
        again = gather(suspected, CONFIRMING_BUDGETS * budget_s, f"{seed}, again")
        second = {kind: judge_kind(again.pairs, kind, tolerance) for kind in suspected}
    return CodeComparison(
        steps=tuple(
            _step((again if k in second else found).pairs, k, first[k], second.get(k))
            for k in kinds
        ),
        base=str(roots["base"]),
        current=str(roots["current"]),
        budget_s=budget_s,
        tolerance=tolerance,
        planted=kinds[0].planted,
        sessions=found.sessions + (again.sessions if second else 0),
        machine=found.machine,
        model=found.model,
        versions=found.versions,
    )


def gather_sessions(
    roots: Mapping[Side, Path],
    job: Job,
    kinds: Sequence[Kind],
    budget_s: float,
    seed: str,
    say: Say = lambda words: None,
    session_s: float = SESSION_S,
) -> Gathered:
    """Pairs of as many sessions of fresh processes as the budget holds, pooled."""
    count = ceil(budget_s / session_s)
    wanted = {kind.step for kind in kinds}
    job = replace(job, steps={name: job.steps[name] for name in job.steps if name in wanted})
    pairs: list[Pair] = []
    for number in range(count):
        say(f"session {number + 1} of {count}, {budget_s / count:.0f} s in turns ...")
        session = f"{seed}, session {number}"
        with two_sides(roots, job, session) as workers:
            asks = {side: worker.time_s for side, worker in workers.items()}
            pairs += take_turns(asks, kinds, budget_s / count, session, watch=watching(workers))
            facts = {side: worker.facts for side, worker in workers.items()}
    return Gathered(
        pairs=tuple(pairs),
        sessions=count,
        machine=facts["current"]["machine"],
        model=facts["current"]["model"],
        versions={side: str(facts[side]["library_version"]) for side in facts},
    )


def checkout(root: Path) -> Path:
    """`root` as an absolute path. ValueError unless it holds the library."""
    if not (root / "lib" / "prefill_decode" / "__init__.py").is_file():
        raise ValueError(f"a checkout holds lib/prefill_decode; {root} does not")
    return root.resolve()


def digest_of_code(root: Path) -> str:
    """Of everything that the library in this checkout consists of."""
    digest = sha256()
    for path in sorted((root / "lib" / "prefill_decode").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _check(**positive: float) -> None:
    for name, value in positive.items():
        if not (isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number; got {value}")


def _step(
    pairs: Sequence[Pair], kind: Kind, first: Change, second: Change | None
) -> StepComparison:
    mine = [pair for pair in pairs if pair.kind == kind]
    counting = that_count(mine)
    return StepComparison(
        step=kind.step,
        n=len(counting),
        num_disturbed=sum(pair.disturbed for pair in mine),
        base_s=median(pair.base_s for pair in counting),
        current_s=median(pair.current_s for pair in counting),
        first=first,
        second=second,
    )


def _change_dict(change: Change | None) -> dict[str, Any] | None:
    if change is None:
        return None
    return {
        key: None if isinstance(value, float) and not isfinite(value) else value
        for key, value in asdict(change).items()
    }


def _headline(comparison: CodeComparison) -> str:
    slower = [step.step for step in comparison.steps if step.answer == "regression"]
    unsure = [step.step for step in comparison.steps if step.answer == "inconclusive"]
    if slower:
        return f"**Slower: {', '.join(slower)}.**"
    if unsure:
        return f"**No regression found; not decided for {', '.join(unsure)}.**"
    return f"**Not slower: a regression of {comparison.tolerance:.0%} is excluded in every step.**"


def _table(steps: Sequence[StepComparison]) -> list[str]:
    rows = [
        "| step | base | current | time, current / base | pairs | answer |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for step in steps:
        change = step.decisive
        interval = f"{change.ratio:.3f} ({_end(change.low)} to {_end(change.high)})"
        times = f"{format_seconds(step.base_s)} | {format_seconds(step.current_s)}"
        name = step.step.replace("|", "\\|")
        answer = f"{step.answer}: {step.reason}"
        rows.append(f"| {name} | {times} | {interval} | {step.n} | {answer} |")
    return rows


def _end(value: float) -> str:
    return f"{value:.3f}" if isfinite(value) else "unknown"


def _method(comparison: CodeComparison) -> str:
    disturbed = sum(step.num_disturbed for step in comparison.steps)
    words = (
        f"{comparison.model['name']} in {comparison.model['dtype']} on "
        f"{comparison.machine['title']}; both codes in turns, {comparison.budget_s:.0f} s, "
        f"{comparison.sessions} session(s) of fresh processes; intervals at 99 %"
    )
    if comparison.planted:
        words += f"; the current side slowed on purpose by {comparison.planted:.0%}"
    if disturbed:
        words += f"; other processes took the cores in {disturbed} pairs"
    return words + "."
