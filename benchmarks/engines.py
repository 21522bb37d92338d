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
import os
import random
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from prefill_decode import model_spec
from prefill_decode.hardware import Hardware
from prefill_decode.measure import Kernel, describe_machine, measure_ceilings
from prefill_decode.measure.machine import allowed_cpus, effective_cores
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.tables import format_interval, table
from prefill_decode.roofline import step_work
from prefill_decode.statistics import Interval, median_interval, ratio_interval
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds, format_si

ROOT = Path(__file__).resolve().parents[1]
OURS = "ours"
# engine: its adapter, and the Python that runs it, in the peers' folder ("" is this one)
ENGINES = {
    OURS: ("ours.py", ""),
    "transformers": ("transformers_engine.py", "python"),
    "ctranslate2": ("ctranslate2_engine.py", "python"),
    "llamacpp": ("llamacpp.py", "python"),
    "openvino": ("openvino_engine.py", "openvino"),
    "vllm": ("vllm_engine.py", "vllm"),
}
MODEL = "laptop-254m"
CONTEXT_TOKENS = 512
STEPS = (
    *(f"prefill {tokens}" for tokens in (128, 512, 1024, 2048)),
    *(f"decode {batch} at {CONTEXT_TOKENS}" for batch in (1, 4, 16)),
)
OTHERS_TOLERATED_CORES = 0.10
CLOCK_TICK_S = 0.01  # the system counts processor time in ticks of this length
LONGEST_ANSWER_S = 300
LONGEST_START_S = 600
START_MARK, END_MARK = "<!-- engines -->", "<!-- end of engines -->"


@dataclass(frozen=True)
class Round:
    """One step on every engine, and the ceilings among them."""

    step: str
    times_s: Mapping[str, float]  # engine: time
    peak_flops_per_s: float
    bandwidth_bytes_per_s: float
    disturbed: bool  # other processes took the cores


class EngineError(Exception):
    """An engine did not start, did not answer in time, or answered with an error."""


