"""Transformers: the model's forward pass with sdpa attention, called as generate() calls it.

Decode runs on a DynamicCache, which grows by a copy each step, and on a StaticCache, which does
not but masks; the faster of the two counts. The cache holds noise, as a filled one does."""

import torch
import transformers
from serve import Options, median_time_of, serve, time_of
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache


class Transformers:
    version = f"{transformers.__version__}, torch {torch.__version__}"

    def __init__(self, options: Options) -> None:
        torch.set_num_threads(options.threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            options.peers / "models" / options.model,
            dtype=torch.float32,
            attn_implementation="sdpa",
        ).eval()
        self.caches = {}  # (batch, context_tokens): one of each kind

    @torch.inference_mode()
    def prefill(self, tokens: int) -> float:
        ids = torch.randint(self.model.config.vocab_size, (1, tokens))
        return time_of(lambda: self.model(ids, use_cache=True, logits_to_keep=1))

    @torch.inference_mode()
    def decode(self, batch: int, context_tokens: int) -> float:
        ids = torch.randint(self.model.config.vocab_size, (batch, 1))
        if (batch, context_tokens) not in self.caches:
            self.caches[batch, context_tokens] = self._filled_caches(batch, context_tokens)

        def step(cache) -> None:
            self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache.crop(-1)  # forgets the token: a few views, no copy

        caches = self.caches[batch, context_tokens]
        return min(median_time_of(lambda cache=cache: step(cache)) for cache in caches)

    def _filled_caches(self, batch: int, context_tokens: int) -> list:
        config = self.model.config
        size = (batch, config.num_key_value_heads, context_tokens, config.head_dim)
        caches = [DynamicCache(config=config), StaticCache(config, context_tokens + 1)]
        for layer in range(config.num_hidden_layers):
            keys, values = torch.randn(size), torch.randn(size)
            for cache in caches:
                cache.update(keys, values, layer)
        return caches


if __name__ == "__main__":
    serve(Transformers)
