"""Parameters: what a notebook lets its reader change, checked before anything runs.

papermill warns about a misspelt parameter and then runs the wrong experiment to its end. Here the
cell tagged "parameters" is read as literals, and a name it does not set, or a value of another
type, stops the run with the nearest name."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefill_decode.book.project import read_notebook
from prefill_decode.did_you_mean import did_you_mean

TAG = "parameters"
MOST_TOKENS = 2**17


@dataclass(frozen=True)
class Parameter:
    default: Any
    annotation: str | None  # as written: "str | None"


def read_parameters(path: Path) -> dict[str, Parameter]:
    """A notebook's parameters, by name. ValueError unless one tagged cell sets literals only."""
    notebook = read_notebook(path)
    cells = [cell for cell in notebook.cells if TAG in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ValueError(
            f"{path.name}: a notebook has exactly one cell tagged {TAG!r}; got {len(cells)}: "
            "tag the cell that sets the parameters"
        )
    try:
        statements = ast.parse(cells[0].source).body
    except SyntaxError as error:
        raise ValueError(f"{path.name}: the cell tagged {TAG!r} is not Python: {error}") from error
    found = {}
    for statement in statements:
        name, parameter = _literal_assignment(statement, path)
        found[name] = parameter
    return found


def check_parameters(path: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with its values brought to the parameters' types. ValueError names what does not
    fit.
    """
    known = read_parameters(path)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(
                f"{path.stem} has the parameters {', '.join(known)}; got {name!r}{hint}"
            )
    fitted = {name: _fit(name, value, known[name], path) for name, value in given.items()}
    for name, value in fitted.items():
        _check_range(name, value, path)
    return fitted


def parse_assignments(words: Sequence[str]) -> dict[str, Any]:
    """name=value words of a command line. Values are Python literals, or else plain text."""
    given: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"a parameter is given as name=value; got {word!r}")
        if name in given:
            raise ValueError(f"a parameter is given once; got {name} twice")
        given[name] = _parse_value(text)
    return given


def _parse_value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return float(text) if text in ("inf", "-inf") else text


def _literal_assignment(statement: ast.stmt, path: Path) -> tuple[str, Parameter]:
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value, annotation = statement.targets[0], statement.value, None
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
        annotation = ast.unparse(statement.annotation)
    else:
        target, value, annotation = None, None, None
    if not isinstance(target, ast.Name) or value is None:
        raise ValueError(
            f"{path.name}: the cell tagged {TAG!r} holds only lines of the form name = literal; "
            f"got {ast.unparse(statement)!r}"
        )
    try:
        return target.id, Parameter(ast.literal_eval(value), annotation)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(
            f"{path.name}: parameters are literals, so that the run can replace them; "
            f"got {ast.unparse(statement)!r}"
        ) from error


def _fit(name: str, value: Any, parameter: Parameter, path: Path) -> Any:
    types = _types(parameter)
    if not types or type(value) in types:
        return _fit_items(name, value, parameter, path)
    if float in types and type(value) is int and abs(value) < 2**53:
        return float(value)
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in types)
    raise ValueError(
        f"{path.stem}: {name} takes {wanted}, such as {parameter.default!r}; got {value!r}, "
        f"of type {type(value).__name__}"
    )


def _check_range(name: str, value: Any, path: Path) -> None:
    """Rules that follow from a name: counts of tokens, lists that a claim compares along, seeds."""
    if isinstance(value, list):
        whole = all(type(item) is int and 1 <= item <= MOST_TOKENS for item in value)
        if not whole or len(value) < 2 or sorted(set(value)) != value:
            raise ValueError(
                f"{path.stem}: {name} takes at least two rising whole numbers from 1 to "
                f"{MOST_TOKENS}; got {value!r}"
            )
    elif name.endswith("_tokens") and value is not None and not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{path.stem}: {name} takes 0 to {MOST_TOKENS}; got {value!r}")
    elif name == "seed" and not 0 <= value < 2**32:
        raise ValueError(f"{path.stem}: seed takes 0 to 2**32 - 1; got {value!r}")


def _fit_items(name: str, value: Any, parameter: Parameter, path: Path) -> Any:
    """A list's items must be of the type of the default's."""
    default = parameter.default
    if not isinstance(value, list) or not isinstance(default, list) or not default:
        return value
    item = Parameter(default[0], None)
    if not value:
        raise ValueError(f"{path.stem}: {name} takes a list such as {default!r}; got an empty one")
    return [_fit(name, each, item, path) for each in value]


def _types(parameter: Parameter) -> list[type]:
    """The types a value may have; empty when the notebook leaves it open with a bare None."""
    names = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)} | {
        "None": type(None)
    }
    if parameter.annotation is not None:
        words = [word.strip().partition("[")[0] for word in parameter.annotation.split("|")]
        return [names[word] for word in words if word in names]
    return [] if parameter.default is None else [type(parameter.default)]
