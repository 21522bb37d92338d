"""How fast the simulator is: CPU seconds of `simulate` and of its summary, and peak memory.

    python benchmarks/simulator.py --trace AzureLLMInferenceTrace_conv.csv    # two sizes of it
    python benchmarks/simulator.py --requests 50000                           # synthetic
    python benchmarks/simulator.py --million    # ten thousand, a hundred thousand and a million

Each case runs in a process of its own, `--repeats` times, and the median and the range are shown.
The features are all on: routing, chunked prefill, paged blocks, preemption, a prefix cache; the
synthetic requests begin with shared prefixes. Reading or drawing the requests is not counted in
the times; the memory is that of the whole process, requests and summary and all.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from prefill_decode import hf_config
from prefill_decode.hardware import accelerator
from prefill_decode.request import Request
from prefill_decode.scheduling import SchedulerSettings
from prefill_decode.simulator import Calibration, Fleet, Pool, blocks_that_fit, simulate
from prefill_decode.trace import read_trace
from prefill_decode.workload import poisson_arrivals, uniform_lengths

TRACED = ((2000, 4), (19366, 8))  # requests of the trace, instances
MILLION = (10_000, 100_000, 1_000_000)  # synthetic
CALIBRATION = Calibration(0.7, 0.8, 0.5, 0.7, 1e-3, 1e-5, "a plausible engine, not measured")


def fleet(instances: int) -> Fleet:
    """Llama 3.1 8B in bfloat16 on A100s."""
    model, row = hf_config.get("llama-3.1-8b"), accelerator("a100-sxm-80")
    assert row.capacity_bytes is not None
    pool = Pool(
        "a100",
        model,
        row.at("bfloat16"),
        blocks_that_fit(model, row.capacity_bytes),
        instances,
        settings=SchedulerSettings("chunked", 2048, 256),
        calibration=CALIBRATION,
    )
    return Fleet((pool,), "prefix_aware", slack=4)


def synthetic(number: int, instances: int, seed: int = 0) -> list[Request]:
    """Poisson at 0.7 requests/s an instance, prompts of 100 to 2,200 tokens, answers of 20 to 400;
    every second prompt begins with one of 64 texts of 512 tokens."""
    arrivals_s = poisson_arrivals(0.7 * instances, number, seed)
    prompts = uniform_lengths(100, 2200, number, seed, "prompts")
    outputs = uniform_lengths(20, 400, number, seed, "outputs")
    texts = uniform_lengths(1, 128, number, seed, "texts")
    lengths = zip(arrivals_s, prompts, outputs, texts, strict=True)
    return [
        Request(str(i), s, p, o, ((text, 512),) if text <= 64 and p > 512 else ())
        for i, (s, p, o, text) in enumerate(lengths)
    ]


def measure(requests: list[Request], instances: int) -> dict[str, float]:
    start_s = time.process_time()
    outcome = simulate(fleet(instances), requests)
    simulated_s = time.process_time() - start_s
    summary = outcome.summary()
    return {
        "simulate_cpu_s": simulated_s,
        "summary_cpu_s": time.process_time() - start_s - simulated_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "requests": len(requests),
        "steps": sum(use.steps for use in outcome.uses),
        "runs": sum(len(timeline) for timeline in outcome.log.timelines),
        "preemptions": outcome.num_preemptions,
        "reused_tokens": outcome.num_reused_tokens,
        "busy_share": median(use.busy_share for use in outcome.uses),
        "ttft_p50_s": summary.ttft_s[0].value,
        "tpot_p50_s": summary.tpot_s[0].value,
    }


def one(options: argparse.Namespace) -> None:
    if options.trace is not None:
        requests = read_trace(options.trace).requests()[: options.requests]
    else:
        requests = synthetic(options.requests, options.instances)
    print(json.dumps(measure(requests, options.instances)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--trace", type=Path, help="Azure's conversation trace of 2023")
    parser.add_argument("--requests", type=int, default=None, help="synthetic, so many")
    parser.add_argument(
        "--million", action="store_true", help="synthetic, up to a million: minutes for each repeat"
    )
    parser.add_argument("--instances", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=None, help="(3; 1 with --million)")
    parser.add_argument("--one", action="store_true", help="one case in this process, as JSON")
    options = parser.parse_args()
    if options.one:
        one(options)
        return
    numbers = MILLION if options.million else (options.requests or 100_000,)
    drawn = tuple((number, options.instances) for number in numbers)
    cases = drawn if options.trace is None else TRACED
    repeats = options.repeats or (1 if options.million else 3)
    print("requests  instances  simulate CPU s (range)     us/request  summary CPU s  peak MiB")
    for number, instances in cases:
        found = [repeat(options, number, instances) for _ in range(repeats)]
        times = sorted(each["simulate_cpu_s"] for each in found)
        summary = median(each["summary_cpu_s"] for each in found)
        peak = max(each["peak_mib"] for each in found)
        told = f"{median(times):.3f} ({times[0]:.3f}-{times[-1]:.3f})"
        each_us = 1e6 * median(times) / number
        head = f"{number:8d}  {instances:9d}  {told:25s}  {each_us:10.1f}"
        print(f"{head}  {summary:13.3f}  {peak:8.0f}", flush=True)
        print(f"  {json.dumps(found[0])}", file=sys.stderr)


def repeat(options: argparse.Namespace, number: int, instances: int) -> dict[str, float]:
    words = ["--one", "--requests", str(number), "--instances", str(instances)]
    if options.trace is not None:
        words += ["--trace", str(options.trace)]
    done = subprocess.run(
        [sys.executable, __file__, *words], check=True, capture_output=True, text=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
