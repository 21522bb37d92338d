"""Beside: one claim's result on each recorded machine, as the table near the end of its chapter.

This machine stands first. Sizes are chosen for each machine, so machines need not have made the
same predictions: below each machine stand its own, a row each."""

from collections.abc import Mapping, Sequence

from prefill_decode.book.results_pages import plain
from prefill_decode.book.surprises import findings, ours_and_theirs
from prefill_decode.plots.machine_figures import shown_of
from prefill_decode.plots.tables import SIGNS, format_interval, table
from prefill_decode.results import Record, Run, run_of
from prefill_decode.units import format_significant

HEADER = ("machine, its predictions", "verdict; measured, 95%", "claim expects", "rival expects")


def beside_others(
    claim: str, records: Sequence[Record], slug: str, names: Mapping[str, str]
) -> str:
    """CLAIM's section, with the machines' `names`; empty where nobody has a record."""
    runs = [run_of(record) for record in records if record["claim"] == claim]
    if not runs:
        return ""
    shown = shown_of(runs, slug)
    whole = f"Every number, and a figure: {{ref}}`all machines <machines-{claim}>`."
    if not ours_and_theirs(runs, slug)[1]:  # its numbers stand in the verdict
        return f"## {_heading(runs, slug)}\n\n{_surprises(runs, slug)} {whole}"
    header = [each.replace("measured", _seen(runs)) for each in HEADER]
    rows = [row for run in shown for row in _rows(run, slug, names)]
    return f"## {_heading(runs, slug)}\n\n{table(header, rows)}\n\n{_surprises(runs, slug)} {whole}"


def _seen(runs: Sequence[Run]) -> str:
    return "simulated" if runs[0].is_simulated else "measured"


def _heading(runs: Sequence[Run], slug: str) -> str:
    mine, others = ours_and_theirs(runs, slug)
    return "This machine beside others" if mine and others else "On other machines"


def _rows(run: Run, slug: str, names: Mapping[str, str]) -> list[tuple[str, ...]]:
    """The machine with its verdict, then a row for each prediction."""
    here = run.machine["slug"]
    title = plain(f"this machine: {names[here]}" if here == slug else names[here])
    first = (f"**{title}**", f"{SIGNS[run.outcome]} {run.outcome}", "", "")
    return [first, *(_prediction(run, name) for name in run.expected)]


def _prediction(run: Run, name: str) -> tuple[str, ...]:
    quantity = run.quantities.get(name)
    measured = format_interval(quantity.measured) if quantity else "not measured"
    return (plain(name), measured, *map(format_significant, run.expected[name]))


def _surprises(runs: Sequence[Run], slug: str) -> str:
    mine, others = ours_and_theirs(runs, slug)
    if mine is None:
        return "This machine has no record of this claim."
    if not others:
        return "No other machine has a record of this claim yet."
    found = findings(runs, slug)
    if not found:
        return "Nothing on this machine lies apart from all others."
    return f"Apart from all others: {plain('; '.join(found))}."