class Adapter:
    """A running engine, stopped except while it is asked."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            start_new_session=True,  # a group of its own: its children stop with it
        )
        self.log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        self.version = str(self._answer(LONGEST_START_S)["version"])
        self._signal(signal.SIGSTOP)

    def time_s(self, step: str) -> float:
        """How long one such step takes, by the engine's own account."""
        self._signal(signal.SIGCONT)
        try:
            assert self.process.stdin is not None
            print(json.dumps({"step": step}), file=self.process.stdin, flush=True)
            return float(self._answer(LONGEST_ANSWER_S)["time_s"])
        except BrokenPipeError:
            raise EngineError(f"{self.name} has ended: {self._last_words()}") from None
        finally:
            self._signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        """Processor time this engine's processes have taken so far."""
        try:
            processes = [psutil.Process(self.process.pid)]
            processes += processes[0].children(recursive=True)
        except psutil.NoSuchProcess:
            return 0.0
        return sum(map(_cpu_s, processes))

    def close(self) -> None:
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _answer(self, longest_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        alarm = threading.Timer(longest_s, self._signal, [signal.SIGKILL])
        alarm.start()
        line = self.process.stdout.readline()
        alarm.cancel()
        if not line:
            raise EngineError(f"{self.name} gave no answer: {self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer

    def _signal(self, number: signal.Signals) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log = [*self.log[-19:], line.rstrip()]

    def _last_words(self) -> str:
        return " / ".join(self.log[-3:]) or "no message"


class OtherLoad:
    """Processor time that neither this process nor the engines took since this was made."""

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        self.adapters = adapters
        self.started_s = time.perf_counter()
        self.others_s = self._others_s()

    def took_more_than(self, spare_cores: float) -> bool:
        elapsed_s = time.perf_counter() - self.started_s
        tolerated_s = (max(0.0, spare_cores) + OTHERS_TOLERATED_CORES) * elapsed_s
        return self._others_s() - self.others_s > tolerated_s + 2 * CLOCK_TICK_S

    def _others_s(self) -> float:
        every = psutil.cpu_times(percpu=True)
        fields = ("user", "nice", "system", "irq", "softirq", "steal")
        cpus = [every[cpu] for cpu in allowed_cpus() if cpu < len(every)]
        busy_s = sum(getattr(cpu, field, 0.0) for cpu in cpus for field in fields)
        return float(busy_s) - time.process_time() - sum(a.cpu_s() for a in self.adapters)


def measure(
    adapters: Sequence[Adapter],
    steps: Sequence[str],
    ceilings: Sequence[Kernel],
    budget_s: float,
    spare_cores: float,
    seed: int,
) -> list[Round]:
    """Rounds until the budget is spent, each on the step that has had least time so far.

    So cheap steps get more rounds than dear ones. A step's first round is a warm-up outside the
    budget, and tells what the next will take. An engine that fails is left out from then on."""
    dice = random.Random(seed)
    running = list(adapters)
    spent_s = dict.fromkeys(steps, 0.0)
    for step in dice.sample(steps, len(steps)):
        started_s = time.perf_counter()
        _one_round(step, running, ceilings, spare_cores, dice)
        spent_s[step] = time.perf_counter() - started_s
    round_s, spent_s = spent_s, dict.fromkeys(steps, 0.0)
    rounds: list[Round] = []
    started_s = time.perf_counter()
    while affordable := [
        s for s in steps if time.perf_counter() - started_s + round_s[s] <= budget_s
    ]:
        step = min(dice.sample(affordable, len(affordable)), key=spent_s.__getitem__)
        round_started_s = time.perf_counter()
        rounds.append(_one_round(step, running, ceilings, spare_cores, dice))
        round_s[step] = time.perf_counter() - round_started_s
        spent_s[step] += round_s[step]
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
    """The second of two calls: the first finds the caches full of an engine's data."""
    for _ in range(2):
        started_s = time.perf_counter()
        kernel.run()
        time_s = time.perf_counter() - started_s
    return time_s


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def times_s(rounds: Sequence[Round], step: str, *engines: str) -> list[list[float]]:
    """Each engine's times in the quiet rounds of `step` that hold all of `engines`."""
    held = _quiet(rounds, step, engines)
    return [[r.times_s[engine] for r in held] for engine in engines]


def _quiet(rounds: Sequence[Round], step: str, engines: Sequence[str]) -> list[Round]:
    ran = [r for r in rounds if r.step == step and set(engines) <= set(r.times_s)]
    return [r for r in ran if not r.disturbed]


def share_reached(rounds: Sequence[Round], step: str, engine: str, model: ModelSpec) -> Interval:
    """Least time / time, round by round, each with that round's own ceilings."""
    work = step_work(model, chunks_of(step))
    shares = []
    for r in _quiet(rounds, step, [engine]):
        ceilings = Hardware("", model.dtype, r.peak_flops_per_s, r.bandwidth_bytes_per_s, "here")
        shares.append(work.least_time_s(ceilings) / r.times_s[engine])
    return median_interval(shares)


def chunks_of(step: str) -> list[Chunk]:
    match step.split():
        case ["prefill", tokens]:
            return [Chunk(int(tokens))]
        case ["decode", batch, "at", context_tokens]:
            return [Chunk(1, int(context_tokens))] * int(batch)
    raise ValueError(f"a step is 'prefill N' or 'decode B at N'; got {step!r}")


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
    model = model_spec.get(record.model).with_dtype("float32")
    rounds = record.rounds
    quiet = [r for r in rounds if not r.disturbed]
    closing = [
        f"{record.machine}, {record.threads} threads; {record.model} in float32, "
        f"{len(rounds)} rounds, of which {len(rounds) - len(quiet)} left out because other "
        "processes took the cores."
    ]
    if quiet:
        peak = median_interval([r.peak_flops_per_s for r in quiet]).median
        bandwidth = median_interval([r.bandwidth_bytes_per_s for r in quiet]).median
        closing.append(
            f"Ceilings in these rounds, medians: {format_si(peak, 'FLOP/s')} and "
            f"{format_si(bandwidth, 'B/s')}."
        )
    versions = "; ".join(f"{name} {version}" for name, version in record.versions.items())
    closing.append(f"Versions: {versions}.")
    return engines_table(rounds, model) + "\n\n" + " ".join(closing)


def engines_table(rounds: Sequence[Round], model: ModelSpec) -> str:
    """A row a step: each engine's median time and its time over ours, with the 95 % interval."""
    known = {name for each in rounds for name in each.times_s}
    engines = [*(name for name in ENGINES if name in known), *sorted(known - set(ENGINES))]
    ran = {each.step for each in rounds}
    rows = []
    for step in [*(s for s in STEPS if s in ran), *sorted(ran - set(STEPS))]:
        cells = [_cell(rounds, step, engine) for engine in engines]
        rows.append((step, *cells, _reached(rounds, step, model)))
    return table(("step", *engines, "ceilings: ours reaches"), rows)


def _cell(rounds: Sequence[Round], step: str, engine: str) -> str:
    if not (alone := times_s(rounds, step, engine)[0]):
        return ""
    time = format_seconds(median_interval(alone).median)
    both = times_s(rounds, step, engine, OURS)
    if engine == OURS or not both[0]:
        return f"{time} (n={len(alone)})"
    return f"{time}, × {format_interval(ratio_interval(*both))}"


def _reached(rounds: Sequence[Round], step: str, model: ModelSpec) -> str:
    if not times_s(rounds, step, OURS)[0]:
        return ""
    return f"{share_reached(rounds, step, OURS, model).median:.0%}"


def write_between_marks(path: Path, text: str) -> None:
    before, _, rest = path.read_text().partition(START_MARK)
    _, found, after = rest.partition(END_MARK)
    if not found:
        raise ValueError(f"{path} needs the lines {START_MARK} and {END_MARK} around the table")
    path.write_text(f"{before}{START_MARK}\n{text}\n{END_MARK}{after}")


def start(
    engines: Sequence[str], options: Namespace, steps: Sequence[str] = STEPS
) -> list[Adapter]:
    """The engines that start; why another did not goes to standard error."""
    adapters = []
    for name in engines:
        file, home = ENGINES[name]
        python = options.peers / home / "bin" / "python" if home else Path(sys.executable)
        if not python.exists():
            print(f"left out: {name} needs {python}: run benchmarks/peers.sh", file=sys.stderr)
            continue
        command = [python, ROOT / "benchmarks" / "adapters" / file, "--model", options.model]
        command += ["--peers", options.peers, "--threads", options.threads]
        command += ["--steps", json.dumps(steps)]
        environment = {
            "PYTHONPATH": "" if home else str(ROOT / "lib"),
            "OMP_NUM_THREADS": str(options.threads),
            "HF_HUB_OFFLINE": "1",
        }
        try:
            adapters.append(Adapter(name, [str(word) for word in command], environment))
        except EngineError as error:
            print(f"left out: {error}", file=sys.stderr)
    return adapters


def run(options: Namespace) -> Record:
    import torch

    torch.set_num_threads(options.threads)
    machine = describe_machine("cpu")
    ceilings = measure_ceilings(machine, "float32", seed=options.seed)
    adapters = start(options.engines, options)
    try:
        rounds = measure(
            adapters,
            options.steps,
            (ceilings.matrix, ceilings.read),
            options.budget,
            spare_cores=machine.cores - options.threads,
            seed=options.seed,
        )
    finally:
        for adapter in adapters:
            adapter.close()
    versions = {adapter.name: adapter.version for adapter in adapters}
    return Record(machine.title, options.model, options.threads, versions, tuple(rounds))


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(arguments)
    record = read_record(options.json) if options.json and options.json.exists() else None
    if options.budget > 0:
        if record:  # other dice for a further run
            options.seed += len(record.rounds)
        new = run(options)
        record = record.pooled_with(new) if record else new
        if options.json:
            write_record(record, options.json)
    if record is None:
        print("nothing to show: give a budget or a file that has rounds", file=sys.stderr)
        return 2
    print(report(record))
    if options.write_readme:
        write_between_marks(ROOT / "benchmarks" / "README.md", report(record))
    return 0


def _read_options(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", type=_names(ENGINES), default=list(ENGINES))
    parser.add_argument("--steps", type=_names(STEPS), default=list(STEPS))
    parser.add_argument("--peers", type=Path, default=ROOT / "_build" / "peers")
    parser.add_argument("--budget", type=float, default=600, help="seconds of rounds; 0: none")
    parser.add_argument("--threads", type=int, default=effective_cores())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the rounds here, after any it has")
    parser.add_argument("--write-readme", action="store_true", help="put the table in its README")
    options = parser.parse_args(arguments)
    options.model = MODEL
    return options


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
    sys.exit(main())
