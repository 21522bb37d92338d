"""Text survives the way to ids and back, whole or token by token.

The oracles are transformers' own tokenizers and chat templates on the same folders, and `decode`
of all ids for the pieces of a Detokenizer."""

import json
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from prefill_decode.endpoint.tokenizer import (
    ByteTokenizer,
    Detokenizer,
    FolderTokenizer,
    find_tokenizer,
)

TEXT = ["The cache is exact, the cache is warm.", "Größe 你好 🙂🙃 zwei  Leerzeichen\n\tTab"] * 3
SPECIAL = ["<s>", "</s>", "<|turn|>"]
ADDED = {"__type": "AddedToken", "lstrip": False, "rstrip": False, "normalized": False}
CHATML = (
    "{% if not messages %}{{ raise_exception('no messages') }}{% endif %}"
    "{{ bos_token }}{% for message in messages %}\n"
    "  {% if message.role == 'tool' %}{% continue %}{% endif %}\n"
    "<|turn|>{{ message.role }} {{ message.content | tojson }}"
    "{% generation %}!{% endgeneration %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant{% endif %}{{ tools is none }}"
)
MESSAGES = [
    {"role": "system", "content": "Be <brief> & 'exact'."},
    {"role": "tool", "content": "left out"},
    {"role": "user", "content": "你好 🙂</s>"},
]


def byte_level() -> tokenizers.Tokenizer:
    """As GPT-2's, Llama 3's and Qwen's."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL),
    )
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    """As Llama 2's and Mistral's."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "t", "h", "e", "▁t", "▁th", "▁the", "你", ".", "<", ">", "0", "x"]
    vocab = {piece: place for place, piece in enumerate(["<unk>", *pieces])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    made = tokenizers.Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens(SPECIAL)
    return made


def metaspace() -> tokenizers.Tokenizer:
    """As T5's and many others of sentencepiece."""
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(vocab_size=80, unk_token="<unk>", special_tokens=["<unk>"]),
    )
    made.add_special_tokens(SPECIAL)
    return made


KINDS = {"byte level": byte_level, "byte fallback": byte_fallback, "metaspace": metaspace}


def save(folder: Path, made: tokenizers.Tokenizer, **config) -> Path:
    first = ("<s>", made.token_to_id("<s>"))
    template = processors.TemplateProcessing(single="<s> $A", special_tokens=[first])
    made.post_processor = template
    made.save(str(folder / "tokenizer.json"))
    given = {"bos_token": "<s>", "eos_token": dict(ADDED, content="</s>"), **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(given))
    return folder


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"), KINDS[request.param](), chat_template=CHATML)


@pytest.fixture(scope="module")
def tokenizer(folder):
    return FolderTokenizer(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    return PreTrainedTokenizerFast.from_pretrained(folder, clean_up_tokenization_spaces=False)


def pieces(tokenizer, ids):
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


# Bytes.


@given(st.text())
def test_bytes_carry_any_text_there_and_back(text):
    tokenizer = ByteTokenizer(259)
    ids = tokenizer.encode(text)
    assert max(ids, default=0) < 256
    assert tokenizer.decode(ids) == text


def test_a_byte_vocabulary_names_each_id_above_the_bytes():
    tokenizer = ByteTokenizer(259 + 26 + 26**2 + 1)
    words = [tokenizer.decode([token]) for token in range(259, tokenizer.vocab_size)]
    assert words[:2] == [" a", " b"]
    assert words[25:28] == [" z", " aa", " ab"]
    assert words[-1] == " aaa"
    assert len(set(words)) == len(words)
    assert tokenizer.decode([256, 72, 105, 258, 259, 257]) == "Hi a"
    assert tokenizer.stop_ids == {257, 258}


def test_a_byte_chat_keeps_text_and_special_tokens_apart():
    ids = ByteTokenizer(300).chat([{"role": "user", "content": "<|end|>"}])
    assert ids == [256, *b"user: <|end|>", 258, *b"assistant:"]


def test_halves_of_surrogate_pairs_become_question_marks(tokenizer):
    assert ByteTokenizer(300).encode("a\ud83d") == [*b"a?"]
    assert tokenizer.encode("a\ud83d") == tokenizer.encode("a?")


def test_bytes_need_room_for_the_special_tokens():
    with pytest.raises(ValueError, match="a vocabulary of 259 or more; got 258"):
        ByteTokenizer(258)


# Folders.


@settings(deadline=None)
@given(text=st.text(st.sampled_from("the cacheis你🙂 .\n<>0x")))
def test_a_folder_encodes_and_decodes_as_transformers_does(tokenizer, theirs, text):
    ids = theirs.encode(text)
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


def test_a_chat_is_rendered_as_transformers_renders_it(tokenizer, theirs):
    expected = theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    assert "left out" not in expected
    assert "<brief> & 'exact'" in expected
    ids = tokenizer.chat(MESSAGES)
    assert ids == theirs.encode(expected, add_special_tokens=False)


def test_each_tokens_bytes_join_to_the_text(tokenizer):
    for text in TEXT:
        ids = tokenizer.encode(text)
        joined = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert joined.removeprefix(" ") == tokenizer.decode(ids)
        assert tokenizer.token_bytes(ids[0]) == b""  # <s>


def test_an_id_beyond_the_tokens_has_no_text(folder):
    tokenizer = FolderTokenizer(folder, vocab_size=5000)
    assert tokenizer.vocab_size == 5000
    assert tokenizer.token_bytes(4999) == b""
    assert tokenizer.decode([4999]) == ""


def write(folder, name, value):
    (folder / name).write_text(json.dumps(value))


def test_an_answer_ends_at_any_of_the_ids_that_the_folder_names(tmp_path):
    save(tmp_path, byte_level())
    assert FolderTokenizer(tmp_path).stop_ids == {1}
    write(tmp_path, "config.json", {"eos_token_id": 2})
    assert FolderTokenizer(tmp_path).stop_ids == {1, 2}
    write(tmp_path, "generation_config.json", {"eos_token_id": [5, 6]})
    assert FolderTokenizer(tmp_path).stop_ids == {1, 2, 5, 6}
    for wrong in ("2", [True], [[1]], -1, 10**6, 1.5):
        write(tmp_path, "config.json", {"eos_token_id": wrong})
        with pytest.raises(ValueError, match=r"config.json: eos_token_id must be"):
            FolderTokenizer(tmp_path)


def test_the_template_is_found_in_each_place_that_may_hold_it(tmp_path):
    def said(**config):
        tokenizer = FolderTokenizer(save(tmp_path, byte_level(), **config))
        return tokenizer.decode(tokenizer.chat([{"role": "user", "content": "Hi"}]))

    assert said() == "user: Hi\nassistant:"
    assert said(chat_template="A{{ messages[0].content }}") == "AHi"
    named = [{"name": "tool_use", "template": "B"}, {"name": "default", "template": "C"}]
    assert said(chat_template=named) == "C"
    (tmp_path / "chat_template.jinja").write_text("D{{ eos_token == '</s>' }}")
    assert said(chat_template="E") == "DTrue"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "cannot render"),
        ("{{ messages[7].content }}", "cannot render"),
        ("{{ messages.append(1) }}", "cannot render"),  # the sandbox keeps what it is given
        ("{{ ''.__class__.__mro__ }}", "cannot render"),
    ],
)
def test_a_template_that_fails_says_why(tmp_path, template, words):
    tokenizer = FolderTokenizer(save(tmp_path, byte_level(), chat_template=template))
    with pytest.raises(ValueError, match=words):
        tokenizer.chat([{"role": "user", "content": "Hi"}])


