"""Every family against Hugging Face transformers, which shares no code with the counts.

Parameters are counted on torch's meta device, at any size. FLOPs are those that torch counts while
a tiny model of the same family runs, cache bytes those of the tensors that it leaves."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

import prefill_decode
from prefill_decode.hf_config import FAMILIES, from_config

SHIPPED = sorted((Path(prefill_decode.__file__).parent / "models").glob("*.json"))
TINY = {
    "vocab_size": 100,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OLD = {
    "vocab_size": 100,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OLDER = {
    "vocab_size": 100,
    "n_embd": 24,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 50,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {
    **TINY,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "moe_intermediate_size": 10,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
TINY_MODELS: dict[str, dict[str, Any]] = {
    "llama": {**TINY, "model_type": "llama"},
    "llama biased": {
        **TINY,
        "model_type": "llama",
        "attention_bias": True,
        "mlp_bias": True,
        "tie_word_embeddings": True,
        "head_dim": 10,
    },
    "mistral": {**TINY, "model_type": "mistral", "sliding_window": 5},
    "mistral, window by default": {**TINY, "model_type": "mistral"},
    "mixtral": {**TINY, "model_type": "mixtral", **LOCAL},
    "mixtral windowed": {**TINY, "model_type": "mixtral", **LOCAL, "sliding_window": 5},
    "qwen2": {**TINY, "model_type": "qwen2"},
    "qwen2 windowed": {
        **TINY,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen2_moe": {
        **TINY,
        "model_type": "qwen2_moe",
        **EXPERTS,
        "shared_expert_intermediate_size": 20,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [1],
    },
    "qwen2_moe windowed": {
        **TINY,
        "model_type": "qwen2_moe",
        **EXPERTS,
        "shared_expert_intermediate_size": 20,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 3,
    },
    "qwen3": {**TINY, "model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    "qwen3, head_dim by default": {**TINY, "model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3_moe": {
        **TINY,
        "model_type": "qwen3_moe",
        **EXPERTS,
        "head_dim": 8,
        "mlp_only_layers": [0],
    },
    "qwen3_moe biased": {**TINY, "model_type": "qwen3_moe", **EXPERTS, "attention_bias": True},
    "gemma": {**TINY, "model_type": "gemma"},
    "gemma untied": {
        **TINY,
        "model_type": "gemma",
        "head_dim": 8,
        "tie_word_embeddings": False,
        "attention_bias": True,
    },
    "gemma2": {**TINY, "model_type": "gemma2", "head_dim": 8, "sliding_window": 5},
    "gemma3_text": {
        **TINY,
        "model_type": "gemma3_text",
        "head_dim": 8,
        "sliding_window": 5,
        "sliding_window_pattern": 3,
    },
    "phi3": {**TINY, "model_type": "phi3", "sliding_window": 5},
    "gpt_oss": {**TINY, "model_type": "gpt_oss", **LOCAL, "head_dim": 8, "sliding_window": 5},
    "deepseek_v2": {**LATENT, "model_type": "deepseek_v2", "q_lora_rank": None},
    "deepseek_v3": {**LATENT, "model_type": "deepseek_v3"},
    "olmo2": {**TINY, "model_type": "olmo2"},
    "granite": {**TINY, "model_type": "granite", "attention_bias": True},
    "cohere": {**TINY, "model_type": "cohere"},
    "cohere with norms": {**TINY, "model_type": "cohere", "use_qk_norm": True},
    "cohere2": {**TINY, "model_type": "cohere2", "sliding_window": 5},
    "starcoder2": {**TINY, "model_type": "starcoder2", "sliding_window": 5},
    "starcoder2 unbiased": {**TINY, "model_type": "starcoder2", "use_bias": False},
    "gpt2": {**OLDER, "model_type": "gpt2", "n_inner": None},
    "gpt2 untied": {**OLDER, "model_type": "gpt2", "n_inner": 30, "tie_word_embeddings": False},
    "gptj": {**OLDER, "model_type": "gptj", "rotary_dim": 4},
    "gpt_neox": {**OLD, "model_type": "gpt_neox", "intermediate_size": 50},
    "gpt_neox unbiased": {
        **OLD,
        "model_type": "gpt_neox",
        "intermediate_size": 50,
        "attention_bias": False,
        "tie_word_embeddings": True,
    },
    "falcon": {**OLD, "model_type": "falcon"},
    "falcon grouped": {
        **OLD,
        "model_type": "falcon",
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
    },
    "falcon grouped, one norm": {
        **OLD,
        "model_type": "falcon",
        "num_kv_heads": 2,
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 1,
    },
    "falcon one after the other": {
        **OLD,
        "model_type": "falcon",
        "multi_query": False,
        "alibi": True,
        "bias": True,
        "parallel_attn": False,
    },
    "opt": {**OLD, "model_type": "opt", "ffn_dim": 40, "max_position_embeddings": 50},
    "opt unbiased": {
        **OLD,
        "model_type": "opt",
        "ffn_dim": 40,
        "max_position_embeddings": 50,
        "enable_bias": False,
    },
    "bloom": {
        "model_type": "bloom",
        "vocab_size": 100,
        "hidden_size": 24,
        "n_layer": 3,
        "n_head": 4,
    },
}
# Public configs: what follows from these sizes is compared with transformers, not with a memory.
LARGE_MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
    },
    "falcon-7b": {
        "model_type": "falcon",
        "vocab_size": 65024,
        "hidden_size": 4544,
        "num_hidden_layers": 32,
        "num_attention_heads": 71,
        "multi_query": True,
        "parallel_attn": True,
        "bias": False,
    },
    "falcon-40b": {
        "model_type": "falcon",
        "vocab_size": 65024,
        "hidden_size": 8192,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
        "bias": False,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "deepseek-v2-lite": {
        "model_type": "deepseek_v2",
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    },
    "gemma-2-2b": {
        "model_type": "gemma2",
        "vocab_size": 256000,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
    },
}
TOKENS = 12  # more than two windows


def transformers_config(config: dict[str, Any]) -> Any:
    ours = ("model_type", "torch_dtype")  # torch_dtype changes no count
    given = {key: value for key, value in config.items() if key not in ours}
    return AutoConfig.for_model(config["model_type"], **given)


def parameters_on_meta(config: dict[str, Any]) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(transformers_config(config))
    return sum({id(tensor): tensor.numel() for tensor in model.parameters()}.values())


def test_every_family_that_is_read_is_compared():
    assert {config["model_type"] for config in TINY_MODELS.values()} | {"gemma3"} == set(FAMILIES)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_tiny_model_of_each_family_has_the_parameters_that_transformers_makes(name):
    config = TINY_MODELS[name]
    assert from_config(config, name).total_params == parameters_on_meta(config)


@pytest.mark.parametrize("name", LARGE_MODELS)
def test_a_public_model_has_the_parameters_that_transformers_makes(name):
    config = LARGE_MODELS[name]
    assert from_config(config, name).total_params == parameters_on_meta(config)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_model_has_the_parameters_that_transformers_makes(path):
    config = json.loads(path.read_text())
    assert from_config(config, path.stem).total_params == parameters_on_meta(config)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_flops_and_cache_are_those_of_a_run(name):
    """Torch counts scores of masked pairs too, so each of N tokens is charged with N keys.

    A cache in transformers drops the token that the next one will push out of its window."""
    config = TINY_MODELS[name]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        transformers_config(config), attn_implementation="eager"
    ).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        cache = model(torch.full((1, TOKENS), 3), use_cache=True).past_key_values
    spec = from_config(config, name).with_dtype("float32")
    pairs = TOKENS * TOKENS * spec.num_layers
    attention = 2 * (spec.query_size + spec.attended_size) * pairs
    assert counter.get_total_flops() == TOKENS * spec.linear_flops_per_token + attention
    held = sum(4 * (layer.keys.numel() + layer.values.numel()) for layer in cache.layers)
    windows = spec.windows or (None,) * spec.num_layers
    dropped = sum(window is not None and window <= TOKENS for window in windows)
    expected = spec.kv_bytes(TOKENS) - dropped * spec.kv_values_per_token_layer * 4
    repeats = 2 if config.get("new_decoder_architecture") else 1  # of each KV head, before caching
    assert held == repeats * expected
