"""Pool law: how many workers each phase needs, from the roofline alone.

A prefill worker that is never idle reads prompts as fast as its steps allow; a decode worker
answers as fast as the largest batch that keeps its token time within the objective. The split in
balance gives both pools the same rate:

    P : D = requests/s of one decode worker : requests/s of one prefill worker

Counts:  steps full of prompts in the order of their arrival; decodes over the mean context that a
         batch holds, no more of them than slots and blocks allow.
         A whole worker does both: so many of its steps as a prompt has chunks carry one beside the
         decodes, the others decode only.
Ignores: queues. A fleet that must also keep a promise on TTFT carries less, so the rate is a
         bound; a balance errs only where one pool must stay idler than the other to keep its part.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean

from prefill_decode.request import Request
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator.fleet import Pool
from prefill_decode.simulator.prices import Prices
from prefill_decode.step import Chunk


@dataclass(frozen=True)
class Law:
    """Requests/s that one worker of each phase carries at most."""

    prefill_per_s: float
    decode_per_s: float
    batch: int  # sequences that one worker decodes at a time
    token_s: float  # of a step at that batch; NaN without one

    @property
    def ratio(self) -> float:
        """Prefill workers for each decode worker that leave neither idle."""
        return self.decode_per_s / self.prefill_per_s

    def rate_per_s(self, prefill: int, decode: int) -> float:
        """The most that so many workers carry."""
        return min(prefill * self.prefill_per_s, decode * self.decode_per_s)

    def best(self, num_workers: int) -> tuple[int, int]:
        """(prefill, decode) workers with the greatest rate, the fewest prefill among equals."""
        pairs = [(count, num_workers - count) for count in range(1, num_workers)]
        return max(pairs, key=lambda pair: self.rate_per_s(*pair))


def law_of(prefill: Pool, decode: Pool, load: Sequence[Request], objectives: Objectives) -> Law:
    """Of workers like these, for requests like these. The objective that binds a batch is TPOT's,
    or the largest gap's if that is shorter."""
    most_s = min(objectives.tpot_s, objectives.stall_s)
    batch, token_s = _batch(decode, load, most_s)
    tokens = fmean(request.output_tokens - 1 for request in load)
    return Law(
        1 / _prompt_s(prefill, load),
        batch / token_s / tokens if batch and tokens else inf if not tokens else 0.0,
        batch,
        token_s,
    )


def whole_per_s(pool: Pool, load: Sequence[Request], objectives: Objectives) -> float:
    """Requests/s of one worker that does both phases, for requests of the load's mean lengths; 0
    where not even one sequence keeps the objective for what follows its first token."""
    prices = Prices(pool.model, pool.ceilings, pool.calibration)
    prompt = round(fmean(request.prompt_tokens for request in load))
    steps = fmean(request.output_tokens for request in load) - 1
    context = round(mean_context_tokens(load))
    best_per_s = 0.0
    for batch in range(1, _room(pool, context) + 1):
        chunks = _chunks(prompt, pool.settings.most_tokens_per_step - batch)
        beside = [Chunk(1, context)] * batch
        carrying_s = [prices.step_s_by_roofline([chunk, *beside]) for chunk in chunks]
        alone = steps / batch - len(chunks)  # for each request, steps without a chunk
        if alone < 0:  # more chunks than steps: the batch does not fill
            break
        total_s = sum(carrying_s) + alone * prices.decodes(batch, batch * context)[0]
        if total_s * batch / steps > min(objectives.tpot_s, objectives.stall_s):
            break
        best_per_s = 1 / total_s
    return best_per_s


def _chunks(prompt_tokens: int, most_tokens: int) -> list[Chunk]:
    starts = range(0, prompt_tokens, max(1, most_tokens))
    return [Chunk(min(most_tokens, prompt_tokens - start), start) for start in starts]


def _room(pool: Pool, context_tokens: float) -> int:
    """Sequences that a worker's slots and blocks hold."""
    room = int(pool.num_blocks * pool.block_tokens / (context_tokens + pool.block_tokens / 2))
    return min(pool.settings.most_sequences, room)


def mean_context_tokens(load: Sequence[Request]) -> float:
    """Of a sequence in a batch: longer answers stay longer."""
    steps = sum(request.output_tokens for request in load)
    held = sum(r.output_tokens * (r.prompt_tokens + r.output_tokens / 2) for r in load)
    return held / steps


def _prompt_s(pool: Pool, load: Sequence[Request]) -> float:
    """Mean time of a prompt on a worker whose steps are full."""
    prices = Prices(pool.model, pool.ceilings, pool.calibration)
    budget = pool.settings.most_tokens_per_step
    total_s, step, room = 0.0, [], budget
    for request in load:
        cached = 0
        while cached < request.prompt_tokens:
            new = min(room, request.prompt_tokens - cached)
            step.append(Chunk(new, cached, cached + new == request.prompt_tokens))
            cached, room = cached + new, room - new
            if not room or len(step) == pool.settings.most_sequences:
                total_s += prices.step_s_by_roofline(step)
                step, room = [], budget
    if step:
        total_s += prices.step_s_by_roofline(step)
    return total_s / len(load)


def _batch(pool: Pool, load: Sequence[Request], most_s: float) -> tuple[int, float]:
    """The largest batch whose step takes `most_s` at most, and the time of its step."""
    prices = Prices(pool.model, pool.ceilings, pool.calibration)
    context = mean_context_tokens(load)
    low, high = 0, _room(pool, context)
    while low < high:
        middle = (low + high + 1) // 2
        if prices.decodes(middle, round(middle * context))[0] <= most_s:
            low = middle
        else:
            high = middle - 1
    return low, prices.decodes(low, round(low * context))[0] if low else float("nan")
