"""The site's address, what its pages say in their heads, and the files beside them."""

from xml.etree import ElementTree

import pytest
from docutils import nodes
from docutils.utils import new_document
from PIL import Image

from prefill_decode.book.page_head import (
    HEAD_TAG,
    describe,
    first_paragraph,
    head_tags,
    with_known_roles,
)
from prefill_decode.book.pages import ROOFLINE_CLAIM
from prefill_decode.book.site_address import pages_address, site_address
from prefill_decode.book.site_files import name_toggles, sitemap, write_site_files
from prefill_decode.book.social_card import HEIGHT_PIXELS, WIDTH_PIXELS, draw, newest_finding

HOME, FORK = "https://github.com/Ours/book", "https://github.com/theirs/book"


@pytest.mark.parametrize(
    ("repository", "address"),
    [
        (HOME, "https://ours.github.io/book/"),
        ("https://github.com/ours/book.git", "https://ours.github.io/book/"),
        ("https://github.com/ours/a.b/", "https://ours.github.io/a.b/"),
        ("https://github.com/Ours/ours.github.io", "https://ours.github.io/"),
        ("https://example.org/ours/book", None),
        ("https://github.com/ours", None),
    ],
)
def test_the_sites_address_follows_from_the_repositorys(repository, address):
    assert pages_address(repository) == address


def test_a_named_address_holds_for_the_checkout_and_not_for_its_fork():
    named = {"html": {"baseurl": "https://book.example.org"}}
    assert site_address(named | {"repository": {"url": HOME}}, HOME) == "https://book.example.org/"
    assert site_address(named | {"repository": {"url": FORK}}, HOME) == (
        "https://theirs.github.io/book/"
    )
    assert site_address({"html": None, "repository": {"url": HOME}}, HOME) == pages_address(HOME)


def test_a_description_is_whole_sentences_while_they_fit():
    assert describe("Claim. Decode waits.\nFor memory.") == "Decode waits. For memory."
    assert describe("Short. " + "word " * 60 + ".") == "Short."
    long = describe("word " * 60)
    assert long.startswith("word word")
    assert long.endswith("word …")
    assert len(long) <= 202
    assert describe("SmolLM2 1.7B has 1.7e9 parameters. " + "x" * 190) == (
        "SmolLM2 1.7B has 1.7e9 parameters."
    )


def test_the_first_paragraph_is_one_of_the_text_and_not_of_a_box():
    document = new_document("page")
    box = nodes.container("", nodes.paragraph(text="Measured on a machine."))
    document += nodes.section("", box, nodes.paragraph(text="The claim."))
    assert first_paragraph(document) == "The claim."
    assert first_paragraph(None) == ""


def test_the_head_escapes_what_it_says_and_names_the_card_only_with_an_address():
    tags = head_tags("Book", 'A "b" <c>', "x & y", None, None)
    assert 'content="A &quot;b&quot; &lt;c&gt;"' in tags
    assert "og:url" not in tags
    assert "og:image" not in tags
    assert len(HEAD_TAG.findall(tags)) == len(tags.splitlines()) == 5
    tags = head_tags("Book", "Book", "x", "https://a/b/", ("https://a/c.png", "It is 3 times."))
    assert '<meta property="og:type" content="website" />' in tags
    assert '<meta property="og:image:alt" content="It is 3 times." />' in tags


def test_the_sources_are_a_list_of_items():
    body = '<div role="list"><div class="citation" role="doc-biblioentry">A</div></div>'
    assert with_known_roles(body) == body.replace("doc-biblioentry", "listitem")


@pytest.fixture
def cover(tmp_path):
    (tmp_path / "book").mkdir()
    head = head_tags("Book", "Book", "What it says.", None, None)
    (tmp_path / "book" / "index.html").write_text(f"<html><head>{head}</head></html>")
    return tmp_path


