"""The page on the architecture: the imports that are there, drawn and listed."""

from prefill_decode.book.architecture_page import (
    architecture_parts,
    figure,
    layers_list,
    needed_arrows,
    told_of,
)
from prefill_decode.book.layers import LAYERS, PACKAGE, imports_of_parts


def test_an_arrow_is_left_out_where_a_longer_way_leads():
    rows = [["a"], ["b", "c"], ["d"]]
    arrows = {"a": {"b", "c", "d"}, "b": {"d"}, "c": set(), "d": set()}
    assert needed_arrows(rows, arrows) == {"a": {"b", "c"}, "b": {"d"}, "c": set(), "d": set()}


def test_every_package_is_drawn_and_modules_are_counted():
    svg = figure(imports_of_parts()).svg
    for layer in LAYERS:
        for part in layer.parts:
            if (PACKAGE / part).is_dir():
                assert f">{part}</text>" in svg, part
    words = [part for part in LAYERS[0].parts if not (PACKAGE / part).is_dir()]
    assert f"{len(words)} modules of words" in svg


def test_an_import_that_is_added_is_drawn():
    imports = imports_of_parts()
    before = figure(imports).alt
    imports["kv_transfer"] = imports["kv_transfer"] | {"kernels"}
    assert figure(imports).alt != before


def test_the_list_names_every_part_with_what_it_says_of_itself_and_imports():
    listed = layers_list(imports_of_parts())
    for layer in LAYERS:
        for part in layer.parts:
            assert f"[`{part}`](api/" in listed
            assert told_of(part), part
    scheduling = listed.partition("[`scheduling`]")[2].partition("\n[`")[0]
    assert "Which sequences run in a step" in scheduling
    assert "Imports step." in scheduling


def test_the_page_asks_for_what_there_is(root):
    page = (root / "book" / "architecture.md").read_text()
    for name in architecture_parts():
        assert f"<!-- {name} -->" in page
