"""A checkout in miniature, whose chapters take a moment and leave a real record."""

import json

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from prefill_decode.book import Project

SAVE = """
from prefill_decode import results
results.save(json.loads(record_text), results_dir)
"""


@pytest.fixture
def make_project(tmp_path, record):
    """make_project(last_cell): chapters `first` and `second` save a record, then run it."""

    def make(last_cell="value * 2"):
        (tmp_path / "notebooks").mkdir()
        (tmp_path / "constraints.txt").write_text("torch==2.13.0\n")
        chapters = ["first", "second"]
        files = [{"file": f"notebooks/{name}"} for name in chapters]
        toc = {"format": "jb-book", "root": "book/index", "parts": [{"chapters": files}]}
        (tmp_path / "_toc.yml").write_text(json.dumps(toc))
        for name in chapters:
            text = json.dumps({**record, "claim": name})
            cells = [
                new_markdown_cell(f"# The {name} claim"),
                new_code_cell(
                    "value = 1\ndevice = 'auto'\nresults_dir: str | None = None",
                    metadata={"tags": ["parameters"]},
                ),
                new_code_cell(f"import json\nrecord_text = {text!r}" + SAVE + "value"),
                new_code_cell(last_cell),
            ]
            nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / f"{name}.ipynb")
        return Project(tmp_path, tmp_path / "results", tmp_path / "_build")

    return make
