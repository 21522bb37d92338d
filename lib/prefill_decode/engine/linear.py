"""Linear: one weight matrix, kept in the layouts its device multiplies fastest.

On a CPU in float32 the plain product runs at the speed of memory for one row only, and batching
would look expensive because of a kernel, not of physics. oneDNN's blocked layout, made once when
the weight is loaded, reads it at 27, 24, 20 and 17 GB/s with 1, 2, 4 and 8 rows, where the plain
product reaches 17, 9, 7 and 7 (medians on two cores of an EPYC that read 34 GB/s at best). From a
few hundred rows on the plain product is 5 to 10 % faster again. The engine keeps both layouts and
pays with memory: time is what this book measures."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

PACKED_FOR_ROWS = (
    16  # the batch size oneDNN lays the weight out for; as good as any from 1 to 128 rows
)
LEAST_PLAIN_ROWS = 256


def copies_of_weights(device: str, dtype: str) -> int:
    """How many times the engine stores each weight: what must fit in memory."""
    return 2 if _packs(device, getattr(torch, dtype)) else 1


class Linear:
    """y = x W^T + b, with W of shape [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias
        self.packed: Tensor | None = None
        if _packs(weight.device.type, weight.dtype):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)

    def __call__(self, rows: Tensor) -> Tensor:  # [N, in] -> [N, out]
        if self._few(rows):
            return self._packed_product(rows, "none")
        return functional.linear(rows, self.weight, self.bias)

    def silu(self, rows: Tensor) -> Tensor:
        """silu(y), the activation fused into the packed product."""
        if self._few(rows):
            return self._packed_product(rows, "swish")
        return functional.silu(functional.linear(rows, self.weight, self.bias), inplace=True)

    def add_to(self, rows: Tensor, residual: Tensor) -> Tensor:
        """residual + y, the addition fused into the product."""
        if self._few(rows):
            total: Tensor = torch.ops.mkldnn._linear_pointwise.binary(
                rows, residual, self.packed, self.bias, "add"
            )
            return total
        if self.bias is None:
            return torch.addmm(residual, rows, self.weight.t())
        return residual + self(rows)

    def _few(self, rows: Tensor) -> bool:
        return self.packed is not None and rows.shape[0] < LEAST_PLAIN_ROWS

    def _packed_product(self, rows: Tensor, activation: str) -> Tensor:
        scalars: list[Any] = []
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            rows, self.packed, self.bias, activation, scalars, ""
        )
        return product


def _packs(device_type: str, dtype: torch.dtype) -> bool:
    return device_type == "cpu" and dtype == torch.float32 and torch.backends.mkldnn.is_available()
