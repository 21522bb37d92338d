"""Layout: what two caches must have in common before a byte of one makes sense in the other."""

from dataclasses import asdict, dataclass, fields
from typing import Any

VERSION = 1  # of the frames and of what they mean


@dataclass(frozen=True)
class Layout:
    """One layer has two regions, keys and values, each [num_blocks, block_bytes]; how many blocks a
    side has is its own affair."""

    model: str
    weights: str  # a mark of the weights: equal where they are
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_tokens: int
    block_bytes: int  # of one layer's keys, and as many of its values
    version: int = VERSION

    def differences(self, other: "Layout") -> list[str]:
        """In words, one for each field that is not alike; empty where the two can talk."""
        return [
            f"{field.name} is {getattr(self, field.name)!r} here and "
            f"{getattr(other, field.name)!r} there"
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, read: Any) -> "Layout":
        """ValueError for anything that `to_json` did not write."""
        wanted = {field.name: field.type for field in fields(cls)}
        if not isinstance(read, dict) or set(read) != set(wanted):
            raise ValueError(f"a layout has the fields {', '.join(wanted)}; got {read!r:.200}")
        for name, kind in wanted.items():
            if type(read[name]) is not kind:
                raise ValueError(f"a layout's {name} is of another type; got {read[name]!r:.80}")
        return cls(**read)
