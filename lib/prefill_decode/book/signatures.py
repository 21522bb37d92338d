"""Signatures: a definition as one of Sphinx's directives for Python, its docstring in it."""

import ast
import re
from collections.abc import Callable
from copy import deepcopy
from typing import cast

from prefill_decode.book.public_names import Definition

Function = ast.FunctionDef | ast.AsyncFunctionDef
FullName = Callable[[str, str], str]
LONGEST_VALUE = 80  # letters of a constant that is shown
OWN_FENCE = 7  # backticks, more than a docstring holds; a member's has fewer
PROPERTIES = {"property", "cached_property"}


class _Shown(ast.NodeTransformer):
    """Types by their full names, and defaults that Sphinx can read."""

    def __init__(self, home: str, full_name: FullName) -> None:
        self._home, self._full_name = home, full_name

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg, self._named(node.annotation) if node.annotation else None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        value = self.visit(node.value) if node.value else None
        annotation = self._named(node.annotation)
        return ast.AnnAssign(node.target, annotation, value, simple=node.simple)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.stmt:
        return self._function(node)

    def visit_Tuple(self, node: ast.Tuple) -> ast.expr:
        starred = any(isinstance(each, ast.Starred) for each in node.elts)
        return ast.Constant(...) if starred else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.body = [self.visit(each) for each in node.body]
        return node

    def _function(self, node: Function) -> Function:
        node.args = self.visit(node.args)
        node.returns = self._named(node.returns) if node.returns else None
        return node

    def _named(self, annotation: ast.expr) -> ast.expr:
        names = _FullNames(self._home, self._full_name)
        return cast(ast.expr, names.visit(deepcopy(annotation)))


class _FullNames(ast.NodeTransformer):
    def __init__(self, home: str, full_name: FullName) -> None:
        self._home, self._full_name = home, full_name

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.parse(self._full_name(self._home, node.id), mode="eval").body

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        """A type in quotes, but not the words of a Literal."""
        if isinstance(node.value, str) and node.value.isidentifier():
            full = self._full_name(self._home, node.value)
            return node if full == node.value else ast.parse(full, mode="eval").body
        return node


def directive(definition: Definition, full_name: FullName = lambda home, name: name) -> str:
    """`full_name` gives the name under which a module's name stands on the pages."""
    name = definition.name
    node = _Shown(definition.home, full_name).visit(deepcopy(definition.node))
    if isinstance(node, ast.ClassDef):
        kind = "exception" if _is_exception(node) else "class"
        members = [_member(each) for each in node.body if _is_offered(each)]
        body = "\n\n".join([prose(ast.get_docstring(node) or ""), *members])
        return _fenced(kind, f"{name}{_fields(node)}", body, OWN_FENCE)
    if isinstance(node, Function):
        head = f"{name}{_arguments(node, 0)}"
        return _fenced("function", head, prose(ast.get_docstring(node) or ""), OWN_FENCE)
    value = " ".join(ast.unparse(node.value).split()) if node.value else ""
    shown = f":value: {value}" if value and len(value) <= LONGEST_VALUE else ""
    return _fenced("data", name, shown, OWN_FENCE)


def first_paragraph(docstring: str) -> str:
    """In one line, without the name that a part gives itself before a colon."""
    words = " ".join(docstring.split("\n\n")[0].split())
    said = words.partition(": ")[2] or words
    return prose(said[:1].upper() + said[1:])


def prose(docstring: str) -> str:
    """A docstring as Markdown: outside of code, nothing in it begins a formula, a tag or a role."""
    lines = [line if line.startswith("    ") else _escaped(line) for line in docstring.splitlines()]
    return "\n".join(lines)


def _escaped(line: str) -> str:
    pieces = re.split(r"(`+[^`]+`+)", line)
    escaped = [re.sub(r"([$<{|*#])", r"\\\1", piece) for piece in pieces[::2]]
    pieces[::2] = escaped
    return "".join(pieces)


def _fenced(kind: str, head: str, body: str, fence: int) -> str:
    marks = "`" * fence
    return f"{marks}{{py:{kind}}} {head}\n{body}\n{marks}"


def _member(node: ast.stmt) -> str:
    assert isinstance(node, Function)
    said = prose(ast.get_docstring(node) or "")
    decorators = _decorators(node)
    if decorators & PROPERTIES:
        returns = f":type: {ast.unparse(node.returns)}\n\n" if node.returns else ""
        return _fenced("property", node.name, returns + said, OWN_FENCE - 1)
    kind = next((k for k in ("staticmethod", "classmethod") if k in decorators), "method")
    head = f"{node.name}{_arguments(node, 0 if kind == 'staticmethod' else 1)}"
    return _fenced(kind, head, said, OWN_FENCE - 1)


def _is_offered(node: ast.stmt) -> bool:
    """Methods and properties without an underscore; a property only if it says something."""
    if not isinstance(node, Function) or node.name.startswith("_"):
        return False
    return bool(ast.get_docstring(node)) or not _decorators(node) & PROPERTIES


def _decorators(node: Function | ast.ClassDef) -> set[str]:
    calls = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return {ast.unparse(call).rpartition(".")[2] for call in calls}


def _is_exception(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).endswith(("Error", "Exception")) for base in node.bases)


def _fields(node: ast.ClassDef) -> str:
    """What makes one: the fields of a dataclass, or what __init__ takes."""
    if "dataclass" in _decorators(node):
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
        return "(" + ", ".join(ast.unparse(field) for field in fields) + ")"
    starts = [each for each in node.body if isinstance(each, Function) and each.name == "__init__"]
    return _arguments(starts[0], 1).partition(" -> ")[0] if starts else ""


def _arguments(node: Function, skipped: int) -> str:
    arguments = node.args
    left = ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args[skipped:],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"({ast.unparse(left)}){returns}"
