"""Pricing: the verbs that need no measurement: models, accelerators, what physics permits."""

import argparse
from typing import TYPE_CHECKING

from prefill_decode.cli.shared import FINDING, FINE, print_json

if TYPE_CHECKING:
    from prefill_decode.certify import Certificate


def show_hardware(options: argparse.Namespace) -> int:
    """Accelerators: dense peaks, bandwidth, ridge, capacity, link, power, source."""
    from prefill_decode import hardware

    dtype = hardware.check_dtype(options.dtype)
    if options.name is not None:
        row = hardware.accelerator(options.name)
        if options.json:
            print_json(row.as_dict(dtype))
        else:
            print(hardware.description(row, dtype))
        return FINE
    rows = hardware.accelerators()
    if options.json:
        print_json({"accelerators": [row.as_dict(dtype) for row in rows]})
    else:
        print(hardware.table(rows, dtype))
    return FINE


def certify(options: argparse.Namespace) -> int:
    """Whether physics permits a claimed TPOT, TTFT or token rate, with the arithmetic."""
    from prefill_decode import certify as certifying

    certificate = _certificate(options)
    if options.json:
        print_json(certificate.as_dict())
    else:
        print(certifying.report(certificate))
    return FINDING if certificate.finding else FINE


def _certificate(options: argparse.Namespace) -> "Certificate":
    from prefill_decode import certify as certifying
    from prefill_decode import hardware, hf_config

    model = hf_config.find(options.model, hardware.check_dtype(options.dtype))
    row = hardware.accelerator(options.accelerator)
    context, devices = options.context, options.devices
    if (options.ttft is None) != (options.prompt is None):
        raise ValueError("--ttft and --prompt go together: the time to read a prompt, its tokens")
    if options.ttft is not None:
        return certifying.certify_ttft(
            model,
            row,
            certifying.parse_duration(options.ttft),
            prompt_tokens=options.prompt,
            batch=1 if options.batch is None else options.batch,
            cached_tokens=context,
            devices=devices,
        )
    if options.tpot is not None:
        return certifying.certify_tpot(
            model,
            row,
            certifying.parse_duration(options.tpot),
            batch=1 if options.batch is None else options.batch,
            context_tokens=context,
            devices=devices,
        )
    return certifying.certify_tokens_per_s(
        model,
        row,
        options.tokens_per_s,
        batch=options.batch,
        context_tokens=context,
        devices=devices,
    )


def model(options: argparse.Namespace) -> int:
    """A model's arithmetic, from a shipped name, a config.json or the folder that holds one."""
    from prefill_decode import hf_config, model_spec

    found = model_spec.figures(hf_config.find(options.model, options.dtype), options.context)
    if options.json:
        print_json(found)
    else:
        print(model_spec.figures_text(found))
    return FINE
