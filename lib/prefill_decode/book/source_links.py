"""Source links: the button of a page whose source is not in git leads to what it was made from.

The theme offers to edit every page's own file. The API pages have none: they are made from the
docstrings of a folder, so their button shows that folder. A chapter's pages on its results are made
from records, so theirs shows the folder of these."""

import re
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from prefill_decode.book.layers import PACKAGE

EDIT_API_PAGE = re.compile(r"/edit/(.+)/book/api/(\w+)\.md$")
EDIT_RESULTS_PAGE = re.compile(r"/edit/(.+)/book/(results_by_machine|history)/(\w+)\.md$")
FOLDER = f"lib/{PACKAGE.name}"
RECORDS = {"results_by_machine": "book/results", "history": "book/results/history"}


def lead_to_sources(
    app: Sphinx,
    pagename: str,
    template: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Behind the theme, which puts the buttons into `context`."""
    for button in _links(context.get("header_buttons", [])):
        url = folder_of(button["url"])
        if url:
            said = {"text": "Show source", "tooltip": "Show source", "icon": "fas fa-code"}
            button.update(said, url=url)


def folder_of(edit_url: str) -> str | None:
    """Where the sources of an API page are shown: a package's folder, the library's for the modules
    of a layer; for a page on results, the chapter's records; None for other pages."""
    if found := EDIT_API_PAGE.search(edit_url):
        branch, name = found.groups()
        folder = f"{FOLDER}/{name}" if (PACKAGE / name).is_dir() else FOLDER
    elif found := EDIT_RESULTS_PAGE.search(edit_url):
        branch, kind, chapter = found.groups()
        folder = f"{RECORDS[kind]}/{chapter}"
    else:
        return None
    return f"{edit_url[: found.start()]}/tree/{branch}/{folder}"


def _links(buttons: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for button in buttons:
        if button["type"] == "group":
            yield from _links(button["buttons"])
        elif button["type"] == "link":
            yield button
