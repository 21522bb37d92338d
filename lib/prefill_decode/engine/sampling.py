"""Sampling: from a step's logits to its tokens.

A token depends on its own row of logits, its settings, its seed, and where in which answer it
stands; on nothing else. The die has no state: it is a mix of seed, answer and position, so the
batch, the order of rows and a preemption in between change no token.

Counts:  temperature, top-p, log-probabilities. These are the model's, at temperature 1 and before
         top-p, as OpenAI's interface reports them.
Ignores: penalties, top-k, biases of single tokens.
Source:  Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020): top-p; Steele et
         al., "Fast Splittable Pseudorandom Number Generators" (2014): the mix, in Stafford's
         variant 13.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

MOST_TOP_LOGPROBS = 20
GOLDEN = 0x9E3779B97F4A7C15  # 2**64 / the golden ratio, odd
MASK = 2**64 - 1
LARGEST = sys.float_info.max  # Python's whole numbers go on beyond it


@dataclass(frozen=True)
class Sampling:
    """How a request wants its tokens chosen; the default is greedy."""

    temperature: float = 0.0  # 0: the token of the largest logit, of equals the lowest id
    top_p: float = 1.0
    seed: int = 0  # any whole number; its lowest 64 bits count
    top_logprobs: int | None = None  # None: none; k: of the chosen token and of the k best

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and 0 <= self.temperature <= LARGEST):
            raise ValueError(
                f"temperature must be a number from 0 on, 0 being greedy; got {self.temperature!r}"
            )
        if not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be above 0 and at most 1; got {self.top_p!r}")
        if type(self.seed) is not int:
            raise ValueError(f"seed must be a whole number; got {self.seed!r:.60}")
        most = MOST_TOP_LOGPROBS
        wanted = 0 if self.top_logprobs is None else self.top_logprobs
        if type(wanted) is not int or not 0 <= wanted <= most:
            raise ValueError(
                f"top_logprobs must be a whole number from 0 to {most}, or None; got {wanted!r:.60}"
            )


@dataclass(frozen=True)
class Sampled:
    token_id: int
    logprob: float | None  # None where the request wants none
    top_logprobs: tuple[tuple[int, float], ...]  # best first; of equals the lowest id first


@torch.inference_mode()
def sample(
    logits: Tensor,
    settings: Sequence[Sampling],
    positions: Sequence[int],
    copies: Sequence[int] | None = None,
) -> list[Sampled | None]:
    """One token for each row of `logits` [S, vocab]; None for a row whose largest logit is no
    finite number, as bad weights or a dtype too narrow for them give it: it has none to choose.

    `positions`: how many tokens each row's answer already has. `copies`: which of the answers to
    one request it is, 0 if there is one; answers of one seed differ by it. All results cross to
    the host in one transfer."""
    copies = [0] * len(settings) if copies is None else copies
    _check_rows(logits, len(settings), len(positions), len(copies))
    if not settings:
        return []
    largest, token_ids = logits.max(dim=-1)  # NaN if any is; of equals the first
    dtype = _exact_dtype(logits.device)
    dice = [
        _uniform(wanted.seed, copy, position, dtype)
        for wanted, copy, position in zip(settings, copies, positions, strict=True)
    ]
    for rows in _drawn_groups(settings):
        places = _placed(rows, logits.device, torch.int64)
        chosen = [settings[row] for row in rows]
        drawn = _draw(logits[places], chosen, [dice[row] for row in rows], dtype)
        token_ids = token_ids.index_copy(0, places, drawn)
    scored = [row for row, wanted in enumerate(settings) if wanted.top_logprobs is not None]
    parts = [largest.to(dtype), token_ids.to(dtype)]
    if scored:
        places = _placed(scored, logits.device, torch.int64)
        best = min(max(settings[row].top_logprobs or 0 for row in scored), logits.shape[-1])
        parts.append(_scores(logits[places], token_ids[places], best, dtype).flatten())
    return _on_host(torch.cat(parts).tolist(), settings, scored)


def _check_rows(logits: Tensor, *counts: int) -> None:
    if logits.ndim != 2 or any(count != len(logits) for count in counts):
        raise ValueError(
            "sampling takes one row of logits, one setting, one position and one copy for each "
            f"token; got logits of shape {tuple(logits.shape)} and {counts} of the others"
        )


def _exact_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _placed(values: Sequence[float], device: torch.device, dtype: torch.dtype) -> Tensor:
    """The values on the device, sent without waiting for what it still computes."""
    here = torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")
    return here.to(device, non_blocking=True)


def _drawn_groups(settings: Sequence[Sampling]) -> list[list[int]]:
    """Rows that need a die, apart from those whose tokens must be sorted for top-p too."""
    drawn = [row for row, wanted in enumerate(settings) if wanted.temperature > 0]
    whole = [row for row in drawn if settings[row].top_p == 1]
    cut = [row for row in drawn if settings[row].top_p < 1]
    return [rows for rows in (whole, cut) if rows]


def _draw(
    logits: Tensor, settings: Sequence[Sampling], dice: Sequence[float], dtype: torch.dtype
) -> Tensor:
    """Token ids [R]: where each row's cumulative distribution first exceeds its die.

    `logits` are the caller's to lose: on a CPU most of the time goes into fresh memory, so what
    can be done in place is."""

    def column(values: Sequence[float]) -> Tensor:
        return _placed(values, logits.device, dtype)[:, None]

    order: Tensor | None = None
    if settings[0].top_p < 1:
        logits, order = logits.sort(descending=True, stable=True)
    temperatures = column([wanted.temperature for wanted in settings])
    temperatures.clamp_(min=torch.finfo(dtype).tiny)
    below = logits.to(dtype).sub_(logits.amax(-1, keepdim=True))  # 0 at most: nothing overflows
    masses = below.div_(temperatures).softmax(-1).cumsum_(-1)
    final = masses.shape[-1] - 1
    total = masses[:, final:]
    if order is not None:
        reached = column([wanted.top_p for wanted in settings])
        last = (masses < reached).sum(-1, keepdim=True).clamp_(max=final)
        total = masses.gather(-1, last)
    found = torch.searchsorted(masses, total * column(dice), right=True)
    found.clamp_(max=final)  # moves NaN only, whose row has no token in the end
    return (found if order is None else order.gather(-1, found))[:, 0]


def _scores(logits: Tensor, token_ids: Tensor, best: int, dtype: torch.dtype) -> Tensor:
    """[R, 1 + 2 best]: the chosen token's log-probability, the best ids, and theirs."""
    log_total = logits.to(dtype).logsumexp(-1, keepdim=True)
    ids = _best_ids(logits, best)
    known = logits.gather(-1, torch.cat([token_ids[:, None], ids], dim=-1)).to(dtype) - log_total
    return torch.cat([known[:, :1], ids.to(dtype), known[:, 1:]], dim=-1)


