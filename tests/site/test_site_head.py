"""What search engines and previews read of the built book, and how heavy its pages are."""

import re
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
import yaml
from PIL import Image

from prefill_decode import __version__
from prefill_decode.book.site_address import pages_address
from tests.conftest import ROOT
from tests.site.conftest import PAGES

pytestmark = pytest.mark.browser
MOST_BYTES = 500_000


@pytest.fixture(scope="module")
def html(built):
    return built[0] / "html"


@pytest.fixture(scope="module")
def address():
    home = yaml.safe_load((ROOT / "_config.yml").read_text())["repository"]["url"]
    return pages_address(home)


def meta(text, name):
    found = re.findall(rf'<meta (?:name|property)="{name}" content="([^"]*)"', text)
    assert len(found) == 1, name
    return found[0]


def pages_of(html):
    files = [path for path in html.rglob("*.html") if "_static" not in path.parts]
    return [
        path for path in files if path != html / "index.html"
    ]  # that one says what the cover says


def test_every_page_has_a_description_of_its_own_and_a_language(html):
    descriptions = {}
    for path in pages_of(html):
        text = path.read_text()
        assert '<html lang="en"' in text, path
        description = meta(text, "description")
        assert len(description) >= 20, path
        assert description not in descriptions, (path, descriptions.get(description))
        descriptions[description] = path
    assert len(descriptions) >= len(PAGES)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_names_its_address_and_its_card(html, address, path):
    text = (html / path).read_text()
    assert re.findall(r'<link rel="canonical" href="([^"]*)"', text) == [address + path]
    assert meta(text, "og:url") == address + path
    assert meta(text, "og:description") == meta(text, "description")
    assert "times the FLOP/s of decode" in meta(text, "og:image:alt")
    card = html / meta(text, "og:image").removeprefix(address)
    with Image.open(card) as picture:
        assert picture.size == (
            int(meta(text, "og:image:width")),
            int(meta(text, "og:image:height")),
        )


def test_the_sitemap_holds_every_page_of_the_book_and_nothing_that_is_not_there(html, address):
    root = ElementTree.parse(html / "sitemap.xml").getroot()
    found = [each.text.removeprefix(address) for each in root.iter() if each.tag.endswith("loc")]
    chapters_and_pages = [*html.glob("book/**/*.html"), *html.glob("notebooks/*.html")]
    assert set(found) == {path.relative_to(html).as_posix() for path in chapters_and_pages}
    assert set(PAGES) <= set(found)
    assert len(set(found)) == len(found)
    assert all((html / path).is_file() for path in found)
    assert f"Sitemap: {address}sitemap.xml" in (html / "robots.txt").read_text()


def test_the_front_door_previews_as_the_cover_does(html):
    front, cover = (html / "index.html").read_text(), (html / "book" / "index.html").read_text()
    for name in ("description", "og:title", "og:image", "og:url"):
        assert meta(front, name) == meta(cover, name)


def test_a_wrong_address_leads_back_into_the_book(html, address, open_page):
    page = open_page("404.html")
    links = page.locator("a").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    root = urlsplit(address).path
    assert len(links) == 2
    assert all((html / link.removeprefix(root)).is_file() for link in links)


def test_the_footer_says_version_and_date(open_page):
    footer = open_page("book/index.html").locator(".bd-footer-content").inner_text()
    assert f"Version {__version__}" in footer
    assert re.search(r"Last updated on \w+ \d+, \d{4}", footer)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_weighs_little_beside_the_themes_files(html, look, site, path):
    page = look(path)
    own = {url.partition("?")[0] for url in page.requested if url.startswith(site)}
    theme = re.compile(r"_static/(?!book\.css|print\.css|social-card|favicon)")
    files = [html / url.removeprefix(site) for url in own if not theme.search(url)]
    assert html / path in files
    assert sum(file.stat().st_size for file in files) < MOST_BYTES


def test_no_page_is_heavy_in_itself(html):
    assert max(path.stat().st_size for path in pages_of(html)) < MOST_BYTES
