"""Site files: what stands beside the pages of a built book: the front door, the page for an
address that is none, and what crawlers read.

Of robots.txt only the one at a host's root counts; elsewhere it is there for who looks.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from prefill_decode.book.page_head import HEAD_TAG

FRONT_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Prefill and Decode</title>
{head}
<meta http-equiv="refresh" content="0; url={cover}"></head>
<body><a href="{cover}">Prefill and Decode</a></body>
</html>
"""
# It is shown at any depth below the site, so what it links to stands with the whole path.
NOT_FOUND = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>No such page: Prefill and Decode</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<meta name="description" content="No page of the book stands at this address.">
<style>
:root {{ color-scheme: light dark; background: #fff; color: #1f2328; }}
body {{ font: 1.1rem/1.6 system-ui, sans-serif; max-width: 34rem; margin: 15vh auto;
  padding: 0 1rem; }}
a {{ color: #0b5bc0; }}
@media (prefers-color-scheme: dark) {{
  :root {{ background: #121212; color: #ced6dd; }}
  a {{ color: #85b4f5; }}
}}
</style></head>
<body><main>
<h1>No such page</h1>
<p>No page of the book stands at this address. It may have moved: begin at
<a href="{root}{cover}">the cover</a> or <a href="{root}search.html">search the book</a>.</p>
</main></body>
</html>
"""

BARE_TOGGLE = '<summary><span class="toctree-toggle"'
NAMED_TOGGLE = '<summary aria-label="Show or hide the pages below"><span class="toctree-toggle"'


def write_site_files(html: Path, pages: Sequence[str], address: str | None) -> Path:
    """Write them into the built site and return the front door. `pages` are paths below it, the
    cover first; without an `address` there is no sitemap, which holds whole addresses only."""
    front, cover = html / "index.html", pages[0]
    head = HEAD_TAG.findall((html / cover).read_text(encoding="utf-8"))
    if address:
        head.append(f'<link rel="canonical" href="{escape(address + cover)}">')
        (html / "sitemap.xml").write_text(sitemap([address + page for page in pages]))
        (html / "robots.txt").write_text(robots(address))
    front.write_text(FRONT_PAGE.format(cover=cover, head="\n".join(head)), encoding="utf-8")
    root = urlsplit(address).path if address else "/"
    not_found = NOT_FOUND.format(root=escape(root), cover=cover)
    (html / "404.html").write_text(not_found, encoding="utf-8")
    return front


def name_toggles(html: Path) -> None:
    """Give the arrows that fold parts of the menu a name: the theme draws them without words."""
    for path in html.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        if BARE_TOGGLE in text:
            path.write_text(text.replace(BARE_TOGGLE, NAMED_TOGGLE), encoding="utf-8")


def sitemap(addresses: Sequence[str]) -> str:
    """The sitemap of these addresses, as sitemaps.org has it."""
    places = "\n".join(f"  <url><loc>{escape(address)}</loc></url>" for address in addresses)
    head = '<?xml version="1.0" encoding="utf-8"?>'
    space = "http://www.sitemaps.org/schemas/sitemap/0.9"
    return f'{head}\n<urlset xmlns="{space}">\n{places}\n</urlset>\n'


def robots(address: str) -> str:
    return f"User-agent: *\nAllow: /\nSitemap: {address}sitemap.xml\n"
