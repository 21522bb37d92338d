"""HandoverRunner: a cache computed in one process and needed in another, ready to be timed.

The other process computes the prompt; this one reads its cache over links of several speeds, made
by pacing, into blocks elsewhere in its own pool. Each speed is a share of the break-even link, over
which moving takes as long as the prefill took when this was made. Every step notes in `noted_s`

    compute           the prefill
    moves[speed]      the cache, once it is complete, until it is here and verified
    waits[speed]      layer by layer during a prefill: from the first token until it is here, at
                      least `LEAST_WAIT_S`
    prefills[speed]   that prefill

and in `moved` what each of these reads moved.

Ignores: making the offer, the first token's own way, first contact."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from prefill_decode.disaggregated.prefill_lender import PrefillLender, Room, cache_pool
from prefill_decode.kv_transfer import Moved, Reader
from prefill_decode.measure import Timings
from prefill_decode.model_spec import ModelSpec
from prefill_decode.step import Chunk
from prefill_decode.transfer_cost import Handover, crossing, moved_bytes, ready_share
from prefill_decode.units import format_bits_per_s

BLOCK_TOKENS = 16
LEAST_WAIT_S = 1e-4  # shorter ones are noted as that, and count as alike
RESERVED = 4  # times the prompt: what an unpaged cache would hold ready for one sequence
MOVES, LAYERED = (0.5, 1.0, 4.0, 16.0), (0.5, 1.0)  # speeds, of the break-even link
WARM_UPS = 3
LONGEST_READ_S = 120.0


class HandoverRunner:
    """`close` ends the other process."""

    compute = "prefill"

    def __init__(
        self,
        model: ModelSpec,
        prompt_tokens: int,
        *,
        threads: int,
        device: str = "cpu",
        block_tokens: int = BLOCK_TOKENS,
        seed: int = 0,
    ) -> None:
        self.model, self.prompt_tokens = model, prompt_tokens
        needed = Room(0, block_tokens).blocks_for(prompt_tokens)
        self.room = Room(RESERVED * needed, block_tokens)
        dice = random.Random(seed)
        self.token_ids = [dice.randrange(model.vocab_size) for _ in range(prompt_tokens)]
        self.table, self.targets = (
            dice.sample(range(self.room.num_blocks), needed) for _ in range(2)
        )
        self.pool = cache_pool(model, self.room)
        self.noted_s: dict[str, list[float]] = {}
        self.moved: list[Moved] = []
        self._readers: dict[float, Reader] = {}
        self.lender = PrefillLender(model, self.room, threads=threads, device=device, seed=seed)
        try:
            warm_s = [self._prefill() for _ in range(1 + WARM_UPS)][1:]
            self.handover = Handover(
                median(warm_s),
                moved_bytes(model, prompt_tokens, block_tokens),
                model.num_layers,
                ready_share(model, prompt_tokens),
            )
            speeds = [share * self.handover.break_even_bytes_per_s for share in MOVES]
            self._readers = {speed: self._link(speed) for speed in speeds}
        except BaseException:
            self.close()
            raise
        self.moves = {speed: f"moved over {format_bits_per_s(speed)}" for speed in speeds}
        layered = speeds[: len(LAYERED)]
        self.waits = {s: f"wait, layer by layer over {format_bits_per_s(s)}" for s in layered}
        self.prefills = {s: f"prefill, layers leaving over {format_bits_per_s(s)}" for s in layered}

    @property
    def chunks(self) -> dict[str, list[Chunk]]:
        return {self.compute: [Chunk(self.prompt_tokens)]}

    @property
    def shares_of_bytes(self) -> list[float]:
        """What every read had on the wire, over the bytes that the prompt's tokens leave."""
        expected = self.prompt_tokens * self.model.kv_bytes_per_token
        return [moved.wire_bytes / expected for moved in self.moved]

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        moves = {f"all of {name}": self._move(speed) for speed, name in self.moves.items()}
        layers = {f"all of {name}": self._layered(s) for s, name in self.waits.items()}
        return {f"all of {self.compute}": self._compute, **moves, **layers}

    def seen(self, times: Timings) -> Timings:
        """What the steps noted, in the place of the steps."""
        rest = {name: values for name, values in times.raw_s.items() if name not in self.steps}
        warm_up = {name: values for name, values in times.warmup_s.items() if name in rest}
        return replace(times, raw_s=rest, warmup_s=warm_up).with_noted(self.noted_s)

    def during(self, times: Timings) -> Handover:
        """With the prefill as it was found among the rounds."""
        return replace(self.handover, prefill_s=times.time_s(self.compute).median)

    def break_evens(self, times: Timings) -> list[float]:
        """In every round the link, bytes/s, over which moving takes as long as the prefill."""
        speeds = list(self.moves)
        rounds = zip(*(times.times_s(name) for name in self.moves.values()), strict=True)
        pairs = zip(rounds, times.times_s(self.compute), strict=True)
        return [crossing(speeds, moved_s, prefill_s) for moved_s, prefill_s in pairs]

    def break_even_misses(self, times: Timings) -> list[float]:
        """By which factor that link misses bytes / prefill of its round."""
        pairs = zip(self.break_evens(times), times.times_s(self.compute), strict=True)
        foreseen = [(found, self.handover.moved_bytes / prefill_s) for found, prefill_s in pairs]
        return [factor_apart(found, expected) for found, expected in foreseen]

    def wait_misses(self, times: Timings, speed: float) -> list[float]:
        """By which factor the law of waiting misses, with the prefill of the same run."""
        pairs = zip(
            times.times_s(self.prefills[speed]), times.times_s(self.waits[speed]), strict=True
        )
        laws = [
            (replace(self.handover, prefill_s=prefill_s), wait_s) for prefill_s, wait_s in pairs
        ]
        return [factor_apart(wait_s, law.exposed_s(speed)) for law, wait_s in laws]

    @property
    def pid(self) -> int:
        """Of the other process."""
        return self.lender.lender.pid

    def own_s(self) -> float:
        return self.lender.own_s()

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self.lender.close()

    def _link(self, speed: float) -> Reader:
        address = self.lender.listen(str(speed), "unix", speed)
        return Reader(address, self.pool, lane="stream")

    def _prefill(self) -> float:
        return self.lender.prefill([self.token_ids], self.table).time_s

    def _compute(self) -> None:
        self._note(self.compute, self._prefill())

    def _move(self, speed: float) -> Callable[[], None]:
        def run() -> None:
            offer = self.lender.offer(str(speed), self.table)
            started_s = time.perf_counter()
            self.moved.append(self._readers[speed].read(offer, self.targets, LONGEST_READ_S))
            self._note(self.moves[speed], time.perf_counter() - started_s)

        return run

    def _layered(self, speed: float) -> Callable[[], None]:
        def run() -> None:
            offer = self.lender.layered(str(speed), self.token_ids, self.table)
            self.moved.append(self._readers[speed].read(offer, self.targets, LONGEST_READ_S))
            here_s = time.perf_counter()
            prefilled = self.lender.prefilled()
            self._note(self.waits[speed], max(LEAST_WAIT_S, here_s - prefilled.ended_s))
            self._note(self.prefills[speed], prefilled.time_s)

        return run

    def _note(self, name: str, time_s: float) -> None:
        self.noted_s.setdefault(name, []).append(time_s)


def factor_apart(found: float, expected: float) -> float:
    """How many times the larger is the smaller, at least 1; what is next to nothing counts as so
    much."""
    one, other = max(found, LEAST_WAIT_S), max(expected, LEAST_WAIT_S)
    return max(one / other, other / one)
