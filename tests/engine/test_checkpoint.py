"""Stored weights give the logits and the answers that Hugging Face transformers gives.

The oracle runs the same folder. It keeps norms and rotary angles in float32 whatever the model's
dtype, so for float64 those two are written out anew here."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from prefill_decode.engine import Engine, SequenceChunk
from prefill_decode.engine.checkpoint import read_checkpoint, read_stored_model
from prefill_decode.hf_config import Keys, rope_scaling
from prefill_decode.model_spec import RopeScaling

TINY = {
    "vocab_size": 97,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LATE = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
FAMILIES = {
    "llama": {"model_type": "llama"},
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama, one KV head": {"model_type": "llama", "num_key_value_heads": 1},
    "llama, wide heads": {"model_type": "llama", "head_dim": 10, "num_key_value_heads": 4},
    "llama 3": {"model_type": "llama", "rope_parameters": {**LLAMA3, "rope_theta": 500.0}},
    "llama, linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral windowed": {"model_type": "mistral", "sliding_window": 5},
    "phi3": {"model_type": "phi3", "sliding_window": None},
    "qwen2": {
        "model_type": "qwen2",
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"},
    },
    "qwen2 windowed": {"model_type": "qwen2", **LATE, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 8},
    "qwen3 windowed": {"model_type": "qwen3", "head_dim": 16, **LATE},
}
PROMPT = [5, 60, 0, 17, 17, 3, 42, 96, 11, 8, 71]
ANSWER_TOKENS = 9


def save(folder, config, **saving):
    """A folder of random weights, larger than usual so that no detail drowns in the others."""
    torch.manual_seed(0)
    given = {key: value for key, value in {**TINY, **config}.items() if key != "model_type"}
    made = AutoConfig.for_model(config["model_type"], **given)
    model = AutoModelForCausalLM.from_config(made, dtype=torch.float32)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.normal_(1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder, **saving)
    return folder


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), FAMILIES[request.param])


@pytest.fixture
def llama(tmp_path):
    return save(tmp_path / "llama", FAMILIES["llama"])


class ExactNorm(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.weight, self.epsilon = inner.weight, inner.variance_epsilon

    def forward(self, rows):
        size = rows.pow(2).mean(-1, keepdim=True) + self.epsilon
        return rows / size.sqrt() * self.weight


class ExactRotary(torch.nn.Module):
    """Angles by the rules that papers and model cards give, one frequency at a time."""

    def __init__(self, config):
        super().__init__()
        given = config.rope_parameters
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        plain = [given["rope_theta"] ** (-2 * i / size) for i in range(size // 2)]
        self.frequencies = [self.stretched(one, given) for one in plain]

    def stretched(self, frequency, given):
        if given["rope_type"] == "default":
            return frequency
        slow = frequency / given["factor"]
        if given["rope_type"] == "linear":
            return slow
        wavelength = 2 * math.pi / frequency
        context = given["original_max_position_embeddings"]
        if wavelength < context / given["high_freq_factor"]:
            return frequency
        if wavelength > context / given["low_freq_factor"]:
            return slow
        low, high = given["low_freq_factor"], given["high_freq_factor"]
        smooth = (context / wavelength - low) / (high - low)
        return (1 - smooth) * slow + smooth * frequency

    def forward(self, hidden, position_ids):
        turns = torch.tensor(self.frequencies * 2, dtype=torch.float64)
        angles = position_ids[..., None].double() * turns
        return angles.cos(), angles.sin()


def theirs(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def exact(folder):
    model = theirs(folder, torch.float64)
    rotary = ExactRotary(model.config)
    own = model.model.rotary_emb.inv_freq
    torch.testing.assert_close(
        torch.tensor(rotary.frequencies), own, rtol=1e-5, atol=0, check_dtype=False
    )
    model.model.rotary_emb = rotary
    for module in list(model.modules()):
        for name, inner in module.named_children():
            if type(inner).__name__.endswith("RMSNorm"):
                setattr(module, name, ExactNorm(inner))
    return model


@torch.inference_mode()
def their_logits(model, ids):
    return model(torch.tensor([ids])).logits[0]


def our_logits(folder, dtype, ids, prompt_tokens):
    """Of a prompt's last token and then of each that is decoded behind it."""
    model, weights = read_checkpoint(folder, dtype=dtype)
    engine = Engine(model, num_slots=2, capacity_tokens=64, weights=weights)
    cuts = [ids[:prompt_tokens], *([token] for token in ids[prompt_tokens:])]
    return torch.cat([engine.forward([SequenceChunk(1, cut)]) for cut in cuts])


