"""The status page: what was run here, when, for how long, with which code."""

import nbformat
import pytest
from nbformat.v4 import new_notebook

from prefill_decode.book.status_page import format_minutes, run_time_s, status_page


@pytest.fixture
def executed(tmp_path):
    """executed(name, duration): the path of a notebook that papermill ran for so long."""

    def make(name, duration):
        path = tmp_path / f"{name}.run.ipynb"
        metadata = {"papermill": {"duration": duration}} if duration is not None else {}
        nbformat.write(new_notebook(metadata=metadata), path)
        return path

    return make


def test_a_chapter_has_its_row_and_the_whole_book_its_sum(make_project, record, executed):
    project, slug = make_project(), record["machine"]["slug"]
    records = [
        {**record, "claim": "first", "commit": "abc", "date": "2026-01-02T03:04:05Z"}
        | {"peak_memory_bytes": 1_230_000_000},
        {**record, "claim": "second", "commit": None, "measuring_s": 61.2}
        | {"peak_memory_bytes": None},
    ]
    runs = {"first": executed("first", 75.2), "second": executed("second", 50.1)}
    lines = status_page(project, runs, records, slug).splitlines()
    assert "all 2 chapters took 2 min 5 s together" in lines[0]
    assert record["machine"]["title"] in lines[0]
    first, second = lines[-2:]
    assert first.startswith(
        "| [The first claim](../notebooks/first.ipynb) | ✓ supported | 1 min 15"
    )
    assert first.endswith("| 1.23 GB | cpu | 2026-01-02 | `abc` |")
    assert "| 50 s | 1 min 1 s | unknown | cpu |" in second
    assert second.endswith("| unknown |")


def test_another_machines_record_is_no_run_here(make_project, record, executed):
    runs = {"first": executed("first", 10.0)}
    records = [{**record, "claim": "first"}]
    here = status_page(make_project(), runs, records, record["machine"]["slug"])
    assert "1 of 2 chapters took 10 s" in here
    assert here.splitlines()[-1].count("not run") == 1


def test_nothing_run_says_so(make_project):
    page = status_page(make_project(), {}, [], "nowhere")
    assert page.startswith("No chapter has been run")
    assert page.count("not run") == 2


def test_a_run_that_does_not_say_how_long_it_took_counts_as_unknown(executed):
    assert run_time_s(executed("a", None)) is None
    assert run_time_s(executed("b", 3)) == 3.0


def test_simulated_chapters_say_so(make_project, simulated_record, executed):
    record = {**simulated_record, "claim": "first"}
    page = status_page(make_project(), {}, [record], record["machine"]["slug"])
    assert "2 s of simulating" in page


@pytest.mark.parametrize(
    ("time_s", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (725, "12 min 5 s")]
)
def test_times_are_minutes_and_seconds(time_s, words):
    assert format_minutes(time_s) == words
