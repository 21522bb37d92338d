"""How far the simulator's predictions lie from the engine: workloads replayed, then simulated.

    python benchmarks/accuracy.py                 # about five minutes; --help for the rest

Steps are calibrated before, between and after the workloads; no workload is used for that. Each
workload runs in real time on the engine and the scheduler that `serve` uses, in this process, and
its requests are then simulated: the same arrivals, lengths, prefixes, blocks and settings. Rates
are chosen by the first calibration so that the engine is busy `--busy` of the time. The interval of
a prediction comes from the calibration's fits; near saturation small errors of a step grow without
bound, and a workload that is predicted to be there is marked.

Counts:  queues, scheduling, planning, sampling; from a request's arrival until its tokens are on
         the host.
Ignores: HTTP, text, a second thread.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median

import numpy as np

from prefill_decode.calibrating import Calibrator, replay, use_threads
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import ServingEngine
from prefill_decode.engine.slices import choose_slice
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.measure import describe_machine
from prefill_decode.other_load import OtherLoad
from prefill_decode.request import Request, RequestRecord
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.serving_metrics import tpot_s, ttft_s
from prefill_decode.simulator import (
    Calibrated,
    Fleet,
    Outcome,
    Pool,
    Predicted,
    intervals,
    near_saturation,
    simulate,
    simulate_fits,
)
from prefill_decode.workload import gamma_arrivals, uniform_lengths

MOST_REQUESTS = 2000
LEAST_REQUESTS = 12
CALIBRATING_SHARE = 0.4  # of the budget
SEGMENTS = 3
RATES = (0.01, 200.0)  # requests/s, between which one is sought
HALVINGS = 18
CACHE_TOKENS = 32_768
NAMES = ("mean TTFT", "P95 TTFT", "mean TPOT", "P95 TPOT")


@dataclass(frozen=True)
class Workload:
    """Lengths are drawn evenly between two numbers of tokens; `texts` are beginnings, of which each
    prompt has one."""

    name: str
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    cv: float = 1.0  # of the gaps between arrivals
    settings: SchedulerSettings = field(default_factory=SchedulerSettings)
    texts: int = 0
    text_tokens: int = 0

    def requests(self, rate_per_s: float, duration_s: float, seed: int) -> list[Request]:
        """Those that arrive within the duration, at least a few. Lengths are the same at any
        rate."""
        number = max(LEAST_REQUESTS, min(MOST_REQUESTS, round(rate_per_s * duration_s)))
        arrivals_s = gamma_arrivals(1.0, MOST_REQUESTS, self.cv, seed)[:number]
        prompts = uniform_lengths(*self.prompt_tokens, MOST_REQUESTS, seed, f"{self.name} prompts")
        outputs = uniform_lengths(*self.output_tokens, MOST_REQUESTS, seed, f"{self.name} outputs")
        drawn = uniform_lengths(1, max(1, self.texts), MOST_REQUESTS, seed, f"{self.name} texts")
        return [
            Request(
                str(i),
                arrivals_s[i] / rate_per_s,
                prompts[i] + self.text_tokens,
                outputs[i],
                ((drawn[i], self.text_tokens),) if self.texts else (),
            )
            for i in range(number)
        ]


WORKLOADS = (
    Workload("prompt-heavy", (150, 500), (4, 12)),
    Workload("output-heavy", (16, 64), (50, 120)),
    Workload("bursty", (50, 250), (16, 48), cv=3.0),
    Workload(
        "whole prompts first",
        (100, 400),
        (16, 48),
        settings=SchedulerSettings("prefill_first", 1024),
    ),
    Workload("small chunks", (100, 400), (16, 48), settings=SchedulerSettings("chunked", 128)),
    Workload("shared prefixes", (16, 64), (16, 48), texts=3, text_tokens=320),
)


@dataclass(frozen=True)
class Row:
    """One figure of one workload."""

    workload: str
    figure: str
    measured: float
    predicted: Predicted

    @property
    def error(self) -> float:
        return self.predicted.value / self.measured - 1

    @property
    def covered(self) -> bool:
        return self.predicted.covers(self.measured)


def figures_of(records: Sequence[RequestRecord]) -> dict[str, float]:
    first = [ttft_s(record) for record in records]
    later = [t for t in map(tpot_s, records) if not np.isnan(t)]
    found = (np.mean(first), np.quantile(first, 0.95), np.mean(later), np.quantile(later, 0.95))
    return {name: float(value) for name, value in zip(NAMES, found, strict=True)}


def figures_of_outcome(outcome: Outcome) -> dict[str, float]:
    return figures_of(list(outcome.records()))


def fleet_of(calibrated: Calibrated, workload: Workload) -> Fleet:
    return Fleet(
        (
            Pool(
                workload.name,
                calibrated.model,
                calibrated.hardware,
                calibrated.num_blocks,
                block_tokens=calibrated.block_tokens,
                settings=workload.settings,
                calibration=calibrated.calibration,
            ),
        )
    )


def rate_for(
    calibrated: Calibrated, workload: Workload, busy: float, duration_s: float, seed: int
) -> float:
    """Requests/s at which this calibration expects the engine to be busy that much of the time."""
    low, high = RATES
    for _ in range(HALVINGS):
        rate = (low * high) ** 0.5
        outcome = simulate(
            fleet_of(calibrated, workload), workload.requests(rate, duration_s, seed)
        )
        if outcome.uses[0].busy_share < busy:
            low = rate
        else:
            high = rate
    return low


def engine_for(calibrated: Calibrated, workload: Workload, weights: Weights) -> ServingEngine:
    engine = PagedEngine(
        calibrated.model,
        "cpu",
        num_blocks=calibrated.num_blocks,
        block_tokens=calibrated.block_tokens,
        capacity_tokens=2048,
        weights=weights,
    )
    return ServingEngine(engine, workload.settings)


@dataclass(frozen=True)
class Replayed:
    workload: Workload
    requests: list[Request]
    records: list[RequestRecord]
    disturbed: bool


def compare(replayed: Replayed, calibrated: Calibrated) -> tuple[list[Row], Outcome]:
    fleet = fleet_of(calibrated, replayed.workload)
    outcome = simulate(fleet, replayed.requests)
    around = simulate_fits(fleet, replayed.requests, figures_of_outcome)
    predicted = intervals(figures_of_outcome(outcome), around)
    measured = figures_of(replayed.records)
    name = replayed.workload.name
    return [Row(name, each, measured[each], predicted[each]) for each in NAMES], outcome


def regime(outcome: Outcome, disturbed: bool) -> str:
    near = near_saturation(outcome)
    told = f"busy {outcome.uses[0].busy_share:.0%}" + (", NEAR SATURATION" if near else "")
    return told + (", disturbed" if disturbed else "")


def lines_of(row: Row, told: str) -> str:
    found = row.predicted
    scale, unit = (1e3, "ms") if row.measured < 1 else (1.0, "s")
    around = f"[{scale * found.low:.4g}, {scale * found.high:.4g}]"
    return (
        f"{row.workload:20s} {told:24s} {row.figure:10s} {scale * row.measured:8.4g} {unit:2s} "
        f"{scale * found.value:8.4g} {around:20s} {row.error:+7.1%}  "
        f"{'yes' if row.covered else 'NO'}"
    )


def measure(options: argparse.Namespace, say: Callable[[str], None]) -> dict[str, object]:
    machine = describe_machine("cpu")
    model = choose_slice(
        options.model, options.layers, "cpu", machine.cache_bytes, machine.memory_bytes
    )
    weights = random_weights(model, "cpu", options.seed)
    chosen = [each for each in WORKLOADS if not options.only or each.name in options.only]
    segment_s = CALIBRATING_SHARE * options.budget / SEGMENTS
    each_s = (1 - CALIBRATING_SHARE) * options.budget / len(chosen)
    calibrator = Calibrator(
        model,
        machine,
        ceilings_s=max(2.0, 0.03 * options.budget),
        seed=options.seed,
        weights=weights,
        num_blocks=CACHE_TOKENS // 32,
    )
    calibrator.run(segment_s)
    first = calibrator.calibrated(fits=0)
    say(f"{model.name}: {len(calibrator.episodes)} episodes calibrated, {first.num_rounds} rounds")
    done = []
    for number, workload in enumerate(chosen, 1):
        rate = rate_for(first, workload, options.busy, each_s, options.seed)
        requests = workload.requests(rate, each_s, options.seed)
        say(f"{workload.name}: {len(requests)} requests at {rate:.3g}/s")
        engine = engine_for(first, workload, weights)
        load = OtherLoad()
        records = replay(engine, requests, model.vocab_size, options.seed)
        disturbed = load.took_more_than(machine.cores - machine.threads)
        done.append(Replayed(workload, requests, records, disturbed))
        if number in (len(chosen) // 2, len(chosen)):
            calibrator.run(segment_s)
    return report(done, calibrator.calibrated(), say)


def report(
    done: Sequence[Replayed], calibrated: Calibrated, say: Callable[[str], None]
) -> dict[str, object]:
    say(f"{calibrated.num_rounds} rounds of calibration in all, residuals of the fit by kind:")
    for each in calibrated.residuals:
        say(
            f"  {each.kind}: median {each.median:.1%}, worst {each.worst_signed:+.1%} "
            f"({each.worst_step})"
        )
    say(
        f"{'workload':20s} {'regime':24s} {'figure':10s} {'measured':>11s} {'predicted':>9s} "
        f"{'interval':20s} {'error':>6s}  covered"
    )
    rows: list[Row] = []
    for replayed in done:
        found, outcome = compare(replayed, calibrated)
        for row in found:
            say(lines_of(row, regime(outcome, replayed.disturbed)))
        rows += found
    errors = [abs(row.error) for row in rows]
    say(
        f"median error {median(errors):.1%}, largest {max(errors):.1%}; within 10 %: "
        f"{sum(error <= 0.1 for error in errors)} of {len(rows)}; covered: "
        f"{sum(row.covered for row in rows)} of {len(rows)}"
    )
    return {
        "rows": [{**asdict(row), "error": row.error, "covered": row.covered} for row in rows],
        "residuals": [asdict(each) for each in calibrated.residuals],
        "calibration": asdict(replace(calibrated.calibration, fits=())),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="laptop-254m")
    parser.add_argument("--layers", type=int, default=4, help="of the model (4)")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds, about (300)")
    parser.add_argument("--busy", type=float, default=0.5, help="share of the time (0.5)")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=[each.name for each in WORKLOADS])
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    options = parser.parse_args(arguments)
    if options.threads is not None:
        use_threads(options.threads)
    found: Mapping[str, object] = measure(options, lambda line: print(line, flush=True))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
