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
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack

import interleaved
from interleaved import ROOT, Benchmark
from processes import Adapter, EngineError, Timed
from report import END_MARK, OURS, START_MARK, report

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


def start(engines: Sequence[str], options: Namespace, opened: ExitStack) -> list[Timed]:
    """The engines that start, to be closed with `opened`; why others did not goes to stderr."""
    adapters: list[Timed] = []
    for name in engines:
        try:
            adapter = Adapter(name, _command(name, options), _environment(name, options))
            opened.callback(adapter.close)
            adapters.append(adapter)
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


BENCHMARK = Benchmark(
    "Time the same steps on our engine and on others, interleaved in one run.",
    MODEL,
    tuple(ENGINES),
    STEPS,
    start,
    report,
    (START_MARK, END_MARK),
)


def main(arguments: Sequence[str] | None = None) -> int:
    return interleaved.main(BENCHMARK, arguments, ROOT / "benchmarks" / "README.md")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends as an interrupt does
    sys.exit(main())
