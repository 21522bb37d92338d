"""ServingEngine: requests in, tokens out, step by step.

The scheduler says who runs, the engine runs it, and one token is sampled for each sequence that has
run all it knows. Sampling depends on a sequence's own logits, settings and place, so what others
do in the same step, how a prompt was cut and whether it was taken back change no token. The
answers to one prompt share its cache: it is read once.

Prefill and decode of a request may run in two of these. The first holds the blocks of what it has
read (`submit` with `hold`, `held_blocks`, `release_held`); the second gives out blocks to copy them
to (`reserve`) and goes on with the token that the first one sampled (`start`).

Counts:  steps, tokens of prompts and answers, tokens found in the cache, preemptions.
Ignores: text and time; those belong to whoever serves.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from prefill_decode.engine.answering import (
    FailedAnswer,
    SampledToken,
    ServingState,
    check_asked,
    check_ids,
)
from prefill_decode.engine.model import OnLayer
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
SHARE_OF_MEMORY = 1 / 8  # of what the weights leave, for the cache
NO_NUMBERS = (
    "the model gave logits that are no numbers, so this request has no next token; other requests "
    "go on: check the weights, and the dtype they run in"
)


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
        self._held: dict[str, SequenceState] = {}  # and those whose blocks will be
        self._reserved: dict[str, SequenceState] = {}
        self._steps = self._prompt_tokens = self._sampled_tokens = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def submit(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        answers: int = 1,
        *,
        known_ids: Sequence[int] = (),
        first_answer: int = 0,
        hold: bool = False,
    ) -> None:
        """Let a request wait for its turn.

        `known_ids`: tokens of its one answer that were sampled before, of `most_output_tokens` in
        all. `first_answer`: where the answers are not counted from 0. `hold`: the blocks of its one
        answer stay held at the end, until `release_held`.

        ValueError, with nothing changed, for an id in use, token ids outside the vocabulary or a
        prompt and answer that the cache cannot hold; QueueFull when too many wait."""
        self._check(request_id, prompt_ids, most_output_tokens, answers, known_ids)
        if answers > 1 and (known_ids or hold):
            raise ValueError(
                "one answer has known tokens of its own and holds blocks of its own; got "
                f"{answers} answers: submit them one by one"
            )
        family = [
            _sequence(request_id, prompt_ids, known_ids, most_output_tokens, stop_ids)
            for _ in range(answers)
        ]
        family[0].forks = family[1:]
        family[0].hold = hold
        self.scheduler.add(family[0])
        self._remember(request_id, family, sampling or Sampling(), first_answer)
        if hold:
            self._held[request_id] = family[0]

    def held_blocks(self, request_id: str) -> list[int]:
        """The blocks of a request that was submitted with `hold`, from when it runs until they are
        released; none while it waits. ValueError for others."""
        return list(self._holding(request_id).blocks)

    def reused_tokens(self, request_id: str) -> int:
        """How much of a request with `hold` was found in the cache. ValueError for others."""
        return self._holding(request_id).reused_tokens

    def release_held(self, request_id: str) -> None:
        """Take back the blocks of a request that has ended. ValueError for others."""
        if request_id in self._answers:
            raise ValueError(f"blocks are released after the end; {request_id!r} still runs")
        self.scheduler.release(self._holding(request_id))
        del self._held[request_id]

    def reserve(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
        *,
        known_ids: Sequence[int] = (),
        first_answer: int = 0,
    ) -> list[int]:
        """Give out the blocks for a prompt and the known tokens of its answer, which another engine
        has computed. The caller fills them, then calls `start`, or `cancel`.

        ValueError for what could never run; OutOfBlocks or QueueFull, with nothing changed, where
        there is no room now."""
        self._check(request_id, prompt_ids, most_output_tokens, 1, known_ids)
        sequence = _sequence(request_id, prompt_ids, known_ids, most_output_tokens, stop_ids)
        self.scheduler.reserve(sequence)
        self._remember(request_id, [sequence], sampling or Sampling(), first_answer)
        self._reserved[request_id] = sequence
        return list(sequence.blocks)

    def start(self, request_id: str, token_id: int) -> None:
        """The reserved blocks are filled and this is the next token: run it from the next step on.

        ValueError for a request that is not reserved and for a token that ends its answer."""
        if request_id not in self._reserved:
            raise ValueError(f"a request is started once, when reserved; {request_id!r} is not")
        check_ids([token_id], self.engine.model.vocab_size)
        self.scheduler.start(self._reserved[request_id], token_id)
        del self._reserved[request_id]

    def accept(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        cached_tokens: int,
        sampling: Sampling | None = None,
        stop_ids: frozenset[int] = frozenset(),
    ) -> list[int]:
        """Run a request from the next step on whose first `cached_tokens` were computed elsewhere.

        Returns its blocks, for the caller to fill. ValueError, OutOfBlocks or QueueFull as the
        scheduler says."""
        self._check(request_id, prompt_ids, most_output_tokens, 1)
        sequence = _sequence(request_id, prompt_ids, (), most_output_tokens, stop_ids)
        self.scheduler.accept(sequence, cached_tokens)
        self._remember(request_id, [sequence], sampling or Sampling())
        return list(sequence.blocks)

    def cancel(self, request_id: str, answer: int | None = None) -> None:
        """Forget a request or one of its answers; blocks return at once, held and reserved ones,
        too. Unknown ids are fine."""
        answers = self._answers.get(request_id, {})
        for index in list(answers) if answer is None else [answer]:
            if index in answers:
                self.scheduler.cancel(answers[index])
                self._forget(answers[index])
        if request_id not in self._answers:
            self._reserved.pop(request_id, None)
            held = self._held.pop(request_id, None)
            if held is not None:
                self.scheduler.cancel(held)

    def step(
        self,
        on_layer: OnLayer | None = None,
        on_scheduled: Callable[[list[str]], None] | None = None,
    ) -> list[SampledToken | FailedAnswer]:
        """Run one step of whatever is scheduled; the tokens it gave, and which answers failed.
        Nothing runs where there is nothing, or where the blocks that are needed are reserved or
        held.

        `on_scheduled` is called before the step runs, with the requests that it reads to the end of
        what they know; `on_layer(index)`, when a layer has written the step's keys and values."""
        step = self.scheduler.next_step()
        if step is None:
            return []
        if on_scheduled is not None:
            on_scheduled([self._asked[s][0] for s, chunk in step.chunks if chunk.samples_token])
        self.engine.copy_blocks(step.copies)
        placed = [_placed(sequence, chunk) for sequence, chunk in step.chunks]
        logits = self.engine.forward(placed, on_layer)
        sampled = self._sample(step, logits)
        token_ids = [None if token is None else token.token_id for token in sampled]
        failed = _blocks_of_failed(step, token_ids) if None in token_ids else set()
        self.scheduler.complete(step, token_ids)
        self._clear_unheld(failed)
        self._steps += 1
        self._sampled_tokens += len(token_ids) - token_ids.count(None)
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

    def kv_regions(self) -> list[NDArray[np.uint8]]:
        """The memory of the cache, see `KVCache.regions`."""
        return self.engine.cache.regions()

    def _most_tokens(self) -> int:
        """Of one prompt and its answer. Read again after a preemption, they run in one step where
        prompts are not cut."""
        settings, most = self.scheduler.settings, self.engine.capacity_tokens
        return most if settings.cuts_prompts else min(most, settings.most_tokens_per_step)

    def _clear_unheld(self, blocks: set[int]) -> None:
        """Leave no NaN in a block that is free: a mask would not hide it from its next holder."""
        references = self.scheduler.pool.references
        free = [block for block in blocks if references[block] == 0]
        if free:
            self.engine.cache.clear_blocks(free)

    def _sample(self, step: ScheduledStep, logits: torch.Tensor) -> list[Sampled | None]:
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

    def _told(self, sequence: SequenceState, token: Sampled | None) -> SampledToken | FailedAnswer:
        request_id, answer, _ = self._asked[sequence]
        reason = sequence.finish_reason
        if reason:
            self._forget(sequence)
        if token is None or reason == "failed":
            self._held.pop(request_id, None)
            return FailedAnswer(request_id, answer, NO_NUMBERS)
        return SampledToken(
            request_id,
            answer,
            token.token_id,
            reason,
            token.logprob,
            token.top_logprobs,
        )

    def _holding(self, request_id: str) -> SequenceState:
        if request_id not in self._held:
            raise ValueError(f"a request holds its blocks if submitted so; {request_id!r} does not")
        return self._held[request_id]

    def _remember(
        self,
        request_id: str,
        family: Sequence[SequenceState],
        sampling: Sampling,
        first_answer: int = 0,
    ) -> None:
        self._prompt_tokens += family[0].prompt_tokens
        self._answers[request_id] = dict(enumerate(family, first_answer))
        for answer, sequence in enumerate(family, first_answer):
            self._asked[sequence] = (request_id, answer, sampling)

    def _forget(self, sequence: SequenceState) -> None:
        request_id, answer, _ = self._asked.pop(sequence)
        del self._answers[request_id][answer]
        if not self._answers[request_id]:
            del self._answers[request_id]

    def _check(
        self,
        request_id: str,
        prompt_ids: Sequence[int],
        most_output_tokens: int,
        answers: int,
        known_ids: Sequence[int] = (),
    ) -> None:
        if request_id in self._answers or request_id in self._held:
            raise ValueError(f"every request has an id of its own; {request_id!r} is in use")
        vocab_size = self.engine.model.vocab_size
        most = self.engine.capacity_tokens
        check_asked(prompt_ids, most_output_tokens, answers, vocab_size, most)
        check_ids(known_ids, vocab_size)


def _sequence(
    name: str,
    prompt_ids: Sequence[int],
    known_ids: Sequence[int],
    most_output_tokens: int,
    stop_ids: frozenset[int],
) -> SequenceState:
    return SequenceState(
        sequence_id=name,
        prompt_tokens=len(prompt_ids),
        most_output_tokens=most_output_tokens,
        token_ids=[*prompt_ids, *known_ids],
        stop_ids=stop_ids,
        output_tokens=len(known_ids),
    )


def _blocks_of_failed(step: ScheduledStep, token_ids: Sequence[int | None]) -> set[int]:
    """Of the sequences that have no token; forks begin with the blocks of their prompt."""
    sampling = [sequence for sequence, chunk in step.chunks if chunk.samples_token]
    samples = zip(step.samples, token_ids, strict=True)
    return {block for (row, _), token in samples if token is None for block in sampling[row].blocks}


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
