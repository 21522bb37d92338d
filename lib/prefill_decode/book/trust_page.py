"""Trust page: what the study of the book's own errors found, as tables and figures.

The study document lies at RESULTS/trust/MACHINE.json and is made by `prefill-decode trust`. Every
number on the page comes from it, or, for the coverage of an interval, from a simulation here."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite, log
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from prefill_decode.book.results_pages import plain, problems_note
from prefill_decode.paired import load_study
from prefill_decode.plots.tables import table
from prefill_decode.plots.trust_figures import sessions_figure, spread_figure
from prefill_decode.statistics import COVERAGE, LEAST_SAMPLES, median_interval
from prefill_decode.units import format_significant

Study = Mapping[str, Any]
FOLDER = "trust"
MOST_FALSE_ALARMS, LEAST_CAUGHT = 0.01, 0.95  # what the comparisons aim at
NO_STUDY = (
    "Not measured yet on any machine that this book knows. `prefill-decode trust` measures it, "
    "writes `book/results/trust`, and the next build shows it here."
)
NOT_MEASURED = "not measured"
SORTS = {
    "equal": "equal code",
    "planted 10%": "10% slower",
    "equal, judged at 5%": "equal code, sessions pooled, judged at 5%",
    "planted 5%": "5% slower, sessions pooled, judged at 5%",
}
DRAWN = {"fresh": "fresh processes", "resampled": "pairs drawn again from those sessions"}
STEP_BY_STEP = "planted 10%"  # the sort whose steps are shown one by one
RECORD_RATES = {
    "equal records": "equal code, records of several runs",
    "planted 10% records": "records with their medians made 10% worse",
}
SIMULATED_SIZES, REPETITIONS, MEMORY = (LEAST_SAMPLES, 10, 20, 50), 4000, 0.9
Samples = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Samples]


def studies(results: Path) -> tuple[list[Study], list[str]]:
    """The study documents below RESULTS, and a sentence for each file that is none."""
    found: list[Study] = []
    problems = []
    for path in sorted((results / FOLDER).glob("*.json")):
        try:
            found.append(load_study(path))
        except ValueError as error:
            words = str(error).removeprefix(f"{path}: ")
            problems.append(f"{FOLDER}/{path.name}: {words}")
    return found, problems


def chosen(found: Sequence[Study], slug: str) -> Study | None:
    """This machine's study, or else the newest; None if there is none."""
    return max(found, key=lambda s: (s["machine"]["slug"] == slug, s["date"]), default=None)


def trust_parts(results: Path, slug: str) -> dict[str, str]:
    """What the page on trust shows, by the names that it asks for."""
    found, problems = studies(results)
    study = chosen(found, slug)
    parts = {
        "trust-level": f"{COVERAGE:.0%}",
        "trust-simulated": coverage_table(),
        "trust-problems": problems_note(problems),
    }
    shown = {
        "trust-setting": setting,
        "trust-spread": spread_part,
        "trust-records": records_part,
        "trust-rates": rates_part,
        "trust-noise": noise_part,
    }
    return parts | {name: part(study) if study else NO_STUDY for name, part in shown.items()}


def setting(study: Study) -> str:
    """Where, when and with what the study was made."""
    facts = (
        f"Measured on {plain(str(study['machine']['title']))}, {str(study['date'])[:10]}",
        f"library {plain(str(study['library_version']))}",
        f"commit {plain(str(study['commit'] or 'unknown'))}",
        f"{study['sessions']} sessions of {_short(study['budget_s'])} s for each sort of pairs",
        f"tolerance {percent(study['tolerance'])}",
    )
    return ", ".join(facts) + "."


def rates_part(study: Study) -> str:
    """How often equal code was called slower, and how often slower code was caught."""
    rates = study.get("rates") or {}
    text = f"{rates_table(rates)}\n\n{steps_part(rates, list(study.get('noise') or {}))}"
    distributions = study.get("distributions") or {}
    if any(values for steps in distributions.values() for values in steps.values()):
        figure = sessions_figure(distributions, study["tolerance"])
        text += f"\n\n{figure._repr_html_()}"
    return text


def rates_table(rates: Mapping[str, Any]) -> str:
    """Each sort of comparison, fresh and drawn again: how many alarmed, how many stood."""
    rows = [
        (f"{words}, {how}", *_row(rates, f"{sort}, {drawn}", not sort.startswith("equal")))
        for sort, words in SORTS.items()
        for drawn, how in DRAWN.items()
    ]
    return table(("comparisons", "called slower", "and again", "target"), rows)


def steps_part(rates: Mapping[str, Any], steps: Sequence[str]) -> str:
    """How often each step's slowdown was caught in that very step."""
    rows = [(plain(step), *_row(rates, f"{STEP_BY_STEP}, fresh, {step}", True)) for step in steps]
    sentence = (
        f"A slowdown of one step alone must be caught in that step. Each by itself, "
        f"{SORTS[STEP_BY_STEP]}, {DRAWN['fresh']}:"
    )
    header = ("step", "called slower at first", "and measured again", "target")
    return f"{sentence}\n\n{table(header, rows)}"


def _row(rates: Mapping[str, Any], name: str, wanted: bool) -> tuple[str, str, str]:
    """At first, measured again, and the target of what is reported in the end."""
    first, again = (_rate(rates, each) for each in (name, f"{name}, confirmed"))
    in_the_end = again if known(again.get("share")) else first
    return called(first), called(again), target(in_the_end, wanted)


