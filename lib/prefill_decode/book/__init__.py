"""Book: run the notebooks with papermill, stage their outputs, build the pages."""

from prefill_decode.book.new_chapter import new_chapter
from prefill_decode.book.pages import claims_table, refresh_readme
from prefill_decode.book.project import Project, find_project
from prefill_decode.book.run import ChapterFailure, run_chapter
from prefill_decode.book.stage import build_html, stage

__all__ = [
    "ChapterFailure",
    "Project",
    "build_html",
    "claims_table",
    "find_project",
    "new_chapter",
    "refresh_readme",
    "run_chapter",
    "stage",
]
