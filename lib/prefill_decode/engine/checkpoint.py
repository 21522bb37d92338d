"""Checkpoint: a model's weights from a local Hugging Face folder.

Reads:   config.json and model.safetensors, or the files that model.safetensors.index.json names.
         Every tensor is used once, in the shape that the config says, or the folder is refused;
         only a second copy of tied embeddings and stored rotary frequencies may lie beside them.
Refuses: pickled weights, which can run code; quantized ones; models that the engine does not run;
         values that are no finite numbers.
Source:  tensor names as in Hugging Face transformers' models of the Llama kind.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from prefill_decode.engine.linear import Linear
from prefill_decode.engine.weights import LayerWeights, Weights, check_engine_runs
from prefill_decode.hf_config import Keys, from_config, read_config, rope_scaling
from prefill_decode.model_spec import ModelSpec

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
STORED_DTYPES = ("F64", "F32", "BF16", "F16")
PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt")
UNUSED_ENDING = "rotary_emb.inv_freq"  # old folders store what follows from the config


def read_checkpoint(
    folder: Path, device: str = "cpu", dtype: str | None = None
) -> tuple[ModelSpec, Weights]:
    """The model of a folder and its weights on `device`, in `dtype`.

    Without a dtype: float32 on a CPU, elsewhere the config's. ValueError names the file, and the
    tensor where there is one, that is missing, left over, misshapen, broken or not supported."""
    model = read_stored_model(folder, stored_dtype(device, dtype))
    with ExitStack() as opened:
        tensors = _Tensors(_open(_files(folder), opened), model, device)
        weights = _weights(model, tensors)
        tensors.refuse_rest()
    return model, weights


def stored_dtype(device: str, dtype: str | None) -> str | None:
    """In which weights are read; None: that of their config."""
    return "float32" if dtype is None and device == "cpu" else dtype


def has_weights(folder: Path) -> bool:
    """Whether a folder has files of weights, those that are refused included."""
    return bool(_found(folder, ("*.safetensors", "*.index.json", *PICKLED)))


def read_stored_model(folder: Path, dtype: str | None = None) -> ModelSpec:
    """The model of a config.json, with all that its stored weights depend on, nothing guessed."""
    config, name = read_config(folder)
    keys = Keys(config, name)
    for key in ("quantization_config", "text_config"):
        if keys.get(key) is not None:
            raise ValueError(
                f"{name}: stored weights are read as plain numbers of one text decoder; got a "
                f"config with {key}"
            )
    model = from_config(config, name, dtype)
    check_engine_runs(model)
    if keys.get("norm_epsilon") is None:
        raise ValueError(f"{name}: config.json lacks 'rms_norm_eps', which the weights need")
    return replace(model, rope_scaling=rope_scaling(keys))


def _weights(model: ModelSpec, tensors: "_Tensors") -> Weights:
    vocab_shape = (model.vocab_size, model.hidden_size)
    embedding = tensors.matrix([(EMBEDDING, vocab_shape[0])], vocab_shape[1])
    return Weights(
        embedding=embedding,
        positions=None,
        layers=[_layer(model, tensors, f"model.layers.{i}") for i in range(model.num_layers)],
        final_norm=tensors.vector([("model.norm.weight", model.hidden_size)]),
        lm_head=Linear(_lm_head(model, tensors, embedding)),
    )


def _lm_head(model: ModelSpec, tensors: "_Tensors", embedding: Tensor) -> Tensor:
    if model.tied_embeddings and LM_HEAD not in tensors:
        return embedding
    stored = tensors.matrix([(LM_HEAD, model.vocab_size)], model.hidden_size)
    if not model.tied_embeddings:
        return stored
    if not torch.equal(stored, embedding):
        raise ValueError(
            f"{model.name}: config.json says tie_word_embeddings, so {LM_HEAD} must equal "
            f"{EMBEDDING}; it does not: one of the two files is wrong"
        )
    return embedding


def _layer(model: ModelSpec, tensors: "_Tensors", layer: str) -> LayerWeights:
    attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
    hidden, ffn, head = model.hidden_size, model.intermediate_size, model.head_dim
    qkv = {"q_proj": model.query_size, "k_proj": model.kv_size, "v_proj": model.kv_size}
    if f"{attention}.qkv_proj.weight" in tensors:  # Phi-3 stores them as the engine wants them
        qkv = {"qkv_proj": model.query_size + 2 * model.kv_size}
    gate_up = {"gate_proj": ffn, "up_proj": ffn}
    if f"{mlp}.gate_up_proj.weight" in tensors:
        gate_up = {"gate_up_proj": 2 * ffn}

    def matrix(part: str, columns: int, sizes: Mapping[str, int]) -> Tensor:
        return tensors.matrix([(f"{part}.{name}.weight", sizes[name]) for name in sizes], columns)

    def vector(part: str, ending: str, sizes: Mapping[str, int]) -> Tensor:
        return tensors.vector([(f"{part}.{name}.{ending}", sizes[name]) for name in sizes])

    def gains(part: str, name: str, size: int) -> Tensor:
        return vector(part, "weight", {name: size})

    head_norms = None
    if model.qk_norm:
        head_norms = (gains(attention, "q_norm", head), gains(attention, "k_norm", head))
    return LayerWeights(
        attention_norm=gains(layer, "input_layernorm", hidden),
        qkv=Linear(
            matrix(attention, hidden, qkv),
            vector(attention, "bias", qkv) if model.qkv_bias else None,
        ),
        head_norms=head_norms,
        attention_out=Linear(matrix(attention, model.query_size, {"o_proj": hidden})),
        mlp_norm=gains(layer, "post_attention_layernorm", hidden),
        gate_up=Linear(matrix(mlp, hidden, gate_up)),
        down=Linear(matrix(mlp, ffn, {"down_proj": hidden})),
    )


class _Tensors:
    """The stored tensors that are not used yet, each read straight into its place."""

    def __init__(self, found: Mapping[str, tuple[Path, Any]], model: ModelSpec, device: str):
        self._left = dict(found)
        self._dtype = getattr(torch, model.dtype)
        self._device = device
        self._name = model.name

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def matrix(self, parts: Sequence[tuple[str, int]], columns: int) -> Tensor:
        """Stored matrices one above the other, each a name and its number of rows."""
        return self._joined(parts, (columns,))

    def vector(self, parts: Sequence[tuple[str, int]]) -> Tensor:
        return self._joined(parts, ())

    def refuse_rest(self) -> None:
        rest = [name for name in self._left if not name.endswith(UNUSED_ENDING)]
        if rest:
            path, _ = self._left[rest[0]]
            raise ValueError(
                f"{path}: every tensor must belong to the model that config.json describes; got "
                f"{len(rest)} that do not, such as {rest[0]}"
            )

    def _joined(self, parts: Sequence[tuple[str, int]], rest: tuple[int, ...]) -> Tensor:
        rows = sum(size for _, size in parts)
        joined = torch.empty(rows, *rest, dtype=self._dtype, device=self._device)
        first = 0
        for name, size in parts:
            joined[first : first + size].copy_(self._take(name, (size, *rest)))
            first += size
        return joined

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        if name not in self._left:
            raise ValueError(f"{self._name}: the stored weights lack {name}")
        path, file = self._left.pop(name)
        stored = file.get_slice(name)
        if tuple(stored.get_shape()) != shape:
            raise ValueError(
                f"{path}: {name} must have the shape {shape} that follows from config.json; got "
                f"{tuple(stored.get_shape())}"
            )
        if stored.get_dtype() not in STORED_DTYPES:
            raise ValueError(
                f"{path}: {name} must be of {', '.join(STORED_DTYPES)}; got {stored.get_dtype()}"
            )
        tensor: Tensor = file.get_tensor(name)
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {name} must hold finite numbers; it holds others too")
        return tensor


def _found(folder: Path, patterns: Sequence[str]) -> list[Path]:
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


def _files(folder: Path) -> Mapping[Path, set[str]]:
    """The files of weights, each with the tensors that an index expects in it."""
    if (folder / WHOLE).exists():
        return {folder / WHOLE: set()}
    if (folder / INDEX).exists():
        return _indexed(folder)
    pickled = [path.name for path in _found(folder, PICKLED)]
    came = f"{pickled[0]}, which is pickled and could run code" if pickled else "neither"
    raise ValueError(
        f"{folder}: weights are read from {WHOLE} or the files of {INDEX}; got {came}: save them "
        "with safe_serialization=True"
    )


def _indexed(folder: Path) -> Mapping[Path, set[str]]:
    path = folder / INDEX
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError(f"{path}: an index holds a weight_map; {error!r}") from error
    expected: dict[Path, set[str]] = {}
    for name, file in places.items() if isinstance(places, dict) else [("weight_map", places)]:
        if not isinstance(file, str) or Path(file).name != file or not file.endswith("tensors"):
            raise ValueError(
                f"{path}: each tensor lies in a .safetensors file of this folder; {name} lies in "
                f"{file!r:.60}"
            )
        expected.setdefault(folder / file, set()).add(name)
    return expected


def _open(files: Mapping[Path, set[str]], opened: ExitStack) -> dict[str, tuple[Path, Any]]:
    """Each tensor's name with the open file that has it."""
    found: dict[str, tuple[Path, Any]] = {}
    for path, expected in files.items():
        try:
            file = opened.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"{path}: weights must be a whole safetensors file; {error}"
            ) from error
        names = set(file.keys())
        missing = sorted(expected - names)
        twice = sorted(names & found.keys())
        if missing or twice:
            said = f"lacks {missing[0]}" if missing else f"has {twice[0]}, as another file does"
            raise ValueError(f"{path}: each tensor lies where the index says; this file {said}")
        found |= dict.fromkeys(names, (path, file))
    return found
