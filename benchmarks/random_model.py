"""Random model: one shape of ours in the formats that the peers read, with random weights.

Values do not change the time of a step, their bytes do. Run by peers.sh in the peers' Python:
    python benchmarks/random_model.py laptop-254m FOLDER
makes FOLDER/NAME (Hugging Face, with a tokenizer of made-up words) and FOLDER/NAME.gguf.
Both tokenizers give "t0 t1 t2" the same three ids: a word is a token for every server."""

import sys
from pathlib import Path

import gguf
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from prefill_decode import hf_config
from prefill_decode.model_spec import ModelSpec

CONTEXT_TOKENS = 4096
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))  # llama.cpp: text of no known word
# contents alone, with one space between: a space at the end would be tokens of its own
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '' if loop.first else ' ' }}{{ message['content'] }}"
    "{% endfor %}"
)
# Hugging Face's name of a matrix: llama.cpp's. Llama.cpp turns other pairs of the rows of Q and K
# for RoPE; random rows need no reordering.
GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    torch.manual_seed(0)
    spec = hf_config.get(name)
    model = LlamaForCausalLM(llama_config(spec))
    model.save_pretrained(folder / name)
    tokenizer(spec.vocab_size).save_pretrained(folder / name)
    write_gguf(model, spec, folder / f"{name}.gguf")


def llama_config(spec: ModelSpec) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        tie_word_embeddings=spec.tied_embeddings,
        rms_norm_eps=spec.norm_epsilon,
        rope_theta=spec.rope_theta,
        max_position_embeddings=CONTEXT_TOKENS,
        dtype="float32",
    )


def tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    ids = {token: i for i, token in enumerate(vocabulary(vocab_size))}
    words_only = Tokenizer(WordLevel(ids, unk_token="<unk>"))
    words_only.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words_only,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        chat_template=CHAT_TEMPLATE,
    )


def vocabulary(vocab_size: int) -> list[str]:
    """The tokens in the order of their ids: special ones, bytes, a lone t, then t0, t1, ..."""
    first = [*SPECIAL_TOKENS, *BYTE_TOKENS, "t"]
    return first + [f"t{i}" for i in range(vocab_size - len(first))]


def write_gguf(model: LlamaForCausalLM, spec: ModelSpec, path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(spec.vocab_size)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_layers)
    writer.add_feed_forward_length(spec.intermediate_size)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.rope_theta)
    writer.add_layer_norm_rms_eps(spec.norm_epsilon)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    write_gguf_tokenizer(writer, spec.vocab_size)
    for name, weight in model.state_dict().items():
        writer.add_tensor(gguf_name(name), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    """SentencePiece's way: a word is merged letter by letter, and each of its beginnings is a word.

    That is why the words count from t0: "t1234" passes through t, t1, t12 and t123."""
    tokens = vocabulary(vocab_size)
    first_word = len(SPECIAL_TOKENS) + len(BYTE_TOKENS)
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens[:first_word] + ["\u2581" + word for word in tokens[first_word:]])
    writer.add_token_scores([0.0] * vocab_size)
    writer.add_token_types(
        [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
        + [kinds.BYTE] * len(BYTE_TOKENS)
        + [kinds.NORMAL] * (vocab_size - first_word)
    )
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight is blk.3.ffn_up.weight."""
    stem = name.removesuffix(".weight")
    if not stem.startswith("model.layers."):
        return GGUF_NAMES[stem] + ".weight"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{GGUF_NAMES[part]}.weight"


if __name__ == "__main__":
    main()
