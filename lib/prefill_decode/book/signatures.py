"""Signatures: a definition as one of Sphinx's directives for Python, its docstring in it."""

import ast
import re

from prefill_decode.book.public_names import Definition

Function = ast.FunctionDef | ast.AsyncFunctionDef
LONGEST_VALUE = 80  # letters of a constant that is shown
OWN_FENCE = 7  # backticks, more than a docstring holds; a member's has fewer
PROPERTIES = {"property", "cached_property"}


def directive(definition: Definition) -> str:
    node, name = definition.node, definition.name
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
