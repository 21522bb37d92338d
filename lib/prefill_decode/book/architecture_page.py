"""Architecture page: the layers and what imports what, as a figure and as a list.

The figure shows an arrow only where no longer way leads down: a book of arrows would hide the
order that they keep. The list below it names everything that a part imports."""

from collections.abc import Mapping

from prefill_decode.book.layers import LAYERS, PACKAGE, STEP_OF, Layer, imports_of_parts
from prefill_decode.book.public_names import docstring
from prefill_decode.book.signatures import first_paragraph
from prefill_decode.plots import Figure
from prefill_decode.plots.layers_figure import layers_figure

MOST_ROWS = 4  # a layer of more steps is drawn as one row, its modules as one box


def architecture_parts() -> dict[str, str]:
    """What the page on the architecture shows."""
    imports = imports_of_parts()
    return {
        "layers-figure": figure(imports)._repr_html_(),
        "layers-list": layers_list(imports),
    }


def figure(imports: Mapping[str, set[str]]) -> Figure:
    layers = [
        (f"{number} {layer.name}", _rows(layer)) for number, layer in enumerate(LAYERS, start=1)
    ][::-1]
    rows = [row for _, rows in layers for row in rows]
    box_of = {part: _box_of(layer, part) for layer in LAYERS for part in layer.parts}
    marked = {box_of[part] for part, targets in imports.items() if "torch" in targets}
    title = "The library's packages in their layers: every import points down"
    return layers_figure(layers, needed_arrows(rows, _arrows(rows, imports, box_of)), marked, title)


def layers_list(imports: Mapping[str, set[str]]) -> str:
    """Every part with what it says of itself and what it imports, by layers, highest first."""
    lines = []
    for number, layer in reversed([*enumerate(LAYERS, start=1)]):
        lines.append(f"### {number} {layer.name}\n")
        for part in reversed(layer.parts):
            targets = sorted(imports.get(part, set()) & set(STEP_OF), key=lambda t: -STEP_OF[t])
            targets += sorted(imports.get(part, set()) - set(STEP_OF))
            page = part if (PACKAGE / part).is_dir() else layer.name
            told = f" Imports {', '.join(targets)}." if targets else ""
            lines.append(f"[`{part}`](api/{page}.md)\n: {told_of(part)}{told}\n")
    return "\n".join(lines)


def told_of(part: str) -> str:
    """What a part says of itself."""
    path = PACKAGE / part / "__init__.py"
    return first_paragraph(docstring(path if path.is_file() else PACKAGE / f"{part}.py"))


def needed_arrows(rows: list[list[str]], arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Those that no longer way makes needless."""
    reached: dict[str, set[str]] = {}
    for row in reversed(rows):
        for box in row:
            direct = arrows.get(box, set())
            reached[box] = direct.union(*(reached[target] for target in direct))
    return {
        box: {t for t in targets if not any(t in reached[other] for other in targets)}
        for box, targets in arrows.items()
    }


def _rows(layer: Layer) -> list[list[str]]:
    """A layer's boxes, from the top."""
    if len(layer.steps) <= MOST_ROWS:
        return [list(step) for step in reversed(layer.steps)]
    return [list(dict.fromkeys(_box_of(layer, part) for part in layer.parts))]


def _box_of(layer: Layer, part: str) -> str:
    if len(layer.steps) <= MOST_ROWS or (PACKAGE / part).is_dir():
        return part
    modules = [each for each in layer.parts if not (PACKAGE / each).is_dir()]
    return f"{len(modules)} modules of {layer.name}"


def _arrows(
    rows: list[list[str]], imports: Mapping[str, set[str]], box_of: Mapping[str, str]
) -> dict[str, set[str]]:
    """Between boxes of different rows, from the top; what leans on what within a row, the page
    says."""
    row_of = {box: number for number, row in enumerate(rows) for box in row}
    arrows: dict[str, set[str]] = {box: set() for row in rows for box in row}
    for part, targets in imports.items():
        for target in targets - {"torch"}:
            if row_of[box_of[part]] != row_of[box_of[target]]:
                arrows[box_of[part]].add(box_of[target])
    return arrows
