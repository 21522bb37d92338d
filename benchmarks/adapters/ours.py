"""Ours: the steps that the book times, with no host work between them.

One runner a kind of step, so that neither works in a cache laid out for the other."""

from hashlib import sha256
from pathlib import Path

import torch
from serve import Options, median_time_of, serve, time_of

from prefill_decode import __version__, engine, hf_config, kernels
from prefill_decode.engine import StepRunner
from prefill_decode.step import Chunk

ENGINE = Path(engine.__file__).parent
KERNELS = (Path(kernels.__file__), kernels.SOURCE)


def _code_mark() -> str:
    """Names the engine's code: rounds of another state of it must not be pooled with these."""
    paths = [*sorted(path for path in ENGINE.iterdir() if path.is_file()), *KERNELS]
    code = [path.read_bytes() for path in paths]
    return sha256(b"".join(code)).hexdigest()[:7]


class Ours:
    version = f"{__version__} (code {_code_mark()}), torch {torch.__version__}"

    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        model = hf_config.get(options.model).with_dtype("float32")
        prompts = {tokens: [Chunk(tokens)] for tokens in options.prefills}
        batches = {(b, context): [Chunk(1, context)] * b for b, context in options.decodes}
        self.prefills = StepRunner(model, prompts, "cpu", seed=0).steps if prompts else {}
        self.decodes = StepRunner(model, batches, "cpu", seed=0).steps if batches else {}

    def prefill(self, tokens: int) -> float:
        return time_of(self.prefills[tokens])

    def decode(self, batch: int, context_tokens: int) -> float:
        return median_time_of(self.decodes[batch, context_tokens])


if __name__ == "__main__":
    serve(Ours)
