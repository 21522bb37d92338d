"""Prices: how long a step takes on a machine, in closed form.

The roofline of a decoder in which every layer sees all tokens is made of few numbers: products
with the weights depend on the rows of a step and on those that sample, attention on the pairs of
its chunks and on the tokens they read. `Prices` takes these numbers out of the roofline once; a
step then costs a few operations, and a run of decode steps no more: B sequences with S tokens in
their caches take a(B) + c (S + j B) in step j.

Counts:  what `roofline` counts, at the shares of a calibration, and the host's time.
Ignores: what it ignores; communication between the devices of one instance; and layers that see a
         window, which it refuses.
"""

from collections.abc import Iterable, Sequence

from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.roofline import StepWork, Work, step_work
from prefill_decode.scheduling import SequenceState
from prefill_decode.simulator.calibration import Calibration
from prefill_decode.step import Chunk

PlacedChunks = Sequence[tuple[SequenceState, Chunk]]


class Prices:
    """Of a model's steps on one instance."""

    def __init__(self, model: ModelSpec, hardware: Hardware, calibration: Calibration) -> None:
        if any(window is not None for window, _ in model.window_layers()):
            raise ValueError(
                f"a step's price in closed form needs layers that see all tokens; {model.name} has "
                "layers with a window: take a model without"
            )
        self.model, self.hardware, self.calibration = model, hardware, calibration
        share = calibration
        peak, bandwidth = hardware.peak_flops_per_s, hardware.bandwidth_bytes_per_s
        self._product_s_per_flop = 1 / (share.product_compute_share * peak)
        self._product_s_per_byte = 1 / (share.product_bandwidth_share * bandwidth)
        self._attention_s_per_flop = 1 / (share.attention_compute_share * peak)
        self._attention_s_per_byte = 1 / (share.attention_bandwidth_share * bandwidth)
        self._take_numbers(model)
        self._decode_s: list[tuple[float, float]] = []  # of so many sequences: fixed, growth

    def _take_numbers(self, model: ModelSpec) -> None:
        silent = step_work(model, [Chunk(1, 0, False)])
        heard = step_work(model, [Chunk(1, 0, True)])
        self._flops_per_row = silent.weights.flops
        self._flops_per_sample = heard.weights.flops - silent.weights.flops
        self._head_bytes = heard.weights.bytes - silent.weights.bytes
        self._expert_bytes = self._layer_bytes = 0.0
        if model.experts is not None:
            many = 1000 * model.experts.num_experts
            more = step_work(model, [Chunk(many, 0, False)]).weights.bytes - silent.weights.bytes
            woken = model.experts.expected_distinct(many) - model.experts.expected_distinct(1)
            self._expert_bytes = more / woken if woken else 0.0
            self._layer_bytes -= self._expert_bytes * model.experts.expected_distinct(1)
        self._layer_bytes += silent.weights.bytes
        self._kv_bytes = silent.attention.bytes  # that a token adds, or one that is read costs
        layers, latent = model.num_layers, model.latent
        self._pair_flops = 2.0 * layers * (model.query_size + model.attended_size)
        self._expand_flops = self._absorbed_flops = 0.0
        if latent is not None:
            self._expand_flops = 2.0 * layers * model.kv_expansion_params
            width = latent.cached_size + latent.kv_rank
            self._absorbed_flops = 2.0 * layers * model.num_heads * width
            if self._expand_flops < 2 * (self._absorbed_flops - self._pair_flops):
                raise ValueError(
                    f"{model.name} would decode over expanded keys and values, which has no "
                    "closed form here"
                )

    def decodes(self, count: int, context_tokens: int) -> tuple[float, float]:
        """(time of a step in which `count` sequences decode over so many cached tokens together,
        what each further step adds), seconds."""
        known = self._decode_s
        while len(known) <= count:
            known.append(self._decode(len(known)))
        fixed_s, growth_s = known[count]
        return fixed_s + growth_s / count * context_tokens, growth_s

    def _decode(self, count: int) -> tuple[float, float]:
        pair_flops = self._absorbed_flops if self.model.latent else self._pair_flops
        token_s = max(
            pair_flops * self._attention_s_per_flop, self._kv_bytes * self._attention_s_per_byte
        )
        fixed_s = self._products_s(count, count) + token_s * count + self._host_s(count)
        return fixed_s, token_s * count

    def step_s(self, chunks: PlacedChunks, decodes: int = 0, context_tokens: int = 0) -> float:
        """Of one step with these chunks, and decodes as in `decodes`; seconds."""
        rows = sampled = decodes
        pair_flops = self._absorbed_flops if self.model.latent else self._pair_flops
        flops = pair_flops * (context_tokens + decodes)
        tokens = context_tokens + decodes
        for _, chunk in chunks:
            new, cached = chunk.new_tokens, chunk.cached_tokens
            rows += new
            sampled += chunk.samples_token
            tokens += cached + new
            pairs = new * cached + new * (new + 1) // 2
            if self._absorbed_flops:
                expanded = self._pair_flops * pairs + self._expand_flops * cached
                flops += min(expanded, self._absorbed_flops * pairs)
            else:
                flops += self._pair_flops * pairs
        attention_s = max(
            flops * self._attention_s_per_flop,
            tokens * self._kv_bytes * self._attention_s_per_byte,
        )
        sequences = decodes + len(chunks)
        return self._products_s(rows, sampled) + attention_s + self._host_s(sequences)

    def step_s_by_roofline(self, chunks: Iterable[Chunk]) -> float:
        """The same, straight from the roofline's operations: slower, and for comparison."""
        listed = list(chunks)
        work: StepWork = step_work(self.model, listed)
        products_s = _longer(work.weights, self._product_s_per_flop, self._product_s_per_byte)
        attention_s = _longer(
            work.attention, self._attention_s_per_flop, self._attention_s_per_byte
        )
        return products_s + attention_s + self._host_s(len(listed))

    def kv_bytes(self, tokens: int) -> float:
        """Of a sequence's cache, to be moved."""
        return self._kv_bytes * tokens

    def _products_s(self, rows: int, sampled: int) -> float:
        flops = rows * self._flops_per_row + sampled * self._flops_per_sample
        num_bytes = self._layer_bytes + (self._head_bytes if sampled else 0.0)
        if self._expert_bytes:
            assert self.model.experts is not None
            num_bytes += self._expert_bytes * self.model.experts.expected_distinct(rows)
        return max(flops * self._product_s_per_flop, num_bytes * self._product_s_per_byte)

    def _host_s(self, sequences: int) -> float:
        return self.calibration.step_s + self.calibration.sequence_s * sequences


def _longer(work: Work, s_per_flop: float, s_per_byte: float) -> float:
    return max(work.flops * s_per_flop, work.bytes * s_per_byte)
