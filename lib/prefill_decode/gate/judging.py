"""Judging: every quantity and verdict of the current runs against the last and the pinned ones.

All quantities together are judged at one rate of false alarms, however many they are.

Counts:  predictions and the steps' times in their own direction; a verdict that turned; what
         vanished, for a number that is gone is no pass.
Ignores: values of controls, which hold or do not (their outcome is in the verdict), and versions
         of software, which are what a gate is there to judge: they are named in the notes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from prefill_decode.change import TOLERANCE, Answer, Change, Quantity, judge_change
from prefill_decode.gate.report import Against, Report, Row, VerdictRow
from prefill_decode.results import Run, same_host, same_kind

MOST_RUNS = 5  # of each side: older ones tell of an older machine
MOST_NAMED = 3  # differences that a reason names
LONGEST_VALUE = 40  # of such a difference
STEP_PREFIXES = ("reached, ", "time, ")
SOFTWARE = ("torch", "python", "numpy", "kernels", "accelerator_driver")
NAMES_OF_A_MACHINE = ("slug", "title", "kind", "host")
MISSING, NEW = "missing in this run", "new: no baseline"
DECIDED = ("supported", "refuted")


@dataclass(frozen=True)
class _Meeting:
    """One claim's runs on one kind of machine, oldest first, and the earlier ones they meet."""

    claim: str
    against: Against
    now: Sequence[Run]
    before: Sequence[Run]  # on this kind of machine, without those that are current
    elsewhere: Sequence[Run]  # on other kinds
    repeats: bool  # a current run stood among the earlier ones

    @property
    def newest(self) -> Run:
        return self.now[-1]

    @property
    def alike(self) -> list[Run]:
        """The earlier runs with the newest one's parameters."""
        return [run for run in self.before if run.setting == self.newest.setting]


def compare(
    base: Sequence[Run],
    current: Sequence[Run],
    pinned: Sequence[Run] = (),
    tolerance: float = TOLERANCE,
) -> Report:
    """What became of each claim and quantity of `current`, against the last runs of `base` on the
    same kind of machine and against the `pinned` ones; a regression against either counts.

    ValueError for a comparison with itself, and for a quantity whose unit or direction changed.
    """
    _refuse_itself(base, current)
    meetings = [*_meetings(base, current, "last"), *_meetings(pinned, current, "pinned")]
    judged = sum(isfinite(row.change.ratio) for row in _all_rows(meetings, tolerance, 1))
    rows = _all_rows(meetings, tolerance, max(1, judged))
    verdicts = [row for meeting in meetings for row in _verdict_rows(meeting)]
    notes = [*_notes(meetings), *_machines_left_out(base, current)]
    return Report(tuple(rows), tuple(verdicts), tuple(dict.fromkeys(notes)), tolerance)


