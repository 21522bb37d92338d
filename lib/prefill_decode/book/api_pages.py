"""API pages: what the library offers, from its docstrings, as pages that the book's search knows.

Sources are read, not imported, so a page needs neither torch nor an accelerator, and nothing runs.
Docstrings are Markdown here, which Sphinx's own autodoc takes for reStructuredText. A package
offers what its __init__ exports; one that exports nothing, and a module of its own, offer every
function and class whose name has no underscore before it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path

from prefill_decode.book.layers import LAYERS, PACKAGE, Layer
from prefill_decode.book.public_names import (
    Definition,
    docstring,
    dotted,
    exports_of,
    modules_of,
    origin,
    public_definitions,
)
from prefill_decode.book.signatures import directive, first_paragraph, prose

MOST_MODULES = 16  # of a page


@dataclass(frozen=True)
class Page:
    """Of one package, or of all modules of a layer that are no package."""

    name: str
    title: str
    modules: tuple[tuple[str, str, tuple[Definition, ...]], ...]  # name, docstring, what it offers


def write_api_pages(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pages = api_pages()
    offered = where_offered(pages)
    for page in pages:
        (folder / f"{page.name}.md").write_text(page_text(page, offered), encoding="utf-8")


def where_offered(pages: Sequence[Page]) -> dict[tuple[str, str], str]:
    """The full name under which a definition stands on a page, by its module and name."""
    return {
        found: f"{module}.{each.name}"
        for page in pages
        for module, _, definitions in page.modules
        for each in definitions
        if (found := origin(each.home, each.name)) is not None
    }


def api_pages() -> list[Page]:
    return [part for layer in LAYERS for page in _pages_of(layer) for part in in_parts(page)]


def in_parts(page: Page) -> list[Page]:
    """Of a page with too many modules to be light, several with as many each, or one less; the
    first keeps its name."""
    count = ceil(len(page.modules) / MOST_MODULES)
    if count == 1:
        return [page]
    ends = [len(page.modules) * part // count for part in range(count + 1)]
    return [
        Page(
            page.name if part == 1 else f"{page.name}_{part}",
            f"{page.title}, {part} of {count}",
            page.modules[first:last],
        )
        for part, (first, last) in enumerate(pairwise(ends), 1)
    ]


def api_contents() -> str:
    """Every page with what it is about, for the page above them."""
    lines = []
    for page in api_pages():
        names = ", ".join(f"`{module.rpartition('.')[2]}`" for module, *_ in page.modules)
        said = names if len(page.modules) > 1 else first_paragraph(page.modules[0][1])
        lines.append(f"- [{page.title}](api/{page.name}.md): {said}")
    return "\n".join(lines)


def page_text(page: Page, offered: Mapping[tuple[str, str], str]) -> str:
    """A page. Types in its signatures go by the full names that `offered` has for them, so that two
    of the same name are told apart."""

    def full_name(home: str, name: str) -> str:
        found = origin(home, name)
        return offered.get(found, name) if found else name

    parts = [f"# {page.title}"]
    for module, said, definitions in page.modules:
        if len(page.modules) > 1:
            parts.append(f"## {module.rpartition('.')[2]}")
        parts += [f"```{{py:module}} {module}\n```", prose(said)]
        parts += [directive(definition, full_name) for definition in definitions]
    return "\n\n".join(parts) + "\n"


def _pages_of(layer: Layer) -> Iterator[Page]:
    alone = [part for part in layer.parts if not (PACKAGE / part).is_dir()]
    if alone:
        modules = tuple(_module(PACKAGE / f"{part}.py") for part in alone)
        yield Page(layer.name, f"Modules of {layer.name}", modules)
    for part in layer.parts:
        if (PACKAGE / part).is_dir():
            yield _package(PACKAGE / part)


def _module(path: Path) -> tuple[str, str, tuple[Definition, ...]]:
    return dotted(path), docstring(path), tuple(public_definitions(path))


def _package(folder: Path) -> Page:
    start = folder / "__init__.py"
    exported = tuple(exports_of(start))
    modules = [(dotted(folder), docstring(start), exported)]
    if not exported:
        found = [_module(path) for path in modules_of(folder)]
        modules += [module for module in found if module[2]]
    return Page(folder.name, folder.name, tuple(modules))
