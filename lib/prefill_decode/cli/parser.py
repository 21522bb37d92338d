"""Parser: every verb with its options."""

import argparse
from pathlib import Path
from typing import Any

from prefill_decode import __version__
from prefill_decode.change import TOLERANCE
from prefill_decode.cli import values
from prefill_decode.cli.calibrating import add_calibrate, calibrate
from prefill_decode.cli.comparing import REMEASURED, compare, trust
from prefill_decode.cli.contributing import add_new, new
from prefill_decode.cli.measuring import book, doctor, list_claims, run, show_results
from prefill_decode.cli.moving import add_link, link
from prefill_decode.cli.pooling import add_pools, pools
from prefill_decode.cli.pricing import certify, model, show_hardware
from prefill_decode.cli.serving import add_serve, serve
from prefill_decode.cli.simulating import add_simulate, simulate
from prefill_decode.cli.streaming import REQUESTS, bench, stream


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="prefill-decode", description="The book on LLM inference that measures itself."
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    def verb(name: str, function: Any, *, device: bool = True) -> argparse.ArgumentParser:
        added = verbs.add_parser(name, help=function.__doc__, description=function.__doc__)
        added.set_defaults(verb=function)
        if device:
            added.add_argument(
                "--device",
                default="auto",
                choices=["auto", "cpu", "cuda", "mps"],
                help="what to measure on (default: the fastest there is)",
            )
        return added

    def folders(added: argparse.ArgumentParser) -> None:
        added.add_argument(
            "--results", type=values.folder, metavar="FOLDER", help="records (book/results)"
        )
        added.add_argument(
            "--build", type=values.folder, metavar="FOLDER", help="generated files (_build)"
        )

    def measuring(added: argparse.ArgumentParser) -> None:
        folders(added)
        added.add_argument(
            "-p",
            "--parameter",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="set a parameter of the notebooks; may be repeated",
        )
        added.add_argument(
            "--budget",
            type=values.positive_seconds,
            metavar="SECONDS",
            help="about how long each notebook measures, in six rounds at least (default: 35)",
        )
        added.add_argument(
            "--timeout",
            type=values.positive_whole_seconds,
            default=1800,
            metavar="SECONDS",
            help="longest that one cell may run (default: 1800)",
        )
        added.add_argument("--again", action="store_true", help="measure again what is up to date")

    folders(verb("list", list_claims))
    verb("doctor", doctor).add_argument("--json", action="store_true")
    runs = verb("run", run)
    runs.add_argument(
        "claims", nargs="*", metavar="CLAIM", help="as `list` names them; all if none"
    )
    measuring(runs)
    building = verb("book", book)
    building.add_argument(
        "claims", nargs="*", metavar="CLAIM", help="measure only these; the others are left out"
    )
    measuring(building)
    building.add_argument("--repository-url", metavar="URL", help="links point there (for forks)")
    beginning = verb("new", new, device=False)
    folders(beginning)
    add_new(beginning)
    showing = verb("results", show_results)
    folders(showing)
    showing.add_argument("--json", action="store_true")
    showing.add_argument(
        "--write-readme", action="store_true", help="refresh the README's table and figure"
    )
    showing.add_argument(
        "--accept",
        nargs="*",
        metavar="CLAIM",
        help="pin the last runs on this machine as the baseline, of these claims or of all",
    )
    studying = verb("trust", trust)
    folders(studying)
    _add_trust(studying)
    _add_compare(verb("compare", compare))
    add_serve(verb("serve", serve))
    add_link(verb("link", link, device=False))
    _add_hardware(verb("hardware", show_hardware, device=False))
    _add_certify(verb("certify", certify, device=False))
    _add_stream(verb("stream", stream, device=False))
    _add_bench(verb("bench", bench, device=False))
    add_calibrate(verb("calibrate", calibrate))
    add_simulate(verb("simulate", simulate, device=False))
    add_pools(verb("pools", pools, device=False))
    modelling = verb("model", model, device=False)
    modelling.add_argument("model", metavar="CONFIG|NAME", help="a config.json, or a model's name")
    modelling.add_argument("--dtype", help="of the weights (default: the config's, else bfloat16)")
    modelling.add_argument(
        "--context", type=int, metavar="TOKENS", help="also price attention over so many tokens"
    )
    modelling.add_argument("--json", action="store_true")
    return parser


def _add_trust(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--sessions", type=int, default=16, metavar="N", help="of fresh processes each (16)"
    )
    added.add_argument(
        "--budget",
        type=values.positive_seconds,
        default=40.0,
        metavar="SECONDS",
        help="of a session, for each of three sorts of pairs (40)",
    )
    added.add_argument(
        "--chapter-runs", type=int, default=8, metavar="N", help="fresh runs of one chapter (8)"
    )
    added.add_argument("--out", type=Path, metavar="FILE", help="(book/results/trust/MACHINE.json)")
    added.add_argument("--again", action="store_true", help="measure again what is kept")


