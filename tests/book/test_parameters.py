"""What a user may type as a parameter, after case H14 and its kind."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from prefill_decode.book.parameters import check_parameters, parse_assignments, read_parameters

SOURCE = """
batch_size = 1
prompt_tokens: int = 512
max_context: int | None = None
dtype = "float32"
peak_tflops = None
budget_s = 45.0
sizes = [1, 2]
cached = False
lengths: list | None = None
seed = 0
"""


@pytest.fixture
def notebook(tmp_path):
    def make(source=SOURCE, tags=("parameters",), copies=1):
        cells = [new_code_cell(source, metadata={"tags": list(tags)}) for _ in range(copies)]
        path = tmp_path / "claim.ipynb"
        nbformat.write(new_notebook(cells=[*cells, new_code_cell("batch_size * 2")]), path)
        return path

    return make


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["batch_size=4"], {"batch_size": 4}),
        (["max_context=2048"], {"max_context": 2048}),  # a union type is known
        (["max_context=None"], {"max_context": None}),
        (["peak_tflops=None"], {"peak_tflops": None}),  # None, not the word
        (["peak_tflops=inf"], {"peak_tflops": float("inf")}),
        (["peak_tflops=3.5"], {"peak_tflops": 3.5}),  # a bare None leaves the type open
        (["dtype=bfloat16"], {"dtype": "bfloat16"}),
        (["dtype='bfloat16'"], {"dtype": "bfloat16"}),
        (["budget_s=30"], {"budget_s": 30.0}),
        (["sizes=[1, 2, 4]"], {"sizes": [1, 2, 4]}),
        (["cached=True"], {"cached": True}),
    ],
)
def test_a_fitting_value_is_taken(notebook, words, expected):
    checked = check_parameters(notebook(), parse_assignments(words))
    assert checked == expected
    assert [type(value) for value in checked.values()] == [
        type(value) for value in expected.values()
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["batchsize=4"], r"'batchsize'; did you mean batch_size\?"),
        (["zzz=4"], "got 'zzz'$"),
        (["batch_size='4'"], "batch_size takes int, such as 1; got '4', of type str"),
        (["batch_size=4.0"], "takes int"),
        (["batch_size=True"], "takes int"),
        (["batch_size=None"], "takes int"),
        (["max_context=many"], "takes int or None"),
        (["sizes=4"], "takes list"),
        (["sizes=[1, 'two']"], "takes int"),
        (["sizes=[]"], "got an empty one"),
        (["cached=1"], "takes bool"),
        (["sizes=[1]"], "at least two rising"),
        (["sizes=[2, 1]"], "at least two rising"),
        (["sizes=[1, 1]"], "at least two rising"),
        (["sizes=[0, 1]"], "at least two rising"),
        (["sizes=[1, 1000000]"], "at least two rising"),
        (["lengths=['a', 'b']"], "at least two rising"),
        (["lengths=[True, 2]"], "at least two rising"),
        (["prompt_tokens=-5"], "takes 0 to"),
        (["prompt_tokens=10000000"], "takes 0 to"),
        (["seed=-1"], "seed takes 0"),
        (["seed={[]: 1}"], "takes int"),
        (["seed=" + "-" * 5000 + "1"], "takes int"),
        (["budget_s=1" + "0" * 400], "takes float"),
        (["dtype=32"], "takes str"),
    ],
)
def test_a_value_that_does_not_fit_stops_before_anything_runs(notebook, words, message):
    with pytest.raises(ValueError, match=message):
        check_parameters(notebook(), parse_assignments(words))


@pytest.mark.parametrize("words", [["batch_size"], ["=4"], ["2x=4"], ["a=1", "a=2"]])
def test_words_that_are_no_assignment_are_refused(words):
    with pytest.raises(ValueError, match="a parameter is given"):
        parse_assignments(words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tags": ()}, "exactly one cell tagged 'parameters'; got 0"),
        ({"copies": 2}, "got 2"),
        ({"source": "batch_size = 2 * 2"}, "parameters are literals"),
        ({"source": "batch_size = other"}, "parameters are literals"),
        ({"source": "import os"}, "name = literal"),
        ({"source": "a = b = 1"}, "name = literal"),
        ({"source": "print(1)"}, "name = literal"),
        ({"source": "x: int"}, "name = literal"),
        ({"source": "a = = 1"}, "not Python"),
    ],
)
def test_a_notebook_has_one_parameters_cell_of_literals(notebook, options, message):
    with pytest.raises(ValueError, match=message):
        read_parameters(notebook(**options))


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    path = tmp_path / "claim.ipynb"
    for text in ("", "[]", '{"cells": 3}', "not json"):
        path.write_text(text)
        with pytest.raises(ValueError, match="not a readable notebook"):
            read_parameters(path)
