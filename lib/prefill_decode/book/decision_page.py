"""Decision page: a reader's questions in order, answered for one model and one accelerator by the
library, and with what the records say of the claim behind each answer.

Counts:  least times of the roofline on a data sheet, as the commands that the page names do.
Ignores: kernels, queues and the wires of a real fleet: every number here is a bound or a plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from prefill_decode.capacity import sequences_that_fit
from prefill_decode.chunking import least_price
from prefill_decode.crossover import predicted_crossover
from prefill_decode.hardware import Accelerator, Hardware, accelerator
from prefill_decode.hf_config import get
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.tables import SIGNS
from prefill_decode.request import Request
from prefill_decode.results import Record
from prefill_decode.roofline import step_work, turning_tokens
from prefill_decode.serving_metrics import Objectives
from prefill_decode.simulator import Law, datasheet_workers, law_of, whole_per_s
from prefill_decode.step import Chunk
from prefill_decode.transfer_cost import least_handover
from prefill_decode.units import (
    format_bits_per_s,
    format_bytes,
    format_seconds,
    format_significant,
)


@dataclass(frozen=True)
class Example:
    """The case that the page works through: the reader's own takes its place."""

    model_name: str = "llama-3.1-8b"
    accelerator_name: str = "h100-sxm"
    prompt_tokens: int = 4096
    output_tokens: int = 256
    ttft_s: float = 1.0
    tpot_s: float = 0.02
    num_workers: int = 4

    @property
    def model(self) -> ModelSpec:
        return get(self.model_name)

    @property
    def accelerator(self) -> Accelerator:
        return accelerator(self.accelerator_name)

    @property
    def hardware(self) -> Hardware:
        return self.accelerator.at(self.model.dtype)

    @property
    def objectives(self) -> Objectives:
        return Objectives(ttft_s=self.ttft_s, tpot_s=self.tpot_s)

    @property
    def context_tokens(self) -> int:
        """Of a sequence in the middle of its answer."""
        return self.prompt_tokens + self.output_tokens // 2

    @property
    def load(self) -> list[Request]:
        return [Request("each", 0.0, self.prompt_tokens, self.output_tokens)]


def decision_parts(example: Example | None = None) -> dict[str, str]:
    """What the page asks for, by name, each number with its unit."""
    case = example or Example()
    given = {
        "example-model": case.model_name,
        "example-accelerator": case.accelerator_name,
        "example-prompt": str(case.prompt_tokens),
        "example-output": str(case.output_tokens),
        "example-ttft": format_seconds(case.ttft_s),
        "example-tpot": format_seconds(case.tpot_s),
        "example-ttft-option": f"{case.ttft_s:g}s",
        "example-tpot-option": f"{1000 * case.tpot_s:g}ms",
        "example-workers": str(case.num_workers),
    }
    return given | _room(case) | _floors(case) | _pieces(case) | _move(case) | _pools(case)


def held_parts(chapters: Sequence[str], records: Sequence[Record]) -> dict[str, str]:
    """For each chapter, its verdicts over all machines, by held-CHAPTER with hyphens."""
    return {f"held-{name.replace('_', '-')}": _held(name, records) for name in chapters}


def _held(chapter: str, records: Sequence[Record]) -> str:
    outcomes = [r["verdict"]["outcome"] for r in records if r["claim"] == chapter]
    if not outcomes:
        return "not run yet"
    machines = "machine" if len(outcomes) == 1 else "machines"
    told = [f"{each} on {outcomes.count(each)}" for each in SIGNS if each in outcomes]
    of_all = f" of {len(outcomes)}" if len(told) > 1 else ""
    return f"{' and '.join(told)}{of_all} {machines}"


def _room(case: Example) -> dict[str, str]:
    capacity_bytes = case.accelerator.capacity_bytes
    tokens = case.prompt_tokens + case.output_tokens
    fit = None if capacity_bytes is None else sequences_that_fit(case.model, capacity_bytes, tokens)
    return {
        "room-weights": format_bytes(case.model.weight_bytes),
        "room-token": format_bytes(case.model.kv_bytes_per_token),
        "room-request": format_bytes(case.model.kv_bytes(tokens)),
        "room-sequences": "an unknown number of" if fit is None else str(fit),
    }


def _floors(case: Example) -> dict[str, str]:
    prompt = step_work(case.model, [Chunk(case.prompt_tokens)]).least_time_s(case.hardware)
    token = step_work(case.model, [Chunk(1, case.context_tokens)]).least_time_s(case.hardware)
    crossover = predicted_crossover(case.model, case.context_tokens, case.hardware)
    return {
        "floor-ttft": format_seconds(prompt),
        "floor-tpot": format_seconds(token),
        "floor-ratio": format_significant(prompt / token, 2),
        "floor-crossover": format_significant(crossover, 2),
    }


def _pieces(case: Example) -> dict[str, str]:
    """A prompt that joins as many streams as the objective allows, whole and in pieces."""
    piece = 2 ** round(turning_tokens(case.model, case.hardware) - 1).bit_length()
    streams = _law(case).batch
    whole, cut = (
        least_price(
            case.model, case.hardware, case.prompt_tokens, tokens, streams, case.context_tokens
        )
        for tokens in (case.prompt_tokens, piece)
    )
    return {
        "stall-streams": str(streams),
        "stall-whole": format_seconds(whole.worst_gap_s),
        "stall-piece": str(piece),
        "stall-cut": format_seconds(cut.worst_gap_s),
        "stall-wait": f"{cut.ttft_s / whole.ttft_s - 1:.0%}",
    }


def _move(case: Example) -> dict[str, str]:
    handover = least_handover(case.model, case.hardware, case.prompt_tokens)
    link = case.accelerator.link_bytes_per_s
    share = "unknown" if link is None else f"{handover.share(link):.1%}"
    return {
        "move-bytes": format_bytes(handover.moved_bytes),
        "move-link": format_bits_per_s(handover.break_even_bytes_per_s),
        "move-own": "unknown" if link is None else format_bits_per_s(link),
        "move-share": share,
    }


def _pools(case: Example) -> dict[str, str]:
    law = _law(case)
    prefill, decode = law.best(case.num_workers)
    whole = datasheet_workers(
        case.model_name, *2 * [case.accelerator_name], whole=case.accelerator_name
    ).whole
    assert whole is not None
    together_per_s = case.num_workers * whole_per_s(whole, case.load, case.objectives)
    return {
        "pools-batch": str(law.batch),
        "pools-ratio": format_significant(law.ratio, 2),
        "pools-split": f"{prefill} for prefill and {decode} for decode",
        "pools-apart": format_significant(law.rate_per_s(prefill, decode), 2),
        "pools-together": format_significant(together_per_s, 2),
    }


def _law(case: Example) -> Law:
    workers = datasheet_workers(case.model_name, *2 * [case.accelerator_name])
    return law_of(workers.prefill, workers.decode, case.load, case.objectives)
