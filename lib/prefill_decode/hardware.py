"""Hardware: the two ceilings of the roofline, for one device at one dtype.

A datasheet promises them, `prefill_decode.measure` measures them; `source` says which. Peaks are
dense: a figure that counts structured sparsity is twice what a dense product can reach and is
never used here."""

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True)
class Hardware:
    name: str
    dtype: str
    peak_flops_per_s: float  # dense matrix products
    bandwidth_bytes_per_s: float  # reading main memory (HBM, DDR)
    source: str

    def __post_init__(self) -> None:
        for field in ("peak_flops_per_s", "bandwidth_bytes_per_s"):
            value = getattr(self, field)
            if not (isfinite(value) and value > 0):
                raise ValueError(f"{self.name}: {field} must be a positive number; got {value}")

    @property
    def ridge_flops_per_byte(self) -> float:
        """The arithmetic intensity at which both ceilings take equally long."""
        return self.peak_flops_per_s / self.bandwidth_bytes_per_s


# Datasheet figures, dense bfloat16. Source: NVIDIA product datasheets as collected in the system
# files of aiconfigurator-core 0.12.0 (Apache-2.0); TPU v5e: jax-ml/scaling-book, tpus.md, 0819a7d.
ACCELERATORS = [
    Hardware("A100 SXM 80GB", "bfloat16", 312e12, 2.039e12, "aiconfigurator-core 0.12.0"),
    Hardware("H100 SXM", "bfloat16", 989e12, 3.35e12, "aiconfigurator-core 0.12.0"),
    Hardware("H200 SXM", "bfloat16", 989e12, 4.8e12, "aiconfigurator-core 0.12.0"),
    Hardware("B200 SXM", "bfloat16", 2250e12, 7.7e12, "aiconfigurator-core 0.12.0"),
    Hardware("L4", "bfloat16", 121e12, 0.3e12, "aiconfigurator-core 0.12.0"),
    Hardware("L40S", "bfloat16", 362.05e12, 0.864e12, "aiconfigurator-core 0.12.0"),
    Hardware("TPU v5e", "bfloat16", 197e12, 0.819e12, "jax-ml/scaling-book tpus.md 0819a7d"),
]
