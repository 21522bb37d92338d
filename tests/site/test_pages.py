"""The built site, clicked through in a real Chromium, wide and on a phone, light and dark.

The pages are tested, not the numbers on them. `conftest.py` says which book is looked at.
"""

import json
import re
from functools import cache
from io import BytesIO
from pathlib import PurePath
from urllib.parse import unquote, urldefrag, urlparse

import pytest
import yaml
from PIL import Image
from playwright.sync_api import expect

from tests.conftest import ROOT
from tests.site.conftest import CHAPTER_PAGES, CHAPTERS, PAGES, SIZES

pytestmark = pytest.mark.browser
LEAST_CONTRAST = 4.5  # WCAG 2.2 AA for text
HEIGHTS = """all => all.filter(e => e.textContent.trim())
  .map(e => [e.getBoundingClientRect().height, e.textContent])"""


@pytest.mark.parametrize("path", PAGES)
def test_a_page_loads_with_nothing_from_outside_and_no_complaint(look, site, path):
    page = look(path)
    outside = [url for url in page.requested if not url.startswith((site, "data:", "blob:"))]
    assert outside == []
    assert page.complaints == []
    assert page.locator("article h1").count() == 1


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_without_scrolling_sideways(look, path):
    page = look(path, "phone")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= SIZES["phone"][0] + 1


def test_formulas_are_set_by_the_sites_own_mathjax(open_page):
    page = open_page(f"notebooks/{CHAPTERS[0]}.html")
    expect(page.locator("mjx-container").first).to_be_visible()
    assert page.locator("mjx-merror").count() == 0


def test_a_table_that_goes_on_to_the_right_fades_there_until_its_end_is_reached(open_page):
    page = open_page("notebooks/kv_transfer_cost.html", "phone")
    faded = "e => parseFloat(getComputedStyle(e).getPropertyValue('--fades'))"
    tables = page.locator(".pst-scrollable-table-container").all()
    wide = [table for table in tables if table.evaluate("e => e.scrollWidth > e.clientWidth + 1")]
    assert wide
    for table in tables:
        assert (table.evaluate(faded) > 0) == (table in wide)
    wide[0].evaluate("e => e.scrollTo(e.scrollWidth, 0)")
    page.wait_for_function(f"e => ({faded})(e) === 0", arg=wide[0].element_handle())


def test_the_menu_on_a_phone_opens_and_leads_to_a_chapter(open_page):
    page = open_page("book/index.html", "phone")
    link = page.locator(
        ".bd-sidebar-primary a[href*='notebooks/']", has_text="Decode is bandwidth-bound"
    )
    expect(link).not_to_be_in_viewport()
    page.locator("button.primary-toggle").first.click()
    expect(link).to_be_in_viewport()
    link.click()
    expect(page.locator("article h1")).to_contain_text("Decode is bandwidth-bound")


def test_the_theme_switches_and_stays_switched(open_page):
    page = open_page("book/index.html")
    html = page.locator("html")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    for _ in range(3):  # auto, light, dark
        if html.get_attribute("data-theme") == "dark":
            break
        page.locator("button.theme-switch-button:visible").first.click()
    expect(html).to_have_attribute("data-theme", "dark")
    assert page.evaluate(ground) != light
    page.reload()
    expect(html).to_have_attribute("data-theme", "dark")


