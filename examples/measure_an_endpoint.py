"""Measure an endpoint: what a client sees of any OpenAI-compatible server, in a closed loop.

    python measure_an_endpoint.py URL [CONCURRENCY] [REQUESTS]

Such as http://127.0.0.1:8000 while `prefill-decode serve` runs. `bench` does more of this."""

import argparse
import asyncio

from prefill_decode.endpoint.bench import Plan, run_bench
from prefill_decode.endpoint.bench_report import records_of
from prefill_decode.request import Request
from prefill_decode.serving_metrics import summarize
from prefill_decode.units import format_seconds

PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16


def main(url: str, concurrency: int, num_requests: int) -> None:
    if min(concurrency, num_requests) < 1:
        raise ValueError(f"streams and requests are 1 or more; got {concurrency}, {num_requests}")
    requests = [Request(str(i), 0.0, PROMPT_TOKENS, OUTPUT_TOKENS) for i in range(num_requests)]
    plan = Plan(url, requests, num_requests, PROMPT_TOKENS, concurrency=concurrency, overhead=False)
    bench = asyncio.run(run_bench(plan, show=lambda progress: None))
    records = records_of(bench.exchanges, from_planned=False)
    found = summarize(records, bench.duration_s, may_stop_early=True)
    answered = found.num_requests - found.num_failed
    print(f"{bench.target.model}: {answered} of {found.num_requests} answered")
    for name, percentiles in (("TTFT", found.ttft_s), ("TPOT", found.tpot_s)):
        median = next(each for each in percentiles if each.p == 0.5)
        print(f"  {name}: {format_seconds(median.value)}, the median of {median.n}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("concurrency", type=int, nargs="?", default=2)
    parser.add_argument("num_requests", metavar="requests", type=int, nargs="?", default=8)
    try:
        main(**vars(parser.parse_args()))
    except (ValueError, OSError) as error:
        parser.error(str(error))