def test_the_front_door_says_what_the_cover_says_and_leads_to_it(cover):
    address = "https://ours.github.io/book/"
    front = write_site_files(cover, ["book/index.html", "a&b.html"], address)
    text = front.read_text()
    assert '<meta name="description" content="What it says." />' in text
    assert "url=book/index.html" in text
    assert f'<link rel="canonical" href="{address}book/index.html">' in text
    root = ElementTree.parse(cover / "sitemap.xml").getroot()
    space = "{http://www.sitemaps.org/schemas/sitemap/0.9}"
    found = [each.text for each in root.iter(f"{space}loc")]
    assert found == [f"{address}book/index.html", f"{address}a&b.html"]
    assert f"Sitemap: {address}sitemap.xml" in (cover / "robots.txt").read_text()
    assert 'href="/book/book/index.html"' in (cover / "404.html").read_text()


def test_without_an_address_there_is_no_sitemap(cover):
    write_site_files(cover, ["book/index.html"], None)
    assert not (cover / "sitemap.xml").exists()
    assert not (cover / "robots.txt").exists()
    assert 'href="/book/index.html"' in (cover / "404.html").read_text()
    assert ElementTree.fromstring(sitemap([]).encode()) is not None


@pytest.fixture
def phases(record):
    """phases(date): a record of the chapter that the card is drawn from."""

    def make(date):
        prefill = {**record["points"][0], "step": "prefill 8", "new_tokens": 8}
        prefill["flops"] = 4 * prefill["flops"]
        longer = {**prefill, "step": "prefill 64", "new_tokens": 64, "flops": 8 * prefill["flops"]}
        points = [record["points"][0], prefill, longer]
        return {**record, "claim": ROOFLINE_CLAIM, "date": date, "points": points}

    return make


def test_the_card_states_what_the_newest_record_measured(phases, record, tmp_path):
    older, newer = phases("2026-01-01T00:00:00Z"), phases("2026-02-01T00:00:00Z")
    newer["machine"] = {**record["machine"], "title": "Newer"}
    finding = newest_finding([newer, older, record])
    assert finding.sentence == "Prefill does 32 times the FLOP/s of decode, measured on Newer."
    draw(finding, "Book", tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as card:
        assert card.size == (WIDTH_PIXELS, HEIGHT_PIXELS)
        assert len(card.convert("RGB").getcolors(2**24)) > 50


def test_the_card_says_nothing_of_a_void_run_where_another_is_sound(phases):
    sound, void = phases("2026-01-01T00:00:00Z"), phases("2026-02-01T00:00:00Z")
    void["verdict"] = {"outcome": "void", "reason": "r"}
    void["machine"] = {**sound["machine"], "title": "Void"}
    assert "Void" not in newest_finding([void, sound]).sentence
    assert "Void" in newest_finding([void]).sentence


def test_there_is_no_card_without_a_decode_and_a_prefill(phases, record):
    lonely = phases("2026-01-01T00:00:00Z")
    lonely["points"] = lonely["points"][:1]
    assert newest_finding([lonely, record]) is None


def test_an_arrow_of_the_menu_gets_a_name_and_all_else_stays(tmp_path):
    page = tmp_path / "book" / "page.html"
    page.parent.mkdir()
    arrow = '<summary><span class="toctree-toggle"></span></summary>'
    page.write_text(f"<details>{arrow}</details><details><summary>More</summary></details>")
    name_toggles(tmp_path)
    assert page.read_text() == (
        '<details><summary aria-label="Show or hide the pages below"><span class="toctree-toggle">'
        "</span></summary></details><details><summary>More</summary></details>"
    )


def test_the_lines_of_a_long_signature_are_no_definitions():
    lines = '<dl>\n<dd><em class="sig-param">rows</em>,</dd>\n</dl>'
    words = "<dl>\n<dt>step</dt><dd>one pass</dd></dl>"
    mended = with_known_roles(lines + words)
    assert mended == lines.replace("<dl>", '<dl role="presentation">') + words
