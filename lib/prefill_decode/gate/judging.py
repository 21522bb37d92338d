"""Judging: every quantity and verdict of the current runs against the last and the pinned ones.

Two families are each judged at one rate of false alarms, however many they are: predictions with
the chapters' steps taken together, and single steps. What slows all steps is sooner seen by the
first; the second finds the one step that became much slower.

Counts:  predictions and the steps' times in their own direction; a verdict that turned; what
         vanished, for a number that is gone is no pass; a name whose unit or direction changed.
         What was simulated is held against other machines' runs, too, and without a spread.
Ignores: values of controls, which hold or do not (their outcome is in the verdict), and versions
         of software, which are what a gate is there to judge: they are named in the notes.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from prefill_decode.change import TOLERANCE, Answer, Change, Quantity, judge_change, judge_simulated
from prefill_decode.gate.joint import steps_in_common, together, without_zeros
from prefill_decode.gate.report import (
    ALL_STEPS,
    Against,
    Report,
    Row,
    VerdictRow,
)
from prefill_decode.results import STEP_PREFIXES, Run, same_host, same_kind
from prefill_decode.statistics import Interval

MOST_RUNS = 5  # of each side: older ones tell of an older machine
MOST_NAMED = 3  # differences that a reason names
LONGEST_VALUE = 40  # of such a difference
SOFTWARE = ("torch", "python", "numpy", "kernels", "products", "accelerator_driver")
NAMES_OF_A_MACHINE = ("slug", "title", "kind", "host")
MISSING, NEW = "missing in this run", "new: no baseline"
DECIDED = ("supported", "refuted")
FEWEST_KINDS = 2  # other kinds of machine that must agree before their verdict is expected here

Place = tuple[str, str]  # a claim, and a kind of machine


@dataclass(frozen=True)
class _Meeting:
    """One claim's runs on one kind of machine, oldest first, and the earlier ones they meet."""

    claim: str
    against: Against
    now: Sequence[Run]
    before: Sequence[Run]  # on this kind of machine, without those that are current
    elsewhere: Sequence[Run]  # on other kinds
    again: Sequence[Run]  # those of `now` that were measured again, on suspicion
    repeats: bool  # a current run stood among the pinned ones

    @property
    def newest(self) -> Run:
        return self.now[-1]

    @property
    def alike(self) -> list[Run]:
        """The earlier runs with the newest one's parameters."""
        return [run for run in self.before if run.setting == self.newest.setting]

    @property
    def now_alike(self) -> list[Run]:
        return [run for run in self.now if run.setting == self.newest.setting]


def compare(
    base: Sequence[Run],
    current: Sequence[Run],
    pinned: Sequence[Run] = (),
    tolerance: float = TOLERANCE,
    *,
    moved: Collection[Place] = (),
    again: Sequence[Run] = (),
) -> Report:
    """What became of each claim and quantity of `current`, against the last runs of `base` on the
    same kind of machine and against the `pinned` ones; a regression against either counts.

    Where a pin has `moved` with the change under test, the change is meant, and only the pinned
    runs count. Runs made `again` are current ones too: their verdicts decide whether a turn that
    was suspected stands. ValueError for a comparison with itself.
    """
    _refuse_itself(base, current)
    known = {run.run_id for run in base}
    fresh = [run for run in (*current, *again) if run.run_id not in known]
    idle = _places(current) - _places(fresh)
    kinds = _by_kind([*current, *again])  # also those whose runs all stand in the base
    last = list(_meetings(kinds, base, fresh, again, "last", idle))
    replaced = [meeting for meeting in last if _is_replaced(meeting, pinned, moved)]
    meetings = [meeting for meeting in last if meeting not in replaced]
    meetings += _meetings(kinds, pinned, fresh, again, "pinned", idle)
    judged = _families(_all_rows(meetings, tolerance, Counter()))
    rows = _all_rows(meetings, tolerance, judged)
    verdicts = [row for meeting in meetings for row in _verdict_rows(meeting)]
    notes = [*_moved_notes(replaced), *_notes(meetings), *_without_a_new_run(current, idle)]
    notes += _machines_left_out(base, current)
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