def _add_compare(added: argparse.ArgumentParser) -> None:
    where = "a folder of results, a record, a .jsonl file of runs, or a git revision"
    added.add_argument("base", metavar="BASE", help=f"{where}; with --code a checkout or revision")
    added.add_argument("current", metavar="CURRENT", help="likewise; . is this checkout")
    added.add_argument(
        "--tolerance",
        type=values.tolerance,
        default=TOLERANCE,
        help=f"share by which it may get worse ({TOLERANCE})",
    )
    added.add_argument(
        "--code", action="store_true", help="measure both codes in turns, instead of records"
    )
    added.add_argument(
        "--budget", type=values.positive_seconds, metavar="SECONDS", help="of --code, in turns (40)"
    )
    added.add_argument(
        "--remeasure",
        type=values.times,
        metavar="N",
        help=f"measure what got worse so many times more before believing it ({REMEASURED})",
    )
    added.add_argument("--json", action="store_true")


def _add_hardware(added: argparse.ArgumentParser) -> None:
    added.add_argument("name", nargs="?", metavar="NAME", help="one accelerator; all if none")
    added.add_argument("--dtype", default="bfloat16", help="of peak and ridge (bfloat16)")
    added.add_argument("--json", action="store_true")


def _add_certify(added: argparse.ArgumentParser) -> None:
    added.add_argument("--model", required=True, help="a name, or a path to a config.json")
    added.add_argument("--accelerator", required=True, help="as `hardware` names them")
    added.add_argument("--devices", type=int, default=1, help="how many share the model (1)")
    added.add_argument("--dtype", default="bfloat16", help="of weights and KV cache (bfloat16)")
    added.add_argument("--batch", type=int, help="sequences in a step (1; of a rate, any)")
    added.add_argument("--context", type=int, default=0, help="tokens cached before the step (0)")
    added.add_argument("--prompt", type=int, help="with --ttft: its new tokens")
    claim = added.add_mutually_exclusive_group(required=True)
    claim.add_argument("--tpot", metavar="TIME", help="time per output token: 0.0042, 4.2ms, 300us")
    claim.add_argument("--ttft", metavar="TIME", help="time to first token")
    claim.add_argument("--tokens-per-s", type=float, help="output tokens of all sequences")
    added.add_argument("--json", action="store_true")


def _add_stream(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "file",
        metavar="FILE",
        help='JSON lines {"t": seconds since the request, "data": an event\'s data or "[DONE]"}, '
        'or {"t": ..., "base64": bytes as they were read}; - is stdin',
    )
    added.add_argument(
        "--max-tokens", type=values.positive_count, metavar="N", help="that the request asked for"
    )
    added.add_argument("--json", action="store_true")


def _add_bench(added: argparse.ArgumentParser) -> None:
    added.add_argument("url", metavar="URL", help="such as http://127.0.0.1:8000")
    added.add_argument("--model", help="as the server names it (the first that it lists)")
    added.add_argument("--api", choices=["chat", "completions"], default="chat", help="(chat)")
    loop = added.add_mutually_exclusive_group()
    loop.add_argument(
        "--rate",
        type=values.rate,
        metavar="R",
        help="open loop: so many requests/s, Poisson arrivals",
    )
    added.add_argument(
        "--burstiness",
        type=values.burstiness,
        metavar="CV",
        help="with --rate: gamma arrivals, whose gaps have this coefficient of variation; 1 is "
        "Poisson, 0 evenly spaced (1)",
    )
    loop.add_argument(
        "--concurrency",
        type=values.streams,
        metavar="C",
        help="closed loop: so many streams (1)",
    )
    loop.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="open loop: arrivals and lengths of a trace (CSVs of Azure, BurstGPT and Vidur, "
        "Mooncake's JSON lines, or a CSV of timestamp,prompt_tokens,output_tokens)",
    )
    added.add_argument(
        "--spread", action="store_true", help="with --trace: spread arrivals of a coarse clock"
    )
    added.add_argument(
        "--max-model-len",
        type=values.positive_count,
        metavar="N",
        help="skip longer rows of the trace",
    )
    added.add_argument(
        "--requests",
        type=values.requests,
        metavar="N",
        help=f"at most ({REQUESTS}; with --duration or --trace no limit)",
    )
    added.add_argument(
        "--duration",
        type=values.positive_seconds,
        metavar="SECONDS",
        help="send for so long at most",
    )
    added.add_argument(
        "--prompt-tokens",
        type=values.tokens,
        default=128,
        metavar="P",
        help="of each request (128)",
    )
    added.add_argument(
        "--output-tokens", type=values.tokens, default=64, metavar="O", help="likewise (64)"
    )
    added.add_argument(
        "--prompt-ids", action="store_true", help="prompts of token ids, of the exact length"
    )
    added.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of arrivals and prompts; the same prompts again may be found in the server's prefix "
        "cache: give each run another (0)",
    )
    added.add_argument("--ttft", metavar="TIME", help="objective of goodput, such as 200ms")
    added.add_argument("--tpot", metavar="TIME", help="likewise")
    added.add_argument("--stall", metavar="TIME", help="likewise: the largest gap of an answer")
    added.add_argument("--api-key", metavar="KEY", help="(the environment's OPENAI_API_KEY)")
    added.add_argument(
        "--warmup", type=values.times, default=3, metavar="N", help="requests before the run (3)"
    )
    added.add_argument(
        "--timeout",
        type=values.positive_seconds,
        default=600.0,
        metavar="SECONDS",
        help="a request (600)",
    )
    added.add_argument(
        "--no-overhead", action="store_true", help="skip measuring what the client itself adds"
    )
    added.add_argument("--out", type=Path, metavar="FILE", help="every request as a line of JSON")
    added.add_argument("--json", action="store_true")
