"""Serving report: a burst of requests, and the rate at which each engine answers it.

A ratio is taken inside each quiet round that holds both engines; its interval is over rounds."""

from dataclasses import dataclass

from report import OURS, Record, Round, ceilings_and_versions, times_s

from prefill_decode import hf_config
from prefill_decode.hardware import Hardware
from prefill_decode.model_spec import ModelSpec
from prefill_decode.plots.tables import format_interval, table
from prefill_decode.roofline import step_work
from prefill_decode.statistics import median_interval, ratio_interval
from prefill_decode.step import Chunk

HEADER = ("server", "output tokens/s", "over ours", "n", "least time / time")


@dataclass(frozen=True)
class Burst:
    """Requests sent at once, each with a prompt and an answer of those lengths."""

    requests: int
    prompt_tokens: int
    output_tokens: int

    @property
    def all_output_tokens(self) -> int:
        return self.requests * self.output_tokens

    def least_time_s(self, model: ModelSpec, hardware: Hardware) -> float:
        """All prompts in one step, then a step for each further token of all answers.

        No schedule has fewer steps; one that mixes prefill and decode could hide some of the
        decode's reads behind the prefill's arithmetic, so this is a mark and not a floor."""
        steps = [[Chunk(self.prompt_tokens)] * self.requests]
        steps += [
            [Chunk(1, self.prompt_tokens + done)] * self.requests
            for done in range(self.output_tokens - 1)
        ]
        return sum(step_work(model, step).least_time_s(hardware) for step in steps)


def read_burst(step: str) -> Burst:
    match step.split():
        case ["answer", requests, "of", prompt_tokens, "plus", output_tokens]:
            return Burst(int(requests), int(prompt_tokens), int(output_tokens))
    raise ValueError(f"a burst is 'answer B of N plus N'; got {step!r}")


def serving_report(record: Record, step: str) -> str:
    """The table, and what it was measured on and with."""
    quiet = [r for r in record.rounds if not r.disturbed]
    burst = read_burst(step)
    closing = [
        f"{burst.requests} requests at once, {burst.prompt_tokens} prompt tokens and "
        f"{burst.output_tokens} output tokens each. {record.machine}, {record.threads} threads; "
        f"{record.model} in float32, {len(record.rounds)} rounds, of which "
        f"{len(record.rounds) - len(quiet)} left out because other processes took the cores."
    ]
    closing += ceilings_and_versions(record)
    return serving_table(record, step) + "\n\n" + " ".join(closing)


def serving_table(record: Record, step: str) -> str:
    """A row an engine, ours first."""
    known = {name for each in record.rounds for name in each.times_s}
    rows = [_row(record, step, engine) for engine in sorted(known, key=lambda e: (e != OURS, e))]
    return table(HEADER, [row for row in rows if row])


def _row(record: Record, step: str, engine: str) -> tuple[str, ...]:
    burst = read_burst(step)
    (alone,) = times_s(record.rounds, step, engine)
    if not alone:
        return ()
    rates = median_interval([burst.all_output_tokens / each for each in alone])
    both = times_s(record.rounds, step, OURS, engine)
    ratio = "" if engine == OURS or not both[0] else f"× {format_interval(ratio_interval(*both))}"
    model = hf_config.get(record.model).with_dtype("float32")
    quiet = [r for r in record.rounds if not r.disturbed and engine in r.times_s]
    reached = median_interval([_share(r, engine, burst, model) for r in quiet]).median
    return engine, format_interval(rates), ratio, str(len(alone)), f"{reached:.0%}"


def _share(each: Round, engine: str, burst: Burst, model: ModelSpec) -> float:
    """The least time / the time, with the round's own ceilings."""
    ceilings = Hardware("", model.dtype, each.peak_flops_per_s, each.bandwidth_bytes_per_s, "here")
    return burst.least_time_s(model, ceilings) / each.times_s[engine]
