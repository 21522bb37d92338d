"""Serving: the verb that puts our engine behind an OpenAI-compatible endpoint."""

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from prefill_decode.cli import values
from prefill_decode.cli.shared import checked_key, complain, print_last
from prefill_decode.scheduling import POLICIES

if TYPE_CHECKING:
    from prefill_decode.endpoint.starting import EngineOf, Plan
    from prefill_decode.engine.answering import Answering

KEY_VARIABLE = "PREFILL_DECODE_API_KEY"
PATIENCE_OF_THREADS = {"GOMP_SPINCOUNT": "100", "KMP_BLOCKTIME": "0"}  # GNU's OpenMP, and LLVM's

PARAMETERS = """\
To talk to it:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"model": "NAME", "messages": [{"role": "user", "content": "Hi"}]}'
with NAME as the first line has it; or OpenAI's client with base_url="http://127.0.0.1:8000/v1" and
any api_key. To measure it:  prefill-decode bench http://127.0.0.1:8000

Parameters of a request to /v1/completions and /v1/chat/completions, as OpenAI has them: model,
prompt or messages, max_tokens (max_completion_tokens), temperature, top_p, n, seed, stop, stream,
stream_options (include_usage, continuous_usage_stats), logprobs, top_logprobs, user; beside these
ignore_eos and min_tokens. Refused by name unless they change nothing: best_of, echo, suffix,
frequency_penalty, presence_penalty, logit_bias, tools, tool_choice, functions, function_call,
response_format. All others are ignored. /openapi.json has the rules, /metrics the counts, for
Prometheus."""


def serve(options: argparse.Namespace) -> int:
    """Our engine behind an OpenAI-compatible endpoint, for this machine alone without a key."""
    give_up_idle_cores()
    from prefill_decode.endpoint.starting import ServeOptions, engine_here, start

    _check_workers(options)
    engine_of = engine_here if options.prefill is None else _engine_of_workers(options)
    return start(
        ServeOptions(
            model=options.model,
            dtype=options.dtype,
            device=options.device,
            host=options.host,
            port=options.port,
            served_model_name=options.served_model_name,
            memory_gb=options.memory_gb,
            num_blocks=options.blocks,
            block_tokens=options.block_tokens,
            policy=options.policy,
            most_tokens_per_step=options.most_tokens_per_step,
            most_sequences=options.most_sequences,
            most_waiting=options.most_waiting,
            reuse=not options.no_prefix_reuse,
            api_key=_api_key(options),
            grace_s=options.grace,
            seed=options.seed,
            processes=1 if options.prefill is None else options.prefill + options.decode,
        ),
        engine_of=engine_of,
        say=print_last,  # whoever started the server may not be reading
        complain=complain,
    )


def give_up_idle_cores() -> None:
    """Threads of a step that have done their share sleep at once and leave their core to the event
    loop and the client, where OpenMP would have them spin on it for milliseconds. It reads this
    when torch is loaded, which must not be yet. What the user has set stands."""
    for name, value in PATIENCE_OF_THREADS.items():
        os.environ.setdefault(name, value)


def _check_workers(options: argparse.Namespace) -> None:
    if (options.prefill is None) != (options.decode is None):
        raise ValueError("--prefill and --decode go together: give each a number of workers")
    if options.prefill is None:
        for name in ("transfer", "worker_threads", "cluster"):
            if getattr(options, name) is not None:
                flag = "--" + name.replace("_", "-")
                raise ValueError(f"{flag} is for workers: give --prefill and --decode, too")
    elif options.policy != "chunked":
        raise ValueError(
            f"workers run with --policy chunked, each with one phase; got {options.policy}"
        )


def _engine_of_workers(options: argparse.Namespace) -> "EngineOf":
    """Prefill and decode in processes of their own."""
    from prefill_decode.disaggregated.cluster import workers_on_cluster
    from prefill_decode.disaggregated.launch import Fleet, workers_here

    @contextmanager
    def engine_of(plan: "Plan") -> "Iterator[Answering]":
        asked = plan.options
        if plan.device != "cpu":
            raise ValueError(
                "caches are moved between processes through this machine's memory: --prefill and "
                f"--decode take --device cpu; got {plan.device}"
            )
        path = Path(asked.model)
        fleet = Fleet(
            num_prefill=options.prefill,
            num_decode=options.decode,
            model=str(path.absolute()) if path.exists() else plan.model.spec.name,
            vocab_size=plan.model.spec.vocab_size,
            num_blocks=plan.num_blocks,
            dtype=plan.model.spec.dtype,
            seed=asked.seed,
            block_tokens=asked.block_tokens,
            capacity_tokens=plan.model.most_tokens,
            most_tokens_per_step=asked.most_tokens_per_step,
            most_sequences=asked.most_sequences,
            most_waiting=asked.most_waiting,
            reuse=asked.reuse,
            threads=options.worker_threads,
            transfer=options.transfer or "auto",
        )
        placed = (
            workers_here(fleet, complain=plan.complain)
            if options.cluster is None
            else workers_on_cluster(fleet, options.cluster, complain=plan.complain)
        )
        with placed as coordinator:
            yield coordinator

    return engine_of


