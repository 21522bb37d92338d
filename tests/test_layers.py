"""Imports point down only, and nothing below the engine needs torch.

The layers are those of `prefill_decode.book.layers`, which the page on architecture draws."""

import ast
import subprocess
import sys
from pathlib import Path

from prefill_decode.book.layers import (
    LAYERS,
    STEP_OF,
    TORCH_ALLOWED,
    imports_of_parts,
    may_import,
)

PACKAGE = Path(__file__).parents[1] / "lib" / "prefill_decode"


def imported_names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_imports_point_down():
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in STEP_OF, f"{part} has no layer: add it to LAYERS in book/layers.py"
        for name in imported_names(path):
            package, _, target = name.partition(".")
            target = target.partition(".")[0]
            if package == "prefill_decode" and target in STEP_OF:
                assert may_import(part, target), f"{path.name} imports {name}"
            assert package != "torch" or part in TORCH_ALLOWED, f"{path.name} imports torch"


def test_the_layers_name_every_part_once_and_nothing_else():
    listed = [part for layer in LAYERS for part in layer.parts]
    paths = [*PACKAGE.glob("[!_]*.py"), *(path.parent for path in PACKAGE.glob("*/__init__.py"))]
    assert sorted(listed) == sorted(path.stem for path in paths)


def test_a_part_may_import_itself_and_lower_steps_only():
    assert may_import("engine", "engine")
    assert may_import("engine", "products")
    assert may_import("roofline", "claim")
    assert not may_import("claim", "roofline")
    assert not may_import("engine", "simulator")  # strangers
    assert not may_import("step", "scheduling")


def test_the_diagrams_imports_are_those_of_a_second_reading():
    by_hand = {}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        names = [name.split(".") for name in imported_names(path)]
        ours = {name[1] for name in names if name[0] == "prefill_decode" and len(name) > 1}
        torch = {name[0] for name in names if name[0] == "torch"}
        if part in STEP_OF:
            by_hand.setdefault(part, set()).update((ours & set(STEP_OF) | torch) - {part})
    assert imports_of_parts() == by_hand
    assert "scheduling" in by_hand["engine"]
    assert "scheduling" in by_hand["simulator"]


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
