"""Serving: the verb that puts our engine behind an OpenAI-compatible endpoint."""

import argparse
import os

from prefill_decode.cli import values
from prefill_decode.cli.shared import checked_key, complain, print_last
from prefill_decode.scheduling import POLICIES

KEY_VARIABLE = "PREFILL_DECODE_API_KEY"

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
    from prefill_decode.endpoint.starting import ServeOptions, start

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
            most_tokens_per_step=options.max_tokens_per_step,
            most_sequences=options.max_sequences,
            most_waiting=options.max_waiting,
            reuse=not options.no_prefix_reuse,
            api_key=_api_key(options),
            grace_s=options.grace,
            seed=options.seed,
        ),
        say=print_last,  # whoever started the server may not be reading
        complain=complain,
    )


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
        help="of KV cache (default: an eighth of what the weights leave, at most 16,384 tokens a "
        "sequence)",
    )
    cache.add_argument("--blocks", type=values.positive_count, metavar="N", help="of KV cache")
    added.add_argument(
        "--block-tokens", type=values.positive_count, default=32, metavar="N", help="(32)"
    )
    added.add_argument(
        "--max-tokens-per-step", type=values.positive_count, default=512, metavar="N", help="(512)"
    )
    added.add_argument(
        "--max-sequences",
        type=values.positive_count,
        default=64,
        metavar="N",
        help="that run at a time (64)",
    )
    added.add_argument(
        "--max-waiting",
        type=values.count,
        default=512,
        metavar="N",
        help="sequences that may wait; then requests are answered with 429 (512)",
    )
    added.add_argument("--policy", choices=POLICIES, default="chunked", help="(chunked)")
    added.add_argument("--no-prefix-reuse", action="store_true", help="compute each prompt in full")
