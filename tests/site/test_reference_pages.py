"""The pages on the architecture and the API, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

from tests.conftest import ROOT
from tests.site.conftest import SIZES

pytestmark = pytest.mark.browser


@pytest.mark.parametrize(
    ("name", "page_name"), [("step_work", "logic_2"), ("interleave", "measure"), ("Chunk", "words")]
)
def test_search_finds_a_function_or_a_class_by_its_name(open_page, name, page_name):
    page = open_page(f"search.html?q={name}")
    hit = page.locator(f"#search-results a[href*='api/{page_name}.html#']").first
    expect(hit).to_be_visible()
    hit.click()
    assert f"api/{page_name}.html" in page.url
    expect(page.locator(f"dt[id$='.{name}']")).to_be_in_viewport()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_the_layers_are_readable_on_every_screen(open_page, size, theme):
    page = open_page("book/architecture.html", size, theme)
    figure = page.locator("article svg[role=img]")
    assert figure.count() == 1
    assert len(figure.get_attribute("aria-label").split()) >= 8
    box = figure.bounding_box()
    for text in figure.locator("text").all():
        place = text.bounding_box()
        assert place["height"] >= 8
        assert box["x"] <= place["x"]
        assert place["x"] + place["width"] <= box["x"] + box["width"]


def test_the_list_of_parts_leads_to_what_each_offers(open_page):
    page = open_page("book/architecture.html")
    page.locator("article dt a", has_text="scheduling").first.click()
    page.wait_for_url("**/book/api/scheduling.html")
    expect(page.locator("article h1")).to_contain_text("scheduling")


@pytest.mark.parametrize("path", ["api/engine", "api/words", "api", "status"])
def test_the_button_to_the_source_of_a_page_names_what_is_in_git(open_page, path):
    links = open_page(f"book/{path}.html").locator("a[href]")
    targets = links.evaluate_all("all => all.map(a => a.getAttribute('href'))")
    found = [place for each in targets for place in re.findall(r"/(?:edit|tree)/main/(.+)", each)]
    buttons = [place for place in found if place.startswith(("book/", "lib/"))]
    assert len(buttons) == 1
    assert (ROOT / buttons[0]).exists()
