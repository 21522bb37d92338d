"""Transformers' continuous batching: generate_batch with paged sdpa attention, no HTTP.

The time is from the call to the last token: it counts scheduling and sampling, and not the HTTP
that the servers beside it answer through, which errs in its favour. Prompts never repeat."""

import torch
import transformers
from serve import Options, serve, time_of
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

BLOCK_TOKENS = 32
NUM_BLOCKS = 2048  # 65,536 tokens, as the servers beside it have


class TransformersBatches:
    version = f"{transformers.__version__}, torch {torch.__version__}"

    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            options.peers / "models" / options.model,
            dtype=torch.float32,
            attn_implementation="paged|sdpa",
        ).eval()
        self.batching = ContinuousBatchingConfig(
            page_size=BLOCK_TOKENS, num_blocks=NUM_BLOCKS, max_batch_tokens=2048
        )

    def answer(self, requests: int, prompt_tokens: int, output_tokens: int) -> float:
        prompts = torch.randint(3, self.model.config.vocab_size, (requests, prompt_tokens))
        greedy = GenerationConfig(
            max_new_tokens=output_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        answers = {}

        def run() -> None:
            answers.update(
                self.model.generate_batch(
                    prompts.tolist(),
                    generation_config=greedy,
                    continuous_batching_config=self.batching,
                    persistent_manager=True,
                )
            )

        took_s = time_of(run)
        counts = [len(answer.generated_tokens) for answer in answers.values()]
        if counts != [output_tokens] * requests:
            raise RuntimeError(f"{requests} answers of {output_tokens} tokens asked; got {counts}")
        return took_s


if __name__ == "__main__":
    serve(TransformersBatches)
