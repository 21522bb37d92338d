"""How far the simulator's predictions lie from the engine: workloads replayed, then simulated.

    python benchmarks/accuracy.py                 # about five minutes; --help for the rest

Steps are calibrated before and after the workloads, between them where there are many; no workload
is used for that. Where prefill and decode have a process each, on a processor of its own where
there are two, steps are calibrated again with that process' one thread, before and after, and the
link between the two is measured as `prefill-decode link` does. Each workload runs in real time on
the engine and the scheduler that `serve` uses, in this process, and its requests are then
simulated: the same arrivals, lengths, prefixes, blocks and settings. Rates are chosen by the first
calibration so that the engine is busy `--busy` of the time. The interval of a prediction comes from
the calibration's fits; near saturation small errors of a step grow without bound, and a workload
that is predicted to be there is marked.

Counts:  queues, scheduling, planning, sampling; from a request's arrival until its tokens are on
         the host.
Ignores: HTTP, text. That two processes on one machine slow each other down, which the calibration
         of one alone does not see: by a few hundredths where they only share memory (README), so
         predictions lie that much too low; without bound where others want their cores, and a
         workload during which they waited for one is marked.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from accuracy_report import Replayed, fleet_of, report
from accuracy_workloads import WORKLOADS, Workload
from processes import family_cpu_s

from prefill_decode.calibrating import (
    Calibrator,
    replay,
    use_threads,
    warm_up,
)
from prefill_decode.disaggregated import link as linking
from prefill_decode.disaggregated.launch import Fleet as Workers
from prefill_decode.disaggregated.launch import workers_here
from prefill_decode.disaggregated.link_report import fits_of
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.engine.slices import choose_slice
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.fleet_claims.loads import rate_that_keeps_busy
from prefill_decode.measure import describe_machine, interleave
from prefill_decode.other_load import OtherLoad
from prefill_decode.request import Request, RequestRecord
from prefill_decode.simulator import Calibrated, Transfer

CALIBRATING_SHARE = 0.45  # of the budget
LINK_S = 6.0
MOST_ROWS = 512  # of a step
MOST_TOKENS = 2048  # of a sequence
CACHE_TOKENS = 32_768
FEW = 3  # workloads, for which steps are calibrated before and after
WAITING_TOLERATED = 0.05  # of the time: how long an engine's threads may wait for a core


def rate_for(
    calibrated: Calibrated,
    workload: Workload,
    transfer: Transfer,
    busy: float,
    duration_s: float,
    seed: int,
) -> float:
    """Requests/s at which this calibration expects the busiest engine to be busy that much of the
    time."""
    fleet = fleet_of(calibrated, workload, transfer)
    return rate_that_keeps_busy(fleet, lambda rate: workload.requests(rate, duration_s, seed), busy)


def engine_for(calibrated: Calibrated, workload: Workload, weights: Weights) -> ServingEngine:
    engine = PagedEngine(
        calibrated.model,
        "cpu",
        num_blocks=calibrated.num_blocks,
        block_tokens=calibrated.block_tokens,
        capacity_tokens=MOST_TOKENS,
        weights=weights,
    )
    return ServingEngine(engine, workload.settings)


@dataclass(frozen=True)
class Plan:
    """What to run, and for how long."""

    model_name: str
    layers: int
    chosen: Sequence[Workload]
    budget_s: float
    busy: float
    seed: int
    say: Callable[[str], None]

    @property
    def segment_s(self) -> float:
        apart = sum(workload.apart for workload in self.chosen)
        whole = len(self.chosen) - apart
        segments = 2 * (apart > 0) + 2 * (whole > 0) + (whole > FEW)
        return CALIBRATING_SHARE * self.budget_s / segments

    @property
    def each_s(self) -> float:
        return (1 - CALIBRATING_SHARE) * self.budget_s / len(self.chosen)

    def calibrator(self) -> Calibrator:
        """With the threads that torch now has."""
        machine = describe_machine("cpu")
        cache_bytes, memory_bytes = machine.cache_bytes, machine.memory_bytes
        model = choose_slice(self.model_name, self.layers, "cpu", cache_bytes, memory_bytes)
        return Calibrator(
            model,
            machine,
            ceilings_s=max(2.0, 0.02 * self.budget_s),
            seed=self.seed,
            weights=random_weights(model, "cpu", self.seed),
            num_blocks=CACHE_TOKENS // BLOCK_TOKENS,
        )

    def requests(
        self, calibrated: Calibrated, workload: Workload, transfer: Transfer
    ) -> list[Request]:
        rate = rate_for(calibrated, workload, transfer, self.busy, self.each_s, self.seed)
        found = workload.requests(rate, self.each_s, self.seed)
        self.say(f"{workload.name}: {len(found)} requests at {rate:.3g}/s")
        return found


def together(plan: Plan) -> list[Replayed]:
    """Workloads on one engine in this process."""
    chosen = [workload for workload in plan.chosen if not workload.apart]
    if not chosen:
        return []
    calibrator = plan.calibrator()
    calibrator.run(plan.segment_s)
    first = calibrator.calibrated(fits=0)
    plan.say(f"{first.model.name}, {first.num_rounds} rounds of calibration")
    done = []
    for number, workload in enumerate(chosen, 1):
        requests = plan.requests(first, workload, Transfer())
        engine = engine_for(first, workload, calibrator.runner.engine.weights)
        if number == 1:
            warm_up(engine, first.model.vocab_size, MOST_ROWS)
        records, disturbed = watched(
            lambda engine=engine, requests=requests: replay(  # type: ignore[misc]
                engine, requests, first.model.vocab_size, plan.seed
            ),
            calibrator.machine.cores - calibrator.machine.threads,
        )
        done.append(Replayed(workload, requests, records, disturbed, calibrator, Transfer()))
        if number == len(chosen) or (number == len(chosen) // 2 and len(chosen) > FEW):
            calibrator.run(plan.segment_s)
    return done


def apart(plan: Plan) -> list[Replayed]:
    """Workloads on two processes of one thread each."""
    chosen = [workload for workload in plan.chosen if workload.apart]
    if not chosen:
        return []
    use_threads(1)
    calibrator = plan.calibrator()
    calibrator.run(plan.segment_s)
    first = calibrator.calibrated(fits=0)
    transfer = measured_transfer(plan)
    plan.say(f"one thread, {first.num_rounds} rounds of calibration; {transfer}")
    fleet = Workers(
        1,
        1,
        plan.model_name,
        first.model.vocab_size,
        first.num_blocks,
        num_layers=plan.layers,
        seed=plan.seed,
        block_tokens=first.block_tokens,
        capacity_tokens=MOST_TOKENS,
        threads=1,
        own_cpus=calibrator.machine.cores > 1,
    )
    done = []
    with workers_here(fleet) as coordinator:
        warm_up(coordinator, first.model.vocab_size, MOST_ROWS)
        for workload in chosen:
            requests = plan.requests(first, workload, transfer)
            records, disturbed = watched(
                lambda requests=requests: replay(  # type: ignore[misc]
                    coordinator, requests, first.model.vocab_size, plan.seed
                ),
                calibrator.machine.cores - 2 * calibrator.machine.threads,
            )
            done.append(Replayed(workload, requests, records, disturbed, calibrator, transfer))
    calibrator.run(plan.segment_s)
    return done


def watched(
    run: Callable[[], list[RequestRecord]], spare_cores: float
) -> tuple[list[RequestRecord], bool]:
    """And whether others kept the engines from the cores meanwhile: what they do on cores that
    these leave idle is no matter, so where the system tells how long threads waited, that
    decides."""
    load, before_s = OtherLoad(lambda: family_cpu_s(os.getpid())), waiting_s()
    started_s = time.perf_counter()
    records = run()
    waited_s = [waits_s - before_s.get(pid, 0.0) for pid, waits_s in waiting_s().items()]
    if not waited_s:
        return records, load.took_more_than(spare_cores)
    return records, max(waited_s) > WAITING_TOLERATED * (time.perf_counter() - started_s)


def waiting_s() -> dict[int, float]:
    """Of this process and of each that it has started, by its id: seconds that its threads were
    ready to run and had no core. Empty where the system does not tell (only Linux does)."""
    found: dict[int, float] = {}
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        for told in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
            with suppress(OSError):  # it has ended
                waited_ns = int(told.read_text().split()[1])
                found[process.pid] = found.get(process.pid, 0.0) + waited_ns / 1e9
    return found if any(found.values()) else {}


def measured_transfer(plan: Plan) -> Transfer:
    """Of the fastest transport between two processes here."""
    runner = linking.LinkRunner(linking.LOADS)
    try:
        times = interleave(
            runner.steps, describe_machine("cpu"), LINK_S, plan.seed, own_s=runner.own_s
        )
    finally:
        runner.close()
    fits = fits_of(runner.seen(times), runner.transports, linking.LOADS)
    best = max(fits.values(), key=lambda fit: fit.bytes_per_s.median)
    return Transfer(best.bytes_per_s.median, max(0.0, best.start_s.median))


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
    chosen = [each for each in WORKLOADS if not options.only or each.name in options.only]
    plan = Plan(
        options.model,
        options.layers,
        chosen,
        options.budget,
        options.busy,
        options.seed,
        lambda line: print(line, flush=True),
    )
    done = [*together(plan), *apart(plan)]
    found: Mapping[str, object] = report(done, plan.say)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
