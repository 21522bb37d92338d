"""Pick a split: how many workers should prefill and how many decode, for the requests of a trace.

    python pick_a_split.py TRACE [MODEL] [ACCELERATOR] [WORKERS]

TRACE is a CSV of timestamp,prompt_tokens,output_tokens, or one of the formats that
prefill_decode.trace_formats knows. Simulated, on hardware as its makers print it."""

import argparse
from pathlib import Path

from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator import datasheet_workers, search, splits_of
from prefill_decode.trace import read_trace, summary
from prefill_decode.units import format_significant


def main(path: str, model: str, accelerator: str, num_workers: int) -> None:
    trace = read_trace(Path(path))
    print(summary(trace))
    workers = datasheet_workers(model, accelerator, accelerator, whole=accelerator)
    found = search(
        workers,
        splits_of(num_workers),
        make_load=lambda seed: trace.requests(),
        objectives=Objectives(ttft_s=1.0, tpot_s=0.050),
        seeds=[0],
    )
    for each in found.found:
        mark = "*" if each is found.best else " "
        print(f"{mark} {each.split}: {format_significant(each.rate_per_s.median)} requests/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("path", metavar="TRACE")
    parser.add_argument("model", nargs="?", default="llama-3.1-8b")
    parser.add_argument("accelerator", nargs="?", default="h100-sxm")
    parser.add_argument("num_workers", metavar="WORKERS", type=int, nargs="?", default=4)
    try:
        main(**vars(parser.parse_args()))
    except (ValueError, OSError) as error:
        parser.error(str(error))
