"""Atlas page: crossovers of models and accelerators as a shaded table, and those that records
hold.
"""

import re
from collections.abc import Sequence
from html import escape
from math import log

from prefill_decode.crossover import crossover_in_rounds
from prefill_decode.crossover_atlas import Entry, atlas
from prefill_decode.hardware import accelerators
from prefill_decode.hf_config import shipped
from prefill_decode.measure import Timings
from prefill_decode.plots.tables import format_interval, table
from prefill_decode.results import Record, interval_of
from prefill_decode.units import format_significant

BATCHING = "batching_recovers_utilization"
SPECIFIC = "the_crossover_is_specific"
SHADE = "rgba(43, 131, 198, {:.2f})"
DARKEST = 0.55  # so that text stays legible on light and on dark pages
STEP_NAME = re.compile(r"(?P<sweep>.+), (?P<batch>\d+) sequences")


def atlas_table(context_tokens: int) -> str:
    """Every shipped model on every accelerator with a known bf16 peak, as HTML that scrolls."""
    rows = atlas(shipped(), accelerators(), context_tokens)
    shown = [each.crossover for row in rows for each in row]
    span = log(min(shown)), log(max(shown))
    header = "".join(f"<th>{escape(each.accelerator.name)}</th>" for each in rows[0])
    lines = [
        f"<tr><th>{escape(row[0].model.name)}</th>"
        + "".join(_cell(each, span) for each in row)
        + "</tr>"
        for row in rows
    ]
    return (
        '<div class="atlas" tabindex="0" role="region" aria-label="Predicted crossovers at '
        f'{context_tokens} tokens"><table><thead><tr><th>model</th>{header}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def measured_table(records: Sequence[Record]) -> str:
    """Crossovers that records hold, each with its machine."""
    rows = [row for record in records for row in _measured_rows(record)]
    if not rows:
        return "No record holds one yet."
    header = ("machine", "model or shape", "dtype", "predicted from its ceilings", "measured, 95%")
    return table(header, rows)


def _cell(each: Entry, span: tuple[float, float]) -> str:
    place = (log(each.crossover) - span[0]) / ((span[1] - span[0]) or 1.0)
    words = _short(each.crossover)
    if each.crossover_all_awake > 1.01 * each.crossover:
        words += f" to {_short(each.crossover_all_awake)}"
    if each.devices is not None and each.devices > 1:
        words += f" ×{each.devices}"
    if each.has_room is False:
        words += " †"
    return f'<td style="background: {SHADE.format(DARKEST * place)}">{words}</td>'


def _measured_rows(record: Record) -> list[tuple[str, ...]]:
    if record["claim"] == SPECIFIC:
        return _swept(record)
    if record["claim"] != BATCHING:
        return []
    model = record["model"]
    return [
        (
            record["machine"]["title"],
            f"{model['name']}, {record['parameters'].get('context_tokens', '?')} tokens",
            model["dtype"],
            format_significant(metric["expected"]),
            format_interval(interval_of(metric["measured"])),
        )
        for metric in record["metrics"]
        if metric["name"] == "crossover, sequences"
    ]


def _swept(record: Record) -> list[tuple[str, ...]]:
    """A row for each sweep of the chapter, from the raw times of its steps."""
    stored = record["timings"]
    times = Timings(
        raw_s={name: tuple(values) for name, values in stored["raw_s"].items()},
        warmup_s={},
        disturbed=tuple(stored["disturbed"]),
        stopped_because=stored["stopped_because"],
        duration_s=stored["duration_s"],
    )
    sweeps: dict[str, dict[int, list[float]]] = {}
    for name in times.raw_s:
        if found := STEP_NAME.fullmatch(name):
            steps = sweeps.setdefault(found["sweep"], {})
            steps[int(found["batch"])] = times.times_s(name)
    dtypes = record["parameters"].get("dtypes", [])
    return [
        (
            record["machine"]["title"],
            ", ".join(word for word in sweep.split(", ") if word not in dtypes),
            next((word for word in sweep.split(", ") if word in dtypes), "?"),
            "in the chapter",
            format_interval(crossover_in_rounds(steps)),
        )
        for sweep, steps in sweeps.items()
    ]


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else format_significant(value, 2)