def test_logits_of_prompt_and_decode_are_exact_in_float64(folder):
    ids = PROMPT * 4  # longer than the windows and the ramp of Llama 3's stretching
    found = our_logits(folder, "float64", ids, len(PROMPT))
    expected = their_logits(exact(folder), ids)[len(PROMPT) - 1 :]
    assert (found - expected).abs().max() < 1e-9
    assert expected.abs().max() > 1


def test_logits_in_float32_are_those_of_transformers_as_it_is(folder):
    ids = PROMPT * 2
    found = our_logits(folder, "float32", ids, len(PROMPT))
    expected = their_logits(theirs(folder, torch.float32), ids)[len(PROMPT) - 1 :]
    assert (found - expected).norm() < 1e-4 * expected.norm()


def test_a_greedy_answer_is_the_one_that_transformers_generates(folder):
    model, weights = read_checkpoint(folder)
    assert model.dtype == "float32"  # by default, on a CPU
    engine = Engine(model, num_slots=1, capacity_tokens=64, weights=weights)
    answer, new = [], PROMPT
    for _ in range(ANSWER_TOKENS):
        new = [int(engine.forward([SequenceChunk(0, new)])[0].argmax())]
        answer += new
    reference = theirs(folder, torch.float32)
    asked = torch.tensor([PROMPT])
    found = reference.generate(
        asked,
        attention_mask=torch.ones_like(asked),
        max_new_tokens=ANSWER_TOKENS,
        do_sample=False,
    )
    assert found[0, len(PROMPT) :].tolist() == answer


def test_shards_give_the_weights_of_the_whole(tmp_path):
    whole = save(tmp_path / "whole", FAMILIES["qwen3"])
    parts = save(tmp_path / "parts", FAMILIES["qwen3"], max_shard_size="20KB")
    assert len(list(parts.glob("*.safetensors"))) > 2
    ours = [our_logits(folder, "float64", PROMPT, 4) for folder in (whole, parts)]
    assert torch.equal(*ours)


def test_half_precision_is_stored_and_read_as_it_is(llama):
    weights = load_file(llama / "model.safetensors")
    halves = {name: tensor.bfloat16() for name, tensor in weights.items()}
    save_file(halves, llama / "model.safetensors")
    _, found = read_checkpoint(llama, dtype="bfloat16")
    assert torch.equal(found.embedding, halves["model.embed_tokens.weight"])
    assert found.layers[0].down.weight.dtype == torch.bfloat16


# Folders that are refused.


def refused(folder, words, **options):
    with pytest.raises(ValueError, match=words):
        read_checkpoint(folder, **options)


def change_config(folder, **changes):
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))


def change_weights(folder, **changes):
    """Tensors by the end of their names; None takes one out."""
    path = folder / "model.safetensors"
    found = load_file(path)
    for ending, tensor in changes.items():
        (name,) = [name for name in found if name.endswith(ending)] or [ending]
        found[name] = tensor
    save_file({name: tensor for name, tensor in found.items() if tensor is not None}, path)


def test_a_tensor_that_is_missing_left_over_or_misshapen_is_named(llama):
    spare = llama.parent / "spare"
    shutil.copytree(llama, spare)

    def after(words, **changes):
        shutil.copy(spare / "model.safetensors", llama)
        change_weights(llama, **changes)
        refused(llama, words)

    after(r"weights lack model.layers.1.mlp.up_proj.weight", **{"1.mlp.up_proj.weight": None})
    after(r"lack lm_head.weight", **{"lm_head.weight": None})
    after(r"got 1 that do not, such as extra", extra=torch.zeros(3))
    after(
        r"such as model.layers.0.self_attn.q_proj.bias",
        **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(24)},
    )
    after(
        r"model.safetensors: model.norm.weight must have the shape \(24,\)",
        **{"model.norm.weight": torch.zeros(25)},
    )
    after(
        r"2.self_attn.k_proj.weight must have the shape \(12, 24\)",
        **{"2.self_attn.k_proj.weight": torch.zeros(24, 12)},
    )
    after(
        "model.norm.weight must be of F64, F32, BF16, F16; got I32",
        **{"model.norm.weight": torch.zeros(24, dtype=torch.int32)},
    )
    after(
        "model.norm.weight must hold finite numbers",
        **{"model.norm.weight": torch.full((24,), math.nan)},
    )


def test_layers_that_the_config_does_not_count_are_left_over(llama):
    change_config(llama, num_hidden_layers=2)
    refused(llama, r"got 9 that do not, such as model.layers.2")


def test_stored_rotary_frequencies_are_passed_over(llama):
    change_weights(llama, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(3)})
    read_checkpoint(llama)


