"""Engines: time the same steps on our engine and on others, interleaved in one run.

Every engine is a process that loads the model once and runs one step when asked (adapters/). One
round runs one step on every engine, in random order, with the two kernels that set the ceilings
among them; while one engine runs, all others are stopped (SIGSTOP), so that no idle thread spins.
Ratios are taken inside rounds. A round in which other processes took the cores is marked and left
out. Rounds of several runs on one machine can be pooled in one file (--json): fresh processes of
the same code differ too.

Counts:  the step as each engine's own interface allows to time it; its adapter says how.
Ignores: loading, tokenizing, sampling where an engine allows it, memory used.
Weights: random, float32, one shape; values do not change the time of a step.
"""

import json
import random
import signal
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

from processes import Adapter, EngineError, OtherLoad
from report import OURS, Record, Round, read_record, report, write_between_marks, write_record

from prefill_decode.measure import Kernel, describe_machine, measure_ceilings
from prefill_decode.measure.machine import effective_cores

ROOT = Path(__file__).resolve().parents[1]
# engine: its adapter, and the Python that runs it, in the peers' folder ("" is this one)
ENGINES = {
    OURS: ("ours.py", ""),
    "transformers": ("transformers_engine.py", "python"),
    "ctranslate2": ("ctranslate2_engine.py", "python"),
    "llamacpp": ("llamacpp.py", "python"),
    "openvino": ("openvino_engine.py", "openvino"),
    "vllm": ("vllm_engine.py", "vllm"),
}
# What an engine's manual asks to load before it, in its environment: vLLM's for a CPU names this.
PRELOADED = {"vllm": "lib/libiomp5.so"}
MODEL = "laptop-254m"
CONTEXT_TOKENS = 512
STEPS = (
    *(f"prefill {tokens}" for tokens in (128, 512, 1024, 2048)),
    *(f"decode {batch} at {CONTEXT_TOKENS}" for batch in (1, 4, 16)),
)


def measure(
    adapters: Sequence[Adapter],
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
    running: list[Adapter],
    ceilings: Sequence[Kernel],
    spare_cores: float,
    dice: random.Random,
) -> Round:
    """Takes an engine that fails off `running`."""
    load = OtherLoad(running)
    matrix, read = ceilings
    times_s: dict[str, float] = {}
    for each in dice.sample([*running, matrix, read], len(running) + 2):
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


def start(engines: Sequence[str], options: Namespace, opened: ExitStack) -> list[Adapter]:
    """The engines that start, to be closed with `opened`; why others did not goes to stderr."""
    adapters = []
    for name in engines:
        try:
            adapters.append(Adapter(name, _command(name, options), _environment(name, options)))
            opened.callback(adapters[-1].close)
        except (EngineError, OSError) as error:
            print(f"left out: {name}: {error}", file=sys.stderr)
    return adapters


def _command(name: str, options: Namespace) -> list[str]:
    file, home = ENGINES[name]
    words = [
        options.peers / home / "bin" / "python" if home else sys.executable,
        ROOT / "benchmarks" / "adapters" / file,
        *("--model", MODEL, "--peers", options.peers),
        *("--threads", options.threads, "--steps", json.dumps(STEPS)),
    ]
    return [str(word) for word in words]


def _environment(name: str, options: Namespace) -> dict[str, str]:
    _, home = ENGINES[name]
    environment = {
        "PYTHONPATH": "" if home else str(ROOT / "lib"),
        "OMP_NUM_THREADS": str(options.threads),
        "HF_HUB_OFFLINE": "1",
    }
    if name in PRELOADED:
        environment["LD_PRELOAD"] = str(options.peers / home / PRELOADED[name])
    return environment


def run(options: Namespace, held: Record | None) -> Record:
    """The rounds of a new run, after those of `held`. ValueError if they cannot be pooled."""
    import torch

    torch.set_num_threads(options.threads)
    machine = describe_machine("cpu")
    ceilings = measure_ceilings(machine, "float32", seed=options.seed)
    with ExitStack() as opened:
        adapters = start(options.engines, options, opened)
        versions = {adapter.name: adapter.version for adapter in adapters}
        record = Record(machine.title, MODEL, options.threads, versions, ())
        if held:  # before any time is spent, and with other dice
            record = held.pooled_with(record)
        rounds = measure(
            adapters,
            options.steps,
            (ceilings.matrix, ceilings.read),
            options.budget,
            spare_cores=machine.cores - options.threads,
            seed=options.seed + len(record.rounds),
        )
    return replace(record, rounds=(*record.rounds, *rounds))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(arguments)
    record = read_record(options.json) if options.json and options.json.exists() else None
    try:
        record = run(options, record) if options.budget > 0 else record
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if record is None:
        print("nothing to show: give a budget or a file that has rounds", file=sys.stderr)
        return 2
    if options.json and options.budget > 0:
        write_record(record, options.json)
    print(report(record))
    if options.write_readme:
        write_between_marks(ROOT / "benchmarks" / "README.md", report(record))
    return 0


def _read_options(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=_names(ENGINES), default=list(ENGINES))
    parser.add_argument("--steps", type=_names(STEPS), default=list(STEPS))
    parser.add_argument("--peers", type=Path, default=ROOT / "_build" / "peers")
    parser.add_argument("--budget", type=float, default=900, help="seconds of rounds; 0: none")
    parser.add_argument("--threads", type=int, default=effective_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the rounds here, after any it has")
    parser.add_argument("--write-readme", action="store_true", help="put the table in its README")
    return parser.parse_args(arguments)


def _names(known: Sequence[str] | Mapping[str, object]) -> Callable[[str], list[str]]:
    """A reader of comma-separated names out of `known`."""

    def read(text: str) -> list[str]:
        names = [name.strip() for name in text.split(",")]
        if unknown := sorted(set(names) - set(known)):
            known_names = ", ".join(known)
            raise ArgumentTypeError(f"known are {known_names}; got {', '.join(unknown)}")
        return names

    return read


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as an interrupt does
    sys.exit(main())
