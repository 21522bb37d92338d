"""Spec: the shape of a decoder, its parts among it, and the counts that follow."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from prefill_decode.model_spec.parts import (
    Experts,
    LatentAttention,
    RopeScaling,
    Vectors,
    check_count,
)

# Of every value: weights, embedding, KV cache. Nothing here runs in float8; it prices a claim.
BYTES_PER_VALUE = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8": 1}
# Layers' matrices only; embedding, output matrix, norms, biases and KV cache stay in bfloat16.
# mxfp4 is 4 bits and an 8-bit scale for 32 values, for routed experts alone, as gpt-oss stores them
# (Rouhani et al., "Microscaling Data Formats for Deep Learning", 2023).
QUANTIZED_BYTES = {"fp8": 1, "int8": 1, "int4": 0.5, "mxfp4": 17 / 32}
DTYPES = (*BYTES_PER_VALUE, *QUANTIZED_BYTES)
MOST_LAYERS = 10_000
SIZES = (
    "num_layers",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab_size",
)
POSITIONS = ("rotary", "partly rotary", "learned", "ALiBi")


@dataclass(frozen=True)
class ModelSpec:
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int  # of dense layers; experts have their own
    num_heads: int
    num_kv_heads: int
    head_dim: int  # of queries and keys
    vocab_size: int
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-6
    dtype: str = "bfloat16"  # of the weights and, unless they are quantized, of the KV cache
    windows: tuple[int | None, ...] | None = None  # tokens a layer sees; None: all before
    experts: Experts | None = None
    latent: LatentAttention | None = None
    gated_mlp: bool = True  # gate, up and down; False: up and down
    rms_norm: bool = True  # False: LayerNorm
    positions: str = "rotary"
    vectors: Vectors = field(default_factory=Vectors)
    rope_scaling: RopeScaling | None = None  # set with stored weights only
    beyond_llama: str = ""  # in words, what else sets its arithmetic apart; no parameters in it

    def __post_init__(self) -> None:
        for size in SIZES:
            check_count(getattr(self, size), size, self.name)
        if self.num_layers > MOST_LAYERS:
            raise ValueError(
                f"{self.name}: num_layers must be at most {MOST_LAYERS}; got {self.num_layers}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.name}: query heads share KV heads evenly, so num_heads must be a "
                f"multiple of "
                f"num_kv_heads; got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"{self.name}: rotary embedding turns pairs, so head_dim must be even; "
                f"got {self.head_dim}"
            )
        if self.positions not in POSITIONS:
            raise ValueError(f"positions must be one of {POSITIONS}; got {self.positions!r}")
        self._check_dtype()
        self._check_windows()

    def _check_dtype(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(
                f"{self.name}: dtype must be one of {', '.join(DTYPES)}; got {self.dtype!r:.60}"
            )
        if self.dtype == "mxfp4" and self.experts is None:
            raise ValueError(
                f"{self.name}: mxfp4 stores routed experts and this model has none; take int4"
            )

    def _check_windows(self) -> None:
        if self.windows is None:
            return
        if len(self.windows) != self.num_layers:
            raise ValueError(
                f"{self.name}: windows are one a layer; got {len(self.windows)} for "
                f"{self.num_layers} layers"
            )
        for window in set(self.windows) - {None}:
            check_count(window, "a sliding window", self.name)

    def with_layers(self, num_layers: int) -> "ModelSpec":
        """A slice of the model: its first layers, with all else as it is."""
        windows = None if self.windows is None else self.windows[:num_layers]
        return replace(self, num_layers=num_layers, windows=windows)

    def with_dtype(self, dtype: str) -> "ModelSpec":
        return replace(self, dtype=dtype)

    # Bytes of one value.

    @property
    def bytes_per_value(self) -> int:
        """Of what is never quantized: KV cache, activations, embedding, norms, biases."""
        return BYTES_PER_VALUE.get(self.dtype, 2)

    @property
    def bytes_per_expert_weight(self) -> float:
        return QUANTIZED_BYTES.get(self.dtype, self.bytes_per_value)

    @property
    def bytes_per_weight(self) -> float:
        """Of a layer's matrices other than routed experts."""
        return self.bytes_per_value if self.dtype == "mxfp4" else self.bytes_per_expert_weight

    # Matrices of one layer.

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of the keys of one token in one layer, one head's values as wide."""
        return self.num_kv_heads * self.head_dim

    @property
    def value_head_dim(self) -> int:
        return self.latent.value_head_dim if self.latent else self.head_dim

    @property
    def attended_size(self) -> int:
        """Width of the attention's result: every query head's mixture of values."""
        return self.num_heads * self.value_head_dim

    @property
    def qkv_params(self) -> int:
        """Matrices that make queries, keys and values; with latent attention all four of them."""
        if self.latent is None:
            return self.hidden_size * (self.query_size + 2 * self.kv_size)
        latent = self.latent
        queries = self.hidden_size * self.query_size
        if latent.query_rank is not None:
            queries = latent.query_rank * (self.hidden_size + self.query_size)
        return queries + self.hidden_size * latent.cached_size + self.kv_expansion_params

    @property
    def kv_expansion_params(self) -> int:
        """Latent attention's matrix from one token's latent to all heads' keys and values."""
        if self.latent is None:
            return 0
        widths = self.latent.nope_head_dim + self.latent.value_head_dim
        return self.latent.kv_rank * self.num_heads * widths

    @property
    def attention_out_params(self) -> int:
        return self.attended_size * self.hidden_size

    def mlp_params(self, intermediate_size: int) -> int:
        return (3 if self.gated_mlp else 2) * self.hidden_size * intermediate_size

    @property
    def expert_params(self) -> int:
        """Matrices of one routed expert."""
        return self.mlp_params(self.experts.intermediate_size) if self.experts else 0

    @property
    def router_params(self) -> int:
        """One column an expert, and one for the gate of the shared expert where there is one."""
        if self.experts is None:
            return 0
        return self.hidden_size * (self.experts.num_experts + self.experts.shared_gate)

    @property
    def num_expert_layers(self) -> int:
        if self.experts is None:
            return 0
        return self.num_layers - sum(i < self.num_layers for i in self.experts.dense_layers)

    @property
    def num_dense_layers(self) -> int:
        return self.num_layers - self.num_expert_layers

    # Parameters of the whole model.

    def _block_params(self, experts_counted: int) -> int:
        """Matrices of all layers, with so many routed experts counted in each expert layer."""
        attention = self.num_layers * (self.qkv_params + self.attention_out_params)
        dense = self.num_dense_layers * self.mlp_params(self.intermediate_size)
        if self.experts is None:
            return attention + dense
        shared = self.mlp_params(self.experts.shared_intermediate_size)
        mixture = experts_counted * self.expert_params + shared + self.router_params
        return attention + dense + self.num_expert_layers * mixture

    @property
    def block_params(self) -> int:
        """Weights of all layers that take part in a matrix product for one token."""
        return self._block_params(self.experts.experts_per_token if self.experts else 0)

    @property
    def layer_params(self) -> int:
        """The same of one layer; the mean, where layers differ."""
        return self.block_params // self.num_layers

    @property
    def lm_head_params(self) -> int:
        """The output matrix: multiplied once for each sampled token, tied or not."""
        return self.vocab_size * self.hidden_size

    @property
    def matmul_params(self) -> int:
        """Weights that take part in a matrix product for one token whose logits are wanted."""
        return self.block_params + self.lm_head_params

    @property
    def routed_params(self) -> int:
        """Matrices of all routed experts of all layers, used or not."""
        num_experts = self.experts.num_experts if self.experts else 0
        return self.num_expert_layers * num_experts * self.expert_params

    @property
    def total_params(self) -> int:
        """Every stored parameter once: matrices, embedding, norms, biases, tables."""
        embeddings = self.lm_head_params * (1 if self.tied_embeddings else 2)
        blocks = self._block_params(self.experts.num_experts if self.experts else 0)
        return blocks + embeddings + self._vector_params()

    @property
    def active_params(self) -> int:
        """All parameters but the routed experts that one token does not use."""
        if self.experts is None:
            return self.total_params
        unused = self.experts.num_experts - self.experts.experts_per_token
        unused_params = unused * (self.expert_params + self._expert_bias_params())
        return self.total_params - self.num_expert_layers * unused_params

    def _vector_params(self) -> int:
        vectors = self.vectors
        norm = self.hidden_size * (1 + vectors.norm_biases)
        layer = vectors.norms_per_layer * norm + self._attention_vector_params()
        mlp_bias = self._mlp_bias_params(self.intermediate_size) * vectors.mlp_bias
        around = norm * (1 + vectors.embedding_norm) + vectors.position_rows * self.hidden_size
        return (
            self.num_layers * layer
            + self.num_dense_layers * mlp_bias
            + self.num_expert_layers * self._mixture_bias_params()
            + around
            + self.vocab_size * vectors.lm_head_bias
        )

    def _attention_vector_params(self) -> int:
        biases = (self.query_size + 2 * self.kv_size) * self.qkv_bias
        biases += self.hidden_size * self.vectors.attention_out_bias
        separate = self.vectors.separate_head_norms
        norms = (self.query_size + self.kv_size if separate else 2 * self.head_dim) * self.qk_norm
        if self.latent is not None:  # one norm on each latent vector
            norms += self.latent.kv_rank + (self.latent.query_rank or 0)
        return biases + norms + self.num_heads * self.vectors.attention_sinks

    def _mlp_bias_params(self, intermediate_size: int) -> int:
        return (1 + self.gated_mlp) * intermediate_size + self.hidden_size

    def _expert_bias_params(self) -> int:
        if self.experts is None or not self.experts.biases:
            return 0
        return self._mlp_bias_params(self.experts.intermediate_size)

    def _mixture_bias_params(self) -> int:
        """Biases of one expert layer: of the router and of every expert."""
        if self.experts is None or not self.experts.biases:
            return 0
        return self.experts.num_experts * (1 + self._expert_bias_params())

    # Bytes of weights, FLOPs of a token.

    @property
    def weight_bytes(self) -> int:
        routed = self.routed_params
        blocks = self._block_params(self.experts.num_experts if self.experts else 0) - routed
        rest = self.total_params - blocks - routed
        matrices = blocks * self.bytes_per_weight + routed * self.bytes_per_expert_weight
        return int(matrices + rest * self.bytes_per_value)

    @property
    def weight_bytes_read(self) -> int:
        """Bytes of weights that a step of one token reads; an embedding gives only single rows."""
        used = self.experts.experts_per_token if self.experts else 0
        routed = self.num_expert_layers * used * self.expert_params
        matrices = (self.block_params - routed) * self.bytes_per_weight
        matrices += routed * self.bytes_per_expert_weight
        return int(matrices + self.lm_head_params * self.bytes_per_value)

    @property
    def linear_flops_per_token(self) -> int:
        """One multiplication and one addition for each weight in a matrix product."""
        return 2 * self.matmul_params

    # Attention over a context.

    def window_layers(self) -> Iterator[tuple[int | None, int]]:
        """Each window (None: full attention) and how many layers have it."""
        windows = self.windows if self.windows is not None else (None,) * self.num_layers
        for window in dict.fromkeys(windows):
            yield window, windows.count(window)

    def attn_flops_per_token(self, context_tokens: int) -> int:
        """Scores and mixtures of one token that sees `context_tokens`, itself included.

        2 x heads x (head_dim of keys + head_dim of values) a key, which is 4 x heads x head_dim but
        in latent attention, counted here as the model defines it, keys and values expanded. Fewer
        KV heads save bytes, not arithmetic."""
        keys = sum(n * _seen(context_tokens, window) for window, n in self.window_layers())
        return 2 * (self.query_size + self.attended_size) * keys

    @property
    def kv_values_per_token_layer(self) -> int:
        """Values that one token leaves in the cache of one layer."""
        return self.latent.cached_size if self.latent else 2 * self.kv_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes one token leaves in the cache of all layers, as long as every window holds it."""
        return self.num_layers * self.kv_values_per_token_layer * self.bytes_per_value

    def kv_bytes(self, context_tokens: int) -> int:
        """Bytes that attention needs of one sequence of `context_tokens`."""
        held = sum(n * _seen(context_tokens, window) for window, n in self.window_layers())
        return held * self.kv_values_per_token_layer * self.bytes_per_value

    def kv_bytes_kept_by_engine(self, context_tokens: int) -> int:
        """Bytes that an engine keeps which ignores windows and caches every head's keys and values
        where latent attention needs only the latent."""
        values = 2 * self.kv_size
        if self.latent is not None:
            values = self.query_size + self.attended_size
        return context_tokens * self.num_layers * values * self.bytes_per_value

    # Whether our engine runs it.

    @property
    def engine_lacks(self) -> str:
        """What our engine lacks to run this model, in words; empty when it runs it.

        It runs dense decoders with gated MLPs, RMSNorm and rotary or learned positions. Windowed
        layers attend to their window only, but keep the whole context."""
        vectors = self.vectors
        lacking = {
            "mixtures of experts": self.experts is not None,
            "latent attention": self.latent is not None,
            "MLPs without a gate": not self.gated_mlp,
            "LayerNorm": not self.rms_norm,
            f"{self.positions} positions": self.positions not in ("rotary", "learned"),
            f"{self.dtype} weights": self.dtype in (*QUANTIZED_BYTES, "float8"),
            "attention sinks": vectors.attention_sinks,
            "biases but on Q, K and V": vectors.attention_out_bias or vectors.mlp_bias,
            "a norm for each head": vectors.separate_head_norms,
            f"{vectors.norms_per_layer} norms a layer": vectors.norms_per_layer != 2,
            self.beyond_llama: bool(self.beyond_llama),
        }
        return ", ".join(words for words, lacks in lacking.items() if lacks)

    @property
    def engine_runs(self) -> bool:
        return not self.engine_lacks


def _seen(context_tokens: int, window: int | None) -> int:
    """Tokens that a layer sees of a context; a window counts the present token."""
    return context_tokens if window is None else min(context_tokens, window)
