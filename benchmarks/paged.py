"""Paged: what it costs that a sequence's cache lies in scattered blocks.

Each step runs over one block a sequence and over blocks of several sizes, in turns in one process,
on one set of weights. A ratio is the median of those inside rounds, with its 95 % interval: above
1, the blocks are slower.

Ignores: planning, which the host does before a step; prefixes that sequences share."""

import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence

from prefill_decode.engine import StepRunner, choose_model
from prefill_decode.engine.weights import Weights, random_weights
from prefill_decode.measure import Machine, describe_machine, interleave
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.tables import format_interval, table
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds

STEPS: Mapping[str, Sequence[Chunk]] = {
    **{f"decode {batch} at 512": [Chunk(1, 512)] * batch for batch in (1, 4, 16)},
    "decode 64 at 128": [Chunk(1, 128)] * 64,
    "prefill 512": [Chunk(512)],
    "prefill 128 at 1900": [Chunk(128, 1900)],
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="laptop-254m")
    parser.add_argument("--block-tokens", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--budget", type=float, default=60, help="seconds for each step")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    machine = describe_machine("cpu")
    try:
        model = choose_model(options.model, "cpu", machine.cache_bytes, machine.memory_bytes)
        weights = random_weights(model, "cpu", options.seed)
        rows = [
            _row(name, model, weights, options.block_tokens, machine, options.budget, options.seed)
            for name in options.steps
        ]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    paged = [f"blocks of {size}" for size in options.block_tokens]
    print(table(["step", "one block a sequence", *paged], rows))
    return 0


def _row(
    name: str,
    model: ModelSpec,
    weights: Weights,
    block_sizes: Sequence[int],
    machine: Machine,
    budget_s: float,
    seed: int,
) -> list[str]:
    step = {name: STEPS[name]}
    steps = {
        size: StepRunner(model, step, seed=seed, block_tokens=size, weights=weights).steps[name]
        for size in (None, *block_sizes)
    }
    times = interleave({str(size): run for size, run in steps.items()}, machine, budget_s, seed)
    ratios = [format_interval(times.ratio(str(size), over="None")) for size in block_sizes]
    unpaged = times.time_s("None")
    return [name, f"{format_seconds(unpaged.median)}, n={unpaged.n}", *ratios]


if __name__ == "__main__":
    sys.exit(main())
