"""Sessions: raw pairs of one checkout against itself, kept as they come, so that a study resumes.

A session starts two fresh processes of the same code and gathers three sorts of pairs in turns:
both sides equal, and the current side slowed on purpose by 10 % and by 5 %. FOLDER/sessions.jsonl
holds a line for each finished session, FOLDER/chapter_runs.jsonl one for each run of the chapter.
Each line says when it was measured and on which code; lines of other code are not pooled.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from prefill_decode.change import Quantity
from prefill_decode.paired.pairs import SIDES, Kind, Pair
from prefill_decode.paired.sides import Job
from prefill_decode.paired.turns import Gathered, Say, digest_of_code, gather_sessions
from prefill_decode.results import DATE_FORMAT, STEP_PREFIXES, interval_of, stored_interval

SORTS = {"equal": 0.0, "planted 10%": 0.10, "planted 5%": 0.05}  # share planted on one side
SESSIONS_FILE, CHAPTER_FILE = "sessions.jsonl", "chapter_runs.jsonl"


class ChapterRun(Protocol):
    """What the study reads of a run of a chapter."""

    @property
    def claim(self) -> str: ...
    @property
    def date(self) -> str: ...
    @property
    def quantities(self) -> Mapping[str, Quantity]: ...
    @property
    def expected(self) -> Mapping[str, object]: ...


RunChapterOnce = Callable[[], ChapterRun]


@dataclass(frozen=True)
class Session:
    setting: Mapping[str, Any]  # what must be equal to pool sessions
    machine: Mapping[str, Any]
    pairs: tuple[Pair, ...]
    date: str  # when its last pair was measured
    commit: str | None


@dataclass(frozen=True)
class KeptRun:
    """A chapter's run as the study keeps it: the quantities that a comparison judges."""

    claim: str
    quantities: Mapping[str, Quantity]
    date: str
    code: str  # digest of the library that was measured


@dataclass(frozen=True)
class Plan:
    """What a study is to hold."""

    root: Path
    folder: Path
    job: Job
    sessions: int
    budget_s: float  # of each sort of pairs in a session
    chapter_runs: int
    commit: str | None = None

    @property
    def kinds(self) -> list[Kind]:
        return [Kind(step, share) for share in SORTS.values() for step in self.job.steps]


def gather_study(
    plan: Plan, run_chapter_once: RunChapterOnce | None, say: Say
) -> tuple[list[Session], list[KeptRun]]:
    """All that the plan asks for: what the folder holds already, and the rest measured now.

    The chapter's runs are spread over the sessions, so that they see as much of the day."""
    sessions = read_sessions(plan.folder / SESSIONS_FILE)
    runs = read_chapter_runs(plan.folder / CHAPTER_FILE)
    code = digest_of_code(plan.root)
    _check_resumable(sessions, runs, plan)
    plan.folder.mkdir(parents=True, exist_ok=True)
    for number in range(plan.sessions):
        if number >= len(sessions):
            say(f"session {number + 1} of {plan.sessions}")
            sessions.append(_measure_session(plan, number, sessions, say))
            _append(plan.folder / SESSIONS_FILE, _stored_session(sessions[-1]))
        due = plan.chapter_runs * (number + 1) // plan.sessions
        while run_chapter_once and len(runs) < due:
            say(f"chapter run {len(runs) + 1} of {plan.chapter_runs}")
            runs.append(_kept(run_chapter_once(), code))
            _append(plan.folder / CHAPTER_FILE, _stored_run(runs[-1]))
    return sessions[: plan.sessions], runs[: plan.chapter_runs]


def read_sessions(path: Path) -> list[Session]:
    """Every session of the file; none where there is no file. ValueError names a bad line."""
    return _read_lines(path, _session)


def read_chapter_runs(path: Path) -> list[KeptRun]:
    """Every run of the file; none where there is no file. ValueError names a bad line."""
    return _read_lines(path, _chapter_run)


def _measure_session(plan: Plan, number: int, earlier: Sequence[Session], say: Say) -> Session:
    budget_s = plan.budget_s * len(SORTS)
    found: Gathered = gather_sessions(
        dict.fromkeys(SIDES, plan.root),
        plan.job,
        plan.kinds,
        budget_s,
        f"study {plan.job.seed}, {number}",
        say,
        session_s=budget_s,
    )
    setting = {
        **_asked(plan),
        "machine": found.machine["slug"],
        "model": f"{found.model['name']}, {found.model['dtype']}",
    }
    session = Session(setting, found.machine, found.pairs, _now(), plan.commit)
    _check_alike([*earlier, session])
    return session


