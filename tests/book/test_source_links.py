"""The button of a page that is made leads to a folder that is there, every other page's stays."""

import pytest

from prefill_decode.book.api_pages import api_pages
from prefill_decode.book.source_links import folder_of, lead_to_sources
from tests.conftest import ROOT

HOME = "https://github.com/ours/book"


@pytest.mark.parametrize("name", [page.name for page in api_pages()])
def test_every_api_page_leads_to_a_folder_of_the_checkout(name):
    assert not (ROOT / "book" / "api" / f"{name}.md").exists()
    url = folder_of(f"{HOME}/edit/some/branch/book/api/{name}.md")
    start = f"{HOME}/tree/some/branch/"
    assert url.startswith(start)
    folder = ROOT / url.removeprefix(start)
    assert folder.is_dir()
    assert folder.name == (name if (folder.parent / name).is_dir() else "prefill_decode")


@pytest.mark.parametrize(
    ("page", "folder"),
    [("results_by_machine", "book/results"), ("history", "book/results/history")],
)
def test_a_page_on_a_chapters_results_leads_to_its_records(page, folder):
    url = folder_of(f"{HOME}/edit/main/book/{page}/decode_is_serial.md")
    assert url == f"{HOME}/tree/main/{folder}/decode_is_serial"
    assert (ROOT / folder / "decode_is_serial").is_dir()


@pytest.mark.parametrize(
    "path", ["book/api.md", "book/index.md", "book/history.md", "notebooks/a.ipynb"]
)
def test_a_page_with_a_file_of_its_own_is_left_alone(path):
    assert folder_of(f"{HOME}/edit/main/{path}") is None


def test_buttons_in_a_group_are_found_and_others_stay():
    repository = {"type": "link", "url": HOME, "text": "Repository"}
    edit = {"type": "link", "url": f"{HOME}/edit/main/book/api/engine.md", "text": "Suggest edit"}
    other = {"type": "javascript", "text": "Search"}
    buttons = [{"type": "group", "buttons": [dict(repository), edit]}, dict(other)]
    lead_to_sources(None, "book/api/engine", "page.html", {"header_buttons": buttons}, None)
    assert edit["url"] == f"{HOME}/tree/main/lib/prefill_decode/engine"
    assert edit["text"] == "Show source"
    assert buttons[0]["buttons"][0] == repository
    assert buttons[1] == other
