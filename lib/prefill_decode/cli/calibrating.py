"""Calibrating: the verb that measures what this machine's engine reaches, for `simulate`."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from prefill_decode.cli import values
from prefill_decode.cli.shared import FINE, RenewedLine, check_out, print_json, print_last, warn
from prefill_decode.units import format_seconds, format_si, format_significant

if TYPE_CHECKING:
    from prefill_decode.model_spec import ModelSpec
    from prefill_decode.simulator import Calibrated, Calibration

BUDGET_S = 90.0


def calibrate(options: argparse.Namespace) -> int:
    """What steps take on this machine's engine, as a file for `simulate --calibration`."""
    from prefill_decode.calibrating import measure_calibration, use_threads
    from prefill_decode.measure import describe_machine
    from prefill_decode.results import write_atomically
    from prefill_decode.simulator.calibrated import document_of
    from prefill_decode.simulator.calibration import text_of

    check_out("--out", options.out)
    if options.threads is not None:
        use_threads(options.threads)
    machine = describe_machine(options.device)
    model = _model(options, machine.device, machine.cache_bytes, machine.memory_bytes)
    line = RenewedLine(sys.stderr)
    try:
        found = measure_calibration(
            model,
            machine,
            options.budget,
            seed=options.seed,
            num_blocks=options.blocks,
            progress=lambda episodes, s: line.show(f"{episodes} episodes in {s:.0f} s"),
        )
    finally:
        line.end()
    write_atomically(options.out, text_of(document_of(found)))
    warn(found.advice)
    if options.json:
        print_json(document_of(found))
    else:
        print_last("\n".join(_lines(found, options.out)))
    return FINE


def _model(
    options: argparse.Namespace, device: str, cache_bytes: float, memory_bytes: float
) -> "ModelSpec":
    from prefill_decode.engine.slices import choose_slice
    from prefill_decode.engine.step_runner import choose_model

    if options.layers is None:
        return choose_model(options.model, device, cache_bytes, memory_bytes)
    return choose_slice(options.model, options.layers, device, cache_bytes, memory_bytes)


def _lines(found: "Calibrated", path: Path) -> list[str]:
    calibration = found.calibration
    return [
        f"{found.hardware.name}: {format_si(found.hardware.peak_flops_per_s, 'FLOP/s')}, "
        f"{format_si(found.hardware.bandwidth_bytes_per_s, 'B/s')} in {found.hardware.dtype}; "
        f"{found.model.name}, {found.num_rounds} rounds, {len(calibration.fits)} fits",
        "products reach "
        + ", ".join(
            f"{share:.0%} at {rows}"
            for rows, share in zip(
                calibration.product_rows, calibration.product_shares, strict=True
            )
        )
        + " rows, of the longer of arithmetic and bytes",
        f"attention reaches {_range(calibration, 'attention_compute_share')} of the matrix rate, "
        f"or {_range(calibration, 'attention_bandwidth_share')} of the bandwidth",
        f"the host takes {format_seconds(calibration.step_s)} a step and "
        f"{format_seconds(calibration.sequence_s)} a sequence; a chunk of several tokens takes "
        f"{format_seconds(calibration.chunk_s)} more",
        *(
            f"after {format_seconds(idle_s)} idle a step begins {format_seconds(wake_s)} late"
            for idle_s, wake_s in zip(calibration.idle_s, calibration.wake_s, strict=True)
        ),
        *(
            f"{each.kind}: {each.count} episodes, the fit errs by {each.median:.1%} in the median, "
            f"{format_significant(100 * each.worst_signed)} % at worst ({each.worst_step})"
            for each in found.residuals
        ),
        f"written: {path}; prefill-decode simulate --calibration {path} --rate 1",
    ]


def _range(calibration: "Calibration", name: str) -> str:
    values = sorted(getattr(fit, name) for fit in calibration.fits)
    around = f" ({values[0]:.0%} to {values[-1]:.0%})" if values else ""
    return f"{getattr(calibration, name):.0%}{around}"


def add_calibrate(added: argparse.ArgumentParser) -> None:
    added.add_argument(
        "--model",
        default="auto",
        metavar="NAME",
        help="a shipped model (one that suits the device)",
    )
    added.add_argument(
        "--layers", type=values.positive_count, metavar="N", help="a slice of so many (all)"
    )
    added.add_argument(
        "--budget",
        type=values.positive_seconds,
        default=BUDGET_S,
        metavar="SECONDS",
        help=f"about how long to measure, in six rounds at least ({BUDGET_S:g})",
    )
    added.add_argument("--seed", type=values.seed, default=0, help="of orders and tokens (0)")
    added.add_argument(
        "--threads", type=values.positive_count, metavar="K", help="of torch (as it chooses)"
    )
    added.add_argument(
        "--blocks",
        type=values.positive_count,
        metavar="N",
        help="of the cache that is simulated (as many as `serve` has here)",
    )
    added.add_argument("--out", type=Path, required=True, metavar="FILE", help="to be written")
    added.add_argument("--json", action="store_true")
