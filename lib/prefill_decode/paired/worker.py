"""Worker: one checkout's engine in a process of its own, timed step by step on request.

A plain script, run with PYTHONPATH=ROOT/lib as `python -P worker.py ROOT`. It reads JSON lines and
answers each with one JSON line. The first line, {"model", "steps", "device", "seed"}, builds and
warms up the steps; each later one, {"step", "planted"}, runs a step once. An error is a line, too:
{"error": SENTENCE}, and ends the process.

Timed:   from the call until the device is idle. `planted` > 0 spins the host for that share of the
         step's own time inside the timed span: a slowdown that is known.
Ignores: garbage collection, switched off while steps run.
Needs:   of the library at ROOT, which may be an older one, only engine.StepRunner,
         engine.choose_model, measure.describe_machine, the timer's synchronizer and Chunk.
"""

import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

WARM_UPS = 3
SHAPE = ("name", "dtype", "num_layers", "hidden_size", "intermediate_size", "vocab_size")


def main(root: Path) -> None:
    """Answer lines from standard input until it ends."""
    answers = _private_answers()
    try:
        for answer in serve(root, map(json.loads, sys.stdin)):
            print(json.dumps(answer), file=answers, flush=True)
    except BrokenPipeError:
        pass  # whoever asked has gone
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps({"error": words}), file=answers, flush=True)


def serve(root: Path, lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The answers to these lines: facts when the steps are ready, then a time for each request."""
    job = next(lines, None)
    if job is None:
        return
    steps, synchronize, facts = _prepare(root, job)
    for step in steps.values():
        for _ in range(WARM_UPS):
            _time_once(step, synchronize, 0.0)
    gc.collect()
    gc.freeze()
    gc.disable()
    yield facts
    for line in lines:
        yield _time_once(steps[line["step"]], synchronize, line["planted"])


def _prepare(
    root: Path, job: Mapping[str, Any]
) -> tuple[dict[str, Callable[[], object]], Callable[[], None], dict[str, Any]]:
    import prefill_decode
    from prefill_decode import engine, measure
    from prefill_decode.measure.timer import synchronizer
    from prefill_decode.step import Chunk

    found = Path(prefill_decode.__file__).resolve()
    if not found.is_relative_to(root.resolve() / "lib"):
        raise ValueError(f"the library must come from {root}; python found {found}")
    machine = measure.describe_machine(job["device"])
    model = _model(job["model"], machine)
    chunks = {name: [Chunk(*pair) for pair in step] for name, step in _counted(job["steps"])}
    runner = engine.StepRunner(model, chunks, machine.device, job["seed"])
    facts = {
        "library_version": prefill_decode.__version__,
        "model": {name: getattr(model, name) for name in SHAPE},
        "machine": machine.as_dict(),
    }
    return runner.steps, synchronizer(machine.device), facts


def _model(wanted: Any, machine: Any) -> Any:
    """The shipped model of that name, "auto" for the one that suits, or one of given sizes."""
    from prefill_decode import engine
    from prefill_decode.model_spec import ModelSpec

    if not isinstance(wanted, str):
        return ModelSpec(**wanted)
    return engine.choose_model(wanted, machine.device, machine.cache_bytes, machine.memory_bytes)


def _counted(
    steps: Mapping[str, list[tuple[int, int, int]]],
) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each step's (new, cached) pairs, written out as often as their count says."""
    for name, triples in steps.items():
        yield name, [(new, cached) for new, cached, count in triples for _ in range(count)]


def _time_once(
    step: Callable[[], object], synchronize: Callable[[], None], planted: float
) -> dict[str, float]:
    """Seconds of one run, and of it alone without what was planted."""
    synchronize()
    started_s = time.perf_counter()
    step()
    synchronize()
    bare_s = time.perf_counter() - started_s
    while planted and time.perf_counter() - started_s < bare_s * (1 + planted):
        pass
    time_s = time.perf_counter() - started_s if planted else bare_s
    return {"time_s": time_s, "bare_s": bare_s}


def _private_answers() -> TextIO:
    """Standard output for answers alone: whatever else prints to it goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]))
