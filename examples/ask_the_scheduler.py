"""Ask the scheduler: which steps a prompt becomes that arrives while others decode.

    python ask_the_scheduler.py [MOST_TOKENS_PER_STEP] [PROMPT_TOKENS] [STREAMS]

Nothing is run. The scheduler is the one that the engine serves with; the roofline prices its steps.
"""

import argparse

from prefill_decode.hardware import accelerator
from prefill_decode.hf_config import get
from prefill_decode.roofline import step_work
from prefill_decode.scheduling import BlockPool, Scheduler, SchedulerSettings, SequenceState
from prefill_decode.units import format_seconds


def main(most_tokens: int, prompt_tokens: int, streams: int) -> None:
    model, hardware = get("llama-3.1-8b"), accelerator("h100-sxm").at("bfloat16")
    settings = SchedulerSettings("chunked", most_tokens, most_sequences=streams + 1)
    scheduler = Scheduler(BlockPool(num_blocks=100_000, block_tokens=16), settings)
    for index in range(streams):  # they hold 511 tokens and are about to run their next
        scheduler.accept(SequenceState(f"stream {index}", 512, 10_000), cached_tokens=511)
    prompt = SequenceState("prompt", prompt_tokens, most_output_tokens=1)
    scheduler.add(prompt)
    waited_s = 0.0
    while prompt.finish_reason is None and (step := scheduler.next_step()) is not None:
        chunks = [chunk for _, chunk in step.chunks]
        step_s = step_work(model, chunks).least_time_s(hardware)
        waited_s += step_s
        read = sum(chunk.new_tokens for sequence, chunk in step.chunks if sequence is prompt)
        beside = f"{read} tokens of the prompt beside {len(chunks) - 1} streams"
        print(f"  {beside}: at least {format_seconds(step_s)}")
        scheduler.complete(step)
    print(f"the first token comes after {format_seconds(waited_s)} at least")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, default in (("most_tokens", 512), ("prompt_tokens", 4096), ("streams", 8)):
        parser.add_argument(name, type=int, nargs="?", default=default)
    try:
        main(**vars(parser.parse_args()))
    except (ValueError, OSError) as error:
        parser.error(str(error))
