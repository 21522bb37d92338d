"""Server metrics: what the server has done and holds, for Prometheus.

Each server has a registry of its own. Counts of tokens, steps and blocks are the engine's, as of
its last step; times are those that the service takes.

Counts:  requests to the two routes that generate, by outcome: completed; cancelled (the client
         left, or read too slowly); failed (an answer of 500, or one that the engine or the server's
         end broke off); refused (an answer of 4xx or 503, before the engine had it).
Ignores: requests that never reach those routes, for want of a key or under a foreign name; the way
         from the server to the client: TTFT ends where the step ends that samples the first token,
         and ITL is between such ends.
"""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from prefill_decode.engine.answering import HandOvers, ServingState

STEPS_S = (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
WAITS_S = (*STEPS_S, 10.0, 20.0, 50.0, 100.0)
OUTCOMES = ("completed", "cancelled", "failed", "refused")
GAUGES = {
    "num_running": ("prefill_decode_running_sequences", "Sequences with blocks in the cache."),
    "num_waiting": ("prefill_decode_waiting_sequences", "Sequences that wait for blocks."),
    "free_blocks": (
        "prefill_decode_free_blocks",
        "Blocks of the KV cache that a new sequence could have, those kept for reuse included.",
    ),
    "num_blocks": ("prefill_decode_blocks", "Blocks of the KV cache."),
}
COUNTERS = {
    "steps": ("prefill_decode_steps", "Steps of the engine."),
    "preemptions": ("prefill_decode_preemptions", "Sequences that had to give up their blocks."),
    "prompt_tokens": ("prefill_decode_prompt_tokens", "Prompt tokens taken, reused ones included."),
    "reused_tokens": ("prefill_decode_reused_tokens", "Prompt tokens found in the cache."),
    "sampled_tokens": ("prefill_decode_output_tokens", "Tokens sampled."),
}
HAND_OVER_GAUGES = {
    "num_prefill_workers": ("prefill_decode_prefill_workers", "Prefill workers that answer."),
    "num_decode_workers": ("prefill_decode_decode_workers", "Decode workers that answer."),
}
HAND_OVER_COUNTERS = {
    "transfers": ("prefill_decode_kv_transfers", "Caches read by another process."),
    "moved_bytes": ("prefill_decode_kv_transfer_bytes", "Bytes of cache moved."),
    "moving_s": ("prefill_decode_kv_transfer_seconds", "Time that moving them took."),
    "lost_workers": ("prefill_decode_lost_workers", "Workers that died, hung or were cut off."),
    "recomputed_answers": ("prefill_decode_recomputed_answers", "Answers prefilled once more."),
}


class ServerMetrics(Collector):
    """Counters and histograms of one server, beside the engine's own counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "prefill_decode_requests", "Requests by outcome.", ["outcome"], registry=self.registry
        )
        for outcome in OUTCOMES:
            self.requests.labels(outcome)
        self.first_token = self._histogram("ttft", "From a request's arrival to its first token.")
        self.inter_token = self._histogram("itl", "Between two tokens of an answer.")
        self.step = self._histogram("step", "One step of the engine.", STEPS_S)
        self._state: Callable[[], ServingState] | None = None
        self.registry.register(self)

    def watch(self, state: Callable[[], ServingState]) -> None:
        """Where the engine's counts come from."""
        self._state = state

    def count_error(self, status: int) -> None:
        """A request that ended with this status before its answers began."""
        self.requests.labels("failed" if status == 500 else "refused").inc()

    def collect(self) -> Iterable[Metric]:
        if self._state is None:
            return
        state = self._state()
        yield from _families(state, GAUGES, COUNTERS)
        if state.hand_overs is not None:
            yield from _families(state.hand_overs, HAND_OVER_GAUGES, HAND_OVER_COUNTERS)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _histogram(self, word: str, words: str, buckets: tuple[float, ...] = WAITS_S) -> Histogram:
        name = f"prefill_decode_{word}_seconds"
        return Histogram(name, words, buckets=buckets, registry=self.registry)


def _families(
    counts: ServingState | HandOvers,
    gauges: dict[str, tuple[str, str]],
    counters: dict[str, tuple[str, str]],
) -> Iterable[Metric]:
    for field, (name, words) in gauges.items():
        yield GaugeMetricFamily(name, words, value=getattr(counts, field))
    for field, (name, words) in counters.items():
        yield CounterMetricFamily(name, words, value=getattr(counts, field))