def _places(runs: Sequence[Run]) -> set[Place]:
    return {(run.claim, run.machine["kind"]) for run in runs}


def _is_replaced(meeting: _Meeting, pinned: Sequence[Run], moved: Collection[Place]) -> bool:
    """Whether a moved baseline stands in for the last runs: it must be one of these parameters, and
    hold more than the runs under test."""
    if not meeting.now:
        return False
    here = meeting.claim, meeting.newest.machine["kind"]
    tested = {run.run_id for run in meeting.now}
    others = [run for run in pinned if run.run_id not in tested]
    fitting = [run for run in others if run.setting == meeting.newest.setting]
    return here in moved and here in _places(fitting)


def _families(rows: Sequence[Row]) -> Counter[bool]:
    """How many ratios are judged of single steps, and how many of all else."""
    return Counter(row.of_one_step for row in rows if isfinite(row.change.ratio))


def _meetings(
    kinds: Sequence[Sequence[Run]],
    earlier: Sequence[Run],
    current: Sequence[Run],
    again: Sequence[Run],
    against: Against,
    idle: Collection[Place],
) -> Iterator[_Meeting]:
    repeated = {run.run_id for run in current}
    for group in kinds:
        machine = group[0].machine
        here = [run for run in current if same_kind(run.machine, machine)]
        near = [run for run in earlier if same_kind(run.machine, machine)]
        far = [run for run in earlier if not same_kind(run.machine, machine)]
        for claim in dict.fromkeys(run.claim for run in (*here, *near)):
            if (claim, machine["kind"]) in idle:
                continue
            before, now = _of(claim, near), _of(claim, here)
            elsewhere = far
            if now and now[-1].is_simulated:  # on whatever machine: it only computed
                before, elsewhere = _of(claim, [*near, *far]), []
            kept = [run for run in before if run.run_id not in repeated]
            repeats = len(kept) < len(before)
            more = [run for run in now if run in again]
            yield _Meeting(claim, against, now, kept, _of(claim, elsewhere), more, repeats)


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


def _all_rows(meetings: Sequence[_Meeting], tolerance: float, judged: Counter[bool]) -> list[Row]:
    return [row for meeting in meetings for row in _rows(meeting, tolerance, judged)]


def _rows(meeting: _Meeting, tolerance: float, judged: Counter[bool]) -> list[Row]:
    if not meeting.now:
        return []  # the claim is missing as a whole: a row of verdicts
    if meeting.before:
        if meeting.alike:
            return [
                *_joint_rows(meeting, tolerance, max(1, judged[False])),
                *_judged_rows(meeting, tolerance, judged),
            ]
        other = _differences(meeting.before[-1].setting, meeting.newest.setting)
        return _rows_alike(meeting, "not comparable", f"parameters differ: {other}")
    if meeting.against == "pinned":
        return []
    if meeting.elsewhere:
        return _rows_alike(meeting, "not comparable", _other_kind(meeting))
    return _rows_alike(meeting, "ok", NEW)


def _rows_alike(meeting: _Meeting, answer: Answer, reason: str) -> list[Row]:
    """The same answer for every quantity of the newest run."""
    change = Change(answer, reason, nan, nan, nan)
    names = [name for name in meeting.newest.quantities if _counts(name, [meeting.newest])]
    return [_row(meeting, name, [], [meeting.newest], change) for name in names]


def _joint_rows(meeting: _Meeting, tolerance: float, judged: int) -> list[Row]:
    """All steps of the chapter as one quantity, a share, which travels between hosts of a kind."""
    before, now = meeting.alike[-MOST_RUNS:], meeting.now_alike[-MOST_RUNS:]
    steps = without_zeros(steps_in_common(before[-1], meeting.newest), [*before, *now])
    if not steps:
        return []
    old, new = together(before, steps), together(now, steps)
    change = judge_change(old, new, "higher", tolerance, judged)
    return [_row_of(meeting, ALL_STEPS, Quantity(new[-1], "1", "higher"), old, new, change)]


