"""LineRunner: whole lines of requests, served from the first step to the last token, ready to be
timed.

Each runs on the serving engine with the scheduler that its line names: scheduling, planning,
sampling and the tokens' way to the host are in its time. `schedules` holds the chunks of every step
before anything has run.

Ignores: receiving requests and sending tokens."""

from collections.abc import Callable, Mapping

import torch

from prefill_decode.batching import Line, Schedule
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.model_spec import ModelSpec


class LineRunner:
    """One engine with room for all of the lines, and each of them ready to run."""

    def __init__(
        self, model: ModelSpec, lines: Mapping[str, Line], device: str = "cpu", seed: int = 0
    ) -> None:
        if not lines:
            raise ValueError("there is nothing to run: give at least one line of requests")
        self.schedules: dict[str, Schedule] = {n: line.schedule() for n, line in lines.items()}
        most_tokens = max(line.most_tokens for line in lines.values())
        slots = max(line.slots for line in lines.values())
        self.engine = PagedEngine(
            model,
            device,
            num_blocks=slots * -(-most_tokens // BLOCK_TOKENS),
            block_tokens=BLOCK_TOKENS,
            capacity_tokens=most_tokens,
            seed=seed,
        )
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = {name: self._served(line) for name, line in lines.items()}

    def _served(self, line: Line) -> Callable[[], int]:
        """The whole line; returns how many steps it took. No prompt is found in the cache."""
        vocab_size, count = self.engine.model.vocab_size, len(line.output_tokens)
        shape = (count, line.prompt_tokens)
        prompts = torch.randint(vocab_size, shape, generator=self.generator).tolist()

        def run() -> int:
            serving = ServingEngine(self.engine, line.settings, reuse=False)
            for index, (prompt, tokens) in enumerate(zip(prompts, line.output_tokens, strict=True)):
                serving.submit(str(index), prompt, tokens)
            while serving.has_work:
                serving.step()
            return serving.state().steps

        return run
