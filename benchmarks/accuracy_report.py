"""What was replayed beside what is predicted of it: figures, intervals, errors, a table."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from accuracy_workloads import Workload

from prefill_decode.calibrating import Calibrator
from prefill_decode.fleet_claims.loads import FIGURES, busiest, figures_of
from prefill_decode.request import Request, RequestRecord
from prefill_decode.simulator import (
    Calibrated,
    Fleet,
    Outcome,
    Pool,
    Predicted,
    Role,
    Transfer,
    intervals,
    near_saturation,
    simulate,
    simulate_fits,
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


def figures_of_outcome(outcome: Outcome) -> dict[str, float]:
    return figures_of(list(outcome.records()))


def fleet_of(calibrated: Calibrated, workload: Workload, transfer: Transfer) -> Fleet:
    roles: tuple[Role, ...] = ("prefill", "decode") if workload.apart else ("both",)
    pools = [
        Pool(
            role,
            calibrated.model,
            calibrated.hardware,
            calibrated.num_blocks,
            role=role,
            block_tokens=calibrated.block_tokens,
            settings=workload.settings,
            calibration=calibrated.calibration,
        )
        for role in roles
    ]
    return Fleet(tuple(pools), transfer=transfer)


@dataclass(frozen=True)
class Replayed:
    workload: Workload
    requests: list[Request]
    records: list[RequestRecord]
    disturbed: bool
    calibrator: Calibrator
    transfer: Transfer


def compare(replayed: Replayed, calibrated: Calibrated) -> tuple[list[Row], Outcome]:
    fleet = fleet_of(calibrated, replayed.workload, replayed.transfer)
    outcome = simulate(fleet, replayed.requests)
    around = simulate_fits(fleet, replayed.requests, figures_of_outcome)
    predicted = intervals(figures_of_outcome(outcome), around)
    measured = figures_of(replayed.records)
    name = replayed.workload.name
    return [Row(name, each, measured[each], predicted[each]) for each in FIGURES], outcome


def regime(outcome: Outcome, disturbed: bool) -> str:
    near = near_saturation(outcome)
    told = f"busy {busiest(outcome):.0%}" + (", NEAR SATURATION" if near else "")
    return told + (", disturbed" if disturbed else "")


def line_of(row: Row, told: str) -> str:
    found = row.predicted
    scale, unit = (1e3, "ms") if row.measured < 1 else (1.0, "s")
    around = f"[{scale * found.low:.4g}, {scale * found.high:.4g}]"
    return (
        f"{row.workload:24s} {told:26s} {row.figure:10s} {scale * row.measured:8.4g} {unit:2s} "
        f"{scale * found.value:9.4g} {around:20s} {row.error:+7.1%}  "
        f"{'yes' if row.covered else 'NO'}"
    )


def report(done: Sequence[Replayed], say: Callable[[str], None]) -> dict[str, object]:
    found: list[tuple[Row, str]] = []
    calibrations = []
    for calibrator in dict.fromkeys(replayed.calibrator for replayed in done):
        calibrated = calibrator.calibrated()
        calibrations.append(replace(calibrated.calibration, fits=()))
        say_fit(calibrated, say)
        for replayed in done:
            if replayed.calibrator is calibrator:
                rows, outcome = compare(replayed, calibrated)
                found += [(row, regime(outcome, replayed.disturbed)) for row in rows]
    say(
        f"{'workload':24s} {'regime':26s} {'figure':10s} {'measured':>11s} {'predicted':>9s} "
        f"{'interval':20s} {'error':>6s}  covered"
    )
    for row, told in found:
        say(line_of(row, told))
    errors = [abs(row.error) for row, _ in found]
    say(
        f"median error {median(errors):.1%}, largest {max(errors):.1%}; within 10 %: "
        f"{sum(error <= 0.1 for error in errors)} of {len(errors)}; covered: "
        f"{sum(row.covered for row, _ in found)} of {len(errors)}"
    )
    return {
        "rows": [
            {**asdict(row), "regime": told, "error": row.error, "covered": row.covered}
            for row, told in found
        ],
        "calibrations": [asdict(each) for each in calibrations],
    }


def say_fit(calibrated: Calibrated, say: Callable[[str], None]) -> None:
    say(f"{calibrated.num_rounds} rounds of calibration in all; the fit errs")
    for each in calibrated.residuals:
        say(
            f"  {each.kind}: by {each.median:.1%} in the median, {each.worst_signed:+.1%} at worst "
            f"({each.worst_step})"
        )
