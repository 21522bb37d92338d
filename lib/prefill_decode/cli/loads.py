"""Loads: the requests and objectives that several verbs take from the same options."""

import argparse
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from prefill_decode.cli import values
from prefill_decode.cli.shared import complain

if TYPE_CHECKING:
    from prefill_decode.request import Request
    from prefill_decode.serving_metrics import Objectives


def objectives_of(options: argparse.Namespace) -> "Objectives":
    """Of goodput, from --ttft, --tpot and --stall."""
    from prefill_decode.certify import parse_duration
    from prefill_decode.serving_metrics import Objectives

    given = {"ttft_s": options.ttft, "tpot_s": options.tpot, "stall_s": options.stall}
    asked = {name: text for name, text in given.items() if text is not None}
    return Objectives(**{name: parse_duration(text) for name, text in asked.items()})


def draw_arrivals(rate_per_s: float, number: int, burstiness: float, seed: int) -> list[float]:
    """Gaps with this coefficient of variation: 0 evenly spaced, 1 Poisson, else gamma."""
    from prefill_decode.workload import constant_arrivals, gamma_arrivals, poisson_arrivals

    if burstiness == 0:
        return constant_arrivals(rate_per_s, number)
    if burstiness == 1:
        return poisson_arrivals(rate_per_s, number, seed)
    return gamma_arrivals(rate_per_s, number, burstiness, seed)


def traced_requests(options: argparse.Namespace) -> tuple[list["Request"], dict[str, Any]]:
    """The requests of a trace, the first at 0 s, and what became of its rows."""
    from prefill_decode.trace import read_trace, spread_arrivals, summary

    found = read_trace(options.trace, options.max_model_len)
    complain(f"{options.trace}: {summary(found)}")
    if options.spread:
        found = spread_arrivals(found, options.seed)
    every = found.requests()
    start_s = every[0].arrival_s
    shifted = [replace(each, arrival_s=each.arrival_s - start_s) for each in every]
    kept = [each for each in shifted if each.arrival_s < (options.duration or inf)]
    return kept[: options.requests], found.as_dict()


def synthetic_requests(
    options: argparse.Namespace, rate_per_s: float, number: int, seed: int
) -> list["Request"]:
    """Requests with the lengths and the burstiness that --like, or the other flags, ask for."""
    from prefill_decode.workload import (
        SERVICES,
        fixed_lengths,
        make_requests,
        percentile_lengths,
    )

    like = SERVICES.get(options.like)
    cv = options.burstiness
    if cv is None:
        cv = 1.0 if like is None else like.cv
    arrivals_s = draw_arrivals(rate_per_s, number, cv, seed)
    if like is None:
        prompts = fixed_lengths(options.prompt_tokens, number)
        outputs = fixed_lengths(options.output_tokens, number)
    else:
        prompts = percentile_lengths(like.prompt_tokens, number, seed, "prompt lengths")
        outputs = percentile_lengths(like.output_tokens, number, seed, "output lengths")
    return make_requests(arrivals_s, prompts, outputs)


def add_lengths(added: argparse.ArgumentParser) -> None:
    """What `synthetic_requests` reads."""
    from prefill_decode.workload import SERVICES

    added.add_argument(
        "--burstiness", type=values.burstiness, metavar="CV", help="of synthetic arrivals"
    )
    added.add_argument(
        "--like", choices=list(SERVICES), help="lengths and burstiness of a published service"
    )
    added.add_argument("--prompt-tokens", type=values.tokens, default=1024, metavar="P")
    added.add_argument("--output-tokens", type=values.tokens, default=128, metavar="O")


def add_objectives(added: argparse.ArgumentParser) -> None:
    """What `objectives_of` reads."""
    added.add_argument("--ttft", metavar="TIME", help="objective of goodput, such as 200ms")
    added.add_argument("--tpot", metavar="TIME", help="likewise")
    added.add_argument("--stall", metavar="TIME", help="likewise: the largest gap of an answer")
