"""Step: one forward pass, as the list of chunks in it.

The scheduler chooses chunks, the roofline prices them, the engine runs them, the simulator
pretends to. Prefill and decode are not two kinds of step: a prefill chunk brings many new tokens,
a decode chunk brings one, and a step may hold both."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Chunk:
    """One sequence's share of a step: `new_tokens` run on top of `cached_tokens`."""

    new_tokens: int
    cached_tokens: int = 0
    samples_token: bool = True  # False for every chunk of a prompt but its last

    def __post_init__(self) -> None:
        whole = isinstance(self.new_tokens, int) and isinstance(self.cached_tokens, int)
        if not whole or self.new_tokens < 1 or self.cached_tokens < 0:
            raise ValueError(
                f"a chunk needs whole numbers, new_tokens >= 1 and cached_tokens >= 0; got {self}"
            )

    @property
    def attended_pairs(self) -> int:
        """Query-key pairs: a new token sees the cache, the new tokens before it, and itself."""
        return self.new_tokens * self.cached_tokens + self.new_tokens * (self.new_tokens + 1) // 2
