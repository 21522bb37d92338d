"""Figures of decode: what the cache saves, what serial steps cost, what a batch recovers.

Lines are least times at the ceilings of the same rounds, points are medians with intervals.
"""

from collections.abc import Mapping

from prefill_decode.crossover import crossover_sequences, throughput_gain_in_rounds
from prefill_decode.measure import Ceilings, Timings
from prefill_decode.plots.figures import (
    _decade_ticks,
    _plain_ticks,
    _points,
    _rate,
    _spoken,
)
from prefill_decode.plots.svg import BLUE, INK, ORANGE, Figure, as_figure, canvas
from prefill_decode.plots.words import Place, Words, place_words, uprights
from prefill_decode.roofline import StepWork
from prefill_decode.units import MS, format_seconds, format_si, format_significant


def next_token_against_context(
    times: Timings,
    recomputed: Mapping[int, str],
    cached: Mapping[int, str],
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
) -> Figure:
    """Time of the next token against the tokens in context, without and with the cache.

    `recomputed` and `cached` name the timed steps of each number of tokens.
    """
    return _two_ways(
        times,
        {"without the cache": recomputed, "from the cache": cached},
        works,
        ceilings,
        title="At {most} tokens, recomputing takes {ratio} times as long",
        x_label="tokens in context",
        y_label="time of the next token (ms)",
    )


def generated_against_scored(
    times: Timings,
    generated: Mapping[int, str],
    scored: Mapping[int, str],
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
) -> Figure:
    """Time of so many tokens, one step each, against the same tokens as one chunk.

    `generated` and `scored` name what was timed for each number of tokens.
    """
    return _two_ways(
        times,
        {"one at a time": generated, "all in one step": scored},
        works,
        ceilings,
        title="{most} tokens: one by one takes {ratio} times as long",
        x_label="tokens",
        y_label="time of all tokens (ms)",
    )


def throughput_against_sequences(
    times: Timings, steps: Mapping[int, str], works: Mapping[str, StepWork], ceilings: Ceilings
) -> Figure:
    """Tokens a second against the sequences in a step, under the most that is possible.

    `steps` names the timed step of each number of sequences.
    """
    counts = sorted(steps)
    first, last = counts[0], counts[-1]
    hardware = ceilings.during(times)
    rates = [_rate(count, times.time_s(steps[count])) for count in counts]
    bounds_s = {count: works[steps[count]].least_time_s(hardware) for count in counts}
    most = [count / bounds_s[count] for count in counts]
    free = [rates[0].median * count / first for count in counts]
    crossover = crossover_sequences(bounds_s)
    sweep = {count: times.times_s(steps[count]) for count in counts}
    gain = format_significant(throughput_gain_in_rounds(sweep).median)
    title = f"{last} sequences: {gain} times the tokens per second"
    with canvas() as figure:
        axes = figure.subplots()
        axes.plot(counts, most, color=BLUE)
        axes.plot(counts, free, color=ORANGE, linestyle="--")
        axes.axvline(crossover, color=INK, alpha=0.5, linestyle=":")
        _points(axes, counts, rates, 1.0)
        axes.set(xscale="log", yscale="log", xlabel="sequences in the step", title=title)
        top = max(most) * 2.2
        axes.set_ylim(rates[0].median / 1.7, top)
        axes.set_ylabel("throughput (tokens per second)")
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        reached = max(count for count, rate in zip(counts, free, strict=True) if rate < top / 1.6)
        early = max(1, len(counts) // 2 - 1)  # left of it the climbing line leaves room above
        foot = rates[0].median / 1.7
        labels = [
            Words("if each were free", reached, free[counts.index(reached)], ORANGE),
            Words("the most\nthat is possible", counts[early], most[early], BLUE),
            Words(f"predicted crossover: {format_significant(crossover, 2)}", crossover, foot, INK),
        ]
        drawn: list[list[Place]] = [list(zip(counts, line, strict=True)) for line in (most, free)]
        drawn += [[(crossover, foot), (crossover, top)], *uprights(counts, rates, 1.0)]
        place_words(axes, labels, drawn)
        return as_figure(
            figure,
            f"{title} of {first}. Measured tokens per second by sequences in the step: "
            + _spoken(counts, [format_si(rate.median, "tokens/s") for rate in rates])
            + f". At most {format_si(most[-1], 'tokens/s')} are possible with {last}; the predicted"
            f" crossover is {format_significant(crossover, 2)} sequences.",
        )


def _two_ways(
    times: Timings,
    ways: Mapping[str, Mapping[int, str]],
    works: Mapping[str, StepWork],
    ceilings: Ceilings,
    *,
    title: str,
    x_label: str,
    y_label: str,
) -> Figure:
    """Times of two ways to do the same, the slow one first, each with its line of least times.

    `title` has places for the `most` that was done and the `ratio` of the times of that."""
    slow, fast = ways.values()
    counts = sorted(slow)
    ratio = times.ratio(slow[counts[-1]], over=fast[counts[-1]]).median
    title = title.format(most=counts[-1], ratio=format_significant(ratio))
    hardware = ceilings.during(times)
    described, labels, drawn = [], list[Words](), list[list[Place]]()
    with canvas() as figure:
        axes = figure.subplots()
        lowest: list[float] = []
        for (words, steps), color, style in zip(
            ways.items(), (ORANGE, BLUE), ("--", "-"), strict=True
        ):
            measured = [times.time_s(steps[count]) for count in counts]
            bounds_ms = [works[steps[count]].least_time_s(hardware) / MS for count in counts]
            lowest.append(min(bounds_ms))
            axes.plot(counts, bounds_ms, color=color, linestyle=style)
            _points(axes, counts, measured, MS)
            at = len(counts) // 2 if steps is slow else -1
            labels.append(Words(f"least time,\n{words}", counts[at], bounds_ms[at], color))
            drawn += [list(zip(counts, bounds_ms, strict=True)), *uprights(counts, measured, MS)]
            shown = _spoken(counts, [format_seconds(interval.median) for interval in measured])
            least = format_seconds(bounds_ms[-1] * MS)
            described.append(f"{words}: {shown}, the last at least {least}")
        axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=title)
        axes.set_ylim(bottom=min(lowest) / 2)
        _plain_ticks(axes.xaxis, counts)
        _decade_ticks(axes.yaxis)
        place_words(axes, labels, drawn)
        return as_figure(figure, f"{title}. Measured by {x_label}, {'; '.join(described)}.")
