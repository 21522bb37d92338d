"""Public names: what a module or a package offers, read from its source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from prefill_decode.book.layers import PACKAGE

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Definition:
    name: str
    node: Node


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring(path: Path) -> str:
    return ast.get_docstring(_tree(path)) or ""


def modules_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]


def public_definitions(path: Path) -> Iterator[Definition]:
    """Functions and classes, in the order of the file."""
    for name, node in _definitions(path).items():
        if not name.startswith("_") and not isinstance(node, ast.Assign | ast.AnnAssign):
            yield Definition(name, node)


def exports_of(start: Path) -> Iterator[Definition]:
    """What an __init__ names in __all__, from the modules that define it. ValueError for a name
    that it does not import from this library."""
    homes = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in _tree(start).body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    for name in _all(start):
        if name not in homes:
            raise ValueError(f"{start}: __all__ holds what is imported above it; got {name!r}")
        yield Definition(name, _defined(*homes[name]))


def _all(start: Path) -> list[str]:
    named = _definitions(start).get("__all__")
    if not isinstance(named, ast.Assign):
        return []
    return [str(name) for name in ast.literal_eval(named.value)]


def _defined(module: str, name: str) -> Node:
    place = PACKAGE.parent.joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    node = _definitions(path).get(name)
    if node is not None:
        return node
    return next(each.node for each in exports_of_module(path) if each.name == name)


def exports_of_module(path: Path) -> Iterator[Definition]:
    """What a module imports from the library to be found in it, too."""
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE.name):
            for alias in node.names:
                yield Definition(alias.asname or alias.name, _defined(str(node.module), alias.name))


def _definitions(path: Path) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                found |= {each.id: node for each in names if isinstance(each, ast.Name)}
    return found