def _asked(plan: Plan) -> dict[str, Any]:
    """The part of a setting that is known before anything is measured."""
    return {
        "budget_s": plan.budget_s,
        "steps": {name: [list(chunk) for chunk in step] for name, step in plan.job.steps.items()},
        "sorts": dict(SORTS),
        "code": digest_of_code(plan.root),
    }


def _check_resumable(sessions: Sequence[Session], runs: Sequence[KeptRun], plan: Plan) -> None:
    _check_alike(sessions)
    asked = _asked(plan)
    if any(run.code != asked["code"] for run in runs):
        raise ValueError(
            f"the chapter runs in {plan.folder} are of another state of the library: begin afresh "
            "with --again"
        )
    for key in asked if sessions else ():
        if sessions[0].setting.get(key) != asked[key]:
            raise ValueError(
                f"the sessions in {plan.folder} have {key} {sessions[0].setting.get(key)}, and "
                f"{asked[key]} is asked for: ask for the same, or begin afresh with --again"
            )


def _check_alike(sessions: Sequence[Session]) -> None:
    for session in sessions:
        unlike = [k for k, v in session.setting.items() if sessions[0].setting.get(k) != v]
        if unlike:
            raise ValueError(
                "sessions are pooled only when they are alike; these differ in "
                f"{', '.join(unlike)}: begin afresh with --again"
            )


def _now() -> str:
    return datetime.now(UTC).strftime(DATE_FORMAT)


def _kept(run: ChapterRun, code: str) -> KeptRun:
    """Predictions and points; a control's number is a ruler, not a result."""
    judged = {
        name: quantity
        for name, quantity in run.quantities.items()
        if name in run.expected or name.startswith(STEP_PREFIXES)
    }
    return KeptRun(run.claim, judged, run.date, code)


def _append(path: Path, stored: Mapping[str, Any]) -> None:
    """One line more, on the disk before anything else is measured."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(stored, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _read_lines(path: Path, parse: Callable[[Any], Any]) -> list[Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(parse(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"{path}, line {number}: not a finished measurement ({error!r:.120}); remove the "
                "line, or begin afresh with --again"
            ) from error
    return found


def _stored_session(session: Session) -> dict[str, Any]:
    names = {share: sort for sort, share in SORTS.items()}
    pairs: dict[str, dict[str, list[Any]]] = {}
    for pair in session.pairs:
        steps = pairs.setdefault(names[pair.kind.planted], {})
        times = [pair.base_s, pair.current_s, pair.disturbed]
        steps.setdefault(pair.kind.step, []).append(times)
    facts = {"date": session.date, "commit": session.commit}
    return {**facts, "setting": session.setting, "machine": session.machine, "pairs": pairs}


def _session(stored: Any) -> Session:
    pairs = tuple(
        _pair(Kind(step, SORTS[sort]), *values)
        for sort, steps in stored["pairs"].items()
        for step, held in steps.items()
        for values in held
    )
    missing = {Kind(s, p) for s in stored["setting"]["steps"] for p in SORTS.values()}
    missing -= {pair.kind for pair in pairs}
    if missing:
        raise ValueError(f"no pairs of {', '.join(sorted(kind.step for kind in missing))}")
    setting, machine = dict(stored["setting"]), dict(stored["machine"])
    return Session(setting, machine, pairs, str(stored["date"]), stored["commit"])


def _pair(kind: Kind, base_s: float, current_s: float, disturbed: bool) -> Pair:
    if not all(isinstance(t, float) and t > 0 and isfinite(t) for t in (base_s, current_s)):
        raise ValueError(f"times are positive and finite; got {base_s} and {current_s}")
    if not isinstance(disturbed, bool):
        raise TypeError(f"a pair is disturbed or not; got {disturbed!r}")
    return Pair(kind, base_s, current_s, disturbed)


def _stored_run(run: KeptRun) -> dict[str, Any]:
    return {
        "claim": run.claim,
        "date": run.date,
        "code": run.code,
        "quantities": {
            name: stored_interval(quantity.measured, quantity.unit, quantity.better)
            for name, quantity in run.quantities.items()
        },
    }


def _chapter_run(stored: Any) -> KeptRun:
    quantities = {name: _quantity(held) for name, held in stored["quantities"].items()}
    return KeptRun(str(stored["claim"]), quantities, str(stored["date"]), str(stored["code"]))


def _quantity(held: Mapping[str, Any]) -> Quantity:
    interval = interval_of(held)
    if not isfinite(interval.median):
        raise ValueError(f"a run has a median; got {interval.median}")
    return Quantity(interval, held["unit"], held["better"])
