"""config.json -> ModelSpec: hand-worked public models, every null and default, every refusal."""

import json
import os

import pytest

from prefill_decode import hf_config
from prefill_decode.hf_config import find, from_config, read
from prefill_decode.model_spec import ModelSpec
from tests.test_transformers_oracle import LARGE_MODELS, TINY_MODELS

LLAMA = {
    "model_type": "llama",
    "vocab_size": 10,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
QWEN2 = {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 4}
MISTRAL = {**QWEN2, "model_type": "mistral", "sliding_window": None}
MIXTRAL = {**MISTRAL, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
# Parameters as safetensors headers of the published checkpoints give them.
PUBLISHED_TOTALS = {
    "smollm2-135m": 134_515_008,
    "qwen2.5-0.5b": 494_032_768,
    "gemma-3-1b": 999_885_952,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "phi-3-mini": 3_821_079_552,
    "qwen3-4b": 4_022_468_096,
    "llama-2-7b": 6_738_415_616,
    "qwen2.5-7b": 7_615_616_512,
    "llama-3.1-8b": 8_030_261_248,
    "gpt-oss-20b": 20_914_757_184,
    "mistral-small-24b": 23_572_403_200,
    "mixtral-8x7b": 46_702_792_704,
    "llama-3.1-70b": 70_553_706_496,
    "deepseek-v3": 671_026_404_352,  # without 58 x 256 router corrections: buffers, no parameters
}


@pytest.mark.parametrize("name", PUBLISHED_TOTALS)
def test_shipped_models_have_their_published_number_of_parameters(name):
    assert hf_config.get(name).total_params == PUBLISHED_TOTALS[name]


def test_shipped_models_come_smallest_first_and_are_named_after_their_files():
    totals = [model.total_params for model in hf_config.shipped()]
    assert totals == sorted(totals)
    assert {*PUBLISHED_TOTALS, "laptop-254m"} == set(hf_config.names())
    assert all(model.dtype == "bfloat16" for model in hf_config.shipped())


# Public models worked by hand, in bfloat16; each with values that a known mistake gives instead.


def test_qwen3_4b_has_its_own_head_size_and_multiplies_its_tied_matrix_once():
    model = hf_config.get("qwen3-4b")
    assert model.head_dim == 128  # hidden / heads would be 80
    assert model.total_params == 4_022_468_096  # the tied matrix twice: 4_411_424_256
    assert model.weight_bytes == 8_044_936_192
    assert model.kv_bytes_per_token == 147_456  # 2 x 36 x 8 x 128 x 2
    assert model.kv_bytes_per_token != 92_160  # head size from hidden / heads
    assert model.kv_bytes_per_token != 589_824  # query heads
    assert model.linear_flops_per_token == 8_044_544_000
    assert model.linear_flops_per_token != 7_266_631_680  # output matrix left out as tied
    assert model.linear_flops_per_token != 8_822_456_320  # embedding as a product
    assert model.attn_flops_per_token(4096) == 2_415_919_104  # 4 x 32 x 128 x 4096 x 36


def test_grouped_queries_save_bytes_and_no_arithmetic():
    model = hf_config.get("llama-3.1-70b")
    assert model.weight_bytes == 141_107_412_992
    assert model.kv_bytes_per_token == 327_680  # query heads: 2_621_440
    assert model.kv_bytes(32_768) == 10_737_418_240  # 10 GiB exactly
    assert model.linear_flops_per_token == 139_003_428_864
    assert model.attn_flops_per_token(32_768) == 85_899_345_920
    assert model.attn_flops_per_token(32_768) not in (10_737_418_240, 171_798_691_840)


def test_a_mixture_stores_all_experts_and_multiplies_a_tokens_own():
    model = hf_config.get("mixtral-8x7b")
    assert model.head_dim == 128  # null: hidden / heads
    assert model.total_params == 46_702_792_704  # one MLP a layer: 7_241_732_096
    assert model.active_params == 12_879_925_248
    assert model.linear_flops_per_token == 25_497_174_016  # all experts: 93_142_908_928
    assert model.kv_bytes_per_token == 131_072
    assert model.weight_bytes == 93_405_585_408  # active experts only: 25_759_850_496
    distinct = [model.experts.expected_distinct(tokens) for tokens in (1, 4, 16)]
    assert distinct == pytest.approx([2.0, 5.46875, 7.919819], abs=1e-3)


def test_alternating_windows_hold_less_than_an_engine_that_ignores_them():
    model = hf_config.get("gpt-oss-20b")
    assert model.head_dim == 64  # hidden / heads would be 45
    assert model.kv_bytes(1) == 49_152  # windowed layers left out 24_576; head size 45 34_560
    assert model.kv_bytes(128) == 6_291_456
    assert model.kv_bytes(8192) == 204_472_320  # windowed layers left out: 201_326_592
    assert model.kv_bytes_kept_by_engine(8192) == 402_653_184
    assert model.kv_bytes(8193) - model.kv_bytes(8192) == 24_576
    assert 32 * model.kv_bytes(8192) == 6_543_114_240
    assert 32 * model.kv_bytes_kept_by_engine(8192) == 12_884_901_888
    assert model.total_params == 20_914_757_184
    assert model.active_params == 4_187_440_704
    assert model.matmul_params == 3_607_142_400  # the published 3.6 billion
    assert model.with_dtype("mxfp4").weight_bytes == 13_761_264_768


def test_latent_attention_caches_one_latent_and_one_rotary_key():
    model = hf_config.get("deepseek-v3")
    assert model.kv_bytes_per_token == 70_272  # 61 x (512 + 64) x 2
    # Doubled for K and V, without the rotary key, from hidden / heads:
    assert model.kv_bytes_per_token not in (124_928, 62_464, 1_748_992)
    assert model.kv_bytes(65_536) == 4_605_345_792
    assert model.kv_bytes_kept_by_engine(1) == 4_997_120
    assert model.total_params == 671_026_404_352
    assert model.active_params == 37_552_282_624
    assert model.linear_flops_per_token == 73_249_193_984


@pytest.mark.parametrize(
    ("name", "head_dim", "kv_heads", "linear_flops", "kv_bytes", "kv_bytes_at"),
    [
        ("llama-2-7b", 128, 32, 13_214_154_752, 524_288, {4096: 2_147_483_648}),
        ("llama-3.1-8b", 128, 8, 15_009_316_864, 131_072, {131_072: 17_179_869_184}),
        (
            "qwen2.5-7b",
            128,
            4,
            14_140_571_648,
            57_344,
            {32_768: 1_879_048_192, 131_072: 7_516_192_768},
        ),
        (
            "phi-3-mini",
            96,
            32,
            7_444_758_528,
            393_216,
            {2047: 804_913_152, 4096: 804_913_152},
        ),
        ("gemma-3-1b", 256, 1, 1_999_503_360, 26_624, {512: 13_631_488, 32_768: 145_752_064}),
        ("mistral-small-24b", 128, 8, 45_801_799_680, 163_840, {32_768: 5_368_709_120}),
    ],
)
def test_six_more_public_models_are_right(
    name, head_dim, kv_heads, linear_flops, kv_bytes, kv_bytes_at
):
    model = hf_config.get(name)
    assert (model.head_dim, model.num_kv_heads) == (head_dim, kv_heads)
    assert model.active_params == model.total_params
    assert model.linear_flops_per_token == linear_flops
    assert model.kv_bytes_per_token == kv_bytes
    for context_tokens, expected in kv_bytes_at.items():
        assert model.kv_bytes(context_tokens) == expected


def test_falcon_7b_has_one_kv_head_and_falcon_40b_has_eight():
    small, large = (from_config(LARGE_MODELS[name], name) for name in ("falcon-7b", "falcon-40b"))
    assert (small.num_kv_heads, small.head_dim) == (1, 64)
    assert small.kv_bytes_per_token == 2 * 32 * 64 * 2
    assert (large.num_kv_heads, large.head_dim) == (8, 64)
    assert large.kv_bytes_per_token == 2 * 60 * 8 * 64 * 2
    assert small.tied_embeddings
    assert large.tied_embeddings


def test_qwen3_30b_a3b_uses_three_of_thirty_billion():
    model = from_config(LARGE_MODELS["qwen3-30b-a3b"], "q")
    expert = 3 * 2048 * 768
    assert model.total_params == 30_532_122_624
    assert model.active_params == 30_532_122_624 - 48 * 120 * expert
    assert model.active_params == pytest.approx(3.3e9, rel=0.02)  # the published "3.3B activated"


def test_deepseek_v2_lite_makes_its_queries_without_a_latent():
    model = from_config(LARGE_MODELS["deepseek-v2-lite"], "d")
    assert model.latent.query_rank is None
    assert model.kv_bytes_per_token == 27 * 576 * 2
    queries, latents = 2048 * 16 * 192, 2048 * 576 + 512 * 16 * 256
    assert model.qkv_params == queries + latents
    assert model.total_params == pytest.approx(15.7e9, rel=0.01)
    assert model.active_params == pytest.approx(2.66e9, rel=0.01)


def test_gemma_2_alternates_and_its_first_layer_is_windowed():
    model = from_config(LARGE_MODELS["gemma-2-2b"], "g")
    assert model.windows[:4] == (4096, None, 4096, None)
    assert model.kv_bytes(8192) == 2 * 4 * 256 * 2 * (13 * 4096 + 13 * 8192)


# Keys: null, absent, nested, renamed.


def outcome(config, name):
    """The spec, or the words that refuse it."""
    try:
        return from_config(config, name)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("name", TINY_MODELS)
def test_null_is_the_same_as_leaving_a_key_out(name):
    """But for two: a null sliding_window says "none", and null KV heads as many as query heads."""
    config = TINY_MODELS[name]
    for key in {*config, *hf_config.HARMLESS, "head_dim", "rope_theta", "torch_dtype", "n_inner"}:
        if key in ("sliding_window", "num_key_value_heads", "num_kv_heads"):
            continue
        without = {other: value for other, value in config.items() if other != key}
        assert outcome({**config, key: None}, name) == outcome(without, name), key


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_value_of_the_wrong_kind_never_ends_in_anything_but_a_sentence(name):
    for key in TINY_MODELS[name]:
        for value in ["8", -1, 0, 2.5, True, [], {}, 10**5000, float("nan")]:
            found = outcome({**TINY_MODELS[name], key: value}, name)
            assert isinstance(found, ModelSpec) or len(found) < 500


def test_null_kv_heads_are_as_many_as_query_heads_and_absent_ones_too_where_the_family_says_so():
    assert from_config({**LLAMA, "num_key_value_heads": None}, "m").num_kv_heads == 4
    assert from_config(LLAMA, "m").num_kv_heads == 4
    assert from_config({**MISTRAL, "num_key_value_heads": None}, "m").num_kv_heads == 4
    absent = {key: value for key, value in MISTRAL.items() if key != "num_key_value_heads"}
    with pytest.raises(ValueError, match="lacks 'num_key_value_heads'"):
        from_config(absent, "m")  # transformers would take 8, whatever the size


def test_an_explicit_head_dim_wins_over_hidden_size_by_heads():
    assert from_config({**LLAMA, "head_dim": 6}, "m").head_dim == 6
    assert from_config({**LLAMA, "head_dim": None}, "m").head_dim == 2
    assert from_config({**QWEN2, "model_type": "qwen3"}, "m").head_dim == 128  # the family's


def test_a_nested_decoder_is_counted_like_a_flat_one():
    flat = TINY_MODELS["gemma3_text"]
    nested = {"model_type": "gemma3", "text_config": flat, "vision_config": {"hidden_size": 3}}
    assert from_config(nested, "g") == from_config(flat, "g")
    unnamed = {key: value for key, value in flat.items() if key != "model_type"}
    assert from_config({**nested, "text_config": unnamed}, "g") == from_config(flat, "g")
    outside = {**nested, "torch_dtype": "float16", "tie_word_embeddings": False}
    assert from_config(outside, "g").dtype == "float16"
    assert not from_config(outside, "g").tied_embeddings
    inside = {**outside, "text_config": {**flat, "dtype": "float32"}}
    assert from_config(inside, "g").dtype == "float32"
    mistral = {"model_type": "mistral3", "text_config": {**MISTRAL, "model_type": None}}
    assert from_config(mistral, "m") == from_config(MISTRAL, "m")


def test_each_family_is_tied_or_not_by_its_own_default():
    tied = {name for name in TINY_MODELS if from_config(TINY_MODELS[name], name).tied_embeddings}
    by_default = {"gemma", "gemma2", "gemma3_text", "cohere", "cohere2", "starcoder2", "gpt2"}
    by_default |= {"falcon", "opt", "bloom"}
    plain = {config["model_type"] for config in TINY_MODELS.values()} & set(TINY_MODELS)
    assert tied & plain == by_default


def test_rotary_settings_are_found_where_newer_configs_keep_them():
    config = {**LLAMA, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}
    assert from_config(config, "m").rope_theta == 5e5
    assert from_config({**config, "rope_parameters": {"partial_rotary_factor": 0.5}}, "m").positions


# Windows.


def test_a_window_that_is_switched_off_is_no_window():
    off = {**QWEN2, "use_sliding_window": False, "sliding_window": 4096}
    assert from_config(off, "q").windows is None
    assert from_config({**off, "sliding_window": 0}, "q").windows is None
    assert from_config({**QWEN2, "sliding_window": 4096}, "q").windows is None
    assert from_config(MISTRAL, "m").windows is None
    on = {**off, "use_sliding_window": True, "max_window_layers": 1}
    assert from_config(on, "q").windows == (None, 4096)


def test_a_mistral_that_does_not_speak_of_its_window_has_the_familys():
    silent = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert from_config(silent, "m").windows == (4096, 4096)


def test_a_window_larger_than_the_context_changes_nothing():
    wide = from_config({**MIXTRAL, "sliding_window": 1000}, "m")
    full = from_config(MIXTRAL, "m")
    assert wide.windows == (1000, 1000)
    assert wide.kv_bytes(999) == full.kv_bytes(999)
    assert wide.attn_flops_per_token(1000) == full.attn_flops_per_token(1000)
    assert wide.kv_bytes(1001) == full.kv_bytes(1000)
    assert wide.kv_bytes_kept_by_engine(5000) == full.kv_bytes(5000)


def test_layer_types_win_over_the_familys_pattern():
    gemma = {**TINY_MODELS["gemma2"], "layer_types": ["full_attention"] * 3 + ["sliding_attention"]}
    assert from_config(gemma, "g").windows == (None, None, None, 5)


def test_experts_are_where_the_config_says():
    qwen = from_config(TINY_MODELS["qwen2_moe"], "q")  # every second layer of four, but not layer 1
    assert qwen.experts.dense_layers == (0, 1, 2)
    assert (qwen.num_dense_layers, qwen.num_expert_layers) == (3, 1)
    deepseek = {**TINY_MODELS["deepseek_v3"], "moe_layer_freq": 2}
    assert from_config(deepseek, "d").experts.dense_layers == (0, 1, 3)


# Dtypes.


def test_the_configs_own_dtype_holds_unless_another_is_named():
    assert from_config({**LLAMA, "torch_dtype": "float16"}, "m").dtype == "float16"
    assert from_config({**LLAMA, "dtype": "float32"}, "m").dtype == "float32"
    assert from_config(LLAMA, "m").dtype == "bfloat16"
    assert from_config({**LLAMA, "torch_dtype": "int3"}, "m", "float64").dtype == "float64"


def test_a_quantized_checkpoint_is_read_in_its_format_or_refused():
    gpt_oss = TINY_MODELS["gpt_oss"]
    mxfp4 = {**gpt_oss, "quantization_config": {"quant_method": "mxfp4"}, "dtype": "bfloat16"}
    assert from_config(mxfp4, "g").dtype == "mxfp4"
    assert from_config({**LLAMA, "quantization_config": {"quant_method": "fp8"}}, "m").dtype == (
        "fp8"
    )
    gptq = {**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    with pytest.raises(ValueError, match="quantization_config is not counted"):
        from_config(gptq, "m")
    assert from_config(gptq, "m", "int4").dtype == "int4"


# Refusals.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "got 'mamba'"),
        ({"model_type": None}, "got None"),
        ({"model_type": ["llama"]}, r"got \['llama'\]"),
        ({"vocab_size": None}, "lacks 'vocab_size'"),
        ({"hidden_size": None}, "lacks 'hidden_size' or 'n_embd'"),
        ({"hidden_size": 8.5, "head_dim": 2}, "hidden_size must be a positive whole number"),
        ({"hidden_size": 9}, "lacks 'head_dim'"),  # 4 heads do not divide it
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive"),
        ({"num_hidden_layers": -3}, "got -3"),
        ({"num_hidden_layers": 10**6}, "at most 10000"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number"),
        ({"rope_theta": float("nan")}, "rope_theta must be a positive number"),
        ({"rms_norm_eps": 0}, "norm_epsilon must be a positive number"),
        ({"vocab_size": True}, "vocab_size must be a positive whole number"),
        ({"vocab_size": 10**400}, "vocab_size"),
        ({"vocab_size": 10**5000}, "vocab_size .*too large"),
        ({"vocab_size": [1] * 10**5}, "vocab_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": 3}, "head_dim must be even"),
        ({"torch_dtype": "int3"}, "dtype must be one of"),
        ({"torch_dtype": "float16", "dtype": "float32"}, "dtype and torch_dtype mean the same"),
        ({"n_embd": 16}, "hidden_size and n_embd mean the same"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is not counted"),
        ({"num_experts": 8}, "num_experts is not counted"),
        ({"num_local_experts": 8}, "num_local_experts is not counted"),
        ({"kv_lora_rank": 8}, "kv_lora_rank is not counted"),
        ({"sliding_window": 4096}, "sliding_window is not counted"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is not counted"),
        ({"attention_bias": "yes"}, "attention_bias must be true or false"),
        ({"add_cross_attention": True}, "add_cross_attention is not counted"),
        ({"text_config": [1]}, "text_config is an object"),
        ({"text_config": {**LLAMA, "model_type": "llama4_text"}}, "got 'llama4_text'"),
    ],
)
def test_a_config_that_cannot_be_counted_is_refused_by_name(change, message):
    with pytest.raises(ValueError, match=message):
        from_config({**LLAMA, **change}, "m")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mistral", {"sliding_window": 0}, "sliding_window .*null for none.*got 0"),
        ("mistral", {"sliding_window": -1}, "sliding_window"),
        ("mistral", {"sliding_window": "4096"}, "sliding_window"),
        ("mistral", {"layer_types": ["full_attention"] * 4}, "layer_types is not counted"),
        ("mistral", {"attention_bias": True}, "attention_bias is not counted"),
        ("gemma2", {"sliding_window": None}, "need sliding_window"),
        ("gemma2", {"layer_types": ["full_attention"]}, "got 1 for 4 layers"),
        ("gemma2", {"layer_types": ["chunked_attention"] * 4}, "layer_types must be a list"),
        ("gemma2", {"layer_types": "full"}, "layer_types must be a list"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("qwen2 windowed", {"max_window_layers": -1}, "max_window_layers"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "switched off"),
        ("mixtral", {"num_local_experts": None}, "lacks 'num_experts' or 'num_local_experts'"),
        ("mixtral", {"num_experts_per_tok": None}, "lacks 'num_experts_per_tok'"),
        ("mixtral", {"num_experts_per_tok": 9}, "more experts than there are"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "lacks 'moe_intermediate_size'"),
        ("qwen3_moe", {"mlp_only_layers": [-1]}, "mlp_only_layers"),
        ("qwen3_moe", {"mlp_only_layers": 3}, "mlp_only_layers"),
        ("qwen2_moe", {"shared_expert_intermediate_size": None}, "shared_expert_intermediate_size"),
        ("deepseek_v3", {"kv_lora_rank": None}, "lacks 'kv_lora_rank'"),
        ("deepseek_v3", {"q_lora_rank": 0}, "query_rank"),
        ("deepseek_v3", {"first_k_dense_replace": None}, "first_k_dense_replace"),
        ("deepseek_v3", {"n_shared_experts": -1}, "n_shared_experts"),
        ("deepseek_v3", {"attention_bias": True}, "attention_bias is not counted"),
        ("gpt2", {"n_positions": None}, "lacks 'max_position_embeddings' or 'n_positions'"),
        ("gpt2", {"n_head": 5}, "24 for 5 heads"),
        ("gptj", {"tie_word_embeddings": True}, "tie_word_embeddings is not counted"),
        ("opt", {"word_embed_proj_dim": 12}, "word_embed_proj_dim is not counted"),
        ("opt", {"do_layer_norm_before": False}, "do_layer_norm_before is not counted"),
        ("opt", {"ffn_dim": None}, "lacks 'intermediate_size'"),
        ("falcon", {"multi_query": "yes"}, "multi_query must be true or false"),
    ],
)
def test_a_family_refuses_what_it_does_not_count(name, change, message):
    with pytest.raises(ValueError, match=message):
        from_config({**TINY_MODELS[name], **change}, name)


@pytest.mark.parametrize("config", [[], None, "llama", 3])
def test_a_config_is_an_object(config):
    with pytest.raises(ValueError, match="a config is an object"):
        from_config(config, "m")


# Files and names.


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "[" * 100_000, '{"model_type": "llama"}', "null", '{"a": ' + "9" * 9999]
)
def test_a_file_that_is_no_config_is_refused_with_its_path(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    for place in (path, tmp_path):
        with pytest.raises(ValueError, match=r"config\.json"):
            read(place)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.json").write_text(" " * 10_000_001)
    for name in ("nowhere.json", "", "pipe.json", "binary.json", "large.json", "a\0b.json"):
        with pytest.raises(ValueError, match=r"\.json"):
            read(tmp_path / name)


def test_a_model_is_named_after_its_folder_or_file(tmp_path, monkeypatch):
    folder = tmp_path / "tiny-1.5b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "other.json").write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert read(folder).name == "tiny-1.5b"
    assert read(folder / "config.json").name == "tiny-1.5b"
    assert read(folder / "other.json").name == "other"
    monkeypatch.chdir(folder)
    assert find(".").name == "tiny-1.5b"
    assert find("config.json", "int8").dtype == "int8"
    assert find("llama-3.1-8b", "int8") == hf_config.get("llama-3.1-8b").with_dtype("int8")


def test_a_misspelt_model_is_answered_with_the_nearest():
    for answer in (hf_config.get, find):
        with pytest.raises(ValueError, match=r"did you mean llama-3\.1-8b\?"):
            answer("llama-3.1-8B")
    with pytest.raises(ValueError, match="model must be one of"):
        hf_config.get(None)
    for word in ("x" * 5000, "a\0b"):
        with pytest.raises(ValueError, match=r"xxx|a\\x00b"):
            find(word)


@pytest.mark.parametrize("key", ["rope_theta", "rms_norm_eps"])
def test_a_whole_number_beyond_every_float_is_refused_like_infinity(key):
    with pytest.raises(ValueError, match="must be a positive number"):
        from_config({**LLAMA, key: 10**400}, "llama")


def test_more_shared_experts_than_can_be_counted_are_refused():
    config = {**TINY_MODELS["deepseek_v3"], "n_shared_experts": 10**400}
    with pytest.raises(ValueError, match="n_shared_experts must be a count"):
        from_config({**config, "model_type": "deepseek_v3"}, "deepseek")


def test_a_value_of_any_length_is_shown_in_a_short_sentence():
    for change in ({"dtype": "x" * 10_000}, {"n_embd": "x" * 10_000}):
        with pytest.raises(ValueError, match="got") as refused:
            from_config({**LLAMA, **change}, "llama")
        assert len(str(refused.value)) < 400


def test_a_key_that_is_given_twice_is_refused_and_no_value_chosen(tmp_path):
    text = json.dumps(LLAMA)[:-1] + ', "hidden_size": 16}'
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="a key is given once; got 'hidden_size' twice"):
        read(tmp_path)
