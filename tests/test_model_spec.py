"""Parameter counts against published totals, hand counts and the engine's own tensors."""

import json

import pytest

from prefill_decode import model_spec
from prefill_decode.engine.weights import random_weights
from prefill_decode.model_spec import ModelSpec, from_config
from tests.conftest import CASES

LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
# Parameters as safetensors headers of the published checkpoints give them.
PUBLISHED_TOTALS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "qwen3-4b": 4_022_468_096,
    "llama-3.1-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_shipped_models_have_their_published_number_of_parameters(name):
    assert model_spec.get(name).total_params == PUBLISHED_TOTALS[name]


def test_a_tiny_llama_is_counted_by_hand():
    model = from_config(LLAMA, "tiny")
    attention = 8 * 8 * 4  # Q, K, V, O: 4 heads of 2, as many KV heads
    mlp = 3 * 8 * 12
    assert model.head_dim == 2
    assert model.block_params == 2 * (attention + mlp)
    assert model.matmul_params == model.block_params + 80
    assert model.total_params == model.block_params + 2 * 80 + 5 * 8
    assert model.kv_bytes_per_token == 2 * 2 * 8 * 2  # K and V, 2 layers, width 8, bfloat16
    assert model.linear_flops_per_token == 2 * model.matmul_params


@pytest.mark.parametrize(("tied", "bias", "norm"), [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 0, 1)])
def test_the_count_equals_the_tensors_that_the_engine_makes(tiny_model, tied, bias, norm):
    model = ModelSpec(
        **{
            **tiny_model.__dict__,
            "tied_embeddings": bool(tied),
            "qkv_bias": bool(bias),
            "qk_norm": bool(norm),
        }
    )
    weights = random_weights(model, "cpu", seed=0)
    tensors = [weights.embedding, weights.final_norm, weights.lm_head.weight]
    for layer in weights.layers:
        tensors += [layer.attention_norm, layer.mlp_norm, layer.query_norm, layer.key_norm]
        for linear in (layer.qkv, layer.attention_out, layer.gate, layer.up, layer.down):
            tensors += [linear.weight, linear.bias]
    distinct = {tensor.data_ptr(): tensor.numel() for tensor in tensors if tensor is not None}
    assert sum(distinct.values()) == model.total_params


@pytest.mark.parametrize("case", ["H01", "H02"])
@pytest.mark.skipif(not CASES.is_dir(), reason="no folder of shared cases beside this checkout")
def test_handed_model_cases_have_the_right_values(case):
    document = json.loads((CASES / f"{case}.json").read_text())
    model = from_config(document["input"]["config"], case).with_dtype("bfloat16")
    for expected in document["expected"]:
        if hasattr(model, expected["name"]):
            assert getattr(model, expected["name"]) == expected["value"], expected["name"]


def test_an_explicit_head_dim_wins_over_hidden_size_by_heads():
    assert from_config({**LLAMA, "head_dim": 6}, "m").head_dim == 6
    assert from_config({**LLAMA, "head_dim": None}, "m").head_dim == 2


def test_a_window_that_is_switched_off_is_no_window():
    qwen = {**LLAMA, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096}
    assert from_config(qwen, "q").qkv_bias
    with pytest.raises(ValueError, match="sliding_window=4096"):
        from_config({**qwen, "use_sliding_window": True}, "q")
    with pytest.raises(ValueError, match="sliding_window=4096"):
        from_config({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, "m")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "got 'mamba'"),
        ({"model_type": None}, "got None"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"hidden_size": 8.5, "head_dim": 2}, "hidden_size must be a positive whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be a positive number"),
        ({"vocab_size": True}, "vocab_size must be a positive whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
        ({"head_dim": 3}, "head_dim must be even"),
        ({"torch_dtype": "int4"}, "dtype must be one of"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not counted"),
        ({"hidden_act": "gelu"}, "hidden_act is not counted"),
        ({"num_experts": 8}, "num_experts is not counted"),
        ({"num_local_experts": 8}, "num_local_experts is not counted"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding-window"),
        ({"hidden_size": 9}, "lacks 'head_dim'"),  # 4 heads do not divide it
        ({"model_type": ["llama"]}, r"got \['llama'\]"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"attention_bias": True}, "attention_bias is not counted"),
        ({"mlp_bias": True}, "mlp_bias is not counted"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        from_config({**LLAMA, **change}, "m")


def test_a_spec_made_by_hand_is_checked_as_well(tiny_model):
    for field, value in [("num_layers", 0), ("vocab_size", -1), ("num_kv_heads", 0)]:
        with pytest.raises(ValueError, match=field):
            ModelSpec(**{**tiny_model.__dict__, field: value})
    with pytest.raises(ValueError, match="an object; got a list"):
        from_config([], "m")
    with pytest.raises(ValueError, match="model must be one of"):
        model_spec.get(None)


def test_a_misspelt_model_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"did you mean llama-3\.1-8b\?"):
        model_spec.get("llama-3.1-8B")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"model_type": "llama"}'])
def test_a_file_that_is_no_config_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"config\.json"):
        model_spec.read(path)
    with pytest.raises(ValueError, match=r"nowhere\.json"):
        model_spec.read(tmp_path / "nowhere.json")


def test_shipped_models_come_smallest_first_and_are_named_after_their_files():
    totals = [model.total_params for model in model_spec.shipped()]
    assert totals == sorted(totals)
    assert set(PUBLISHED_TOTALS) < set(model_spec.names())
