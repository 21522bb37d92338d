"""ContentionRunner: streams that decode, and a prompt that arrives among them, ready to be timed.

An episode begins with every stream waiting for its next token. A prompt arrives, the scheduler
fits it in beside them, and the episode ends with the prompt's first token; in one without a prompt
the streams only decode. It runs on the serving engine, with its scheduler, blocks and sampling.
Every run of one notes the prompt's TTFT and the gaps between two tokens of a stream: all streams
get their tokens in the same steps, so their gaps are alike. The next run is prepared after that.

Ignores: receiving a prompt and sending a token. The streams' cache is noise, as if it had been
         computed before."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.model_spec import ModelSpec
from prefill_decode.request import Request, RequestRecord
from prefill_decode.scheduling import beside_streams, rehearse_arrival
from prefill_decode.step import Chunk

PROMPT = "prompt"
QUIET_STEPS = 16


@dataclass(frozen=True)
class Arrival:
    """A prompt, and the most of it that a step takes beside the streams (None: all of it)."""

    prompt_tokens: int
    chunk_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or (self.chunk_tokens is not None and self.chunk_tokens < 1):
            raise ValueError(f"a prompt and its chunks have at least one token; got {self}")

    @property
    def most_chunk_tokens(self) -> int:
        return min(self.chunk_tokens or self.prompt_tokens, self.prompt_tokens)


class ContentionRunner:
    """One engine, and an episode ready to run for each of `arrivals`; None: nobody arrives.

    `schedules` holds the chunks of every step, as the scheduler chooses them, before anything has
    run. Every run of an episode notes its times in `noted_s`, under the names that `worst_gap`,
    `median_gap` and `ttft` give.
    """

    def __init__(
        self,
        model: ModelSpec,
        arrivals: Mapping[str, Arrival | None],
        device: str = "cpu",
        *,
        streams: int = 4,
        context_tokens: int = 64,
        seed: int = 0,
    ) -> None:
        if not arrivals or streams < 1 or context_tokens < 1:
            raise ValueError(
                "there is nothing to run: give an episode, a stream and a token of its context; "
                f"got {len(arrivals)} episodes, streams={streams}, context_tokens={context_tokens}"
            )
        self.arrivals, self.streams, self.context_tokens = dict(arrivals), streams, context_tokens
        prompt_tokens = max(a.prompt_tokens for a in (*arrivals.values(), Arrival(1)) if a)
        self.schedules = {name: self._schedule(arrival) for name, arrival in arrivals.items()}
        self.most_steps = max(map(len, self.schedules.values())) + 2 * QUIET_STEPS
        per_stream = -(-(context_tokens + self.most_steps) // BLOCK_TOKENS)
        self.engine = PagedEngine(
            model,
            device,
            num_blocks=streams * per_stream + prompt_tokens // BLOCK_TOKENS + 1,
            block_tokens=BLOCK_TOKENS,
            capacity_tokens=max(context_tokens + self.most_steps, prompt_tokens + 1),
            seed=seed,
        )
        self.engine.cache.fill_with_noise(seed)
        generator = torch.Generator().manual_seed(seed)
        longest = max(context_tokens, prompt_tokens)
        self.token_ids: list[int] = torch.randint(
            model.vocab_size, (longest,), generator=generator
        ).tolist()
        self.noted_s: dict[str, list[float]] = {}
        self.steps = {name: self._episode(name) for name in arrivals}

    @staticmethod
    def worst_gap(name: str) -> str:
        return f"{name}: worst gap"

    @staticmethod
    def median_gap(name: str) -> str:
        return f"{name}: median gap"

    @staticmethod
    def ttft(name: str) -> str:
        return f"{name}: TTFT"

    def names_by(self, episodes: Mapping[int, str]) -> tuple[dict[int, str], dict[int, str]]:
        """The names of the worst gap and of the TTFT of each episode."""
        gaps = {key: self.worst_gap(name) for key, name in episodes.items()}
        return gaps, {key: self.ttft(name) for key, name in episodes.items()}

    @property
    def heaviest(self) -> dict[str, list[Chunk]]:
        """The step of each episode that does most, by the name of its worst gap."""
        return {
            self.worst_gap(name): max(steps, key=_weight) for name, steps in self.schedules.items()
        }

    def timeline(self, name: str) -> list[RequestRecord]:
        """One episode with quiet steps before and after it: what each stream, and last the prompt,
        lived through. Times are seconds since the start."""
        arrival = self.arrivals[name]
        serving = self._begin(arrival)
        started_s = time.perf_counter()
        times_s: dict[str, list[float]] = {}
        arrived_s = 0.0
        episode = len(self.schedules[name])
        for index in range(QUIET_STEPS + episode + QUIET_STEPS):
            if index == QUIET_STEPS and arrival is not None:
                arrived_s = time.perf_counter() - started_s
                self._submit(serving, arrival)
            sampled = serving.step()
            now_s = time.perf_counter() - started_s
            for token in sampled:
                times_s.setdefault(token.request_id, []).append(now_s)
        return [
            RequestRecord(
                Request(
                    request_id,
                    arrived_s if request_id == PROMPT else 0.0,
                    len(self._ids(arrival if request_id == PROMPT else None)),
                    len(times),
                ),
                tuple(times),
                (1,) * len(times),
            )
            for request_id, times in sorted(times_s.items(), key=lambda item: item[0] == PROMPT)
        ]

    def _episode(self, name: str) -> Callable[[], None]:
        arrival, num_steps = self.arrivals[name], len(self.schedules[name])
        ready = [self._prepared(arrival)]

        def run() -> None:
            serving = ready.pop()
            gaps_s, last_s = [], time.perf_counter()
            for _ in range(num_steps):
                serving.step()  # ends with the tokens on the host, on every device
                now_s = time.perf_counter()
                gaps_s.append(now_s - last_s)
                last_s = now_s
            self._note(self.worst_gap(name), max(gaps_s))
            self._note(self.median_gap(name), median(gaps_s))
            if arrival is not None:
                self._note(self.ttft(name), sum(gaps_s))
            ready.append(self._prepared(arrival))

        return run

    def _note(self, name: str, time_s: float) -> None:
        self.noted_s.setdefault(name, []).append(time_s)

    def _prepared(self, arrival: Arrival | None) -> ServingEngine:
        serving = self._begin(arrival)
        if arrival is not None:
            self._submit(serving, arrival)
        return serving

    def _begin(self, arrival: Arrival | None) -> ServingEngine:
        """The streams, each with its context in the cache but for the last token."""
        chunk_tokens = arrival.most_chunk_tokens if arrival else 1
        settings = beside_streams(self.streams, chunk_tokens)
        serving = ServingEngine(self.engine, settings, reuse=False)
        for index in range(self.streams):
            serving.accept(f"stream {index}", self._ids(None), self.most_steps, self._cached())
        return serving

    def _submit(self, serving: ServingEngine, arrival: Arrival) -> None:
        serving.submit(PROMPT, self._ids(arrival), most_output_tokens=1)

    def _ids(self, arrival: Arrival | None) -> Sequence[int]:
        return self.token_ids[: arrival.prompt_tokens if arrival else self.context_tokens]

    def _cached(self) -> int:
        return self.context_tokens - 1

    def _schedule(self, arrival: Arrival | None) -> list[list[Chunk]]:
        if arrival is None:
            return [[Chunk(1, self._cached() + i)] * self.streams for i in range(QUIET_STEPS)]
        return rehearse_arrival(
            arrival.prompt_tokens, arrival.most_chunk_tokens, self.streams, self.context_tokens
        )


def _weight(step: Sequence[Chunk]) -> tuple[int, int]:
    return sum(chunk.new_tokens for chunk in step), sum(chunk.attended_pairs for chunk in step)
