"""Price a step: its least time on an accelerator, and what limits it.

    python price_a_step.py [MODEL] [ACCELERATOR] [SEQUENCES] [CONTEXT_TOKENS]

MODEL is a shipped name or the path of a config.json from Hugging Face."""

import argparse

from prefill_decode.hardware import accelerator
from prefill_decode.hf_config import find
from prefill_decode.roofline import step_work
from prefill_decode.step import Chunk
from prefill_decode.units import format_seconds


def main(model_name: str, accelerator_name: str, sequences: int, context_tokens: int) -> None:
    model = find(model_name, "bfloat16")
    hardware = accelerator(accelerator_name).at("bfloat16")
    steps = {
        f"a prompt of {context_tokens} tokens": [Chunk(context_tokens)],
        f"one token for each of {sequences} sequences": [Chunk(1, context_tokens)] * sequences,
        "both in one step": [Chunk(context_tokens), *[Chunk(1, context_tokens)] * sequences],
    }
    print(f"{model.name} on {hardware.name}: {hardware.source}")
    for name, chunks in steps.items():
        work = step_work(model, chunks)
        limit = work.total.limited_by(hardware)
        print(f"  {name}: at least {format_seconds(work.least_time_s(hardware))}, by its {limit}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model_name", metavar="MODEL", nargs="?", default="llama-3.1-8b")
    parser.add_argument("accelerator_name", metavar="ACCELERATOR", nargs="?", default="h100-sxm")
    parser.add_argument("sequences", type=int, nargs="?", default=8)
    parser.add_argument("context_tokens", type=int, nargs="?", default=2048)
    try:
        main(**vars(parser.parse_args()))
    except (ValueError, OSError) as error:
        parser.error(str(error))
