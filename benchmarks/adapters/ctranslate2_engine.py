"""CTranslate2: greedy generation, watched token by token through its callback.

Decode: tokens of consecutive steps, timed apart, behind a context that the engine keeps from an
earlier call (static_prompt). Prefill: CTranslate2 runs a prompt without its last token, without
logits, and then a decode step. So one more token is given, and from the time of the first new
token the time of the second is taken: what is left is the prompt, without the product with the
output matrix for its last token. That flatters the engine by about 1 % at 128 tokens."""

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

import ctranslate2
from serve import DECODE_STEPS, Options, serve


class CTranslate2:
    version = ctranslate2.__version__

    def __init__(self, options: Options) -> None:
        self.generator = ctranslate2.Generator(
            str(options.peers / "models" / f"{options.model}-ctranslate2"),
            device="cpu",
            compute_type="float32",
            inter_threads=1,
            intra_threads=options.threads,
        )

    def prefill(self, tokens: int) -> float:
        first_s, *steps_s = self._step_times_s([_prompt(tokens + 1)], 2)
        return first_s - median(steps_s)

    def decode(self, batch: int, context_tokens: int) -> float:
        """The first new token is left out: it waits for the context to be copied."""
        starts = [["t1"]] * batch
        context = _prompt(context_tokens)
        return median(self._step_times_s(starts, DECODE_STEPS + 1, static_prompt=context)[1:])

    def _step_times_s(
        self, starts: list[list[str]], steps: int, static_prompt: list[str] | None = None
    ) -> Sequence[float]:
        """Seconds from the call, then from step to step; a step ends with its first callback."""
        ends_s: dict[int, float] = {}
        started_s = time.perf_counter()
        self.generator.generate_batch(
            starts,
            static_prompt=static_prompt,
            include_prompt_in_result=False,
            min_length=steps,
            max_length=steps,
            end_token=["</s>"],
            callback=lambda result: bool(ends_s.setdefault(result.step, time.perf_counter()) < 0),
        )
        return [after - before for before, after in pairwise([started_s, *ends_s.values()])]


def _prompt(tokens: int) -> list[str]:
    return [f"t{1 + i * 7919 % 31000}" for i in range(tokens)]


if __name__ == "__main__":
    serve(CTranslate2)
