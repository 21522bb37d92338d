"""SchedulerSettings: the policy of a scheduler, and how much may run or wait at a time."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

Policy = Literal["chunked", "decode_first", "prefill_first", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


class QueueFull(Exception):
    """As many sequences wait as may wait."""


@dataclass(frozen=True)
class SchedulerSettings:
    policy: Policy = "chunked"
    most_tokens_per_step: int = 512
    most_sequences: int = 64  # that run at a time
    most_waiting: int | None = None  # None: no limit

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy is one of {', '.join(POLICIES)}; got {self.policy!r}")
        if not 1 <= self.most_sequences <= self.most_tokens_per_step:
            raise ValueError(
                "every running sequence must be able to decode in one step: most_sequences is "
                f"from 1 to most_tokens_per_step; got {self.most_sequences} and "
                f"{self.most_tokens_per_step}"
            )
        if self.most_waiting is not None and self.most_waiting < 1:
            raise ValueError(
                "every sequence waits until the next step: most_waiting is 1 or more, or None for "
                f"no limit; got {self.most_waiting}"
            )

    @cached_property
    def cuts_prompts(self) -> bool:
        return self.policy == "chunked"

    @cached_property
    def decodes_first(self) -> bool:
        return self.policy in ("chunked", "decode_first")
