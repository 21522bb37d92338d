"""Clients: how far other measuring clients agree with ours about one server.

    python benchmarks/servers.py vllm                       # prints the URL
    _build/peers/python/bin/python benchmarks/clients.py URL

A round asks the server with each client in random order, closed loop, the same number of requests
of the same lengths; ratios are taken inside rounds. Each client tokenizes with the random model's
own folder, so the server must too: vllm and llamacpp of servers.py, or `prefill-decode serve
--model _build/peers/models/laptop-254m`.

Counts:  medians over a run's requests, each by the client's own account:

             TTFT                        vllm bench: the first event with a choice, a role included;
                                         guidellm: the first event that its parser takes for a
                                         token; aiperf: the first event with text
             TPOT, (last - first)/(n-1)  vllm bench calls it TPOT, aiperf ITL, guidellm ITL too (its
                                         TPOT is the whole latency over n), and weighs it by tokens
             output tokens/s             vllm bench: over the run, its start included; guidellm: the
                                         mean over the tokens' own times; aiperf: over the run
Ignores: vllm bench's ITL, gaps between events as each was parsed: events that share a read are
         near 0 apart; and the clients' percentiles, which two of the three give for any n.
"""

import json
import os
import random
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from interleaved import ROOT
from report import OURS
from servers import MODEL

from prefill_decode.plots.tables import format_interval, table
from prefill_decode.statistics import median_interval, ratio_interval
from prefill_decode.units import format_seconds, format_significant

LONGEST_RUN_S = 600
FIGURES = {"TTFT": "ttft_s", "TPOT": "tpot_s", "output tokens/s": "output_tokens_per_s"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


class ClientError(Exception):
    """A client failed, or did not have every request answered."""


@dataclass(frozen=True)
class Load:
    url: str
    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    peers: Path

    @property
    def tokenizer(self) -> Path:
        return self.peers / "models" / MODEL


@dataclass(frozen=True)
class Figures:
    """Medians of one run, and how many requests were answered."""

    ttft_s: float
    tpot_s: float
    output_tokens_per_s: float
    num_answered: int


def ours_command(load: Load, folder: Path, seed: int) -> list[object]:
    return [
        *(sys.executable, "-m", "prefill_decode.cli", "bench", load.url),
        *("--model", MODEL, "--api", "completions", "--prompt-ids", "--no-overhead", "--json"),
        *("--requests", load.requests, "--concurrency", load.concurrency, "--warmup", 0),
        *("--seed", seed),
        *("--prompt-tokens", load.prompt_tokens, "--output-tokens", load.output_tokens),
    ]


def ours_figures(folder: Path, said: str) -> Figures:
    found = json.loads(said)
    summary = found["from_sent"]
    return Figures(
        summary["ttft_s"]["p50"]["value"],
        summary["tpot_s"]["p50"]["value"],
        found["output_tokens_per_s"],
        found["num_answered"],
    )


def vllm_command(load: Load, folder: Path, seed: int) -> list[object]:
    return [
        *(load.peers / "vllm" / "bin" / "vllm", "bench", "serve", "--backend", "openai"),
        *("--base-url", load.url, "--model", MODEL, "--tokenizer", load.tokenizer),
        *("--dataset-name", "random", "--random-input-len", load.prompt_tokens),
        *("--random-output-len", load.output_tokens, "--ignore-eos", "--seed", seed),
        *("--num-prompts", load.requests, "--max-concurrency", load.concurrency),
        *("--temperature", 0, "--disable-tqdm", "--save-result"),
        *("--result-dir", folder, "--result-filename", "vllm.json"),
    ]


def vllm_figures(folder: Path, said: str) -> Figures:
    found = json.loads((folder / "vllm.json").read_text())
    return Figures(
        found["median_ttft_ms"] / 1e3,
        found["median_tpot_ms"] / 1e3,
        found["output_throughput"],
        found["completed"],
    )


def guidellm_command(load: Load, folder: Path, seed: int) -> list[object]:
    return [
        *(load.peers / "clients" / "bin" / "guidellm", "run"),
        "--backend",
        f"kind=openai_http,target={load.url},model={MODEL},request_format=/v1/completions",
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={load.tokenizer}"),
        *("--data", f"kind=json_file,path={folder / 'prompts.jsonl'}"),
        *("--output", f"kind=json,path={folder / 'guidellm.json'}", "--disable-console"),
    ]


def guidellm_figures(folder: Path, said: str) -> Figures:
    (run,) = json.loads((folder / "guidellm.json").read_text())["benchmarks"]
    found = run["metrics"]
    return Figures(
        found["time_to_first_token_ms"]["successful"]["median"] / 1e3,
        found["inter_token_latency_ms"]["successful"]["median"] / 1e3,
        found["output_tokens_per_second"]["successful"]["mean"],
        found["time_to_first_token_ms"]["successful"]["count"],
    )


def aiperf_command(load: Load, folder: Path, seed: int) -> list[object]:
    return [
        *("env", "-u", "HF_HUB_OFFLINE"),  # with it, it takes no folder for a tokenizer
        *(load.peers / "aiperf" / "bin" / "aiperf", "profile", "--url", load.url),
        *("--model", MODEL, "--tokenizer", load.tokenizer, "--use-server-token-count"),
        *("--endpoint-type", "completions", "--streaming", "--use-legacy-max-tokens"),
        *("--request-count", load.requests, "--concurrency", load.concurrency),
        *("--isl", load.prompt_tokens, "--osl", load.output_tokens, "--random-seed", seed),
        *("--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"),
        *("--ui-type", "none", "--artifact-dir", folder / "aiperf"),
    ]


def aiperf_figures(folder: Path, said: str) -> Figures:
    found = json.loads((folder / "aiperf" / "profile_export_aiperf.json").read_text())
    return Figures(
        found["time_to_first_token"]["p50"] / 1e3,
        found["inter_token_latency"]["p50"] / 1e3,
        found["output_token_throughput"]["avg"],
        int(found["request_count"]["avg"]),
    )


CLIENTS: dict[
    str, tuple[Callable[[Load, Path, int], list[object]], Callable[[Path, str], Figures]]
] = {
    OURS: (ours_command, ours_figures),
    "vllm bench": (vllm_command, vllm_figures),
    "guidellm": (guidellm_command, guidellm_figures),
    "aiperf": (aiperf_command, aiperf_figures),
}


def run_client(name: str, load: Load, dice: random.Random) -> Figures:
    command, figures = CLIENTS[name]
    with TemporaryDirectory() as folder:
        write_prompts(Path(folder) / "prompts.jsonl", load, dice)
        words = [str(word) for word in command(load, Path(folder), dice.randrange(2**31))]
        ended = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=LONGEST_RUN_S,
            env={**os.environ, **OFFLINE},
        )
        if ended.returncode:
            raise ClientError(f"{name} ended with code {ended.returncode}: {ended.stderr[-500:]}")
        found = figures(Path(folder), ended.stdout)
    if found.num_answered != load.requests:
        raise ClientError(f"{name} had {found.num_answered} of {load.requests} requests answered")
    return found