def same_machine(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether both are the same machine, used in the same way."""
    return same_kind(a, b) and same_host(a, b)


def _refuse_itself(base: Sequence[Run], current: Sequence[Run]) -> None:
    earlier = {run.run_id for run in base}
    if not current:
        raise ValueError("a comparison needs at least one current run; got none: measure first")
    if all(run.run_id in earlier for run in current):
        raise ValueError(
            f"a run is never compared with itself; all {len(current)} current runs stand in the "
            "base too: measure again, or name an older base"
        )


def _meetings(
    earlier: Sequence[Run], current: Sequence[Run], against: Against
) -> Iterator[_Meeting]:
    repeated = {run.run_id for run in current}
    for here in _by_kind(current):
        machine = here[0].machine
        near = [run for run in earlier if same_kind(run.machine, machine)]
        far = [run for run in earlier if not same_kind(run.machine, machine)]
        for claim in dict.fromkeys(run.claim for run in (*here, *near)):
            before = _of(claim, near)
            kept = [run for run in before if run.run_id not in repeated]
            repeats = len(kept) < len(before)
            yield _Meeting(claim, against, _of(claim, here), kept, _of(claim, far), repeats)


def _by_kind(runs: Sequence[Run]) -> list[list[Run]]:
    groups: list[list[Run]] = []
    for run in runs:
        group = next((g for g in groups if same_kind(g[0].machine, run.machine)), None)
        if group is None:
            groups.append([run])
        else:
            group.append(run)
    return groups


def _of(claim: str, runs: Sequence[Run]) -> list[Run]:
    return sorted((run for run in runs if run.claim == claim), key=lambda run: run.date)


def _all_rows(meetings: Sequence[_Meeting], tolerance: float, judged: int) -> list[Row]:
    return [row for meeting in meetings for row in _rows(meeting, tolerance, judged)]


def _rows(meeting: _Meeting, tolerance: float, judged: int) -> list[Row]:
    if not meeting.now:
        return []  # the claim is missing as a whole: a row of verdicts
    if meeting.before:
        if meeting.alike:
            return _judged_rows(meeting, tolerance, judged)
        other = _differences(meeting.before[-1].setting, meeting.newest.setting)
        return _rows_alike(meeting, "not comparable", f"parameters differ: {other}")
    if meeting.against == "pinned" or meeting.repeats:
        return []
    if meeting.elsewhere:
        return _rows_alike(meeting, "not comparable", _other_kind(meeting))
    return _rows_alike(meeting, "ok", NEW)


def _rows_alike(meeting: _Meeting, answer: Answer, reason: str) -> list[Row]:
    """The same answer for every quantity of the newest run."""
    change = Change(answer, reason, nan, nan, nan)
    names = [name for name in meeting.newest.quantities if _counts(name, [meeting.newest])]
    return [_row(meeting, name, [], [meeting.newest], change) for name in names]


def _judged_rows(meeting: _Meeting, tolerance: float, judged: int) -> list[Row]:
    before = meeting.alike
    now = [run for run in meeting.now if run.setting == meeting.newest.setting]
    rows = []
    # A metric that the newest earlier run no longer had is not missed any more.
    for name in dict.fromkeys([*before[-1].quantities, *meeting.newest.quantities]):
        old, new = _holding(name, before), _holding(name, now)
        if old and new and not _counts(name, [*old, *new]):
            continue
        if old and new:
            _check_same_quantity(meeting.claim, name, [*old, *new])
        change, old, new = _judge(name, old, new, meeting, tolerance, judged)
        rows.append(_row(meeting, name, old, new, change))
    return rows


def _judge(
    name: str, old: list[Run], new: list[Run], meeting: _Meeting, tolerance: float, judged: int
) -> tuple[Change, list[Run], list[Run]]:
    """The change of one quantity, and the runs of both sides that it rests on."""
    if not new:
        return _vanished(name, meeting), old[-MOST_RUNS:], []
    if not old:
        return Change("ok", NEW, nan, nan, nan), [], new[-MOST_RUNS:]
    held = new[-1].quantities[name]
    if not held.travels:
        host = new[-1].machine
        new = [run for run in new if run is new[-1] or same_host(run.machine, host)]
        old = [run for run in old if same_host(run.machine, host)]
    old, new = old[-MOST_RUNS:], new[-MOST_RUNS:]
    if not old:
        reason = "absolute times on another machine, or on one not known to be the same"
        return Change("not comparable", reason, nan, nan, nan), [], new
    before, now = ([run.quantities[name].measured for run in side] for side in (old, new))
    return judge_change(before, now, held.better, tolerance, judged), old, new


def _vanished(name: str, meeting: _Meeting) -> Change:
    """A number that is gone is no pass. But which steps a chapter times may follow from ceilings
    that it measured: where others stand in for a step, it was not dropped."""
    before = {step for step in meeting.alike[-1].quantities if step.startswith(STEP_PREFIXES)}
    now = {step for step in meeting.newest.quantities if step.startswith(STEP_PREFIXES)}
    if name in before and now - before:
        return Change("not comparable", "this run timed other steps instead", nan, nan, nan)
    return Change("regression", MISSING, nan, nan, nan)


def _counts(name: str, runs: Sequence[Run]) -> bool:
    """Whether a quantity's value is judged: a prediction's or a step's, not a control's."""
    return name.startswith(STEP_PREFIXES) or any(name in run.expected for run in runs)


def _holding(name: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if name in run.quantities]


def _check_same_quantity(claim: str, name: str, runs: Sequence[Run]) -> None:
    forms = {(q.unit, q.better) for q in (run.quantities[name] for run in runs)}
    if len(forms) > 1:
        listed = " and ".join(f"{better} is better in {unit!r}" for unit, better in sorted(forms))
        raise ValueError(
            f"{claim}: one name has one unit and one direction; {name!r} has {listed}: give what "
            "is measured now another name"
        )


def _row(
    meeting: _Meeting, name: str, old: Sequence[Run], new: Sequence[Run], change: Change
) -> Row:
    held: Quantity = next(run.quantities[name] for run in reversed([*old, *new]))
    machine = meeting.newest.machine
    return Row(
        claim=meeting.claim,
        machine=machine["title"],
        kind=machine["kind"],
        name=name,
        unit=held.unit,
        better=held.better,
        base=tuple(run.quantities[name].measured for run in old),
        current=tuple(run.quantities[name].measured for run in new),
        change=change,
        against=meeting.against,
    )


def _verdict_rows(meeting: _Meeting) -> list[VerdictRow]:
    if not meeting.now:
        machine = meeting.before[-1] if meeting.before else None
        if machine is None:
            return []
        return [_verdict_row(meeting, machine, None, "regression", MISSING)]
    if meeting.before:
        earlier = (meeting.alike or meeting.before)[-MOST_RUNS:]
        decided = [run for run in earlier if run.outcome in DECIDED] or earlier
        return [_turned(meeting, decided[-1].outcome)]
    if meeting.against == "pinned":
        return []
    if meeting.repeats:
        reason = "the same run on both sides: nothing to compare"
        return [_verdict_row(meeting, meeting.newest, meeting.newest.outcome, "ok", reason)]
    return [_travelled(meeting) if meeting.elsewhere else _new_claim(meeting)]


def _verdict_row(
    meeting: _Meeting, where: Run, base: str | None, answer: Answer, reason: str
) -> VerdictRow:
    return VerdictRow(
        claim=meeting.claim,
        machine=where.machine["title"],
        kind=where.machine["kind"],
        base=base,
        current=_outcome(meeting.now) if meeting.now else None,
        answer=answer,
        reason=reason,
        against=meeting.against,
    )


def _new_claim(meeting: _Meeting) -> VerdictRow:
    return _verdict_row(meeting, meeting.newest, None, "ok", NEW)


def _turned(meeting: _Meeting, base: str) -> VerdictRow:
    answer, reason = _turn(base, meeting.now)
    return _verdict_row(meeting, meeting.newest, base, answer, reason)


def _turn(base: str, now: Sequence[Run]) -> tuple[Answer, str]:
    current = _outcome(now)
    why = next(run.reason for run in reversed(now) if run.outcome == current)
    if current == base:
        return "ok", "as before"
    if base == "supported" and current == "refuted":
        return "regression", why
    if base == "supported" and current == "void" and _control_failed(now):
        return "regression", f"a control fails that held before: {why}"
    if current == "supported":
        return ("improvement", why) if base == "refuted" else ("ok", "decided now")
    return "inconclusive", why


def _outcome(runs: Sequence[Run]) -> str:
    """What most of the runs say; of as many, what the newest of them says."""
    outcomes = [run.outcome for run in runs[-MOST_RUNS:]]
    return max(reversed(outcomes), key=outcomes.count)


def _control_failed(runs: Sequence[Run]) -> bool:
    return any(run.outcome == "void" and run.failed_control for run in runs)


def _travelled(meeting: _Meeting) -> VerdictRow:
    """Numbers stay with their kind of machine, a verdict travels: what every other machine supports
    should hold here as well."""
    others = {_of(meeting.claim, group)[-1].outcome for group in _by_kind(meeting.elsewhere)}
    base = others.pop() if len(others) == 1 else None
    current = _outcome(meeting.now)
    if base == "supported" and current == "refuted":
        reason = "every other machine supports it"
        return _verdict_row(meeting, meeting.newest, base, "regression", reason)
    if base == current:
        reason = "as on every other machine"
        return _verdict_row(meeting, meeting.newest, base, "ok", reason)
    reason = f"no earlier run on this kind of machine; {_other_kind(meeting)}"
    return _verdict_row(meeting, meeting.newest, base, "inconclusive", reason)


def _other_kind(meeting: _Meeting) -> str:
    nearest = meeting.elsewhere[-1].machine
    ignored = (*NAMES_OF_A_MACHINE, *SOFTWARE)
    other = _differences(nearest, meeting.newest.machine, ignored)
    return f"another kind of machine: {other or nearest['title']}"


def _differences(
    before: Mapping[str, Any], now: Mapping[str, Any], ignored: Sequence[str] = ()
) -> str:
    names = [name for name in dict.fromkeys([*before, *now]) if name not in ignored]
    found = [
        f"{name} {_plain(before.get(name))} in the base, {_plain(now.get(name))} now"
        for name in names
        if before.get(name) != now.get(name)
    ]
    more = [f"{len(found) - MOST_NAMED} more"] if len(found) > MOST_NAMED else []
    return "; ".join(found[:MOST_NAMED] + more)


def _plain(value: Any) -> str:
    text = "unknown" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}..."


def _notes(meetings: Sequence[_Meeting]) -> Iterator[str]:
    for meeting in meetings:
        if not meeting.now:
            continue
        if meeting.repeats:
            where = "the base" if meeting.against == "last" else "the pinned runs"
            yield f"{meeting.claim}: a current run stands in {where} too, where it is left out"
        left = sum(run.setting != meeting.newest.setting for run in meeting.now)
        if left:
            yield f"{meeting.claim}: {left} current runs with other parameters are left out"
        if meeting.before:
            yield from _other_software((meeting.alike or meeting.before)[-1], meeting.newest)


def _other_software(before: Run, now: Run) -> Iterator[str]:
    pairs = [(name, before.machine.get(name), now.machine.get(name)) for name in SOFTWARE]
    pairs.append(("the library", before.library_version, now.library_version))
    for name, old, new in pairs:
        if old != new:
            versions = f"{name} {_plain(old)} in the base, {_plain(new)} now"
            yield f"other software, compared nonetheless: {versions}"


def _machines_left_out(base: Sequence[Run], current: Sequence[Run]) -> Iterator[str]:
    for group in _by_kind(base):
        if not any(same_kind(group[0].machine, run.machine) for run in current):
            yield f"not judged: {group[-1].machine['title']}, on which there is no current run"
