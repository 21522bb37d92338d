"""Interleaved: one run of a benchmark, from its options to its table.

A round is one step on every engine, in random order, with the two kernels that set the ceilings
among them. Rounds of several runs on one machine can be pooled in one file (--json)."""

import random
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from processes import EngineError, Timed, load_beside
from report import Record, Round, read_record, write_between_marks, write_record

from prefill_decode.measure import Kernel, describe_machine, measure_ceilings
from prefill_decode.measure.machine import effective_cores

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Benchmark:
    """What one benchmark has of its own."""

    title: str
    model: str
    engines: Sequence[str]
    steps: Sequence[str]
    # the engines that start, to be closed with the stack; why others did not goes to stderr
    start: Callable[[Sequence[str], Namespace, ExitStack], list[Timed]]
    report: Callable[[Record], str]
    marks: tuple[str, str]  # around the table in the README


def measure(
    adapters: Sequence[Timed],
    steps: Sequence[str],
    ceilings: Sequence[Kernel],
    budget_s: float,
    spare_cores: float,
    seed: int,
) -> list[Round]:
    """Rounds until the budget is spent.

    A step whose round costs four times as much gets half the rounds, which makes the most of a
    budget (Neyman's allocation, for equal spreads). A step's first round is a warm-up outside the
    budget, and tells what the next will cost. An engine that fails is left out from then on. An
    interrupt ends the rounds and keeps those that are whole."""
    dice = random.Random(seed)
    running = list(adapters)
    cost_s: dict[str, float] = {}

    def one_round(step: str) -> Round:
        started_s = time.perf_counter()
        done = _one_round(step, running, ceilings, spare_cores, dice)
        cost_s[step] = time.perf_counter() - started_s
        return done

    for step in dice.sample(steps, len(steps)):
        one_round(step)
    rounds: list[Round] = []
    times_run = dict.fromkeys(steps, 0)
    end_s = time.perf_counter() + budget_s
    try:
        while affordable := [s for s in steps if time.perf_counter() + cost_s[s] <= end_s]:
            shuffled = dice.sample(affordable, len(affordable))
            step = min(shuffled, key=lambda s: (times_run[s] + 1) * cost_s[s] ** 0.5)
            rounds.append(one_round(step))
            times_run[step] += 1
    except KeyboardInterrupt:
        print(f"stopped early, after {len(rounds)} rounds", file=sys.stderr)
    return rounds


def _one_round(
    step: str,
    running: list[Timed],
    ceilings: Sequence[Kernel],
    spare_cores: float,
    dice: random.Random,
) -> Round:
    """Takes an engine that fails off `running`."""
    load = load_beside(running)
    matrix, read = ceilings
    times_s: dict[str, float] = {}
    everyone: list[Timed | Kernel] = [*running, matrix, read]
    for each in dice.sample(everyone, len(everyone)):
        if isinstance(each, Kernel):
            times_s[each.name] = _kernel_s(each)
            continue
        try:
            times_s[each.name] = each.time_s(step)
        except EngineError as error:
            print(f"left out: {error}", file=sys.stderr)
            running.remove(each)
    disturbed = load.took_more_than(spare_cores)
    peak, bandwidth = (k.amount / times_s.pop(k.name) for k in (matrix, read))
    return Round(step, times_s, peak, bandwidth, disturbed)


def _kernel_s(kernel: Kernel) -> float:
    """The median of three calls, after one that finds the caches full of an engine's data."""
    kernel.run()
    return median(_time_once(kernel) for _ in range(3))


def _time_once(kernel: Kernel) -> float:
    started_s = time.perf_counter()
    kernel.run()
    return time.perf_counter() - started_s


def run(benchmark: Benchmark, options: Namespace, held: Record | None) -> Record:
    """The rounds of a new run, after those of `held`. ValueError if they cannot be pooled."""
    import torch

    torch.set_num_threads(options.threads)
    machine = describe_machine("cpu")
    ceilings = measure_ceilings(machine, "float32", seed=options.seed)
    with ExitStack() as opened:
        engines = benchmark.start(options.engines, options, opened)
        versions = {engine.name: engine.version for engine in engines}
        record = Record(machine.title, benchmark.model, options.threads, versions, ())
        if held:  # before any time is spent, and with other dice
            record = held.pooled_with(record)
        rounds = measure(
            engines,
            options.steps,
            (ceilings.matrix, ceilings.read),
            options.budget,
            spare_cores=machine.cores - options.threads,
            seed=options.seed + len(record.rounds),
        )
    return replace(record, rounds=(*record.rounds, *rounds))


def main(benchmark: Benchmark, arguments: Sequence[str] | None, readme: Path) -> int:
    options = _read_options(benchmark, arguments)
    record = read_record(options.json) if options.json and options.json.exists() else None
    try:
        record = run(benchmark, options, record) if options.budget > 0 else record
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if record is None:
        print("nothing to show: give a budget or a file that has rounds", file=sys.stderr)
        return 2
    if options.json and options.budget > 0:
        write_record(record, options.json)
    shown = benchmark.report(record)
    print(shown)
    if options.write_readme:
        write_between_marks(readme, shown, benchmark.marks)
    return 0


def _read_options(benchmark: Benchmark, arguments: Sequence[str] | None) -> Namespace:
    engines, steps = benchmark.engines, benchmark.steps
    parser = ArgumentParser(description=benchmark.title)
    parser.add_argument("--engines", type=_names(engines), default=list(engines))
    parser.add_argument("--steps", type=_names(steps), default=list(steps))
    parser.add_argument("--peers", type=Path, default=ROOT / "_build" / "peers")
    parser.add_argument("--budget", type=float, default=900, help="seconds of rounds; 0: none")
    parser.add_argument("--threads", type=int, default=effective_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the rounds here, after any it has")
    parser.add_argument("--write-readme", action="store_true", help="put the table in its README")
    return parser.parse_args(arguments)


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names out of `known`."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := sorted(set(names) - set(known)):
            known_names = ", ".join(known)
            raise ArgumentTypeError(f"known are {known_names}; got {', '.join(unknown)}")
        return names

    return read
