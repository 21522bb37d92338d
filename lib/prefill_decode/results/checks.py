"""Checks: whether a record or a run is one, by its schema and by what must agree inside it.

Checked beyond the schema: intervals in order, as many times as rounds, chunks that add up,
outcomes that follow from the stored numbers, a kind that follows from the machine, real dates. Not
checked: whether the numbers were
measured at all; a reader of a contributed record judges that.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.resources import files
from math import nan
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import extend

from prefill_decode.claim import Claim, Prediction
from prefill_decode.measure.machine import kind_of
from prefill_decode.results.files import check_values
from prefill_decode.statistics import Interval

SCHEMA_VERSION = 2
RESERVED = ("history", "baseline", "trust")  # folders beside the claims'
CLOCK_ERROR = timedelta(days=1)  # of the machine that wrote a date, or of this one
DATE_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
REACHED, TIME = STEP_PREFIXES = ("reached, ", "time, ")  # before a step's name, of its quantities
NEW_OF_A_MACHINE = ("host", "instruction_sets", "cpu_family_model_stepping")  # in version 2
BROKEN_RULER = ": the ruler is broken"  # ends the reason of a void that no metric explains


def check_record(record: Any, where: object) -> None:
    """ValueError, beginning with `where`, unless this is a record of the newest version."""
    check_values(record, where)
    check_schema(record, where, "record.schema.json")
    fault = _first(_faults(record))
    if fault is not None:
        raise ValueError(f"{where}: not a record: {fault[:300]}")


def check_run(line: Any, where: object) -> None:
    """ValueError, beginning with `where`, unless this is a run."""
    check_values(line, where, "a run")
    check_schema(line, where, "run.schema.json", "a run")
    fault = _first(_faults_of_run(line))
    if fault is not None:
        raise ValueError(f"{where}: not a run: {fault[:300]}")


def check_schema(value: Any, where: object, name: str, what: str = "a record") -> None:
    error = next(_validator(name).iter_errors(value), None)
    if error is not None:
        inside = "/".join(str(part) for part in error.absolute_path) or "as a whole"
        raise ValueError(f"{where}: not {what}: {inside[:200]}: {_said(error)[:200]}")


def _said(error: ValidationError) -> str:
    if error.validator == "type" and error.validator_value == "number":
        return f"{json.dumps(error.instance)[:60]} is not a finite number"
    return error.message


def interval_of(stored: Mapping[str, Any]) -> Interval:
    """An Interval from its stored form, null becoming NaN; unit and direction are left out."""
    names = ("median", "low", "high", "n", "coverage")
    values: list[Any] = [nan if stored[name] is None else stored[name] for name in names]
    return Interval(*values)


def better_of(expected: float, rival: float) -> str:
    """The direction towards what a claim expects."""
    return "lower" if expected < rival else "higher"


def _first(faults: Iterator[str]) -> str | None:
    try:
        return next(faults, None)
    except ValueError as error:  # numbers that no prediction or claim can have
        return str(error)


def _faults(record: Mapping[str, Any]) -> Iterator[str]:
    """What contradicts itself in a record that follows its schema, worst first."""
    yield from _fault_of_names(record)
    if record["claim"] in RESERVED:
        yield f"no claim is called {', '.join(RESERVED)}; got {record['claim']!r}"
    yield from _fault_of_date(record["date"])
    yield from _fault_of_machine(record["machine"])
    if record["timings"] is not None:
        yield from _fault_of_rounds(record["timings"])
    for metric in record["metrics"]:
        yield from _fault_of_interval(metric["measured"], metric["name"])
        yield from _fault_of_metric(metric)
    for point in record["points"]:
        yield from _fault_of_point(point, record["timings"])
    yield from _fault_of_verdict(record)


def _fault_of_names(record: Mapping[str, Any]) -> Iterator[str]:
    names = [metric["name"] for metric in record["metrics"]]
    if len(set(names)) < len(names):
        yield f"two metrics have the same name, among {names}"
    steps = [point["step"] for point in record["points"]]
    if len(set(steps)) < len(steps):
        yield f"two points have the same step, among {steps}"
    both = set(names) & {prefix + step for prefix in STEP_PREFIXES for step in steps}
    if both:
        yield f"a metric is called like a point's share or time: {min(both)}"


def _fault_of_date(text: str) -> Iterator[str]:
    try:
        date = datetime.strptime(text, DATE_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        yield f"date: there is no such moment: {text}"
        return
    now = datetime.now(UTC)
    if date - now > CLOCK_ERROR:
        yield f"date: {text} lies in the future; this machine's clock says {now:{DATE_FORMAT}}"


def _fault_of_machine(machine: Mapping[str, Any]) -> Iterator[str]:
    kind, slug = kind_of(machine), machine["slug"]
    if machine["kind"] != kind:
        yield f"machine: its kind, by what it says of itself, is {kind}; got {machine['kind']}"
    upgraded = all(machine[name] is None for name in NEW_OF_A_MACHINE)  # another mark made its slug
    if not upgraded and not slug.endswith(f"-{kind[:4]}"):
        yield f"machine: its slug ends in -{kind[:4]}, the mark of its kind; got {slug}"


def _fault_of_rounds(timings: Mapping[str, Any]) -> Iterator[str]:
    rounds = len(timings["disturbed"])
    for step, times in timings["raw_s"].items():
        if len(times) != rounds:
            yield f"timings: {step}: {len(times)} times of {rounds} rounds"


def _fault_of_interval(stored: Mapping[str, Any], name: str) -> Iterator[str]:
    low, median, high = stored["low"], stored["median"], stored["high"]
    if (low is None) != (high is None):
        yield f"{name}: an interval has both ends or none; got {low} and {high}"
    elif low is not None and not low <= median <= high:
        yield f"{name}: low, median and high stand in order; got {low}, {median} and {high}"


def _fault_of_metric(metric: Mapping[str, Any]) -> Iterator[str]:
    name, better = metric["name"], better_of(metric["expected"], metric["rival"])
    if metric["measured"]["better"] != better:
        yield f"{name}: the claim's side is the {better} one; got {metric['measured']['better']}"
    judged = _prediction(metric).judge(interval_of(metric["measured"])).outcome
    if judged != metric["outcome"]:
        yield f"{name}: the stored numbers say {judged}; the stored outcome is {metric['outcome']}"


def _fault_of_point(point: Mapping[str, Any], timings: Mapping[str, Any]) -> Iterator[str]:
    step, rounds = point["step"], len(timings["disturbed"])
    for key in ("reached", "time_s"):
        yield from _fault_of_interval(point[key], f"{step}: {key}")
        if point[key]["n"] > rounds:
            yield f"{step}: {key}: {point[key]['n']} samples of {rounds} rounds"
    chunks = point["chunks"]
    if chunks is None:
        return
    tokens, sequences = sum(c[0] * c[2] for c in chunks), sum(c[2] for c in chunks)
    if (tokens, sequences) != (point["new_tokens"], point["sequences"]):
        yield (
            f"{step}: its chunks hold {tokens} new tokens of {sequences} sequences; the point says "
            f"{point['new_tokens']} of {point['sequences']}"
        )


def _fault_of_verdict(record: Mapping[str, Any]) -> Iterator[str]:
    verdict = record["verdict"]
    if verdict["outcome"] == "void" and verdict["reason"].endswith(BROKEN_RULER):
        return  # said by what was timed, not by the metrics
    measured = {metric["name"]: interval_of(metric["measured"]) for metric in record["metrics"]}
    predictions = _of_role(record, "prediction")
    judged = Claim(record["statement"], predictions, _of_role(record, "control")).judge(measured)
    if judged.outcome != verdict["outcome"]:
        yield f"verdict: the metrics say {judged.outcome}; the record says {verdict['outcome']}"


def _of_role(record: Mapping[str, Any], role: str) -> Sequence[Prediction]:
    return [_prediction(metric) for metric in record["metrics"] if metric["role"] == role]


def _prediction(metric: Mapping[str, Any]) -> Prediction:
    limit = metric["physical_limit"]
    limits = {} if limit is None else {"physical_limit": limit}
    return Prediction(metric["name"], metric["expected"], metric["rival"], **limits)


def _faults_of_run(line: Mapping[str, Any]) -> Iterator[str]:
    yield from _fault_of_date(line["date"])
    for name, stored in line["quantities"].items():
        yield from _fault_of_interval(stored, name)
    for name, (expected, rival) in line["expected"].items():
        better = better_of(expected, rival)
        if name not in line["quantities"]:
            yield f"{name}: is expected and was not measured"
        elif line["quantities"][name]["better"] != better:
            yield f"{name}: the claim's side is the {better} one; the run says the other"


def _is_whole(checker: Any, value: Any) -> bool:
    """1.0 is a number, and no count."""
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def _validator(name: str) -> Any:
    text = (files("prefill_decode") / name).read_text(encoding="utf-8")
    strict = Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole)
    return extend(Draft202012Validator, type_checker=strict)(json.loads(text))
