"""Weights: what a forward pass multiplies with; random ones, by seed, in a ModelSpec's shapes.

The random ones are normal with standard deviation 0.02, as Llama-like models are initialised, so
that activations stay in the range of real ones and no product meets denormal numbers."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

from prefill_decode.engine.linear import Linear
from prefill_decode.model_spec import ModelSpec

STANDARD_DEVIATION = 0.02
MARKED_ROWS = 8  # of each tensor
MARK_BYTES = 16


@dataclass(frozen=True)
class LayerWeights:
    attention_norm: Tensor  # [hidden]
    qkv: Linear  # [(H + 2K) D, hidden]: queries, keys, values, head by head
    head_norms: tuple[Tensor, Tensor] | None  # gains of the queries' and of the keys' norm, [D]
    attention_out: Linear  # [hidden, H D]
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear  # [2 ffn, hidden]: all gates, then all ups
    down: Linear  # [hidden, ffn]


@dataclass(frozen=True)
class Weights:
    embedding: Tensor  # [vocab, hidden]
    positions: Tensor | None  # [positions, hidden], where positions are learned
    layers: list[LayerWeights]
    final_norm: Tensor  # [hidden]
    lm_head: Linear  # [vocab, hidden]


def check_engine_runs(model: ModelSpec) -> None:
    """ValueError says what the engine lacks."""
    if not model.engine_runs:
        raise ValueError(
            f"{model.name}: the engine runs dense decoders with gated MLPs, RMSNorm and rotary or "
            f"learned positions; it lacks {model.engine_lacks}. The roofline prices it all the same"
        )


def random_weights(model: ModelSpec, device: str, seed: int) -> Weights:
    """Weights on `device` in the model's dtype. The same seed and device give the same weights.

    ValueError for a model that the engine cannot run."""
    check_engine_runs(model)
    dtype = getattr(torch, model.dtype)
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        values = torch.empty(rows, columns, dtype=dtype, device=device)
        return values.normal_(std=STANDARD_DEVIATION, generator=generator)

    def gains(size: int) -> Tensor:
        return torch.ones(size, dtype=dtype, device=device)

    def layer() -> LayerWeights:
        qkv_size = model.query_size + 2 * model.kv_size
        bias = matrix(1, qkv_size)[0] if model.qkv_bias else None
        return LayerWeights(
            attention_norm=gains(model.hidden_size),
            qkv=Linear(matrix(qkv_size, model.hidden_size), bias),
            head_norms=(gains(model.head_dim), gains(model.head_dim)) if model.qk_norm else None,
            attention_out=Linear(matrix(model.hidden_size, model.query_size)),
            mlp_norm=gains(model.hidden_size),
            gate_up=Linear(matrix(2 * model.intermediate_size, model.hidden_size)),
            down=Linear(matrix(model.hidden_size, model.intermediate_size)),
        )

    learned = model.positions == "learned"
    embedding = matrix(model.vocab_size, model.hidden_size)
    lm_head = embedding if model.tied_embeddings else matrix(model.vocab_size, model.hidden_size)
    return Weights(
        embedding=embedding,
        positions=matrix(model.vectors.position_rows, model.hidden_size) if learned else None,
        layers=[layer() for _ in range(model.num_layers)],
        final_norm=gains(model.hidden_size),
        lm_head=Linear(lm_head),
    )


def mark_of(model: ModelSpec, weights: Weights) -> str:
    """A hash of the model's shape and of some rows of every tensor: equal where a model has the
    same weights from the same seed or folder, and for no others that are met in practice."""
    marked = blake2b(repr(model).encode(), digest_size=MARK_BYTES)
    for tensor in _tensors(weights):
        rows = tensor.reshape(-1, tensor.shape[-1])
        places = torch.linspace(0, len(rows) - 1, min(MARKED_ROWS, len(rows))).long()
        some = rows[places.to(rows.device)].cpu().contiguous()
        marked.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        marked.update(some.view(torch.uint8).numpy().tobytes())
    return marked.hexdigest()


def _tensors(weights: Weights) -> Iterator[Tensor]:
    yield weights.embedding
    if weights.positions is not None:
        yield weights.positions
    for layer in weights.layers:
        yield from (layer.attention_norm, layer.mlp_norm, *(layer.head_norms or ()))
        for linear in (layer.qkv, layer.attention_out, layer.gate_up, layer.down):
            yield from _of_linear(linear)
    yield weights.final_norm
    yield from _of_linear(weights.lm_head)


def _of_linear(linear: Linear) -> Iterator[Tensor]:
    yield linear.weight
    if linear.bias is not None:
        yield linear.bias
