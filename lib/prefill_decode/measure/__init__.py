"""Measure: time steps, find this machine's ceilings, describe the machine and what disturbs it."""

from prefill_decode.measure.ceilings import (
    Ceilings,
    broken_ruler_in,
    measure_ceilings,
    measure_ceilings_in,
)
from prefill_decode.measure.doctor import Finding, examine, notes
from prefill_decode.measure.machine import Machine, describe_machine, products_of
from prefill_decode.measure.peak_memory import peak_memory_bytes
from prefill_decode.measure.processor_time import process_time_of_s, processor_time_s
from prefill_decode.measure.thread_share import (
    ceilings_on_threads,
    matrix_on_threads,
    times_slower,
    torch_threads,
)
from prefill_decode.measure.timer import Kernel, Timings, interleave

__all__ = [
    "Ceilings",
    "Finding",
    "Kernel",
    "Machine",
    "Timings",
    "broken_ruler_in",
    "ceilings_on_threads",
    "describe_machine",
    "examine",
    "interleave",
    "matrix_on_threads",
    "measure_ceilings",
    "measure_ceilings_in",
    "notes",
    "peak_memory_bytes",
    "process_time_of_s",
    "processor_time_s",
    "products_of",
    "times_slower",
    "torch_threads",
]
