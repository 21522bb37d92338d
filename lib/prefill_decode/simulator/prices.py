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
from prefill_decode.roofline import ATTENTION, Work, step_operations, step_work
from prefill_decode.scheduling import SequenceState
from prefill_decode.simulator.calibration import Calibration
from prefill_decode.step import Chunk

LM_HEAD = "lm_head"  # as the roofline names its operation
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
        of_compute = 1.0 if share.product_rows else share.product_compute_share
        of_bandwidth = 1.0 if share.product_rows else share.product_bandwidth_share
        self._product_s_per_flop = 1 / (of_compute * peak)
        self._product_s_per_byte = 1 / (of_bandwidth * bandwidth)
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
        attention_s = 0.0
        by_chunk = self.calibration.attention_by_chunk
        for _, chunk in chunks:
            new, cached = chunk.new_tokens, chunk.cached_tokens
            rows += new
            sampled += chunk.samples_token
            pairs = new * cached + new * (new + 1) // 2
            if self._absorbed_flops:
                expanded = self._pair_flops * pairs + self._expand_flops * cached
                chunk_flops = min(expanded, self._absorbed_flops * pairs)
            else:
                chunk_flops = self._pair_flops * pairs
            if new > 1:
                attention_s += self.calibration.chunk_s
            if by_chunk:
                attention_s += self._attention_s(chunk_flops, cached + new)
            else:
                flops += chunk_flops
                tokens += cached + new
        attention_s += self._attention_s(flops, tokens)
        sequences = decodes + len(chunks)
        return self._products_s(rows, sampled) + attention_s + self._host_s(sequences)

    def step_s_by_roofline(self, chunks: Iterable[Chunk]) -> float:
        """The same, straight from the roofline's operations: slower, and for comparison."""
        listed = list(chunks)
        parts = [[each] for each in listed] if self.calibration.attention_by_chunk else [listed]
        attention_s = sum(
            _longer(
                step_work(self.model, part).attention,
                self._attention_s_per_flop,
                self._attention_s_per_byte,
            )
            for part in parts
        )
        attention_s += self.calibration.chunk_s * sum(each.new_tokens > 1 for each in listed)
        return self._products_s_by_roofline(listed) + attention_s + self._host_s(len(listed))

    def _products_s_by_roofline(self, chunks: Sequence[Chunk]) -> float:
        rates = self._product_s_per_flop, self._product_s_per_byte
        rows = self.calibration.filled(sum(chunk.new_tokens for chunk in chunks))
        run = filled_up(chunks, rows)
        if not self.calibration.product_rows:
            return _longer(step_work(self.model, run).weights, *rates)
        layers, head = products_of_step(self.model, run)
        sampled = sum(chunk.samples_token for chunk in chunks)
        stretch = self.calibration.product_stretch
        head_s = _longer(head, *rates) * stretch(sampled) if sampled else 0.0
        return _longer(layers, *rates) * stretch(rows) + head_s

    def kv_bytes(self, tokens: int) -> float:
        """Of a sequence's cache, to be moved."""
        return self._kv_bytes * tokens

    def _products_s(self, rows: int, sampled: int) -> float:
        rows = self.calibration.filled(rows)
        flops = rows * self._flops_per_row + sampled * self._flops_per_sample
        num_bytes = self._layer_bytes + (self._head_bytes if sampled else 0.0)
        if self._expert_bytes:
            assert self.model.experts is not None
            num_bytes += self._expert_bytes * self.model.experts.expected_distinct(rows)
        if self.calibration.product_rows:
            return self._products_s_by_rows(rows, sampled, num_bytes)
        return max(flops * self._product_s_per_flop, num_bytes * self._product_s_per_byte)

    def _products_s_by_rows(self, rows: int, sampled: int, num_bytes: float) -> float:
        stretch = self.calibration.product_stretch
        time_s = 0.0
        if sampled:
            num_bytes -= self._head_bytes
            flops_s = sampled * self._flops_per_sample * self._product_s_per_flop
            head_s = max(flops_s, self._head_bytes * self._product_s_per_byte)
            time_s = head_s * stretch(sampled)
        flops_s = rows * self._flops_per_row * self._product_s_per_flop
        return time_s + max(flops_s, num_bytes * self._product_s_per_byte) * stretch(rows)

    def _attention_s(self, flops: float, tokens: int) -> float:
        return max(
            flops * self._attention_s_per_flop,
            tokens * self._kv_bytes * self._attention_s_per_byte,
        )

    def _host_s(self, sequences: int) -> float:
        return self.calibration.step_s + self.calibration.sequence_s * sequences


def products_of_step(model: ModelSpec, chunks: Sequence[Chunk]) -> tuple[Work, Work]:
    """FLOPs and bytes of a step's products in the layers, and of the one that makes logits."""
    layers, head = Work(0.0, 0.0), Work(0.0, 0.0)
    for operation in step_operations(model, chunks):
        work = operation.work
        if operation.name == LM_HEAD:
            head = work
        elif operation.name != ATTENTION:
            layers = Work(layers.flops + work.flops, layers.bytes + work.bytes)
    return layers, head


def filled_up(chunks: Sequence[Chunk], rows: int) -> Sequence[Chunk]:
    """And one that nobody hears, so that there are so many rows. Of products only: it attends."""
    missing = rows - sum(chunk.new_tokens for chunk in chunks)
    return [*chunks, Chunk(missing, 0, False)] if missing else chunks


def _longer(work: Work, s_per_flop: float, s_per_byte: float) -> float:
    return max(work.flops * s_per_flop, work.bytes * s_per_byte)
