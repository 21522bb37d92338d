"""The pages on paper: the article alone, as wide as the sheet, dark on white."""

import pytest

from tests.site.conftest import PAGES, SHEET
from tests.site.test_pages import contrast

pytestmark = pytest.mark.browser
TOO_WIDE = """width => [...document.querySelectorAll('#jb-print-docs-body *, .bd-article *')]
  .filter(e => !e.closest('mjx-assistive-mml') && e.getBoundingClientRect().right > width + 1)
  .map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60))"""
LEAST_CONTRAST = """() => [...document.querySelectorAll(
    '.bd-article p, .bd-article li, .bd-article td, .bd-article th, .bd-article pre span')]
  .filter(e => e.textContent.trim()).map(e => {
    let ground = e;
    const fill = () => getComputedStyle(ground).backgroundColor;
    const clear = () => /, 0\\)$|^transparent$/.test(fill());
    while (ground.parentElement && clear()) ground = ground.parentElement;
    const parts = color => color.match(/[\\d.]+/g).map(Number);
    return [parts(getComputedStyle(e).color), parts(fill()), e.textContent.slice(0, 40)];
  })"""


@pytest.fixture
def print_page(open_page):
    """print_page(path) -> the page as a reader of the dark theme prints it."""

    def print_it(path):
        page = open_page(path, "sheet", "dark")
        page.emulate_media(media="print")
        return page

    return print_it


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_the_sheet_and_prints_dark_on_white(look, path):
    page = look(path, "sheet", "dark", "print")
    assert page.evaluate(TOO_WIDE, SHEET[0]) == []
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    for ink, paper, words in page.evaluate(LEAST_CONTRAST):
        white = [255, 255, 255] if len(paper) > 3 else paper  # tints of the atlas
        assert contrast(ink, white) >= 7, words


def test_bars_and_buttons_stay_on_the_screen(print_page):
    page = print_page("notebooks/kv_cache_is_exact.html")
    for left_out in (".bd-sidebar-primary", ".bd-sidebar-secondary", ".bd-header-article",
                     ".prev-next-footer", "button.copybtn"):  # fmt: skip
        assert not any(each.is_visible() for each in page.locator(left_out).all()), left_out
    assert page.locator("h1:visible").count() == 1


def test_what_is_folded_on_the_screen_is_open_on_paper(print_page):
    page = print_page("notebooks/kv_cache_is_exact.html")
    folded = page.locator(".bd-article details:not([open])").first
    assert folded.locator("li").first.evaluate("e => e.getBoundingClientRect().height") > 8


def test_external_addresses_are_printed_and_internal_ones_are_not(print_page):
    page = print_page("book/run_it.html")
    after = "e => getComputedStyle(e, '::after').content"
    external = page.locator(".bd-article a.external[href^=http]").first
    assert "attr(href)" in external.evaluate(after) or "https://" in external.evaluate(after)
    internal = page.locator(".bd-article a.internal").first
    assert internal.evaluate(after) in ("none", "normal")


def test_a_chapter_prints_on_a_few_sheets(print_page):
    document = print_page("notebooks/kv_cache_is_exact.html").pdf(prefer_css_page_size=True)
    assert document.startswith(b"%PDF")
    assert 3 <= document.count(b"/Type /Page\n") <= 14
