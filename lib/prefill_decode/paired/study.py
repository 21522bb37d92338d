"""Study: how far comparisons of code on this machine can be trusted, measured on equal code.

Sessions of one checkout against itself (sessions.py) say how often an alarm is false and how often
a planted slowdown is caught (rates.py); fresh runs of a chapter say how far records lie apart
(chapter_spread.py). The document of a study is strict JSON without raw pairs, checked against
study.schema.json when written and when read: RESULTS/trust/MACHINE.json.

Ignores: other machines and other days; slowdowns that are not a spinning host.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import log
from pathlib import Path
from statistics import median, quantiles, stdev
from typing import Any

from jsonschema import Draft202012Validator

from prefill_decode import __version__
from prefill_decode.change import TOLERANCE
from prefill_decode.paired.chapter_spread import chapter_spread
from prefill_decode.paired.pairs import Kind, Pair, that_count
from prefill_decode.paired.rates import RESAMPLES, all_rates
from prefill_decode.paired.sessions import (
    CHAPTER_FILE,
    SESSIONS_FILE,
    SORTS,
    KeptRun,
    Plan,
    RunChapterOnce,
    Session,
    gather_study,
)
from prefill_decode.paired.sides import Job, Steps
from prefill_decode.paired.turns import BUDGET_S, GUARD_STEPS, Say, checkout
from prefill_decode.results.files import check_values, parse, read_text, write_atomically

SESSIONS = 16
CHAPTER_RUNS = 8
CHAPTER = "decode_is_bandwidth_bound"  # whose runs say how far records lie apart
LARGEST_STUDY_BYTES = 1_000_000
STUDY = "a study"
IQR_OF_NORMAL = 1.349  # interquartile range of a normal distribution, in standard deviations

Study = dict[str, Any]


def run_study(
    root: Path,
    folder: Path,
    *,
    sessions: int = SESSIONS,
    budget_s: float = BUDGET_S,
    device: str = "auto",
    chapter_runs: int = CHAPTER_RUNS,
    run_chapter_once: RunChapterOnce | None = None,
    again: bool = False,
    seed: int = 0,
    model_name: str | Mapping[str, Any] = "auto",
    steps: Steps = GUARD_STEPS,
    resamples: int = RESAMPLES,
    say: Say = lambda words: None,
) -> Study:
    """The study of the checkout `root`; finished parts in `folder` are used, unless `again`.

    Takes three times `budget_s` for each session, and what `chapter_runs` calls of
    `run_chapter_once` take. ValueError for damaged or unlike earlier parts."""
    if sessions < 1 or chapter_runs < 0 or not 0 < budget_s < float("inf"):
        raise ValueError(
            "a study needs at least one session of a positive budget, and no less than no chapter "
            f"runs; got {sessions}, {budget_s} and {chapter_runs}"
        )
    if again:
        for name in (SESSIONS_FILE, CHAPTER_FILE):
            (folder / name).unlink(missing_ok=True)
    job = Job(steps, model_name, device, seed)
    plan = Plan(checkout(root), folder, job, sessions, budget_s, chapter_runs, _commit(root))
    held, runs = gather_study(plan, run_chapter_once, say)
    say("evaluating ...")
    return make_study(held, runs, budget_s, seed, resamples)


def make_study(
    sessions: Sequence[Session],
    runs: Sequence[KeptRun],
    budget_s: float,
    seed: int,
    resamples: int = RESAMPLES,
) -> Study:
    """The document, from raw parts alone: the same parts and seed make the same document.

    Its date and commit are those of the newest session."""
    newest = max(sessions, key=lambda session: session.date)
    pairs = [session.pairs for session in sessions]
    steps = list(sessions[0].setting["steps"])
    study: Study = {
        "schema_version": 1,
        "kind": "trust study",
        "machine": dict(sessions[0].machine),
        "model": sessions[0].setting["model"],
        "commit": newest.commit,
        "library_version": __version__,
        "date": newest.date,
        "budget_s": budget_s,
        "tolerance": TOLERANCE,
        "sessions": len(sessions),
        "rates": all_rates(pairs, steps, seed, resamples),
        "noise": {step: _noise(pairs, step) for step in steps},
        "distributions": {
            sort: {step: _medians(pairs, Kind(step, share)) for step in steps}
            for sort, share in SORTS.items()
        },
    }
    chapter = chapter_spread(runs, TOLERANCE, seed)
    return {**study, "chapter": chapter} if chapter else study


def save_study(study: Study, path: Path) -> None:
    """Write it whole or not at all. ValueError, with nothing written, if it is not valid."""
    _check(study, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(study, indent=1, allow_nan=False) + "\n")


def load_study(path: Path) -> Study:
    """A study from its file. ValueError says in one sentence why a file is not one, or how to make
    one where there is none."""
    try:
        text = read_text(path, LARGEST_STUDY_BYTES, STUDY)
    except ValueError as error:
        raise ValueError(f"{error}: prefill-decode trust makes one") from error
    study: Study = parse(text, path, STUDY)
    _check(study, path)
    return study


def summary(study: Study) -> str:
    """A line for each rate."""
    return "\n".join(f"{name}: {_told(found)}" for name, found in _rates(study).items())


def _told(found: Mapping[str, Any]) -> str:
    interval = "" if found["low"] is None else f", {found['low']:.1%} to {found['high']:.1%}"
    return f"{found['count']} of {found['of']} ({found['share']:.1%}{interval})"


def _rates(study: Study) -> dict[str, Any]:
    return {**study["rates"], **study.get("chapter", {}).get("rates", {})}


def _noise(sessions: Sequence[Sequence[Pair]], step: str) -> dict[str, float | None]:
    """Of equal codes, in logs: the spread of pairs within a session, of medians between them."""
    logs = [_logs(session, Kind(step)) for session in sessions]
    apart = [value - median(held) for held in logs for value in held]
    lower, _, upper = quantiles(apart, n=4, method="inclusive")
    medians = [median(held) for held in logs]
    return {
        "n_pairs": median(map(len, logs)),
        "pair_spread": (upper - lower) / IQR_OF_NORMAL,
        "session_spread": stdev(medians) if len(medians) > 1 else None,
    }


def _medians(sessions: Sequence[Sequence[Pair]], kind: Kind) -> list[float]:
    return [median(_logs(session, kind)) for session in sessions]


def _logs(session: Sequence[Pair], kind: Kind) -> list[float]:
    """Log of current / base in the pairs of one kind that count."""
    chosen = that_count([pair for pair in session if pair.kind == kind])
    return [log(pair.current_s / pair.base_s) for pair in chosen]


def _check(study: Any, path: Path) -> None:
    check_values(study, path, STUDY)
    error = next(_validator().iter_errors(study), None)
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "the study"
        raise ValueError(f"{path}: not a study: {where}: {error.message[:200]}")
    for name, found in _rates(study).items():
        if not _is_rate(found):
            raise ValueError(
                f"{path}: not a study: {name}: a share is count / of and lies in its interval, "
                f"if it has one; got {found}"
            )


def _is_rate(found: Mapping[str, Any]) -> bool:
    low, high, share = found["low"], found["high"], found["count"] / found["of"]
    if (low is None) != (high is None) or abs(found["share"] - share) > 1e-9:
        return False
    return low is None or bool(low <= share <= high)


@cache
def _validator() -> Draft202012Validator:
    text = (files("prefill_decode") / "study.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


def _commit(root: Path) -> str | None:
    """The checkout's commit, "+changes" when its library differs from it; None without git."""
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", "lib")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+changes" if changed else commit


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
