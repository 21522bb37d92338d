"""FirstTokenRunner: requests ready to be timed from their prompt to their first token.

A timed request is all that an engine does for it when nothing else is running: free the slot,
check the prompt and plan the step, prefill, choose the most likely token and hand it to the host.

Ignores: queue, network and tokenizer, which stand before the engine."""

from collections.abc import Callable, Sequence

import torch

from prefill_decode.engine.engine import Engine, SequenceChunk
from prefill_decode.model_spec import ModelSpec


class FirstTokenRunner:
    """One engine with room for the longest prompt, and a request of each length ready to run."""

    def __init__(
        self, model: ModelSpec, prompt_tokens: Sequence[int], device: str = "cpu", seed: int = 0
    ) -> None:
        if not prompt_tokens or min(prompt_tokens) < 1:
            raise ValueError(
                f"a request brings at least one prompt token; got lengths {list(prompt_tokens)}"
            )
        self.engine = Engine(model, device, num_slots=1, capacity_tokens=max(prompt_tokens))
        generator = torch.Generator().manual_seed(seed)
        self.prompts: dict[int, list[int]] = {
            count: torch.randint(model.vocab_size, (count,), generator=generator).tolist()
            for count in prompt_tokens
        }
        self.logits = self.engine.forward([SequenceChunk(0, [0])])  # some, to choose from

    def request(self, prompt_tokens: int) -> Callable[[], int]:
        """From the prompt of this length to its first token."""
        chunks = [SequenceChunk(0, self.prompts[prompt_tokens])]

        def run() -> int:
            self.engine.release(0)
            return _most_likely(self.engine.forward(chunks))

        return run

    def all_but_prefill(self, prompt_tokens: int) -> Callable[[], int]:
        """The same request without its forward pass, on logits that are there already."""
        chunks = [SequenceChunk(0, self.prompts[prompt_tokens])]

        def run() -> int:
            self.engine.release(0)
            self.engine.plan(chunks)
            return _most_likely(self.logits)

        return run


def _most_likely(logits: torch.Tensor) -> int:  # [1, vocab]
    return int(logits[0].argmax())