def test_broken_folders_are_refused_by_file(tmp_path):
    save(tmp_path, byte_level(), chat_template="{% if %}")
    with pytest.raises(ValueError, match="must be a Jinja template"):
        FolderTokenizer(tmp_path)
    save(tmp_path, byte_level(), chat_template=5)
    with pytest.raises(ValueError, match=r"tokenizer_config.json: chat_template must be"):
        FolderTokenizer(tmp_path)
    with pytest.raises(ValueError, match="below the model's vocabulary of 100; got 299"):
        FolderTokenizer(save(tmp_path, byte_level()), vocab_size=100)
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tokenizer_config.json: it must hold one object"):
        FolderTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer.json: a tokenizer must be"):
        FolderTokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_gets_bytes(tmp_path):
    for folder in (None, tmp_path):
        assert find_tokenizer(folder, 512).name == "bytes"
    assert find_tokenizer(save(tmp_path, byte_level()), 512).name == tmp_path.name


# Token by token.


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole_for_any_ids(tokenizer, data):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=25))
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 400) | st.integers(0x80, 0xFF), max_size=25))
def test_pieces_join_to_the_whole_for_any_bytes(ids):
    tokenizer = ByteTokenizer(401)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from("the cacheis你🙂 .\n")))
def test_text_comes_in_whole_characters(tokenizer, text):
    for one in (tokenizer, ByteTokenizer(300)):
        ids = one.encode(text)
        if one.decode(ids).count("\ufffd") == 0:
            assert not any("\ufffd" in piece for piece in pieces(one, ids))


def test_a_token_is_shown_as_soon_as_it_is_whole():
    ids = list("a你b".encode())
    assert pieces(ByteTokenizer(300), ids) == ["a", "", "", "你", "b", ""]
    assert pieces(ByteTokenizer(300), ids[:-2]) == ["a", "", "", "\ufffd"]
    assert pieces(ByteTokenizer(300), [0xE4, 65]) == ["", "\ufffdA", ""]


def test_tokens_without_text_are_not_kept(tokenizer):
    """Else each would be decoded again with every later one."""
    longest = 0
    decode = tokenizer.decode

    class Watched:
        byte_ids, token_bytes = tokenizer.byte_ids, tokenizer.token_bytes

        def decode(self, ids):
            nonlocal longest
            longest = max(longest, len(ids))
            return decode(ids)

    silent = next(one for one in range(tokenizer.vocab_size) if not tokenizer.token_bytes(one))
    text = tokenizer.encode("the")
    ids = [*[silent] * 50, *text, *[silent] * 50]
    assert "".join(pieces(Watched(), ids)) == decode(ids)
    assert longest < 20