def _judged_rows(meeting: _Meeting, tolerance: float, judged: Counter[bool]) -> list[Row]:
    before, now = meeting.alike, meeting.now_alike
    rows = []
    # A metric that the newest earlier run no longer had is not missed any more.
    for name in dict.fromkeys([*before[-1].quantities, *meeting.newest.quantities]):
        old, new = _holding(name, before), _holding(name, now)
        if old and new and not _counts(name, [*old, *new]):
            continue
        among = max(1, judged[name.startswith(STEP_PREFIXES)])
        change, old, new = _judge(name, old, new, meeting, tolerance, among)
        rows.append(_row(meeting, name, old, new, change))
    return rows


def _judge(
    name: str, old: list[Run], new: list[Run], meeting: _Meeting, tolerance: float, judged: int
) -> tuple[Change, list[Run], list[Run]]:
    """The change of one quantity, and the runs of both sides that it rests on."""
    if name not in meeting.newest.quantities:
        return _vanished(name, meeting), old[-MOST_RUNS:], []
    if not old:
        return Change("ok", NEW, nan, nan, nan), [], new[-MOST_RUNS:]
    held, earlier = new[-1].quantities[name], old[-1].quantities[name]
    if _form(held) != _form(earlier):
        reason = f"unit or direction changed: {_form(earlier)} in the base, {_form(held)} now"
        return Change("regression", reason, nan, nan, nan), old[-1:], new[-1:]
    old, new = (_of_form(name, held, side) for side in (old, new))
    if meeting.newest.is_simulated:
        was, now = (side[-1].quantities[name].measured.median for side in (old, new))
        return judge_simulated(was, now, held.better, tolerance), old[-1:], new[-1:]
    if not held.travels:
        host = new[-1].machine
        new = [run for run in new if run is new[-1] or same_host(run.machine, host)]
        old = [run for run in old if same_host(run.machine, host)]
    old, new = old[-MOST_RUNS:], new[-MOST_RUNS:]
    if not old:
        reason = "absolute times on another machine, or on one not known to be the same"
        return Change("not comparable", reason, nan, nan, nan), [], new
    earlier_runs, these = ([run.quantities[name].measured for run in side] for side in (old, new))
    return judge_change(earlier_runs, these, held.better, tolerance, judged, held.unit), old, new


def _vanished(name: str, meeting: _Meeting) -> Change:
    """A number that is gone is no pass. But which steps a chapter times may follow from ceilings
    that it measured: where another of its family stands in for a step, it was not dropped."""
    before = [step for step in meeting.alike[-1].quantities if _family(step) == _family(name)]
    now = list(meeting.newest.quantities)
    gone = [step for step in before if step not in now]
    new = [step for step in now if _family(step) == _family(name) and step not in before]
    if name.startswith(STEP_PREFIXES) and name in gone[: len(new)]:
        instead = new[gone.index(name)]
        return Change("not comparable", f"this run has instead: {instead}", nan, nan, nan)
    return Change("regression", MISSING, nan, nan, nan)


def _family(name: str) -> tuple[str, str]:
    """What a step's number is of and the step's first word, such as decode or prefill."""
    what, _, step = name.partition(", ")
    return what, step.partition(" ")[0]


def _counts(name: str, runs: Sequence[Run]) -> bool:
    """Whether a quantity's value is judged: a prediction's or a step's, not a control's."""
    return name.startswith(STEP_PREFIXES) or any(name in run.expected for run in runs)


def _holding(name: str, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if name in run.quantities]


def _of_form(name: str, held: Quantity, runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if _form(run.quantities[name]) == _form(held)]


def _form(held: Quantity) -> str:
    return f"{held.better} is better in {held.unit!r}"


def _row(
    meeting: _Meeting, name: str, old: Sequence[Run], new: Sequence[Run], change: Change
) -> Row:
    held: Quantity = next(run.quantities[name] for run in reversed([*old, *new]))
    before, now = ([run.quantities[name].measured for run in side] for side in (old, new))
    return _row_of(meeting, name, held, before, now, change)


def _row_of(
    meeting: _Meeting,
    name: str,
    held: Quantity,
    old: Sequence[Interval],
    new: Sequence[Interval],
    change: Change,
) -> Row:
    machine = meeting.newest.machine
    return Row(
        claim=meeting.claim,
        machine=machine["title"],
        kind=machine["kind"],
        name=name,
        unit=held.unit,
        better=held.better,
        base=tuple(old),
        current=tuple(new),
        change=change,
        against=meeting.against,
    )