def _api_key(options: argparse.Namespace) -> str | None:
    """The key from the command line, else from the environment, which other users cannot read."""
    key: str | None = options.api_key
    if key is None:
        key = os.environ.get(KEY_VARIABLE)
    return checked_key(key, f"--api-key or {KEY_VARIABLE}")


def add_serve(added: argparse.ArgumentParser) -> None:
    """The options of `serve`."""
    added.formatter_class = argparse.RawDescriptionHelpFormatter
    added.epilog = PARAMETERS
    _add_model(added)
    _add_address(added)
    _add_schedule(added)
    _add_workers(added)


def _add_model(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--model",
        default="auto",
        metavar="NAME|FOLDER|CONFIG",
        help="a shipped model or a config.json, with random weights, or a Hugging Face folder with "
        "safetensors (default: a shipped model that suits the device)",
    )
    added.add_argument("--dtype", help="of weights and KV cache (default: the device's)")
    added.add_argument(
        "--served-model-name", type=values.name, metavar="NAME", help="(default: the model's own)"
    )
    added.add_argument(
        "--seed", type=values.seed, default=0, help="of random weights and of seeds not given (0)"
    )


def _add_address(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--host",
        default="127.0.0.1",
        help="on loopback, requests that name another host are refused, as those of web pages do; "
        "beyond it a key is required (127.0.0.1)",
    )
    added.add_argument("--port", type=values.port, default=8000, help="0: any that is free (8000)")
    added.add_argument(
        "--api-key",
        metavar="KEY",
        help=f"asked of every request but /health; better set in {KEY_VARIABLE}, because every "
        "user of a machine can read command lines",
    )
    added.add_argument(
        "--grace",
        type=values.seconds,
        default=30.0,
        metavar="SECONDS",
        help="for running requests to finish after SIGTERM or Ctrl-C; a second one ends it (30)",
    )


def _add_schedule(added: argparse.ArgumentParser) -> None:
    cache = added.add_mutually_exclusive_group()
    cache.add_argument(
        "--memory-gb",
        type=values.gigabytes,
        metavar="GB",
        help="of KV cache, in all (default: an eighth of what the weights leave, at most 16,384 "
        "tokens a sequence)",
    )
    cache.add_argument(
        "--blocks", type=values.positive_count, metavar="N", help="of KV cache, of each worker"
    )
    added.add_argument(
        "--block-tokens", type=values.positive_count, default=32, metavar="N", help="(32)"
    )
    added.add_argument(
        "--most-tokens-per-step", type=values.positive_count, default=512, metavar="N", help="(512)"
    )
    added.add_argument(
        "--most-sequences",
        type=values.positive_count,
        default=64,
        metavar="N",
        help="that run at a time (64)",
    )
    added.add_argument(
        "--most-waiting",
        type=values.count,
        default=512,
        metavar="N",
        help="sequences that may wait; then requests are answered with 429 (512)",
    )
    added.add_argument("--policy", choices=POLICIES, default="chunked", help="(chunked)")
    added.add_argument("--no-prefix-reuse", action="store_true", help="compute each prompt in full")


def _add_workers(added: argparse.ArgumentParser) -> None:
    workers = added.add_argument_group(
        "prefill and decode in processes of their own",
        "Each has the weights, a cache and threads of its own; prompts are read by one, answers "
        "written by another, and the cache moves between them.",
    )
    workers.add_argument("--prefill", type=values.positive_count, metavar="N", help="workers")
    workers.add_argument("--decode", type=values.positive_count, metavar="N", help="workers")
    workers.add_argument(
        "--transfer",
        choices=("auto", "unix", "tcp", "cma", "nixl"),
        help="how the cache moves: Unix sockets, TCP on loopback, or reading the other's memory "
        "(process_vm_readv); auto takes that if it works, else Unix sockets; nixl: by NVIDIA's "
        "library, if it is installed (auto)",
    )
    workers.add_argument(
        "--worker-threads",
        type=values.positive_count,
        metavar="K",
        help="of each worker (default: an even share of the processors)",
    )
    workers.add_argument(
        "--cluster",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="place the workers on the nodes of a Ray cluster, this host's own or the one at "
        "HOST:PORT (default: all of them here)",
    )
