"""vLLM on a CPU: its offline engine inside this process, one scheduler step at a time.

Prefill: one request for one token, from its first step to that token; prompts never repeat, so the
prefix cache does not help. A prompt longer than vLLM's chunk takes several steps, all counted.
Decode: requests with prompts of CONTEXT tokens, found in the prefix cache after the first time;
once each has a token, the next steps bring one token to each and are timed apart. So the context
grows by a few tokens, and sampling and scheduling, which run in each step, are counted."""

import os
import random
from itertools import count
from statistics import median

from serve import DECODE_STEPS, Options, serve, time_of

os.environ |= {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_HOST_IP": "127.0.0.1",
}
import vllm
from vllm import EngineArgs, LLMEngine, SamplingParams


class Vllm:
    version = vllm.__version__

    def __init__(self, options: Options) -> None:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{options.threads - 1}"
        arguments = EngineArgs(
            model=str(options.peers / "models" / options.model),
            dtype="float32",
            load_format="dummy",
            max_model_len=options.longest + 64,
            max_num_batched_tokens=options.longest,
            max_num_seqs=max(options.widest, 2),
            enable_prefix_caching=True,
            skip_tokenizer_init=True,
        )
        self.engine = LLMEngine.from_engine_args(arguments)
        self.names = map(str, count())

    def prefill(self, tokens: int) -> float:
        self._add(_prompt(tokens, random.random()), new_tokens=1)
        return time_of(self._finish)

    def decode(self, batch: int, context_tokens: int) -> float:
        for sequence in range(batch):
            self._add(_prompt(context_tokens, sequence), DECODE_STEPS + batch + 2)
        tokens = {}
        while len(tokens) < batch or min(tokens.values()) < 2:  # all have decoded once
            tokens |= {o.request_id: len(o.outputs[0].token_ids) for o in self.engine.step()}
        step_s = median(time_of(self.engine.step) for _ in range(DECODE_STEPS))
        self.engine.abort_request(list(tokens))
        self._finish()
        return step_s

    def _add(self, prompt: list[int], new_tokens: int) -> None:
        sampling = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
        )
        self.engine.add_request(next(self.names), {"prompt_token_ids": prompt}, sampling)

    def _finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.engine.step()


def _prompt(tokens: int, seed: float) -> list[int]:
    return random.Random(seed).choices(range(3, 32000), k=tokens)


if __name__ == "__main__":
    serve(Vllm)
