"""EpisodeRunner: the episodes of a design on the engine that serves, ready to be timed.

Every step runs on the serving engine, with its scheduler, blocks and sampling, and ends with the
tokens on the host. What it takes is split in two: `run`, from when the device is given the step
until it is done, and `host`, the rest: scheduling, planning, sampling, bookkeeping, and collecting
tokens as a serving loop does. An episode of several steps notes the median of each. The next
episode is prepared after that, outside the time that is noted.

Ignores: HTTP, text, and threads other than the engine's. The cache is noise, as if it had been
         computed before.
"""

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

from prefill_decode.calibrating.design import Episode
from prefill_decode.engine.model import OnLayer, StepPlan
from prefill_decode.engine.paged_engine import PagedEngine
from prefill_decode.engine.serving import BLOCK_TOKENS, ServingEngine
from prefill_decode.engine.weights import Weights
from prefill_decode.measure.timer import synchronizer
from prefill_decode.model_spec import ModelSpec
from prefill_decode.scheduling import SchedulerSettings


class ClockedEngine(PagedEngine):
    """Notes how long the device took for the last step."""

    run_s = 0.0

    def run(self, plan: StepPlan, on_layer: OnLayer | None = None):  # type: ignore[no-untyped-def]
        synchronize = synchronizer(self.device)
        started_s = time.perf_counter()
        logits = super().run(plan, on_layer)
        synchronize()
        self.run_s = time.perf_counter() - started_s
        return logits


class EpisodeRunner:
    """One engine with room for every episode. `steps` are to be interleaved; each run of one notes
    its times in `noted_s`, under the names that `whole` and `host` give. `began` is called before
    each run."""

    def __init__(
        self,
        model: ModelSpec,
        episodes: Sequence[Episode],
        device: str = "cpu",
        *,
        seed: int = 0,
        block_tokens: int = BLOCK_TOKENS,
        weights: Weights | None = None,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        if not episodes or len({one.name for one in episodes}) < len(episodes):
            raise ValueError(
                "a calibration times at least one episode, each with a name of its own; got "
                f"{[one.name for one in episodes]}"
            )
        self.episodes, self.began = list(episodes), began
        self.engine = ClockedEngine(
            model,
            device,
            num_blocks=max(one.num_blocks(block_tokens) for one in episodes),
            block_tokens=block_tokens,
            capacity_tokens=max(one.most_tokens for one in episodes),
            seed=seed,
            weights=weights,
        )
        self.engine.cache.fill_with_noise(seed)
        dice = random.Random(seed)
        longest = max(one.most_tokens for one in episodes)
        self._ids = [dice.randrange(model.vocab_size) for _ in range(longest)]
        self.noted_s: dict[str, list[float]] = {}
        self.idled_s = 0.0  # before episodes, all together
        self.steps = {one.name: self._episode(one) for one in episodes}

    @staticmethod
    def whole(name: str) -> str:
        return f"{name}: step"

    @staticmethod
    def host(name: str) -> str:
        return f"{name}: host"

    def _episode(self, episode: Episode) -> Callable[[], None]:
        ready = [self._prepared(episode)]

        def run() -> None:
            self.began()
            serving = ready.pop()
            whole_s, host_s = [], []
            if episode.idle_s:
                time.sleep(episode.idle_s)
                self.idled_s += episode.idle_s
            received: dict[str, list[float]] = {}
            last_s = time.perf_counter()
            for _ in range(episode.steps):
                for token in serving.step():
                    received.setdefault(token.request_id, []).append(last_s)
                now_s = time.perf_counter()
                whole_s.append(now_s - last_s)
                host_s.append(now_s - last_s - self.engine.run_s)
                last_s = now_s
            self._note(self.whole(episode.name), median(whole_s))
            self._note(self.host(episode.name), median(host_s))
            ready.append(self._prepared(episode))

        return run

    def _note(self, name: str, time_s: float) -> None:
        self.noted_s.setdefault(name, []).append(time_s)

    def _prepared(self, episode: Episode) -> ServingEngine:
        rows = sum(chunk.new_tokens for chunk in episode.chunks)
        count = len(episode.chunks)
        settings = SchedulerSettings("chunked", max(rows, count), count)
        serving = ServingEngine(self.engine, settings)
        for index, chunk in enumerate(episode.chunks):
            ids = self._ids[: chunk.cached_tokens + chunk.new_tokens]
            name, tokens = f"sequence {index}", episode.steps + 1
            serving.accept(name, ids, tokens, chunk.cached_tokens)
        return serving
