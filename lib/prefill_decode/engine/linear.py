"""Linear: one weight matrix, multiplied the fastest way its device knows.

On a CPU the plain product runs at the speed of memory for one row only, and batching would look
expensive because of a kernel, not of physics. So a few rows go through the kernels of
`kernels.cpp`, which read a weight once whatever the number of rows. How many are a few, and which
library multiplies many, is found out on each machine (`products`). Where the kernels cannot be
compiled, float32 weights are laid out once more in oneDNN's blocks, which helps from two rows on
and costs the memory of a second copy."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from prefill_decode.kernels import DTYPES, NORM, PLAIN, SWIGLU, kernels
from prefill_decode.products import fastest_products, onednn_has, onednn_product

PACKED_FOR_ROWS = 16  # the batch size oneDNN lays the weight out for; as good as any up to 128
LEAST_PLAIN_ROWS = 256  # above, the packed layout is 5 to 10 % slower than the plain one


def copies_of_weights(device: str, dtype: str) -> int:
    """How many times the engine stores each weight: what must fit in memory."""
    return 2 if _packs(device, getattr(torch, dtype)) else 1


class Linear:
    """y = x W^T + b, with W of shape [out, in], and what a decoder does before and after it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        on_cpu = weight.device.type == "cpu" and weight.dtype in DTYPES
        self.kernels = kernels() if on_cpu else None
        self.fastest = fastest_products(weight.device.type, weight.dtype)
        self.packed: Tensor | None = None
        if _packs(weight.device.type, weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)

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
        if self.packed is not None and rows.shape[0] < LEAST_PLAIN_ROWS:
            return onednn_product(rows, self.packed, self.bias)
        if self.fastest.by_onednn:
            return onednn_product(rows, self.weight, self.bias)
        return functional.linear(rows, self.weight, self.bias)


def _packs(device_type: str, dtype: torch.dtype) -> bool:
    return device_type == "cpu" and onednn_has(dtype) and kernels() is None
