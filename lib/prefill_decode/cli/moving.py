"""Moving: the verb that measures what moves a cache between processes."""

import argparse

from prefill_decode.cli import values
from prefill_decode.cli.shared import FINE, print_json, print_last

BUDGET_S = 20.0


def add_link(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--budget",
        type=values.positive_seconds,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"about how long to measure, in six rounds at least ({BUDGET_S:g})",
    )
    added.add_argument("--json", action="store_true")


def link(options: argparse.Namespace) -> int:
    """What each transport between two processes takes here: start, rate, share of a plain copy."""
    from prefill_decode import measure
    from prefill_decode.disaggregated import link as linking
    from prefill_decode.disaggregated import link_report

    machine = measure.describe_machine("cpu")
    loads = (*linking.LOADS, linking.PAGED)
    runner = linking.LinkRunner(loads)
    try:
        times = measure.interleave(runner.steps, machine, options.budget, own_s=runner.own_s)
    finally:
        runner.close()
    found = link_report.report(
        runner.seen(times), runner.transports, loads, runner.missing, machine
    )
    if options.json:
        print_json(found)
    else:
        print_last(link_report.text(found))
    return FINE