def test_tied_embeddings_may_be_stored_twice_but_not_differ(tmp_path):
    folder = save(tmp_path, FAMILIES["llama, tied"])
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    change_weights(folder, **{"lm_head.weight": embedding.clone()})
    _, weights = read_checkpoint(folder)
    assert weights.lm_head.weight is weights.embedding
    change_weights(folder, **{"lm_head.weight": embedding + 1})
    refused(folder, "lm_head.weight must equal model.embed_tokens.weight")


@pytest.mark.parametrize("cut", [0, 4, 60, -1])
def test_a_truncated_file_is_named(llama, cut):
    path = llama / "model.safetensors"
    path.write_bytes(path.read_bytes()[:cut])
    refused(llama, r"model.safetensors: weights must be a whole safetensors file")


def test_a_corrupted_header_is_named(llama):
    path = llama / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[20:24] = b"\xff\xff\xff\xff"
    path.write_bytes(content)
    refused(llama, r"model.safetensors: weights must be a whole safetensors file")


def test_pickled_weights_are_refused_by_name(llama):
    (llama / "model.safetensors").unlink()
    refused(llama, "got neither")
    (llama / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    refused(llama, r"got pytorch_model.bin, which is pickled and could run code")


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path):
    folder = save(tmp_path, FAMILIES["llama"], max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    good = json.loads(index.read_text())["weight_map"]

    def after(words, places):
        index.write_text(json.dumps({"weight_map": places}))
        refused(folder, words)

    first, *_, last = sorted(set(good.values()))
    after(
        f"{last}: each tensor lies where .* this file lacks model.extra",
        {**good, "model.extra": last},
    )
    after("lies in '../elsewhere.safetensors'", {**good, "x": "../elsewhere.safetensors"})
    after("lies in 'weights.bin'", {**good, "x": "weights.bin"})
    after("lies in 7", {**good, "x": 7})
    after("weight_map lies in", [])
    after("stored weights lack", {name: file for name, file in good.items() if file != first})
    index.write_text("[]")
    refused(folder, "an index holds a weight_map")
    index.write_text(json.dumps({"weight_map": good}))
    shutil.copy(folder / first, folder / "again.safetensors")
    index.write_text(json.dumps({"weight_map": {**good, "y": "again.safetensors"}}))
    refused(folder, "again.safetensors.*this file lacks y")
    moved = next(name for name, file in good.items() if file == first)
    index.write_text(json.dumps({"weight_map": {**good, moved: "again.safetensors"}}))
    refused(folder, "this file has .*, as another file does")
    (folder / last).unlink()
    index.write_text(json.dumps({"weight_map": good}))
    refused(folder, f"{last}: weights must be a whole safetensors file")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention_bias": True}, "it lacks biases but on Q, K and V"),
        ({"mlp_bias": True}, "it lacks biases but on Q, K and V"),
        ({"hidden_act": "gelu"}, "it lacks activation 'gelu'"),
        ({"model_type": "gpt_neox"}, "it lacks .*LayerNorm"),
        ({"model_type": "mamba"}, "model_type must be one of"),
        ({"quantization_config": {"quant_method": "gptq"}}, "config with quantization_config"),
        ({"text_config": {}}, "config with text_config"),
        ({"rms_norm_eps": "gone"}, "lacks 'rms_norm_eps'"),
        ({"rope_parameters": {**LLAMA3, "rope_type": "yarn"}}, "rope_scaling must be .*'yarn'"),
        ({"rope_parameters": "gone", "rope_scaling": {"type": "dynamic"}}, "'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number"),
        ({"rope_parameters": {**LLAMA3, "low_freq_factor": 4}}, "low_freq_factor must be below"),
        ({"rope_parameters": "wide"}, "rope_scaling must be an object"),
    ],
)
def test_a_model_that_the_engine_would_run_wrongly_is_refused(llama, changes, words):
    change_config(llama, **changes)
    refused(llama, words)


def test_a_folder_without_a_config_is_refused(tmp_path):
    refused(tmp_path, r"a model needs a readable config.json")


def test_old_and_new_configs_say_the_same_of_rotary_positions():
    expected = RopeScaling("llama3", 8.0, 1.0, 4.0, 64)
    for config in (
        {"rope_scaling": LLAMA3},
        {"rope_parameters": {**LLAMA3, "rope_theta": 1.0}},
        {"rope_scaling": {"type" if key == "rope_type" else key: LLAMA3[key] for key in LLAMA3}},
    ):
        assert rope_scaling(Keys(config, "m")) == expected
    for config in ({}, {"rope_scaling": None}, {"rope_scaling": {"rope_type": "default"}}):
        assert rope_scaling(Keys(config, "m")) is None


def test_a_stored_model_is_named_after_its_folder(llama):
    model = read_stored_model(llama)
    assert (model.name, model.dtype, model.rope_scaling) == ("llama", "float32", None)