def _verdict_rows(meeting: _Meeting) -> list[VerdictRow]:
    if not meeting.now:
        machine = meeting.before[-1] if meeting.before else None
        if machine is None:
            return []
        return [_verdict_row(meeting, machine, machine.outcome, "regression", MISSING)]
    if meeting.before:
        earlier = _decided(meeting.alike) or _decided(meeting.before) or meeting.before
        return [_turned(meeting, earlier[-1].outcome)]
    if meeting.against == "pinned":
        return []
    return [_travelled(meeting) if meeting.elsewhere else _new_claim(meeting)]


def _verdict_row(
    meeting: _Meeting, where: Run, base: str | None, answer: Answer, reason: str
) -> VerdictRow:
    return VerdictRow(
        claim=meeting.claim,
        machine=where.machine["title"],
        kind=where.machine["kind"],
        base=base,
        current=_outcome(meeting) if meeting.now else None,
        answer=answer,
        reason=reason,
        against=meeting.against,
    )


def _new_claim(meeting: _Meeting) -> VerdictRow:
    return _verdict_row(meeting, meeting.newest, None, "ok", NEW)


def _turned(meeting: _Meeting, base: str) -> VerdictRow:
    answer, reason = _turn(base, meeting)
    return _verdict_row(meeting, meeting.newest, base, answer, reason)


def _turn(base: str, meeting: _Meeting) -> tuple[Answer, str]:
    current = _outcome(meeting)
    why = next(run.reason for run in reversed(meeting.now) if run.outcome == current)
    if current == base:
        return "ok", "as before"
    if base == "supported" and current == "refuted":
        return "regression", why
    if base == "supported" and current == "void" and any(map(_control_failed, meeting.now)):
        return "regression", f"a control fails that held before: {why}"
    if current == "supported":
        return ("improvement", why) if base == "refuted" else ("ok", "decided now")
    return "inconclusive", why


def _outcome(meeting: _Meeting) -> str:
    """What the newest run says that says something: no older one outvotes it. Only runs measured
    again do, where most of them support the claim."""
    supporting = sum(run.outcome == "supported" for run in meeting.again)
    if 2 * supporting > len(meeting.again):
        return "supported"
    first = [run for run in meeting.now if run not in meeting.again] or meeting.now
    telling = [run for run in first if run.outcome in DECIDED or _control_failed(run)]
    return (telling or first)[-1].outcome


def _decided(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.outcome in DECIDED]


def _control_failed(run: Run) -> bool:
    return run.outcome == "void" and run.failed_control


def _travelled(meeting: _Meeting) -> VerdictRow:
    """Numbers stay with their kind of machine, a verdict travels: what every other machine supports
    should hold here as well, where there are several to say so."""
    groups = _by_kind(meeting.elsewhere)
    others = {(_decided(group) or group)[-1].outcome for group in groups}
    base = others.pop() if len(others) == 1 else None
    current = _outcome(meeting)
    if base == "supported" and current == "refuted" and len(groups) >= FEWEST_KINDS:
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
            yield (
                f"{meeting.claim}: a current run is pinned too, and is not held against itself: "
                "measure once more to hold that run against the new baseline"
            )
        left = sum(run.setting != meeting.newest.setting for run in meeting.now)
        if left:
            yield f"{meeting.claim}: {left} current runs with other parameters are left out"
        if meeting.before:
            yield from _other_software((meeting.alike or meeting.before)[-1], meeting.newest)


def _moved_notes(replaced: Sequence[_Meeting]) -> Iterator[str]:
    for meeting in replaced:
        title = meeting.newest.machine["title"]
        yield f"baseline moved: {meeting.claim} on {title} is held against its new baseline alone"


def _without_a_new_run(current: Sequence[Run], idle: Collection[Place]) -> Iterator[str]:
    for group in _by_kind(current):
        claims = dict.fromkeys(r.claim for r in group if (r.claim, r.machine["kind"]) in idle)
        if claims:
            yield f"no new run of: {', '.join(claims)}, on {group[0].machine['title']}"


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
