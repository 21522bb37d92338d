"""Report: rounds as they are kept, pooled and shown.

A ratio is taken inside each quiet round that holds both engines; its interval is over rounds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.tables import format_interval, table
from prefill_decode.roofline import step_work
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds, format_si

OURS = "ours"
START_MARK, END_MARK = "<!-- engines -->", "<!-- end of engines -->"


@dataclass(frozen=True)
class Round:
    """One step on every engine, and the ceilings among them."""

    step: str
    times_s: Mapping[str, float]  # engine: time
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    disturbed: bool  # other processes took the cores


@dataclass(frozen=True)
class Record:
    """Rounds of one machine, one model and one version of each engine."""

    machine: str
    model: str
    threads: int
    versions: Mapping[str, str]
    rounds: tuple[Round, ...]

    def pooled_with(self, new: "Record") -> "Record":
        """Both runs' rounds. ValueError if they are not of one kind."""
        same = (self.machine, self.model, self.threads) == (new.machine, new.model, new.threads)
        if not same or any(self.versions.get(e, v) != v for e, v in new.versions.items()):
            raise ValueError(
                "only rounds of one machine, model, number of threads and version of each engine "
                f"are pooled; the file has {self.machine}, {self.model}, {self.threads} threads, "
                f"{self.versions}, this run {new.machine}, {new.model}, {new.threads} threads, "
                f"{new.versions}: name another file"
            )
        versions = {**self.versions, **new.versions}
        return Record(self.machine, self.model, self.threads, versions, self.rounds + new.rounds)


def read_record(path: Path) -> Record:
    fields = json.loads(path.read_text())
    return Record(**{**fields, "rounds": tuple(Round(**each) for each in fields["rounds"])})


def write_record(record: Record, path: Path) -> None:
    path.write_text(json.dumps(asdict(record), indent=1) + "\n")


def report(record: Record) -> str:
    """The table, and what it was measured on and with."""
    model = hf_config.get(record.model).with_dtype("float32")
    rounds = record.rounds
    quiet = [r for r in rounds if not r.disturbed]
    closing = [
        f"{record.machine}, {record.threads} threads; {record.model} in float32, "
        f"{len(rounds)} rounds, of which {len(rounds) - len(quiet)} left out because other "
        "processes took the cores."
    ]
    closing += ceilings_and_versions(record)
    return engines_table(rounds, model) + "\n\n" + " ".join(closing)


def ceilings_and_versions(record: Record) -> list[str]:
    """A sentence on the ceilings of the quiet rounds, if there were any, and one on what ran."""
    quiet = [r for r in record.rounds if not r.disturbed]
    said = []
    if quiet:
        peak = median_interval([r.peak_flops_per_s for r in quiet]).median
        bandwidth = median_interval([r.bandwidth_bytes_per_s for r in quiet]).median
        said.append(
            f"Ceilings in these rounds, medians: {format_si(peak, 'FLOP/s')} and "
            f"{format_si(bandwidth, 'B/s')}."
        )
    versions = "; ".join(f"{name} {version}" for name, version in record.versions.items())
    return [*said, f"Versions: {versions}."]


def engines_table(rounds: Sequence[Round], model: ModelSpec) -> str:
    """A row a step: each engine's median time and its time over ours, with the 95 % interval."""
    known = {name for each in rounds for name in each.times_s}
    engines = [OURS, *sorted(known - {OURS})]
    rows = []
    for step in sorted({each.step for each in rounds}, key=_place):
        cells = [_cell(rounds, step, engine) for engine in engines]
        rows.append((step, *cells, _reached(rounds, step, model)))
    return table(("step", *engines, "ceilings: ours reaches"), rows)


def _place(step: str) -> tuple[bool, int]:
    """Prefill before decode, then by size."""
    kind, size, *_ = step.split()
    return kind != "prefill", int(size)


def _cell(rounds: Sequence[Round], step: str, engine: str) -> str:
    if not (alone := times_s(rounds, step, engine)[0]):
        return ""
    time = format_seconds(median_interval(alone).median)
    both = times_s(rounds, step, engine, OURS)
    if engine == OURS or not both[0]:
        return f"{time}, n={len(alone)}"
    return f"{time}, × {format_interval(ratio_interval(*both))}, n={len(both[0])}"


def _reached(rounds: Sequence[Round], step: str, model: ModelSpec) -> str:
    if not times_s(rounds, step, OURS)[0]:
        return ""
    return f"{share_reached(rounds, step, model).median:.0%}"


def times_s(rounds: Sequence[Round], step: str, *engines: str) -> list[list[float]]:
    """Each engine's times in the quiet rounds of `step` that hold all of `engines`."""
    held = _quiet(rounds, step, engines)
    return [[r.times_s[engine] for r in held] for engine in engines]


def _quiet(rounds: Sequence[Round], step: str, engines: Sequence[str]) -> list[Round]:
    ran = [r for r in rounds if r.step == step and set(engines) <= set(r.times_s)]
    return [r for r in ran if not r.disturbed]


def share_reached(rounds: Sequence[Round], step: str, model: ModelSpec) -> Interval:
    """Our engine's least time / time, round by round, each with that round's own ceilings."""
    work = step_work(model, chunks_of(step))
    shares = []
    for r in _quiet(rounds, step, [OURS]):
        ceilings = Hardware("", model.dtype, r.peak_flops_per_s, r.bandwidth_bytes_per_s, "here")
        shares.append(work.least_time_s(ceilings) / r.times_s[OURS])
    return median_interval(shares)


def chunks_of(step: str) -> list[Chunk]:
    match step.split():
        case ["prefill", tokens]:
            return [Chunk(int(tokens))]
        case ["decode", batch, "at", context_tokens]:
            return [Chunk(1, int(context_tokens))] * int(batch)
    raise ValueError(f"a step is 'prefill N' or 'decode B at N'; got {step!r}")


def write_between_marks(path: Path, text: str, marks: tuple[str, str]) -> None:
    start_mark, end_mark = marks
    before, _, rest = path.read_text().partition(start_mark)
    _, found, after = rest.partition(end_mark)
    if not found:
        raise ValueError(f"{path} needs the lines {start_mark} and {end_mark} around the table")
    path.write_text(f"{before}{start_mark}\n{text}\n{end_mark}{after}")