def _best_ids(logits: Tensor, best: int) -> Tensor:
    """[R, best], the largest first and of equals the lowest id; topk alone takes any of equals."""
    if best == 0:
        return torch.empty(len(logits), 0, dtype=torch.int64, device=logits.device)
    least = logits.topk(best).values[:, -1:]
    above, level = logits > least, logits == least
    wanted = best - above.sum(-1, keepdim=True)
    kept = above | (level & (level.cumsum(-1, dtype=torch.int32) <= wanted))  # `best` in each row
    countdown = torch.arange(logits.shape[-1], 0, -1, device=logits.device, dtype=torch.int32)
    ids = (kept * countdown).topk(best).indices  # the kept, by id
    return ids.gather(-1, logits.gather(-1, ids).sort(descending=True, stable=True).indices)


def _on_host(
    values: list[float], settings: Sequence[Sampling], scored: Sequence[int]
) -> list[Sampled | None]:
    rows = len(settings)
    scores = values[2 * rows :]
    width = len(scores) // max(1, len(scored))
    by_row = {row: scores[i * width : (i + 1) * width] for i, row in enumerate(scored)}
    return [
        _sampled(int(values[rows + row]), wanted, by_row.get(row))
        if isfinite(values[row])
        else None
        for row, wanted in enumerate(settings)
    ]


def _sampled(token_id: int, wanted: Sampling, scores: Sequence[float] | None) -> Sampled:
    if scores is None:
        return Sampled(token_id, None, ())
    best = len(scores) // 2
    pairs = zip(map(int, scores[1 : 1 + best]), scores[1 + best :], strict=True)
    return Sampled(token_id, scores[0], tuple(pairs)[: wanted.top_logprobs])


def _uniform(seed: int, copy: int, position: int, dtype: torch.dtype) -> float:
    """The die: a number above 0 and below 1, so far below that no product rounds up to its limit.

    One bit fewer than `dtype` holds, and half a unit on top."""
    mixed = _mix(_mix(_mix(seed & MASK) + copy) + position)
    bits = 52 if dtype == torch.float64 else 23
    return float(((mixed >> (64 - bits)) + 0.5) * 2.0**-bits)


def _mix(value: int) -> int:
    """64 bits to 64 bits, one to one, each bit of the result depending on all."""
    value = (value + GOLDEN) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
