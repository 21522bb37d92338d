"""ServingEngine: requests in, tokens out, step by step.

The scheduler says who runs, the engine runs it, and one token is sampled for each sequence that has
run all it knows. Sampling depends on a sequence's own logits, settings and place, so what others
do in the same step, how a prompt was cut and whether it was taken back change no token. The
answers to one prompt share its cache: it is read once.

Counts:  steps, tokens of prompts and answers, tokens found in the cache, preemptions.
Ignores: text and time; those belong to whoever serves.
"""

from collections.abc import Sequence

import torch

from prefill_decode.engine.answering import SampledToken, ServingState
from prefill_decode.engine.paged_engine import PagedEngine, PlacedChunk
from prefill_decode.engine.sampling import Sampled, Sampling, sample
from prefill_decode.engine.weights import Weights
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import (
    BlockPool,
    ScheduledStep,
    Scheduler,
    SchedulerSettings,
    SequenceState,
)
from prefill_decode.step import Chunk

BLOCK_TOKENS = 32


class ServingEngine:
    """One engine and one scheduler over the same blocks. Not safe for several threads."""

    def __init__(
        self, engine: PagedEngine, settings: SchedulerSettings | None = None, reuse: bool = True
    ) -> None:
        """`reuse`: whether a prompt may share blocks that hold how it begins."""
        cache = engine.cache
        self.engine = engine
        self.scheduler = Scheduler(BlockPool(cache.num_blocks, cache.block_tokens, reuse), settings)
        self.capacity_tokens = self._most_tokens()
        self._answers: dict[str, dict[int, SequenceState]] = {}
        self._asked: dict[SequenceState, tuple[str, int, Sampling]] = {}
        self._steps = self._prompt_tokens = self._sampled_tokens = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        max_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answers: int = 1,
    ) -> None:
        """Let a request wait for its turn.

        ValueError, with nothing changed, for an id in use, token ids outside the vocabulary or a
        prompt and answer that the cache cannot hold; QueueFull when too many wait."""
        self._check(request_id, prompt_ids, max_output_tokens, answers)
        family = [
            _sequence(f"{request_id}/{answer}", prompt_ids, max_output_tokens, stop_ids)
            for answer in range(answers)
        ]
        family[0].forks = family[1:]
        self.scheduler.add(family[0])
        self._remember(request_id, family, sampling or Sampling())

    def accept(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        max_output_tokens: int,
        cached_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Run a request from the next step on whose first `cached_tokens` were computed elsewhere.

        Returns its blocks, for the caller to fill. ValueError, OutOfBlocks or QueueFull as the
        scheduler says."""
        self._check(request_id, prompt_ids, max_output_tokens, 1)
        sequence = _sequence(f"{request_id}/0", prompt_ids, max_output_tokens, stop_ids)
        self.scheduler.accept(sequence, cached_tokens)
        self._remember(request_id, [sequence], sampling or Sampling())
        return list(sequence.blocks)

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        """Forget a request or one of its answers; blocks return at once. Unknown ids are fine."""
        answers = self._answers.get(request_id, {})
        for index in list(answers) if answer is None else [answer]:
            if index in answers:
                self.scheduler.cancel(answers[index])
                self._forget(answers[index])

    def step(self) -> list[SampledToken]:
        """Run one step of whatever is scheduled; the tokens it gave."""
        step = self.scheduler.next_step()
        if step is None:
            return []
        self.engine.copy_blocks(step.copies)
        logits = self.engine.forward([_placed(sequence, chunk) for sequence, chunk in step.chunks])
        sampled = self._sample(step, logits)
        self.scheduler.complete(step, [token.token_id for token in sampled])
        self._steps += 1
        self._sampled_tokens += len(sampled)
        return [
            self._told(sequence, token)
            for (_, sequence), token in zip(step.samples, sampled, strict=True)
        ]

    def wake(self) -> None:
        """No step here only waits."""

    def state(self) -> ServingState:
        pool = self.scheduler.pool
        return ServingState(
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            free_blocks=pool.num_free,
            num_blocks=pool.num_blocks,
            steps=self._steps,
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self.scheduler.num_reused_tokens,
            sampled_tokens=self._sampled_tokens,
            preemptions=self.scheduler.num_preemptions,
        )

    def _most_tokens(self) -> int:
        """Of one prompt and its answer. Read again after a preemption, they run in one step where
        prompts are not cut."""
        settings, most = self.scheduler.settings, self.engine.capacity_tokens
        return most if settings.cuts_prompts else min(most, settings.most_tokens_per_step)

    def _sample(self, step: ScheduledStep, logits: torch.Tensor) -> list[Sampled]:
        if not step.samples:
            return []
        rows = [row for row, _ in step.samples]
        sequences = [sequence for _, sequence in step.samples]
        asked = [self._asked[sequence] for sequence in sequences]
        return sample(
            logits if len(rows) == len(logits) else logits[rows],
            [sampling for _, _, sampling in asked],
            [sequence.output_tokens for sequence in sequences],
            [answer for _, answer, _ in asked],
        )

    def _told(self, sequence: SequenceState, token: Sampled) -> SampledToken:
        request_id, answer, _ = self._asked[sequence]
        if sequence.finish_reason:
            self._forget(sequence)
        return SampledToken(
            request_id,
            answer,
            token.token_id,
            sequence.finish_reason,
            token.logprob,
            token.top_logprobs,
        )

    def _remember(
        self, request_id: str, family: Sequence[SequenceState], sampling: Sampling
    ) -> None:
        self._prompt_tokens += family[0].prompt_tokens
        self._answers[request_id] = dict(enumerate(family))
        for answer, sequence in enumerate(family):
            self._asked[sequence] = (request_id, answer, sampling)

    def _forget(self, sequence: SequenceState) -> None:
        request_id, answer, _ = self._asked.pop(sequence)
        del self._answers[request_id][answer]
        if not self._answers[request_id]:
            del self._answers[request_id]

    def _check(
        self, request_id: str, prompt_ids: Sequence[int], max_output_tokens: int, answers: int
    ) -> None:
        if request_id in self._answers:
            raise ValueError(f"every request has an id of its own; {request_id!r} is in use")
        if not len(prompt_ids):
            raise ValueError("a prompt has at least one token; got none")
        if max_output_tokens < 1 or answers < 1:
            raise ValueError(
                "a request asks for at least one token of at least one answer; got "
                f"max_output_tokens={max_output_tokens} and answers={answers}"
            )
        vocab_size = self.engine.model.vocab_size
        if not all(type(token) is int and 0 <= token < vocab_size for token in prompt_ids):
            raise ValueError(f"token ids are whole numbers from 0 to {vocab_size - 1}")
        total = len(prompt_ids) + max_output_tokens
        most = self.engine.capacity_tokens
        if total - 1 > most:
            raise ValueError(
                f"a sequence may have {most} tokens in the cache; got a prompt of "
                f"{len(prompt_ids)} and {max_output_tokens} output tokens"
            )


def _sequence(
    name: str, prompt_ids: Sequence[int], max_output_tokens: int, stop_ids: frozenset[int]
) -> SequenceState:
    return SequenceState(
        sequence_id=name,
        prompt_tokens=len(prompt_ids),
        most_output_tokens=max_output_tokens,
        token_ids=list(prompt_ids),
        stop_ids=stop_ids,
    )


def _placed(sequence: SequenceState, chunk: Chunk) -> PlacedChunk:
    assert sequence.token_ids is not None
    first = chunk.cached_tokens
    new = sequence.token_ids[first : first + chunk.new_tokens]
    return PlacedChunk(new, first, sequence.blocks, chunk.samples_token)


def build_serving_engine(
    model: ModelSpec,
    device: str = "cpu",
    *,
    cache_tokens: int,
    block_tokens: int = BLOCK_TOKENS,
    capacity_tokens: int | None = None,
    settings: SchedulerSettings | None = None,
    weights: Weights | None = None,
    reuse: bool = True,
    seed: int = 0,
) -> ServingEngine:
    """An engine with room for `cache_tokens` in all, and in one sequence for `capacity_tokens`
    (None: all of it), with random weights unless some are given."""
    num_blocks = cache_tokens // block_tokens
    if num_blocks < 1:
        raise ValueError(
            f"the cache must hold at least one block of {block_tokens} tokens; got {cache_tokens}"
        )
    room = num_blocks * block_tokens
    engine = PagedEngine(
        model,
        device,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        capacity_tokens=min(capacity_tokens or room, room),
        weights=weights,
        seed=seed,
    )
    return ServingEngine(engine, settings, reuse)
