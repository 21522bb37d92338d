"""Every page under axe: WCAG 2.2 A and AA, in light and dark, wide and on a phone."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.site.conftest import CHAPTER_PAGES, PAGES
from tests.site.test_pages import LEAST_CONTRAST, contrast

pytestmark = pytest.mark.browser
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
INKS = """() => [...document.querySelectorAll('article svg text')].map(e => {
  const parts = color => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const ground = getComputedStyle(document.body).backgroundColor;
  return [parts(getComputedStyle(e).fill), parts(ground), e.textContent];
})"""
EVERY_RULE = {"runOnly": {"type": "tag", "values": TAGS}, "resultTypes": ["violations"]}
THEME_LOOKS_MS = 450  # after another size, for boxes that scroll, which Tab should then reach
COLOURS = {
    "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
    "resultTypes": ["violations"],
}


def violations(page, options=EVERY_RULE):
    """Rule, element and what axe has to say, one line each."""
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:150]} ({node['failureSummary']})"
        for rule in found
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("path", [*PAGES, "search.html?q=bandwidth", "404.html"])
def test_a_page_breaks_no_rule_of_wcag_and_keeps_contrast_in_the_dark(look, path):
    """Narrow, where what scrolls is known; then wide and dark, which differs in colours alone: only
    their rules are held against it."""
    page = look(path, "phone")
    page.wait_for_timeout(THEME_LOOKS_MS)
    assert violations(page) == [], path
    assert violations(look(path, theme="dark"), COLOURS) == [], f"{path}, dark"


@pytest.mark.parametrize("path", ["book/index.html", "book/calculator.html", PAGES[-1]])
def test_a_wide_page_with_its_menus_breaks_no_rule_of_wcag(look, path):
    assert violations(look(path)) == [], path


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_words_in_a_figure_stand_out_from_the_page(look, path, theme):
    """Axe does not look at text in SVG."""
    inks = look(path, theme=theme).evaluate(INKS)
    assert len(inks) > 5
    faint = [words for ink, ground, words in inks if contrast(ink, ground) < LEAST_CONTRAST]
    assert faint == []


def test_what_breaks_a_rule_is_found(open_page):
    page = open_page("book/index.html")
    page.evaluate("document.querySelector('article').append(document.createElement('img'))")
    page.evaluate("document.querySelector('article p').style.color = '#999'")
    rules = {line.partition(":")[0] for line in violations(page)}
    assert {"image-alt", "color-contrast"} <= rules
    assert {line.partition(":")[0] for line in violations(page, COLOURS)} == {"color-contrast"}
