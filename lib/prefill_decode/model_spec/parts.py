"""Parts: what a decoder may have beside its common shape, and how a count is checked."""

from dataclasses import dataclass
from typing import Any

LARGEST_COUNT = 2**40


@dataclass(frozen=True)
class Experts:
    """The MLPs of a mixture-of-experts layer; `intermediate_size` is the width of one expert."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    shared_intermediate_size: int = 0  # summed over the experts that every token uses
    shared_gate: bool = False  # one weight a hidden value, in front of the shared expert
    biases: bool = False  # of the router and of every expert
    dense_layers: tuple[int, ...] = ()  # layers with one ordinary MLP instead

    def __post_init__(self) -> None:
        for name in ("num_experts", "experts_per_token", "intermediate_size"):
            check_count(getattr(self, name), name, "experts")
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                "a token cannot use more experts than there are; got experts_per_token "
                f"{self.experts_per_token} of num_experts {self.num_experts}"
            )

    def expected_distinct(self, tokens: int) -> float:
        """Experts of one layer that a step of so many tokens wakes: E (1 - (1 - k/E)^tokens).

        Takes each token's k experts as drawn uniformly and independently of other tokens'. Real
        routers prefer some experts, which wakes fewer."""
        share = self.experts_per_token / self.num_experts
        return float(self.num_experts * (1 - (1 - share) ** tokens))


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention: a token caches one latent vector and one rotary key a layer.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1."""

    query_rank: int | None  # None: queries straight from the hidden values
    kv_rank: int
    nope_head_dim: int  # of a head's query and key, the part without positions
    rope_head_dim: int  # and the rotary part, whose key all heads share
    value_head_dim: int

    def __post_init__(self) -> None:
        for name in ("kv_rank", "nope_head_dim", "rope_head_dim", "value_head_dim"):
            check_count(getattr(self, name), name, "latent attention")
        if self.query_rank is not None:
            check_count(self.query_rank, "query_rank", "latent attention")

    @property
    def query_head_dim(self) -> int:
        return self.nope_head_dim + self.rope_head_dim

    @property
    def cached_size(self) -> int:
        """Values that one token leaves in the cache of one layer, for keys and values together."""
        return self.kv_rank + self.rope_head_dim


@dataclass(frozen=True)
class Vectors:
    """Parameters that no matrix product uses, beside the biases of Q, K, V and the head norms."""

    norms_per_layer: int = 2
    norm_biases: bool = False  # LayerNorm as GPT-2 has it: a bias beside each gain
    attention_out_bias: bool = False
    mlp_bias: bool = False
    separate_head_norms: bool = False  # a gain for every head of Q and K, not one for all heads
    attention_sinks: bool = False  # one logit a query head
    embedding_norm: bool = False
    position_rows: int = 0  # of a learned table
    lm_head_bias: bool = False


@dataclass(frozen=True)
class RopeScaling:
    """How stored weights expect rotary positions to be stretched; it changes no count and no time.

    linear: every frequency divided by `factor`. llama3: only the slow ones, those that turn fewer
    than `low_turns` times in `original_tokens`; above `high_turns` none; a ramp between.
    Source: transformers.modeling_rope_utils; Meta's code of Llama 3.1."""

    kind: str
    factor: float
    low_turns: float = 1.0
    high_turns: float = 4.0
    original_tokens: int = 8192

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3"):
            raise ValueError(
                "rotary positions are stretched as linear or llama3 says; got "
                f"{self.kind!r:.60}, which would need another table"
            )
        if self.kind == "llama3" and self.low_turns >= self.high_turns:
            raise ValueError(
                "low_freq_factor must be below high_freq_factor; got "
                f"{self.low_turns} and {self.high_turns}"
            )


def check_count(value: Any, key: str, name: str) -> int:
    """`value` if it is a positive whole number that a model can have; ValueError names `key`."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < LARGEST_COUNT:
        huge = isinstance(value, int) and abs(value) >= LARGEST_COUNT  # too long to print, perhaps
        shown = "one too large" if huge else f"{value!r:.60}"
        raise ValueError(f"{name}: {key} must be a positive whole number below 2**40; got {shown}")
    return value
