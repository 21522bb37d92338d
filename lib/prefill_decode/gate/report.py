"""Report: what the gate found, as rows, as strict JSON and as Markdown for a pull request."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from math import exp, isfinite, isnan, log
from statistics import geometric_mean, median
from typing import Any, Literal, TypeVar

from prefill_decode.change import RATIO_UNIT, Answer, Better, Change
from prefill_decode.results import STEP_PREFIXES
from prefill_decode.statistics import Interval
from prefill_decode.units import counted, format_seconds, format_significant, seconds_unit

Against = Literal["last", "pinned"]
SIGNS: dict[Answer, str] = {
    "regression": "✗",
    "improvement": "✓",
    "inconclusive": "?",
    "not comparable": "–",
    "ok": "",
}
WORST_FIRST: list[Answer] = ["regression", "improvement", "inconclusive", "not comparable", "ok"]
NO_SPACE = "\u200b"  # takes no room, and ends what would be a mention or a link
MARKUP = str.maketrans(
    {letter: f"\\{letter}" for letter in "\\|`[]!*~"}
    | {"&": "&amp;", "<": "&lt;", "@": f"@{NO_SPACE}", "$": "<span>$</span>"}
)
UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")  # inside a word it is no emphasis
AUTOLINK = re.compile(r":(?=//)|\bwww(?=\.)", re.IGNORECASE)  # what begins one without a bracket
HEADER = ("answer", "claim", "what", "base", "now", "now / base", "against", "why")
ALL_STEPS = "all steps together"  # the name of a chapter's joint row
STANDS, DOES_NOT_STAND = "stands", "does not stand"


@dataclass(frozen=True)
class Row:
    """One quantity of one claim on one kind of machine, and what became of it."""

    claim: str
    machine: str  # its title
    kind: str
    name: str
    unit: str
    better: Better
    base: tuple[Interval, ...]  # one for each run, oldest first; none when it is new
    current: tuple[Interval, ...]  # none when it is missing
    change: Change
    against: Against
    again: str = ""  # what measuring again said, STANDS or DOES_NOT_STAND

    @property
    def answer(self) -> Answer:
        return self.change.answer

    @property
    def reason(self) -> str:
        return self.change.reason

    @property
    def of_one_step(self) -> bool:
        return self.name.startswith(STEP_PREFIXES)


@dataclass(frozen=True)
class VerdictRow:
    """One claim's verdict on one kind of machine, before and now; None where there is none."""

    claim: str
    machine: str
    kind: str
    base: str | None
    current: str | None
    answer: Answer
    reason: str
    against: Against
    again: str = ""
    name: str = "verdict"


AnyRow = TypeVar("AnyRow", Row, VerdictRow)


@dataclass(frozen=True)
class Report:
    rows: tuple[Row, ...]
    verdicts: tuple[VerdictRow, ...]
    notes: tuple[str, ...]
    tolerance: float
    problems: tuple[str, ...] = ()  # a sentence for each file that could not be used

    @property
    def comparisons(self) -> list[Row | VerdictRow]:
        both: list[Row | VerdictRow] = [*self.verdicts, *self.rows]
        return both

    @property
    def failing(self) -> list[Row | VerdictRow]:
        return [row for row in self.comparisons if row.answer == "regression"]

    @property
    def failed(self) -> bool:
        """Whether something got worse, or a file could not be used: it might have told so."""
        return bool(self.failing or self.problems)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for strict JSON: what is unknown is null."""
        document = {"failed": self.failed, **asdict(self)}
        return {name: _strict(value) for name, value in document.items()}

    def markdown(self) -> str:
        """The gate's verdict, what changed, and the rest folded away."""
        told = self.comparisons
        changed = [row for row in told if _is_told_first(row)]
        changed.sort(key=lambda row: WORST_FIRST.index(row.answer))
        parts = [
            _sentence(self),
            _table(changed),
            _bullets("", _undecided(self.rows)),
            _folded(f"All {len(told)} comparisons", _table(told)),
            _bullets("Notes:", self.notes),
            _bullets("Not usable:", self.problems),
        ]
        return "\n\n".join(part for part in parts if part)


def confirm(first: Report, second: Report, measured: Collection[tuple[str, str]]) -> Report:
    """`first`, its regressions replaced by what `second` says of them with runs measured again.

    `measured` names the claims and kinds of machine that were; only what looked worse is judged
    again, as judging everything again would look for new false alarms.
    """
    rows = {_key(row): row for row in second.rows}
    verdicts = {_key(row): row for row in second.verdicts}

    def again(row: AnyRow, later: dict[Any, AnyRow]) -> AnyRow:
        if row.answer != "regression" or (row.claim, row.kind) not in measured:
            return row
        found = later.get(_key(row), row)
        stands = STANDS if found.answer == "regression" else DOES_NOT_STAND
        return replace(found, again=stands)

    return replace(
        first,
        rows=tuple(again(row, rows) for row in first.rows),
        verdicts=tuple(again(row, verdicts) for row in first.verdicts),
    )


