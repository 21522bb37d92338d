"""Surprises: where one machine's result for a claim differs from those of all others.

A verdict surprises when no other machine has it, a figure when its interval overlaps that of no
other. Figures of a void run do not count. Simulated ones depend on no machine, so they are compared
at equal settings only. Both are a screen and no proof: an interval speaks of one run, and another
hour's moves further."""

from collections.abc import Mapping, Sequence

from prefill_decode.plots.machine_figures import in_order, labels, stands_apart
from prefill_decode.plots.tables import format_interval
from prefill_decode.results import Record, Run, run_of
from prefill_decode.statistics import Interval
from prefill_decode.units import format_significant

VOID = "void"
NOTHING = "nothing: no verdict and no figure lies apart from those of all other machines"
NOBODY = "nothing to compare: no other machine has a record of these claims"


def findings(runs: Sequence[Run], slug: str) -> list[str]:
    """Of one claim's runs: what lies apart on the machine SLUG, a clause each."""
    mine, others = ours_and_theirs(runs, slug)
    if mine is not None and mine.is_simulated:
        others = [run for run in others if run.setting == mine.setting]
    if mine is None or not others:
        return []
    titles = labels([mine, *others], slug)
    sound = [run for run in others if run.outcome != VOID]
    names = mine.expected if mine.outcome != VOID else ()
    clauses = [clause for name in names if (clause := _apart(mine, sound, name, titles))]
    verdicts = {run.outcome for run in others}
    if mine.outcome not in verdicts:
        elsewhere = " and ".join(sorted(verdicts))
        clauses.insert(0, f"the verdict is {mine.outcome} here and {elsewhere} elsewhere")
    return clauses


def findings_by_claim(
    claims: Sequence[str], records: Sequence[Record], slug: str
) -> dict[str, list[str]]:
    """Of each claim that both SLUG and another machine have a record of: what lies apart."""
    found = {}
    for claim in claims:
        runs = [run_of(record) for record in records if record["claim"] == claim]
        if all(ours_and_theirs(runs, slug)):
            found[claim] = findings(runs, slug)
    return found


def no_findings(found: Mapping[str, Sequence[str]]) -> str:
    """What to say where `findings_by_claim` found nothing."""
    return NOTHING if found else NOBODY


def surprise_lines(
    chapters: Sequence[str], records: Sequence[Record], slug: str, others: Sequence[Record]
) -> list[str]:
    """For a terminal: a line for each surprise of SLUG's `records` beside the `others` that were
    made elsewhere, or one that says that there is none."""
    mine = [record for record in records if record["machine"]["slug"] == slug]
    elsewhere = [record for record in others if record["machine"]["slug"] != slug]
    found = findings_by_claim(chapters, [*mine, *elsewhere], slug)
    lines = [f"  ! {chapter}: {clause}" for chapter in found for clause in found[chapter]]
    return lines or [f"  {no_findings(found)}"]


def ours_and_theirs(runs: Sequence[Run], slug: str) -> tuple[Run | None, list[Run]]:
    """The newest run of the machine SLUG, if there is one, and that of each other machine."""
    ordered = in_order(runs, slug)
    mine = next((run for run in ordered if run.machine["slug"] == slug), None)
    return mine, [run for run in ordered if run is not mine]


def _apart(mine: Run, others: Sequence[Run], name: str, titles: Mapping[str, str]) -> str:
    """How this machine differs from all others in one prediction; empty if it does not."""
    if name not in mine.quantities:
        return ""
    measured = mine.quantities[name].measured
    theirs = [
        (titles[run.machine["slug"]], run.quantities[name].measured)
        for run in others
        if name in run.expected and name in run.quantities
    ]
    nearest = stands_apart(measured, [each for _, each in theirs])
    if nearest is None or format_interval(nearest) == format_interval(measured):
        return ""
    title = next(title for title, each in theirs if each is nearest)
    side = "above" if measured.low > nearest.high else "below"
    many = "every other machine; the nearest is" if len(theirs) > 1 else "the other machine,"
    return (
        f"{name} is {format_interval(measured)}, {side} {many} {title} with "
        f"{format_interval(nearest)}{_fold(measured, nearest)}"
    )


def _fold(measured: Interval, nearest: Interval) -> str:
    smaller, larger = sorted((measured.median, nearest.median))
    return f" ({format_significant(larger / smaller)}-fold apart)" if smaller > 0 else ""