def _rate(rates: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A rate by its name; without an interval where it counts comparisons that share what they
    compare, whatever a study says of it."""
    found = rates.get(name) or {}
    shared = "resampled" in name or name in RECORD_RATES
    return {**found, "low": None, "high": None} if shared else found


def called(rate: Mapping[str, Any]) -> str:
    """A count with its interval, or its share where comparisons are not independent."""
    if not known(rate.get("share")):
        return NOT_MEASURED
    text = f"{rate['count']} of {rate['of']}"
    if not _independent(rate):
        return f"{text}: {percent(rate['share'])}"
    return f"{text} [{percent(rate['low'])}, {percent(rate['high'])}]"


def target(rate: Mapping[str, Any], wanted: bool) -> str:
    """What was aimed at, and whether the share, or its whole interval, is there. Comparisons that
    are not independent decide nothing."""
    aim, words = (LEAST_CAUGHT, "≥") if wanted else (MOST_FALSE_ALARMS, "≤")
    aimed = f"{words} {100 * aim:g}%"
    if not _independent(rate):
        return aimed
    share, end = rate["share"], rate["low" if wanted else "high"]
    reached = [each >= aim if wanted else each <= aim for each in (share, end)]
    verdict = "shown" if all(reached) else "met, not shown" if reached[0] else "missed"
    return f"{aimed}: {verdict}"


def _independent(rate: Mapping[str, Any]) -> bool:
    return all(known(rate.get(name)) for name in ("share", "low", "high"))


def spread_part(study: Study) -> str:
    """Fresh runs of one chapter: how far apart they lie beside what each says of itself."""
    chapter = study.get("chapter") or {}
    spread = {
        name: each
        for name, each in (chapter.get("spread") or {}).items()
        if known(each.get("between_runs")) and known(each.get("half_width"))
    }
    if not spread:
        return NO_STUDY
    rows = [
        (plain(name), percent(each["between_runs"]), percent(each["half_width"]))
        for name, each in spread.items()
    ]
    header = (
        "quantity",
        "standard deviation between runs",
        f"half-width of one run, {COVERAGE:.0%}",
    )
    sentence = (
        f"{chapter['runs']} fresh runs of {plain(str(chapter['claim']))}, nothing changed between "
        f"them: a run's interval covered another run's median in "
        f"{percent(chapter.get('covers_another_run'))} of the pairs of runs, where its own "
        f"coverage is {COVERAGE:.0%}."
    )
    return f"{sentence}\n\n{spread_figure(spread)._repr_html_()}\n\n{table(header, rows)}"


def records_part(study: Study) -> str:
    """What the screen on records did with equal records, and with worse ones."""
    rates = (study.get("chapter") or {}).get("rates") or {}
    found = {words: _rate(rates, name) for name, words in RECORD_RATES.items()}
    rows = [
        (words, called(rate), target(rate, wanted=not words.startswith("equal")))
        for words, rate in found.items()
    ]
    return table(("comparisons", "called a regression", "target"), rows)


def noise_part(study: Study) -> str:
    """Each step's pairs of equal code, and how far they and their sessions spread."""
    noise = study.get("noise") or {}
    if not noise:
        return NO_STUDY
    rows = [
        (
            plain(step),
            _count(each.get("n_pairs")),
            percent(each.get("pair_spread")),
            percent(each.get("session_spread")),
        )
        for step, each in noise.items()
    ]
    return table(("step", "pairs", "spread of pairs", "spread of session medians"), rows)


def coverage_table(seed: int = 0) -> str:
    """How often the interval holds the median that samples are drawn around, by simulation."""
    rng = np.random.default_rng(seed)
    rows = []
    for n in SIMULATED_SIZES:
        promised = median_interval(range(n)).coverage
        shares = [simulated_coverage(draw, n, rng) for draw in SHAPES.values()]
        rows.append((f"{n} samples", _exact(promised), *map(_exact, shares)))
    return table(("", "promised", *SHAPES), rows)


def simulated_coverage(draw: Draw, n: int, rng: np.random.Generator) -> float:
    """The share of repetitions whose interval holds 0, the median that `draw` has."""
    ranks = median_interval(range(n))  # of the numbers 0 to n - 1 it gives the places of its ends
    ordered = np.sort(draw(rng, (REPETITIONS, n)), axis=1)
    low, high = ordered[:, int(ranks.low)], ordered[:, int(ranks.high)]
    return float(np.mean((low <= 0) & (high >= 0)))


def percent(share: Any) -> str:
    return f"{format_significant(100 * share, 2)}%" if known(share) else NOT_MEASURED


def known(value: Any) -> TypeGuard[float]:
    return isinstance(value, float | int) and not isinstance(value, bool) and isfinite(value)


def _normal(rng: np.random.Generator, shape: tuple[int, int]) -> Samples:
    return rng.normal(size=shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, int]) -> Samples:
    return rng.exponential(size=shape) - log(2)


def _heavy(rng: np.random.Generator, shape: tuple[int, int]) -> Samples:
    tail = 1.5  # finite mean, no finite variance
    middle: float = 2 ** (1 / tail) - 1
    return rng.pareto(tail, size=shape) - middle


def _drifting(rng: np.random.Generator, shape: tuple[int, int]) -> Samples:
    """Each sample remembers the one before it: the share `MEMORY` of it, and news beside."""
    steps = rng.normal(size=shape)
    samples = np.empty(shape)
    samples[:, 0] = steps[:, 0]
    for i in range(1, shape[1]):
        samples[:, i] = MEMORY * samples[:, i - 1] + np.sqrt(1 - MEMORY**2) * steps[:, i]
    return samples


SHAPES: dict[str, Draw] = {
    "normal": _normal,
    "skewed": _skewed,
    "heavy tail": _heavy,
    "drifting machine": _drifting,
}


def _exact(share: float) -> str:
    return f"{100 * share:.1f}%"


def _count(value: Any) -> str:
    return str(value) if known(value) else NOT_MEASURED


def _short(value: float) -> str:
    return f"{value:g}"