def luminance(color):
    parts = [c / 255 for c in color[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    darker, lighter = sorted((luminance(a), luminance(b)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("path", ["book/index.html", *CHAPTER_PAGES])
def test_every_figure_says_its_finding_and_is_visible_in_both_themes(look, path, theme):
    page = look(path, theme=theme)
    for image in page.locator("article img").all():
        assert len((image.get_attribute("alt") or "").split()) >= 4
        assert image.evaluate("element => element.naturalWidth") > 0
    figures = page.locator("article svg[role=img]")
    assert 1 <= figures.count() <= 3  # one a finding
    for figure in figures.all():
        assert len(figure.get_attribute("aria-label").split()) >= 8
        picture = Image.open(BytesIO(figure.screenshot())).convert("RGB")
        colors = picture.getcolors(maxcolors=2**24)
        ground = max(colors)[1]
        assert luminance(ground) > 0.8 if theme == "light" else luminance(ground) < 0.1
        ink = sum(count for count, color in colors if contrast(color, ground) >= LEAST_CONTRAST)
        assert ink > 0.005 * picture.width * picture.height
        for colored in ("#2b83c6", "#d55e00"):
            if colored in figure.inner_html():
                rgb = tuple(bytes.fromhex(colored[1:]))
                assert contrast(rgb, ground) >= 3  # WCAG 2.2 AA for graphics


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_text_in_figures_is_readable_on_a_phone(look, path):
    texts = look(path, "phone").locator("article svg[role=img] text")
    heights = texts.evaluate_all(HEIGHTS)
    assert len(heights) > 5
    assert [text for height, text in heights if height < 8] == []


@cache
def anchors(file):
    return set(re.findall(r'\bid="([^"]*)"', file.read_text()))


@pytest.mark.parametrize("path", PAGES)
def test_internal_links_resolve_anchors_included(look, site, built, path):
    html = built[0] / "html"
    links = look(path).locator("a[href]").evaluate_all("all => all.map(a => a.href)")
    inside = {link for link in links if link.startswith(site)}
    assert len(inside) > 20
    for url in inside:
        address, anchor = urldefrag(url)
        target = html / unquote(urlparse(address).path).lstrip("/")
        target = target / "index.html" if target.is_dir() else target
        assert target.is_file(), url
        if anchor and target.suffix == ".html":
            assert unquote(anchor) in anchors(target), url


def test_search_finds_a_term_and_leads_to_its_page(open_page, site):
    page = open_page("search.html?q=bandwidth")
    hit = page.locator("#search-results a", has_text="Decode is bandwidth-bound").first
    expect(hit).to_be_visible()
    hit.click()
    assert "decode_is_bandwidth_bound" in page.url


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_launch_source_and_download_links_open_the_right_file(look, built, path):
    page = look(path)
    home = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    owner_and_name = home.removeprefix("https://github.com/")
    notebook = path.replace(".html", ".ipynb")
    assert (ROOT / notebook).is_file()
    links = page.locator("a[href]").evaluate_all("all => all.map(a => a.href)")
    assert (
        f"https://colab.research.google.com/github/{owner_and_name}/blob/main/{notebook}" in links
    )
    binder = [link for link in links if link.startswith("https://mybinder.org/v2/gh/")]
    assert len(binder) == 1
    assert f"{owner_and_name}/main?" in binder[0]
    assert unquote(binder[0]).endswith(notebook)
    assert f"{home}/edit/main/{notebook}" in links
    download = next(link for link in links if link.endswith(notebook) and "_sources" in link)
    file = built[0] / "html" / urlparse(download).path.lstrip("/")
    cells = json.loads(file.read_text())["cells"]
    assert any("find_spec" in "".join(cell["source"]) for cell in cells)
    assert any(cell.get("outputs") for cell in cells)


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_a_chapter_shows_its_verdict_its_provenance_and_tables_as_tables(look, built, path):
    page = look(path)
    folder = built[1] / PurePath(path).stem
    records = [json.loads(file.read_text()) for file in folder.glob("*.json")]
    record = max(records, key=lambda record: record["date"])
    name = record["model"]["name"].split(",")[0]
    dtype = "bfloat16" if record["simulated"] else "float32"
    for words in (name, dtype):  # a slice says between them how many layers it has
        expect(page.locator("div.provenance")).to_contain_text(words)
    expect(page.locator("article")).to_contain_text(f"{record['verdict']['outcome']}.")
    assert page.locator("div.cell_output table").count() >= 4  # setting, told, seen, verdict
    assert "| --- |" not in page.locator("article").inner_text()
    assert page.locator("article").get_by_text("find_spec").count() == 0


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_solutions_are_folded_until_a_reader_opens_them(open_page, path):
    page = open_page(path)
    in_words = page.locator("details.sd-dropdown", has_text="Solutions")
    in_code = page.locator("details.hide", has=page.locator("summary", has_text="Solution"))
    assert in_words.count() == 1
    assert in_code.count() >= 1
    for fold in [*in_words.all(), *in_code.all()]:
        assert fold.get_attribute("open") is None
        assert fold.locator("summary").is_visible()
    for fold in in_code.all():
        output = fold.locator("div.cell_output").first
        assert not output.is_visible()
        fold.locator("summary").click()
        expect(output).to_be_visible()
        assert re.search(r"\d", output.inner_text())


@pytest.mark.parametrize("path", CHAPTER_PAGES)
def test_laws_have_numbers_and_references_lead_to_them(look, path):
    page = look(path)
    assert page.locator("article span.eqno").count() >= 1
    for link in page.locator("article a.reference[href*='#equation-']").all():
        assert re.fullmatch(r"\(\d+\)", link.text_content())  # folded ones have no inner text


def test_the_cover_shows_every_claim_with_its_verdict_here(open_page):
    page = open_page("book/index.html")
    rows = page.locator("article table tbody tr")
    assert rows.count() == len(CHAPTERS)
    for row in rows.all():
        assert any(
            word in row.inner_text() for word in ("supported", "refuted", "inconclusive", "void")
        )


def test_the_front_door_leads_to_the_cover(open_page, site):
    page = open_page("book/run_it.html")
    page.goto(site)
    page.wait_for_url("**/book/index.html")
    expect(page.locator("article h1")).to_contain_text("Prefill and Decode")
