"""SequenceState: one answer to one request, as the scheduler knows it.

A sequence knows its prompt and what was sampled; the cache holds the keys and values of its first
tokens. What lies between the two is still to run: a whole prompt at first, one token when it
decodes, everything again after its blocks were taken away. One that was begun elsewhere brings the
first tokens of its answer along."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prefill_decode.scheduling.kv_blocks import hash_of_block

FinishReason = Literal["stop", "length", "failed"]  # failed: there was no token to choose


@dataclass(slots=True, eq=False)
class SequenceState:
    """`token_ids` are the prompt's and then the answer's; None where only lengths are known, as in
    a rehearsal, which may give `block_hashes` of the prompt's full blocks itself. `hold`: whether
    its blocks are kept when it ends, until they are released."""

    sequence_id: str
    prompt_tokens: int
    most_output_tokens: int
    token_ids: list[int] | None = None
    stop_ids: frozenset[int] = frozenset()
    forks: list["SequenceState"] = field(default_factory=list)  # answers that share this prompt
    block_hashes: list[Hashable] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int = 0
    output_tokens: int = 0
    published_blocks: int = 0
    reused_tokens: int = 0  # found in the cache when it was first admitted
    preemptions: int = 0
    place: int = 0  # among all that were ever admitted
    finish_reason: FinishReason | None = None
    hold: bool = False

    def __post_init__(self) -> None:
        prompt, output = self.prompt_tokens, self.most_output_tokens
        if not (isinstance(prompt, int) and isinstance(output, int) and min(prompt, output) >= 1):
            raise ValueError(
                "a sequence needs at least one prompt token and one output token; got "
                f"prompt_tokens={self.prompt_tokens} and "
                f"most_output_tokens={self.most_output_tokens}"
            )
        if not 0 <= self.output_tokens < self.most_output_tokens:
            raise ValueError(
                "a sequence has at least one token of its answer to run; got "
                f"{self.output_tokens} that are known, of {self.most_output_tokens}"
            )
        if self.token_ids is not None and len(self.token_ids) != self.known_tokens:
            raise ValueError(
                "a new sequence brings the ids of its prompt and of what is known of its answer; "
                f"got {len(self.token_ids)} ids for {self.known_tokens} tokens"
            )

    @property
    def known_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens

    @property
    def tokens_to_run(self) -> int:
        return self.prompt_tokens + self.output_tokens - self.cached_tokens

    @property
    def most_cached_tokens(self) -> int:
        """The last token of an answer is sampled and never run."""
        return self.prompt_tokens + self.most_output_tokens - 1

    def append(self, token_id: int | None) -> None:
        """One more token of its answer."""
        if self.token_ids is not None:
            assert token_id is not None, "sequences with ids need the ids that were sampled"
            self.token_ids.append(token_id)
        self.output_tokens += 1

    def hashes_up_to(self, num_blocks: int, block_tokens: int) -> Sequence[Hashable]:
        """Contents of its first blocks, as many as its known tokens fill and no more than asked."""
        hashes, ids = self.block_hashes, self.token_ids
        if ids is not None:
            for index in range(len(hashes), min(num_blocks, len(ids) // block_tokens)):
                before = hashes[-1] if hashes else b""
                assert isinstance(before, bytes)
                first = index * block_tokens
                hashes.append(hash_of_block(ids[first : first + block_tokens], before))
        return hashes[:num_blocks]
