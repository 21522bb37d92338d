"""Linear: one weight matrix, multiplied the fastest way its device knows.

On a CPU the plain product runs at the speed of memory for one row only, and batching would look
expensive because of a kernel, not of physics. So a few rows go through the kernels of
`kernels.cpp`, which read a weight once whatever the number of rows. How many are a few, which
library multiplies the others, and whether it is worth a second copy of the weights in that
library's own layout, is found out on each machine (`products`)."""

from typing import Any

import psutil
import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.kernels import DTYPES, NORM, PLAIN, SWIGLU, kernels
from prefill_decode.products import fastest_products, onednn_product, packed

SPARE_BYTES = 2e9  # of memory, left when weights are laid out a second time


def copies_of_weights(device: str, dtype: str) -> int:
    """How many times the engine stores each weight where memory is no matter."""
    return 2 if fastest_products(device, getattr(torch, dtype)).packed else 1


class Linear:
    """y = x W^T + b, with W of shape [out, in], and what a decoder does before and after it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        on_cpu = weight.device.type == "cpu" and weight.dtype in DTYPES
        self.kernels = kernels() if on_cpu else None
        self.fastest = fastest_products(weight.device.type, weight.dtype)
        self.packed = packed(weight) if self.fastest.packed and _has_room(weight) else None

    def after_norm(self, rows: Tensor, gains: Tensor, epsilon: float) -> Tensor:
        """[N, in] -> [N, out], the rows RMS-normed first."""
        if self.kernels and self._few(rows):
            return self._by_kernel(rows, prologue=NORM, gains=gains, epsilon=epsilon)
        if self.kernels:
            normed = self.kernels.prepared(rows.contiguous(), NORM, gains, epsilon)
        else:
            normed = functional.rms_norm(rows, (rows.shape[-1],), gains, epsilon)
        return self._by_torch(normed)

    def add_to(self, rows: Tensor, residual: Tensor) -> Tensor:
        """residual + y."""
        if self.kernels and self._few(rows):
            return self._by_kernel(rows, prologue=PLAIN, residual=residual)
        if self.bias is None and self.packed is None and not self.fastest.by_onednn:
            return torch.addmm(residual, rows, self.weight.t())
        return residual + self._by_torch(rows)

    def add_swiglu_to(self, gate_and_up: Tensor, residual: Tensor) -> Tensor:
        """residual + y of silu(gate) * up, the halves of [N, 2 in]."""
        if self.kernels and self._few(gate_and_up):
            return self._by_kernel(gate_and_up, prologue=SWIGLU, residual=residual)
        if self.kernels:
            return self.add_to(self.kernels.prepared(gate_and_up, SWIGLU), residual)
        gate, up = gate_and_up.chunk(2, dim=-1)
        return self.add_to(functional.silu(gate).mul_(up), residual)

    def _few(self, rows: Tensor) -> bool:
        return rows.shape[0] <= self.fastest.most_kernel_rows

    def _by_kernel(self, rows: Tensor, **options: Any) -> Tensor:
        assert self.kernels is not None
        return self.kernels.product(self.weight, rows.contiguous(), bias=self.bias, **options)

    def _by_torch(self, rows: Tensor) -> Tensor:
        if self.packed is not None:
            return onednn_product(rows, self.packed, self.bias)
        if self.fastest.by_onednn:
            return onednn_product(rows, self.weight, self.bias)
        return functional.linear(rows, self.weight, self.bias)


def _has_room(weight: Tensor) -> bool:
    """Whether memory has room for a second copy."""
    needed_bytes = weight.numel() * weight.element_size() + SPARE_BYTES
    return bool(psutil.virtual_memory().available > needed_bytes)
