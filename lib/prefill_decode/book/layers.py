"""Layers: which part of the library may import which, and which parts do import which.

A part is a module or a folder of modules right below the package. This is the only list of the
layers: the page on architecture draws it, and a test holds every import against it. What a part
imports is read from its source, so that nothing is executed."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class Layer:
    """`steps`, lowest first: a part may import from lower steps, here and in lower layers, and
    from itself. Parts of one step are strangers."""

    name: str
    steps: tuple[tuple[str, ...], ...]

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(part for step in self.steps for part in step)


def _each_on_the_last(*parts: str) -> tuple[tuple[str, ...], ...]:
    return tuple((part,) for part in parts)


LAYERS = (  # lowest first
    Layer(
        "words",
        _each_on_the_last(
            "did_you_mean", "units", "step", "hardware", "model_spec", "hf_config", "request"
        ),
    ),
    Layer(
        "logic",
        _each_on_the_last(
            *("statistics", "serving_metrics", "event_stream", "stream_recording", "workload"),
            *("trace_formats", "trace", "change", "claim", "roofline", "capacity", "crossover"),
            *("crossover_map", "crossover_atlas", "scheduling", "chunking", "batching", "certify"),
            *("transfer_cost", "stall_cost"),
        ),
    ),
    Layer(
        "numbers",
        (
            ("kernels", "other_load"),
            ("products",),
            ("engine", "measure", "simulator", "kv_transfer"),
        ),
    ),
    Layer(
        "records",
        (("results", "fleet_claims"), ("endpoint", "calibrating"), ("disaggregated",)),
    ),
    Layer("comparison", (("paired", "gate"),)),
    Layer("pages", (("plots",), ("book",))),
    Layer("command", (("cli",),)),
)
TORCH_ALLOWED = frozenset(
    {"kernels", "products", "engine", "measure", "endpoint", "disaggregated", "calibrating"}
)
STEP_OF = {
    part: number
    for number, step in enumerate(step for layer in LAYERS for step in layer.steps)
    for part in step
}


def may_import(part: str, target: str) -> bool:
    return target == part or STEP_OF[target] < STEP_OF[part]


def imports_of_parts(package: Path = PACKAGE) -> dict[str, set[str]]:
    """What every part imports: other parts, and torch under its own name."""
    found: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        part = path.relative_to(package).parts[0].removesuffix(".py")
        if part in STEP_OF:
            targets = {target for name in _imported(path) if (target := _part_named(name))}
            found.setdefault(part, set()).update(targets - {part})
    return found


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def _part_named(name: str) -> str | None:
    """Of prefill_decode.statistics, not of the standard library's module of that name."""
    first, second, *_ = [*name.split("."), ""]
    if first == "torch":
        return first
    return second if first == PACKAGE.name and second in STEP_OF else None
