"""Arithmetic: what a model counts, by name, for JSON and to be read."""

from collections.abc import Mapping
from typing import Any

from prefill_decode.model_spec.parts import check_count
from prefill_decode.model_spec.spec import ModelSpec
from prefill_decode.units import format_si


def figures(model: ModelSpec, context_tokens: int | None = None) -> dict[str, Any]:
    """A model's arithmetic by name, ready for JSON; what depends on a context only with one."""
    found: dict[str, Any] = {
        "name": model.name,
        "dtype": model.dtype,
        "num_layers": model.num_layers,
        "head_dim": model.head_dim,
        "num_kv_heads": model.num_kv_heads,
        "total_params": model.total_params,
        "active_params": model.active_params,
        "matmul_params": model.matmul_params,
        "weight_bytes": model.weight_bytes,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "linear_flops_per_token": model.linear_flops_per_token,
    }
    if context_tokens is None:
        return found
    check_count(context_tokens, "context_tokens", model.name)
    return found | {
        "context_tokens": context_tokens,
        "attn_flops_per_token": model.attn_flops_per_token(context_tokens),
        "kv_bytes": model.kv_bytes(context_tokens),
        "kv_bytes_kept_by_engine": model.kv_bytes_kept_by_engine(context_tokens),
    }


def figures_text(found: Mapping[str, Any]) -> str:
    """What `figures` found as aligned lines: name, exact value, and the value to be read."""
    numbers = {name: value for name, value in found.items() if isinstance(value, int)}
    exact = {name: f"{numbers[name]:,}" if name in numbers else found[name] for name in found}
    short = {name: _short(name, value) for name, value in numbers.items() if value >= 10_000}
    left, middle = (max(map(len, column)) for column in (exact, exact.values()))
    return "\n".join(
        f"{name:<{left}}  {value:>{middle}}  {short.get(name, '')}".rstrip()
        for name, value in exact.items()
    )


def _short(name: str, value: int) -> str:
    units = {"bytes": "B", "flops": "FLOP"}
    return format_si(value, next((units[word] for word in units if word in name), "")).rstrip()