def _key(row: Row | VerdictRow) -> tuple[str, str, str, str]:
    return row.claim, row.kind, row.name, row.against


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {name: _strict(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    return value


def _is_told_first(row: Row | VerdictRow) -> bool:
    if isinstance(row, VerdictRow):
        return row.answer != "ok" or bool(row.again)
    return row.answer in ("regression", "improvement") or bool(row.again)


def _sentence(report: Report) -> str:
    told = report.comparisons
    counts = Counter(row.answer for row in told)
    listed = ", ".join(f"{counts[answer]} {answer}" for answer in WORST_FIRST if counts[answer])
    if report.failing:
        says = f"{len(report.failing)} of {len(told)} comparisons got worse"
    elif not told:
        says = "nothing was compared"
    else:
        says = f"of {len(told)} comparisons none is shown to be worse{_unseen(report.rows)}"
    if report.problems:
        files = counted(len(report.problems), "file")
        says = f"{files} could not be used, so that the result cannot be trusted; {says}"
    answer = "fails" if report.failed else "passes"
    listed = f"{listed}; " if listed else ""
    return f"**The gate {answer}:** {says} ({listed}tolerance {100 * report.tolerance:.3g}%)."


def _unseen(rows: Sequence[Row]) -> str:
    """What a pass does not say: how small a change would not have been seen."""
    shares = [row for row in rows if row.unit == RATIO_UNIT]  # their times are known less well
    steps = _smallest_seen([row for row in shares if row.of_one_step])
    chapters = _smallest_seen([row for row in rows if row.name == ALL_STEPS])
    if not steps:
        return ""
    also = f", of a chapter's steps together below about {chapters}-fold" if chapters else ""
    return f"; of single steps, changes below about {steps}-fold would not be{also}"


def _smallest_seen(rows: Sequence[Row]) -> str:
    """The fold by which half of these would have to change; empty where no ratio was judged."""
    changes = [row.change for row in rows if isfinite(row.change.ratio)]
    halves = [log(change.high / change.low) / 2 for change in changes]
    return format_significant(exp(median(halves))) if halves else ""


def _undecided(rows: Sequence[Row]) -> list[str]:
    """Sentences for what neither changed nor is known to be well: there may be many of a kind."""
    reasons = Counter(
        (row.answer, row.reason)
        for row in rows
        if row.answer in ("inconclusive", "not comparable") and not row.again
    )
    return [f"{count} {answer}: {reason}" for (answer, reason), count in reasons.most_common()]


def _table(rows: Sequence[Row | VerdictRow]) -> str:
    if not rows:
        return ""
    lines = [HEADER, ["---"] * len(HEADER), *(_cells(row) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cells(row: Row | VerdictRow) -> list[str]:
    why = row.reason + (f"; measured again: {row.again}" if row.again else "")
    if isinstance(row, VerdictRow):
        base, now, ratio = row.base or "none", row.current or "none", ""
    else:
        base, now = (_side(side, row.unit) for side in (row.base, row.current))
        ratio = _ratio(row.change)
    return [
        f"{SIGNS[row.answer]} {row.answer}".strip(),
        _escape(f"{row.claim}, {row.machine}"),
        _escape(row.name),
        base,
        now,
        ratio,
        row.against,
        _escape(why),
    ]


def _side(runs: Sequence[Interval], unit: str) -> str:
    """One run's median with its interval; of several, their mean, which the change is about."""
    if not runs:
        return "none"
    if len(runs) == 1:
        return _interval(runs[0], unit)
    medians = [run.median for run in runs]
    middle = geometric_mean(medians) if all(medians) else median(medians)
    return f"{_number(middle, unit)}, {len(runs)} runs"


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return format_seconds(value)
    return format_significant(value) + ("" if unit == "1" else f" {_escape(unit)}")


def _interval(run: Interval, unit: str) -> str:
    factor, name = seconds_unit(run.median) if unit == "s" else (1.0, "" if unit == "1" else unit)
    middle, low, high = (
        format_significant(value / factor) for value in (run.median, run.low, run.high)
    )
    ends = "too few" if isnan(run.low) else f"{low}, {high}"
    return f"{middle} [{ends}] {_escape(name)}".rstrip()


def _ratio(change: Change) -> str:
    if isnan(change.ratio):
        return ""
    return _interval(Interval(change.ratio, change.low, change.high, 0), "1")


def _escape(text: str) -> str:
    """Text that stays within its cell and is no markup, link, mathematics or mention."""
    plain = " ".join(text.split()).translate(MARKUP)
    return AUTOLINK.sub(f"\\g<0>{NO_SPACE}", UNDERSCORE.sub(r"\\_", plain))


def _bullets(heading: str, lines: Sequence[str]) -> str:
    listed = "\n".join(f"- {_escape(line)}" for line in lines)
    return f"{heading}\n\n{listed}".strip() if lines else ""


def _folded(summary: str, inner: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{inner}\n\n</details>"
