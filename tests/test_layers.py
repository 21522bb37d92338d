"""Imports point down only, and nothing below the engine needs torch."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lib" / "prefill_decode"
LAYERS = [  # lowest first; a part may import from lower layers and from itself
    {"did_you_mean", "units", "model_spec", "hf_config", "hardware", "request", "step"},
    {
        "roofline",
        "crossover",
        "crossover_map",
        "crossover_atlas",
        "capacity",
        "batching",
        "scheduling",
        "chunking",
        "certify",
        "transfer_cost",
        "stall_cost",
        "event_stream",
        "serving_metrics",
        "statistics",
        "stream_recording",
        "trace",
        "trace_formats",
        "workload",
        "change",
        "claim",
    },
    {"kernels", "other_load"},
    {"products"},
    {"engine", "measure", "simulator", "kv_transfer"},
    {"results", "fleet_claims"},
    {"endpoint", "disaggregated", "calibrating"},
    {"paired", "gate"},
    {"plots"},
    {"book"},
    {"cli"},
]
# Within the lowest two layers a few modules lean on each other, downwards in this order.
INNER_ORDER = [
    "did_you_mean",
    "units",
    "step",
    "hardware",
    "model_spec",
    "hf_config",
    "request",
    "statistics",
    "serving_metrics",
    "event_stream",
    "stream_recording",
    "workload",
    "trace_formats",
    "trace",
    "change",
    "claim",
    "roofline",
    "capacity",
    "crossover",
    "crossover_map",
    "crossover_atlas",
    "scheduling",
    "chunking",
    "batching",
    "certify",
    "transfer_cost",
    "stall_cost",
]
TORCH_ALLOWED = {
    *("kernels", "products", "engine", "measure", "endpoint", "disaggregated"),
    "calibrating",
}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def imported_names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def may_import(part: str, target: str) -> bool:
    if target == part or LEVEL[target] < LEVEL[part]:
        return True
    inner = LEVEL[target] == LEVEL[part] and {part, target} <= set(INNER_ORDER)
    return inner and INNER_ORDER.index(target) < INNER_ORDER.index(part)


def test_imports_point_down():
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in LEVEL, f"{part} has no layer: add it to LAYERS"
        for name in imported_names(path):
            package, _, target = name.partition(".")
            target = target.partition(".")[0]
            if package == "prefill_decode" and target in LEVEL:
                assert may_import(part, target), f"{path.name} imports {name}"
            assert package != "torch" or part in TORCH_ALLOWED, f"{path.name} imports torch"


def test_no_module_is_relative_about_its_imports():
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), path.name


def test_the_command_starts_without_torch_and_without_a_client():
    code = (
        "import sys, prefill_decode.cli, prefill_decode.book; "
        "sys.exit(bool({'torch', 'aiohttp'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
