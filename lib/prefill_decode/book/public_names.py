"""Public names: what a module or a package offers, read from its source.

A module offers its functions, its classes and the names that it gives to types; a package what its
__init__ exports."""

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
    home: str = ""  # the module that defines it


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring(path: Path) -> str:
    return ast.get_docstring(_tree(path)) or ""


def modules_of(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.py")) if not path.name.startswith("_")]


def public_definitions(path: Path) -> Iterator[Definition]:
    """In the order of the file; of what is assigned, only names of types."""
    for name, node in _definitions(path).items():
        assigned = isinstance(node, ast.Assign | ast.AnnAssign)
        if not name.startswith("_") and (not assigned or _names_a_type(name)):
            yield Definition(name, node, dotted(path))


def _names_a_type(name: str) -> bool:
    return name[:1].isupper() and not name.isupper()


def exports_of(start: Path) -> Iterator[Definition]:
    """What an __init__ names in __all__, from the modules that define it. ValueError for a name
    that it does not import from this library."""
    homes = imported_from(start)
    for name in _all(start):
        if name not in homes:
            raise ValueError(f"{start}: __all__ holds what is imported above it; got {name!r}")
        home, original = _defining(*homes[name])
        yield Definition(name, _definitions(path_of(home))[original], home)


def origin(module: str, name: str) -> tuple[str, str] | None:
    """The module of the library that defines what `name` means in `module`, and its name there;
    None for anything else."""
    if name in _definitions(path_of(module)):
        return module, name
    found = imported_from(path_of(module)).get(name)
    return _defining(*found) if found else None


@cache
def imported_from(path: Path) -> dict[str, tuple[str, str]]:
    """Names that a module imports from the library, each with its module and its name there. Those
    that are imported for the sake of types only are among them."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(f"{PACKAGE.name}.")
        and node.module
        for alias in node.names
    }


def path_of(module: str) -> Path:
    place = PACKAGE.parent.joinpath(*module.split("."))
    return place / "__init__.py" if place.is_dir() else place.with_suffix(".py")


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)


def _defining(module: str, name: str) -> tuple[str, str]:
    """Where a name is defined that a module may itself have from another."""
    path = path_of(module)
    if name in _definitions(path):
        return module, name
    return _defining(*imported_from(path)[name])


def _all(start: Path) -> list[str]:
    named = _definitions(start).get("__all__")
    if not isinstance(named, ast.Assign):
        return []
    return [str(name) for name in ast.literal_eval(named.value)]


@cache
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
