"""What the library offers, read from its sources, against what Python imports."""

import ast
import importlib
import inspect

import pytest

from prefill_decode.book.api_pages import (
    MOST_MODULES,
    Page,
    api_contents,
    api_pages,
    in_parts,
    page_text,
    where_offered,
    write_api_pages,
)
from prefill_decode.book.layers import PACKAGE, STEP_OF
from prefill_decode.book.public_names import Definition
from prefill_decode.book.signatures import directive, prose

PAGES = {page.name: page for page in api_pages()}


def define(source):
    node = ast.parse(source).body[0]
    return directive(Definition(node.name, node))


@pytest.mark.parametrize("part", [part for part in STEP_OF if part not in ("cli", "book")])
def test_a_part_offers_what_python_finds_in_it_and_nothing_private(part):
    module = importlib.import_module(f"prefill_decode.{part}")
    pages = [each for page in PAGES.values() for each in page.modules]
    offered = next(names for name, _, names in pages if name == module.__name__)
    names = {definition.name for definition in offered}
    if hasattr(module, "__all__"):
        assert names == set(module.__all__)
    elif (PACKAGE / part).is_dir():
        assert not names  # its modules are listed instead
    else:
        own = {
            name
            for name, value in vars(module).items()
            if (inspect.isfunction(value) or inspect.isclass(value))
            and value.__module__ == module.__name__
            and not name.startswith("_")
        }
        assert own <= names
        assert all(callable(getattr(module, name)) or name[0].isupper() for name in names)
    for definition in offered:
        assert hasattr(module, definition.name), definition.name


def test_a_page_of_many_modules_is_several_that_have_them_all_in_their_order():
    many = Page("p", "P", tuple((f"m{number}", "", ()) for number in range(2 * MOST_MODULES + 1)))
    parts = in_parts(many)
    assert [(part.name, part.title) for part in parts] == [
        ("p", "P, 1 of 3"), ("p_2", "P, 2 of 3"), ("p_3", "P, 3 of 3")]  # fmt: skip
    assert sum((part.modules for part in parts), ()) == many.modules
    assert max(len(part.modules) for part in parts) <= MOST_MODULES
    few = Page("p", "P", many.modules[:MOST_MODULES])
    assert in_parts(few) == [few]


def test_a_function_is_shown_as_it_is_called():
    shown = define('def f(a: int, *, b: str = "x") -> float:\n    """Seconds of `a`."""')
    assert "{py:function} f(a: int, *, b: str='x') -> float\nSeconds of `a`.\n" in shown


def test_a_dataclass_is_shown_with_its_fields_and_what_it_can_be_asked():
    shown = define(
        '@dataclass(frozen=True)\nclass C:\n    """Of two."""\n    a_s: float\n    b: int = 2\n'
        '    @property\n    def both(self) -> float:\n        """Their sum."""\n'
        "    @property\n    def silent(self) -> int: ...\n"
        "    def ask(self, n: int) -> bool: ...\n    def _own(self) -> None: ..."
    )
    assert "{py:class} C(a_s: float, b: int = 2)\n" in shown
    assert "{py:property} both\n:type: float\n" in shown
    assert "{py:method} ask(n: int) -> bool\n" in shown
    assert "silent" not in shown
    assert "_own" not in shown


def test_an_exception_is_called_one_and_a_class_shows_what_init_takes():
    assert "{py:exception} E\n" in define("class E(ValueError):\n    'Why.'")
    shown = define("class R:\n    def __init__(self, path: str) -> None: ...")
    assert "{py:class} R(path: str)\n" in shown


def test_a_docstring_sets_no_formula_tag_or_substitution_but_keeps_code():
    assert prose("costs $5 <b> |x|, `a < $b`") == r"costs \$5 \<b> \|x\|, `a < $b`"
    assert prose("see:\n\n    a < b") == "see:\n\n    a < b"


def test_two_types_of_one_name_are_told_apart():
    offered = where_offered(api_pages())
    assert offered["prefill_decode.kv_transfer.pool", "Pool"] == "prefill_decode.kv_transfer.Pool"
    assert offered["prefill_decode.simulator.fleet", "Pool"] == "prefill_decode.simulator.Pool"
    shown = page_text(PAGES["simulator"], offered)
    assert "pools: tuple[prefill_decode.simulator.Pool, ...]" in shown
    assert "prefill_decode.kv_transfer.Pool" not in shown


def test_a_default_that_sphinx_cannot_read_is_left_open():
    assert "f(a=...)" in define("def f(a=('x', *REST)): ...")


def test_every_page_is_written_and_listed(tmp_path):
    write_api_pages(tmp_path / "api")
    written = {path.stem: path.read_text() for path in (tmp_path / "api").glob("*.md")}
    assert set(written) == set(PAGES)
    shown = "{py:function} step_work(model: prefill_decode.model_spec.ModelSpec"
    assert shown in written["logic"] + written["logic_2"]
    assert "{py:class} Scheduler(pool: prefill_decode.scheduling.BlockPool" in written["scheduling"]
    assert "{py:function} run_bench(" in written["endpoint"]  # of a package without exports
    for name in written:
        assert f"(api/{name}.md)" in api_contents()


def test_fences_of_members_close_within_those_of_their_class():
    for page in PAGES.values():
        depth = []
        for line in page_text(page, {}).splitlines():
            marks = len(line) - len(line.lstrip("`"))
            if marks >= 6:
                if line[marks:]:
                    assert not depth or depth[-1] > marks
                    depth.append(marks)
                else:
                    assert depth.pop() == marks
        assert not depth