def write_prompts(path: Path, load: Load, dice: random.Random) -> None:
    """Prompts of words, each a token, never twice the same; with the lengths as guidellm reads."""
    rows = (
        {
            "prompt": " ".join(f"t{dice.randrange(10_000)}" for _ in range(load.prompt_tokens)),
            "prompt_tokens_count": load.prompt_tokens,
            "output_tokens_count": load.output_tokens,
        }
        for _ in range(load.requests)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def measure(
    names: Sequence[str], load: Load, num_rounds: int, dice: random.Random
) -> Sequence[Mapping[str, Figures]]:
    """Rounds, after one to warm up."""
    rounds = []
    for number in range(num_rounds + 1):
        found = {name: run_client(name, load, dice) for name in dice.sample(names, len(names))}
        print(f"round {number} of {num_rounds}", file=sys.stderr)
        rounds.append(found)
    return rounds[1:]


def agreement(rounds: Sequence[Mapping[str, Figures]], names: Sequence[str]) -> str:
    """A row a figure: each client's median, and over the first's, × median of ratios."""
    first = names[0]
    rows = []
    for title, field in FIGURES.items():
        values = {name: [float(getattr(r[name], field)) for r in rounds] for name in names}
        cells = [_shown(median_interval(values[first]).median, field)]
        cells += [
            f"{_shown(median_interval(values[name]).median, field)}, "
            f"× {format_interval(ratio_interval(values[name], values[first]))}"
            for name in names[1:]
        ]
        rows.append((title, *cells))
    return table(("median", *names), rows)


def _shown(value: float, field: str) -> str:
    return format_significant(value) if "_per_s" in field else format_seconds(value)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _read_options(arguments)
    load = Load(
        options.url.rstrip("/"),
        options.requests,
        options.concurrency,
        options.prompt_tokens,
        options.output_tokens,
        options.peers.resolve(),
    )
    try:
        rounds = measure(options.clients, load, options.rounds, random.Random(options.seed))
    except (ClientError, OSError, subprocess.TimeoutExpired) as error:
        print(error, file=sys.stderr)
        return 2
    print(agreement(rounds, options.clients))
    print(
        f"\n{len(rounds)} rounds of {load.requests} requests, {load.concurrency} at a time, "
        f"{load.prompt_tokens} prompt tokens and {load.output_tokens} output tokens each."
    )
    return 0


def _read_options(arguments: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=32)
    parser.add_argument("--peers", type=Path, default=ROOT / "_build" / "peers")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
